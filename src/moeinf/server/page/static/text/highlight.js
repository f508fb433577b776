// Colours in code, by the words and marks that languages have in common. It makes elements, never HTML, and looks at
// each letter once: what it does not know stays plain.

import { element } from "../shared.js";

const MOST_LETTERS = 100_000; // beyond, code stays plain
const words = (text) => new Set(text.split(" "));

const STRING = String.raw`"(?:[^"\\\n]|\\[\s\S])*"?|'(?:[^'\\\n]|\\[\s\S])*'?`;
const TEMPLATE = String.raw`\x60(?:[^\x60\\]|\\[\s\S])*\x60?`;
const LONG_STRING = String.raw`[rbfuRBFU]{0,2}(?:"""(?:[^\\]|\\[\s\S])*?(?:"""|$)|'''(?:[^\\]|\\[\s\S])*?(?:'''|$))`;
const SLASHES = String.raw`\/\/.*|\/\*[\s\S]*?(?:\*\/|$)`;
const HASH = String.raw`#.*`;
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.[\d_]+)?(?:[eE][+-]?\d+)?)\w*`;
const WORD = String.raw`[\p{L}_$][\p{L}\p{N}_$]*`;

const C_LIKE =
  "auto bool break case catch char class const constexpr continue default delete do double else enum explicit " +
  "extern false final float for friend goto if inline int long namespace new noexcept nullptr operator override " +
  "private protected public return short signed sizeof static struct switch template this throw true try typedef " +
  "typename union unsigned using virtual void volatile while NULL include define ifdef ifndef endif pragma";
const JAVA =
  "abstract boolean break byte case catch char class const continue default do double else enum extends false " +
  "final finally float for if implements import instanceof int interface long namespace new null override package " +
  "private protected public record return short static string super switch this throw throws true try using var " +
  "void while fun val when data object companion sealed is in as out async await foreach virtual abstract " +
  "internal lateinit";
const SCRIPT =
  "as async await break case catch class const continue debugger default delete do else enum export extends false " +
  "finally for from function get if implements import in instanceof interface let new null of private protected " +
  "public readonly return set static super switch this throw true try type typeof undefined var void while yield";
const PYTHON =
  "False None True and as assert async await break case class continue def del elif else except finally for from " +
  "global if import in is lambda match nonlocal not or pass raise return self try while with yield";
const RUST =
  "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move " +
  "mut pub ref return self Self static struct super trait true type unsafe use where while bool char f32 f64 i32 " +
  "i64 u8 u32 u64 usize str String Vec Option Result Some None Ok Err";
const GO =
  "break case chan const continue default defer else fallthrough for func go goto if import interface map package " +
  "range return select struct switch type var true false nil string int int64 float64 bool byte error any";
const SWIFT =
  "as async await break case catch class continue default defer do else enum extension fallthrough false for func " +
  "guard if import in init inout is let nil private protocol public return self static struct super switch throw " +
  "throws true try typealias var where while";
const SHELL =
  "case do done elif else esac exit export fi for function if in local read return set shift source then unset " +
  "until while echo cd sudo";
const RUBY =
  "alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo " +
  "require rescue retry return self super then true undef unless until when while yield";
const SQL =
  "add all alter and as asc between by case check column constraint create database default delete desc distinct " +
  "drop else end exists foreign from full group having in index inner insert into is join key left like limit not " +
  "null on or order outer primary references returning right select set table then union unique update values " +
  "view when where with";
const LUA =
  "and break do else elseif end false for function goto if in local nil not or repeat return then true until while";
const CONSTANTS = "true false null yes no on off";

const code = (keywords, comment, ...strings) => ({
  marks: marksOf({ c: comment, s: [...strings, STRING].join("|"), n: NUMBER, w: WORD }),
  keywords: words(keywords),
});
const marksOf = (kinds) =>
  new RegExp(
    Object.entries(kinds)
      .map(([name, source]) => `(?<${name}>${source})`)
      .join("|"),
    "gu",
  );

const LANGUAGES = {
  c: code(C_LIKE, SLASHES),
  java: code(JAVA, SLASHES, LONG_STRING),
  js: code(SCRIPT, SLASHES, TEMPLATE),
  python: code(PYTHON, HASH, LONG_STRING, `[rbfuRBFU]{1,2}(?:${STRING})`),
  rust: {
    ...code(RUST, SLASHES),
    marks: marksOf({ c: SLASHES, s: String.raw`"(?:[^"\\]|\\[\s\S])*"?|'(?:[^'\\\n]|\\.)'`, n: NUMBER, w: WORD }),
  },
  go: code(GO, SLASHES, TEMPLATE),
  swift: code(SWIFT, SLASHES, LONG_STRING),
  shell: code(SHELL, String.raw`(?<![^\s;])#.*`, String.raw`\$(?:\w+|\{[^}\n]*\}?)`),
  ruby: code(RUBY, HASH),
  sql: { ...code(SQL, String.raw`--.*|\/\*[\s\S]*?(?:\*\/|$)`), folded: true },
  lua: code(LUA, String.raw`--.*`),
  json: {
    marks: marksOf({ k: String.raw`"(?:[^"\\\n]|\\.)*"(?=\s{0,40}:)`, s: STRING, n: `-?${NUMBER}`, w: WORD }),
    keywords: words(CONSTANTS),
  },
  yaml: {
    marks: marksOf({
      c: String.raw`(?<!\S)#.*`,
      k: [
        String.raw`(?<=^|\n)[ \t-]{0,80}[\w.\/"-]{1,80}(?=:(?:\s|$))`,
        String.raw`(?<=^|\n)\[{1,2}[^\]\n]*\]{1,2}|(?<=^|\n)[\w.-]{1,80}(?=[ \t]{0,20}=)`,
      ].join("|"),
      s: STRING,
      n: NUMBER,
      w: WORD,
    }),
    keywords: words(CONSTANTS),
  },
  css: {
    marks: marksOf({
      c: String.raw`\/\*[\s\S]*?(?:\*\/|$)`,
      s: STRING,
      k: String.raw`@[\w-]+|(?<=[{;\s])[\w-]{1,60}(?=:[^:{\n]*[;\n}])`,
      n: String.raw`#[\da-fA-F]{3,8}\b|-?\d+(?:\.\d+)?[\w%]*`,
    }),
    keywords: new Set(),
  },
  html: {
    marks: marksOf({
      c: String.raw`<!--[\s\S]*?(?:-->|$)`,
      k: String.raw`<[!\/?]?[\p{L}][\p{L}\p{N}:-]*|[\/?]?>`,
      s: STRING,
      f: String.raw`[\p{L}_:@-]{1,60}(?==["'])`,
    }),
    keywords: new Set(),
  },
  tex: {
    marks: marksOf({ c: String.raw`(?<!\\)%.*`, k: String.raw`\\(?:[A-Za-z]+\*?|.)`, n: String.raw`[{}&$]` }),
    keywords: new Set(),
  },
  diff: {
    marks: marksOf({ n: String.raw`(?<=^|\n)@@.*`, s: String.raw`(?<=^|\n)\+.*`, d: String.raw`(?<=^|\n)-.*` }),
    keywords: new Set(),
  },
};
const ALIASES = {
  c: "h cpp c++ cc cxx hpp cuda objc objective-c arduino glsl",
  java: "kotlin kt kts scala groovy csharp cs c# dart php",
  js: "javascript jsx mjs ts typescript tsx node",
  python: "py python3 pyi gdscript",
  rust: "rs zig",
  go: "golang",
  swift: "",
  shell: "sh bash zsh console shell-session fish make makefile dockerfile docker powershell ps1",
  ruby: "rb elixir perl r julia",
  sql: "postgresql mysql sqlite plsql",
  lua: "haskell hs",
  json: "jsonc json5 jsonl",
  yaml: "yml toml ini conf properties",
  css: "scss less",
  html: "xml svg vue htm",
  diff: "patch",
  tex: "latex math bibtex",
};
const BY_NAME = new Map(
  Object.entries(ALIASES).flatMap(([name, others]) =>
    [name, ...others.split(" ")].map((each) => [each, LANGUAGES[name]]),
  ),
);

const CLASSES = { c: "hl-comment", s: "hl-string", n: "hl-number", k: "hl-keyword", f: "hl-function", d: "hl-gone" };

/** The nodes and strings of a piece of code in a language, whose name may be in any case; one string for others. */
export function highlighted(text, language) {
  const known = BY_NAME.get(language.toLowerCase());
  if (!known || text.length > MOST_LETTERS) return [text];
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(known.marks)) {
    const [mark] = match;
    const kind = kindOf(known, match, text);
    if (!kind || !mark) continue;
    if (match.index > done) nodes.push(text.slice(done, match.index));
    nodes.push(element("span", { class: CLASSES[kind] }, mark));
    done = match.index + mark.length;
  }
  nodes.push(text.slice(done));
  return nodes;
}

function kindOf({ keywords, folded }, { groups, index, 0: mark }, text) {
  if (groups.w === undefined) return Object.keys(CLASSES).find((name) => groups[name] !== undefined);
  if (keywords.has(folded ? mark.toLowerCase() : mark)) return "k";
  return text[index + mark.length] === "(" ? "f" : "";
}
