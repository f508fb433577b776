// Markdown within a line: emphasis, code, links, formulas. Links are http and https alone, and an image is a link.
// Nesting is bounded, and what nothing closes is looked for once.

import { element } from "../shared.js";
import { formula } from "./formulas.js";

const DEEPEST = 8;
const SPECIAL = /[\\`*_~[!<$]|https?:\/\//g;
const LINK =
  /!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const ANGLED = /<(https?:\/\/[^\s<>]+)>/y;
const BARE = /https?:\/\/[^\s<>"`]{1,2000}/y;
const MARKS = /\*{1,3}|_{1,3}|~~/y;
const FORMULA = new RegExp(
  [
    String.raw`\$\$([^$]{1,2000})\$\$`,
    String.raw`\$((?!\s)[^$\x60\n]{1,500}(?<![\s\\]))\$(?!\d)`,
    String.raw`\\\(([\s\S]{1,2000}?)\\\)`,
    String.raw`\\\[([\s\S]{1,2000}?)\\\]`,
  ].join("|"),
  "y",
);
const WRAPPED = { 1: ["em"], 2: ["strong"], 3: ["em", "strong"] };

function matchAt(pattern, source, at) {
  pattern.lastIndex = at;
  return pattern.exec(source);
}

/** Returns the nodes and strings of a text without blocks. */
export function inline(source, depth = 0) {
  if (depth >= DEEPEST) return [source];
  const nodes = [];
  const hopeless = new Set(); // marks that nothing closes from here on
  let [at, kept] = [0, 0];
  while (at < source.length) {
    const special = matchAt(SPECIAL, source, at);
    if (!special) break;
    const [node, end] = specialAt(source, special.index, depth, hopeless);
    if (node !== null) {
      if (special.index > kept) nodes.push(source.slice(kept, special.index));
      nodes.push(node);
      kept = end;
    }
    at = end;
  }
  if (kept < source.length) nodes.push(source.slice(kept));
  return nodes;
}

/** Returns [node or text, where it ends], or [null, where to go on] for what is plain text. */
function specialAt(source, at, depth, hopeless) {
  let match;
  const first = source[at];
  if ((first === "$" || first === "\\") && (match = matchAt(FORMULA, source, at))) {
    const [whole, displayed, short, bracketed, square] = match;
    return [drawnFormula(displayed ?? short ?? bracketed ?? square, !(short ?? bracketed)), at + whole.length];
  }
  if (first === "\\") {
    if (source[at + 1] === "\n") return [element("br"), at + 2];
    return /[!-/:-@[-`{-~]/.test(source[at + 1] ?? "") ? [source[at + 1], at + 2] : [null, at + 1];
  }
  if (first === "`") return codeSpan(source, at, hopeless);
  if ((first === "[" || first === "!") && (match = matchAt(LINK, source, at))) {
    return [link(match[2], inline(match[1] || match[2], depth + 1)), at + match[0].length];
  }
  if (first === "<" && (match = matchAt(ANGLED, source, at))) return [link(match[1], [match[1]]), at + match[0].length];
  if (first === "h" && !/\w/.test(source[at - 1] ?? "") && matchAt(BARE, source, at)) {
    const address = bareAddress(source, at);
    return [link(address, [address]), at + address.length];
  }
  if ((match = matchAt(MARKS, source, at))) return emphasis(source, at, match[0], depth, hopeless);
  return [null, at + 1];
}

/** A formula as MathML; as it was written where it is not understood. */
export function drawnFormula(source, display) {
  try {
    return formula(source, display);
  } catch {
    return element("code", {}, source.trim());
  }
}

function codeSpan(source, at, hopeless) {
  const mark = matchAt(/`+/y, source, at)[0];
  const end = hopeless.has(mark) ? -1 : closingTicks(source, at + mark.length, mark);
  if (end < 0) {
    hopeless.add(mark);
    return [null, at + mark.length];
  }
  const text = source.slice(at + mark.length, end);
  const padded = text.startsWith(" ") && text.endsWith(" ") && text.trim();
  return [element("code", {}, padded ? text.slice(1, -1) : text), end + mark.length];
}

function closingTicks(source, from, mark) {
  for (const run of source.slice(from).matchAll(/`+/g)) if (run[0].length === mark.length) return from + run.index;
  return -1;
}

/** An address in running text, without the punctuation of the sentence behind it. */
function bareAddress(source, at) {
  const address = matchAt(BARE, source, at)[0].replace(/[.,;:!?*_'\]]+$/, "");
  return address.includes("(") ? address : address.replace(/\)[).,;:!?]*$/, "");
}

function link(address, children) {
  if (!/^https?:\/\//i.test(address) || !URL.canParse(address)) return element("span", {}, ...children);
  return element("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, ...children);
}

function emphasis(source, at, mark, depth, hopeless) {
  const start = at + mark.length;
  const inWord = mark[0] === "_" && /\w/.test(source[at - 1] ?? "");
  if (inWord || hopeless.has(mark) || !/\S/.test(source[start] ?? "")) return [null, start];
  const end = closingMark(source, start, mark);
  if (end < 0) {
    hopeless.add(mark);
    return [null, start];
  }
  const names = mark === "~~" ? ["del"] : WRAPPED[mark.length];
  const inner = inline(source.slice(start, end), depth + 1);
  return [names.reduceRight((children, name) => [element(name, {}, ...children)], inner)[0], end + mark.length];
}

/** Where the mark closes, -1 if nowhere; what is code or escaped does not count. */
function closingMark(source, from, mark) {
  const runs = new RegExp(`\\\\.|\`+|\\${mark[0]}+`, "gs");
  runs.lastIndex = from;
  for (let run; (run = runs.exec(source));) {
    const { length } = run[0];
    if (run[0][0] === "`") {
      const end = closingTicks(source, runs.lastIndex, run[0]);
      if (end >= 0) runs.lastIndex = end + length;
    } else if (run[0][0] === mark[0]) {
      const fits = mark.length === 1 ? length % 2 === 1 : length >= mark.length;
      const afterText = run.index > from && /\S/.test(source[run.index - 1]);
      const wordGoesOn = mark[0] === "_" && /\w/.test(source[run.index + length] ?? "");
      if (fits && afterText && !wordGoesOn) return run.index + length - mark.length;
    }
  }
  return -1;
}
