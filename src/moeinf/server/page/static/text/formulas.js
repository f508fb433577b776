// Formulas in the notation of TeX to MathML, which browsers draw themselves. What is not known here is an error, so
// that a formula is right or shown as it was written. It makes elements, never HTML; nesting and length are bounded.

import { math } from "../shared.js";
import { ACCENTS, ALPHABETS, FUNCTIONS, LARGE, SPACES, SYMBOLS, lettersOf } from "./formula_symbols.js";

const DEEPEST = 40;
const LONGEST = 5000;
const TOKEN = /\\(?:[A-Za-z]+\*?|[\s\S])|\d+(?:\.\d+)?|[\s\S]/gu;
const FENCES = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{ " };
const ALIGNED = ["aligned", "align", "align*", "split", "eqnarray", "eqnarray*"];
const TABLES = [...Object.keys(FENCES), ...ALIGNED, "matrix", "array", "gathered", "gather", "gather*", "smallmatrix"];

/** The <math> element of a formula. Raises an Error for what is not known. display: on a line of its own. */
export function formula(source, display = false) {
  if (source.length > LONGEST) throw new Error("too long");
  const parser = new Parser(source, display);
  const row = parser.row(() => false);
  if (!parser.ended) throw new Error(`${parser.next} closes nothing`);
  return math("math", display ? { display: "block" } : {}, row);
}

const operator = (text, more = {}) => math("mo", more, text);
const grouped = (nodes) => (nodes.length === 1 ? nodes[0] : math("mrow", {}, ...nodes));

class Parser {
  #tokens;
  #at = 0;
  #depth = 0;
  #display;
  #alphabet = null;

  constructor(source, display) {
    this.#tokens = source.replace(/(?<!\\)%.*/g, "").match(TOKEN) ?? [];
    this.#display = display;
  }

  get ended() {
    return this.#at >= this.#tokens.length;
  }

  get next() {
    return this.#tokens[this.#at];
  }

  #take() {
    if (this.ended) throw new Error("it ends too early");
    return this.#tokens[this.#at++];
  }

  #expect(token) {
    if (this.#take() !== token) throw new Error(`${token} is missing`);
  }

  #blanks() {
    while (/^\s$/.test(this.next ?? "")) this.#at += 1;
  }

  /** Everything up to a token that ends(token), or the end. */
  row(ends) {
    if (++this.#depth > DEEPEST) throw new Error("too deep");
    const nodes = [];
    const alphabet = this.#alphabet;
    for (this.#blanks(); !this.ended && !ends(this.next) && this.next !== "}"; this.#blanks()) {
      const node = this.#scripted();
      if (node) nodes.push(node);
    }
    this.#alphabet = alphabet;
    this.#depth -= 1;
    return grouped(nodes);
  }

  /** An atom with what stands above and below it. */
  #scripted() {
    const first = this.next;
    let base = /^[\^_]$/.test(first) ? math("mrow") : this.#atom();
    if (!base) return null;
    let [below, above] = [null, null];
    let limits =
      this.#display && (LARGE.has(first) || FUNCTIONS[first] === "limits") && !/^\\i+nt$|^\\oint$/.test(first);
    for (this.#blanks(); /^(?:[\^_']|\\limits|\\nolimits)$/.test(this.next ?? ""); this.#blanks()) {
      const mark = this.#take();
      if (mark === "\\limits" || mark === "\\nolimits") limits = mark === "\\limits";
      else if (mark === "'") above = above ? math("mrow", {}, above, operator("′")) : operator("′");
      else if (mark === "^") above = above ? math("mrow", {}, above, this.#argument()) : this.#argument();
      else if (below) throw new Error("two things below");
      else below = this.#argument();
    }
    limits ||= base.localName === "munder" || base.localName === "mover";
    const names = limits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (below && above) return math(names[2], {}, base, below, above);
    if (below) return math(names[0], {}, base, below);
    return above ? math(names[1], {}, base, above) : base;
  }

  /** A group, or one token. */
  #argument() {
    if (++this.#depth > DEEPEST) throw new Error("too deep");
    this.#blanks();
    if (/^\d./.test(this.next ?? "")) this.#tokens.splice(this.#at, 1, this.next[0], this.next.slice(1)); // \frac12
    const node = this.#atom();
    this.#depth -= 1;
    return node ?? math("mrow");
  }

  #atom() {
    const token = this.#take();
    if (token === "{") return this.#group();
    if (token[0] === "\\" && token.length > 1) return this.#command(token);
    if (/^\d/.test(token)) return math("mn", {}, this.#alphabet ? lettersOf(token, this.#alphabet) : token);
    if (/^\p{L}$/u.test(token)) return this.#letter(token);
    if (token === "~") return math("mspace", { width: "0.33em" });
    if (token === "&" || token === "}" || token === "$") throw new Error(`${token} stands alone`);
    return operator({ "-": "−", "*": "∗" }[token] ?? token, /^[()[\]|/]$/.test(token) ? { stretchy: "false" } : {});
  }

  #group() {
    const row = this.row(() => false);
    this.#expect("}");
    return row.localName === "mrow" ? row : math("mrow", {}, row);
  }

  #letter(letter) {
    if (!this.#alphabet) return math("mi", {}, letter);
    return math("mi", { mathvariant: "normal" }, lettersOf(letter, this.#alphabet));
  }

  #command(token) {
    if (Object.hasOwn(SYMBOLS, token)) {
      const symbol = SYMBOLS[token];
      return /^\p{L}$/u.test(symbol)
        ? this.#greek(symbol)
        : operator(symbol, /^[|‖]$/.test(symbol) ? { stretchy: "false" } : {});
    }
    if (LARGE.has(token)) return operator(LARGE.get(token), this.#display ? { largeop: "true" } : {});
    if (Object.hasOwn(FUNCTIONS, token)) return math("mi", { mathvariant: "normal" }, token.slice(1));
    if (Object.hasOwn(SPACES, token)) return math("mspace", { width: SPACES[token] });
    if (Object.hasOwn(ACCENTS, token)) return this.#accent(ACCENTS[token]);
    if (Object.hasOwn(ALPHABETS, token)) return this.#inAlphabet(ALPHABETS[token]);
    return this.#structure(token);
  }

  /** Greek capitals stand upright, as in TeX. */
  #greek(symbol) {
    return math("mi", /\p{Lu}/u.test(symbol) ? { mathvariant: "normal" } : {}, symbol);
  }

  #accent([mark, place, wide]) {
    const base = this.#argument();
    const over = operator(mark, wide ? {} : { stretchy: "false" });
    return place === "over" ? math("mover", { accent: "true" }, base, over) : math("munder", {}, base, over);
  }

  #inAlphabet(alphabet) {
    const outer = this.#alphabet;
    this.#alphabet = alphabet;
    const node = this.#argument();
    this.#alphabet = outer;
    return node;
  }

  #structure(token) {
    switch (token) {
      case "\\frac":
      case "\\dfrac":
      case "\\tfrac":
      case "\\cfrac":
        return math("mfrac", {}, this.#argument(), this.#argument());
      case "\\binom":
        return this.#binomial();
      case "\\sqrt":
        return this.#root();
      case "\\text":
      case "\\textrm":
      case "\\textbf":
      case "\\textit":
      case "\\mbox":
        return math("mtext", {}, this.#raw().replace(/^ | $/g, "\u00a0"));
      case "\\operatorname":
      case "\\operatorname*":
        return math("mi", { mathvariant: "normal" }, this.#raw());
      case "\\left":
        return this.#fenced();
      case "\\begin":
        return this.#environment();
      case "\\overset":
      case "\\stackrel":
        return this.#stacked("mover");
      case "\\underset":
        return this.#stacked("munder");
      case "\\boxed":
        return math("mrow", { class: "boxed" }, this.#argument());
      case "\\pmod":
        return math(
          "mrow",
          {},
          operator("("),
          math("mi", { mathvariant: "normal" }, "mod"),
          math("mspace", { width: "0.3em" }),
          this.#argument(),
          operator(")"),
        );
      case "\\not":
        return this.#negated();
      case "\\tag":
        return math("mtext", {}, `\u2003(${this.#raw()})`);
      case "\\displaystyle":
      case "\\textstyle":
      case "\\nonumber":
      case "\\notag":
      case "\\hline":
        return null;
      default: {
        const size = /^\\[bB]igg?[lrm]?$/.test(token);
        if (size) return operator(this.#delimiter(), { minsize: "1.6em", maxsize: "1.6em", stretchy: "true" });
        throw new Error(`${token} is not known`);
      }
    }
  }

  #binomial() {
    const fraction = math("mfrac", { linethickness: "0" }, this.#argument(), this.#argument());
    return math("mrow", {}, operator("("), fraction, operator(")"));
  }

  #root() {
    this.#blanks();
    if (this.next !== "[") return math("msqrt", {}, this.#argument());
    this.#take();
    const index = this.row((token) => token === "]");
    this.#expect("]");
    return math("mroot", {}, this.#argument(), index);
  }

  #stacked(name) {
    const mark = this.#argument();
    return math(name, {}, this.#argument(), mark);
  }

  #negated() {
    const node = this.#argument();
    node.append("\u0338");
    return node;
  }

  /** The letters of a group as they are written. */
  #raw() {
    this.#blanks();
    this.#expect("{");
    let text = "";
    for (let depth = 1; ;) {
      const token = this.#take();
      depth += (token === "{") - (token === "}");
      if (!depth) return text;
      if (!/^[{}]$/.test(token)) text += /^\\[^A-Za-z]$/.test(token) ? token[1] : token;
    }
  }

  #delimiter() {
    this.#blanks();
    const token = this.#take();
    if (token === ".") return "";
    const symbol = token[0] === "\\" ? SYMBOLS[token] : token;
    if (!symbol || !/^[()[\]{}|/\\<>‖⟨⟩⌊⌋⌈⌉↑↓]$/u.test(symbol)) throw new Error(`${token} is no delimiter`);
    return { "<": "⟨", ">": "⟩" }[symbol] ?? symbol;
  }

  #fenced() {
    const parts = [operator(this.#delimiter(), { stretchy: "true", fence: "true" })];
    for (;;) {
      parts.push(this.row((token) => token === "\\right" || token === "\\middle"));
      const closes = this.#take();
      parts.push(operator(this.#delimiter(), { stretchy: "true", fence: "true" }));
      if (closes === "\\right") return math("mrow", {}, ...parts);
      if (closes !== "\\middle") throw new Error("\\right is missing");
    }
  }

  #environment() {
    const name = this.#raw();
    if (!TABLES.includes(name)) throw new Error(`${name} is not known`);
    if (name === "array") this.#raw(); // how its columns are aligned
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.row((token) => token === "&" || token === "\\\\" || token === "\\end"));
      const mark = this.#take();
      if (mark === "\\end") break;
      if (mark === "\\\\") rows.push([]);
      else if (mark !== "&") throw new Error(`${mark} stands alone`);
    }
    if (this.#raw() !== name) throw new Error(`${name} is not closed`);
    if (rows.at(-1).length === 1 && !rows.at(-1)[0].hasChildNodes()) rows.pop();
    const kind = ALIGNED.includes(name) ? "aligned" : name === "cases" ? "cases" : null;
    const cells = (row) => row.map((cell) => math("mtd", {}, cell));
    const table = math(
      "mtable",
      { class: kind, displaystyle: kind === "aligned" ? "true" : null },
      ...rows.map((row) => math("mtr", {}, ...cells(row))),
    );
    const [open, close] = FENCES[name] ?? "";
    if (!open) return table;
    return math("mrow", {}, operator(open, { stretchy: "true" }), table, operator(close.trim(), { stretchy: "true" }));
  }
}
