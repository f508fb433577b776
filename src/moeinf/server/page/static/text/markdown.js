// Markdown to elements, never through HTML: what a model writes cannot become script. A tag is text. Here are blocks;
// inline.js has what lies within a line. Nesting is bounded.

import { highlighted } from "./highlight.js";
import { drawnFormula, inline } from "./inline.js";
import { copyButton, element } from "../shared.js";

const DEEPEST = 8;
const MOST_COLUMNS = 50;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])(?:\s+|$)/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

const FORMULA = { $$: /^(.*?)\$\$\s*$/, "\\[": /^(.*?)\\\]\s*$/ };
const FORMULA_LINES = 100; // at most, of one formula

const ALIGN = { ":-": "left", "-:": "right", "::": "centre" };

/** Text that grows, shown in `into`. Only the blocks that have changed are made anew. */
export class MarkdownView {
  #into;
  #blocks = [];

  constructor(into) {
    this.#into = into;
  }

  show(text) {
    const blocks = blocksOf(text.split("\n"));
    let same = 0;
    while (same < blocks.length && blocks[same].raw === this.#blocks[same]?.raw) same += 1;
    const old = this.#blocks[same];
    if (old?.kind === "code" && blocks[same]?.kind === "code" && old.language === blocks[same].language) {
      const { text, language } = blocks[same];
      this.#into.children[same].querySelector("code").replaceChildren(...highlighted(text, language));
      same += 1;
    }
    while (this.#into.children.length > same) this.#into.lastElementChild.remove();
    this.#into.append(...blocks.slice(same).map((block) => drawn(block, 0)));
    this.#blocks = blocks;
  }
}

// ---- blocks

/** Cuts lines into blocks; raw: the lines of a block, by which a change is seen. */
function blocksOf(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at);
    blocks.push({ ...block, raw: lines.slice(at, end).join("\n") });
    at = end;
  }
  return blocks;
}

function blockAt(lines, at) {
  const line = lines[at];
  let match;
  if ((match = FENCE.exec(line))) return codeAt(lines, at, match);
  if ((match = HEADING.exec(line))) {
    const text = (match[2] ?? "").trim().replace(/(?:^| )#+$/, "");
    return [{ kind: "heading", level: match[1].length, text }, at + 1];
  }
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (QUOTE.test(line)) return quoteAt(lines, at);
  if (ITEM.test(line)) return listAt(lines, at);
  if (isTable(lines, at)) return tableAt(lines, at);
  const formula = formulaAt(lines, at);
  if (formula) return formula;
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end)) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).join("\n") }, end];
}

function isTable(lines, at) {
  return lines[at].includes("|") && lines[at + 1]?.includes("|") && TABLE_RULE.test(lines[at + 1]);
}

function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  if (item && line.length > item[0].length && (item[2] === undefined || item[2] === "1")) return true;
  if ([FENCE, HEADING, RULE, QUOTE].some((start) => start.test(line)) || isTable(lines, at)) return true;
  return formulaAt(lines, at) !== null;
}

function codeAt(lines, at, [, fence, language]) {
  const indent = lines[at].search(/\S/);
  const closing = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, line.search(/\S|$/))));
  return [{ kind: "code", language, text: text.join("\n") }, Math.min(end + 1, lines.length)];
}

/** A formula that begins a line and ends one; null where none does. */
function formulaAt(lines, at) {
  const opening = lines[at].trimStart().slice(0, 2);
  const closing = FORMULA[opening];
  if (!closing) return null;
  const inner = [lines[at].trimStart().slice(2), ...lines.slice(at + 1, at + FORMULA_LINES)];
  for (const [past, line] of inner.entries()) {
    const closed = closing.exec(line);
    if (closed) return [{ kind: "formula", text: [...inner.slice(0, past), closed[1]].join("\n") }, at + past + 1];
    if (past && !line.trim()) return null;
  }
  return null;
}

function quoteAt(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return [{ kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")) }, end];
}

function listAt(lines, at) {
  const [, { length: base }, start] = ITEM.exec(lines[at]);
  const items = [];
  let loose = false;
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) {
      items.at(-1).push("");
      continue;
    }
    const indent = line.search(/\S/) - base;
    const item = ITEM.exec(line);
    const afterBlank = !lines[end - 1]?.trim() && end > at;
    if (indent < 2 && item && (item[2] === undefined) === (start === undefined) && !RULE.test(line)) {
      loose ||= afterBlank;
      items.push([line.slice(item[0].length)]);
    } else if (indent >= 2) {
      loose ||= afterBlank && !item;
      items.at(-1).push(line.slice(base + Math.min(indent, start === undefined ? 2 : start.length + 2)));
    } else if (afterBlank || interrupts(lines, end)) {
      break;
    } else {
      items.at(-1).push(line); // the paragraph goes on without its indent
    }
  }
  while (end > at && !lines[end - 1].trim()) end -= 1;
  return [{ kind: "list", start: start && Number(start), items, loose }, end];
}

function tableAt(lines, at) {
  const align = cells(lines[at + 1]).map((rule) => ALIGN[rule[0] + rule.at(-1)]);
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  return [{ kind: "table", align, head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells) }, end];
}

function cells(line) {
  const inner = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  const parts = inner.split(/(?<!\\)\|/, MOST_COLUMNS);
  return parts.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// ---- elements

function drawn(block, depth) {
  const draw = { heading, rule: () => element("hr"), quote, list, table, code, paragraph, formula }[block.kind];
  return draw(block, depth);
}

function paragraph({ text }) {
  return element("p", {}, ...inline(text.trim()));
}

function formula({ text }) {
  return element(
    "div",
    { class: "wide formula", tabindex: 0, role: "region", "aria-label": "Formula" },
    drawnFormula(text, true),
  );
}

function heading({ level, text }) {
  return element(`h${Math.min(6, level + 3)}`, { class: `level-${level}` }, ...inline(text)); // the page has h1 to h3
}

function nested(lines, depth) {
  if (depth >= DEEPEST) return [element("p", {}, lines.join("\n"))];
  return blocksOf(lines).map((block) => drawn(block, depth + 1));
}

function quote({ lines }, depth) {
  return element("blockquote", {}, ...nested(lines, depth));
}

function list({ start, items, loose }, depth) {
  const made = items.map((lines) => {
    const children = nested(lines, depth);
    if (!loose && children[0]?.tagName === "P") children.splice(0, 1, ...children[0].childNodes);
    return element("li", {}, ...children);
  });
  return start === undefined ? element("ul", {}, ...made) : element("ol", { start }, ...made);
}

function table({ align, head, rows }) {
  const cell = (name, text, at) =>
    element(name, { class: align[at], scope: name === "th" ? "col" : null }, ...inline(text ?? ""));
  const line = (row) => element("tr", {}, ...head.map((_, at) => cell("td", row[at], at)));
  const top = element("tr", {}, ...head.map((text, at) => cell("th", text, at)));
  const whole = element("table", {}, element("thead", {}, top), element("tbody", {}, ...rows.map(line)));
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table" }, whole);
}

function code({ language, text }) {
  const inner = element("code", {}, ...highlighted(text, language));
  const bar = element("div", { class: "code-bar" }, element("span", {}, language));
  bar.append(
    copyButton(
      () => inner.textContent,
      () => inner,
    ),
  );
  const shown = element("pre", { tabindex: 0, "aria-label": language ? `Code, ${language}` : "Code" }, inner);
  return element("div", { class: "code" }, bar, shown);
}
