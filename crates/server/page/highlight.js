/**
 * Light syntax colouring: comments, strings, numbers, keywords. It works line by line and
 * carries what is open (a comment, a string) from one line to the next, so a code block that
 * is still being written costs one line at a time.
 *
 * @typedef {{text: string, kind: string|null}} Token
 */

const MAX_LINE_CHARS = 2_000;

const words = (text) => new Set(text.split(" "));
const C_STYLE = { line: ["//"], block: ["/*", "*/"], quotes: ['"', "'"] };
const HASH = { line: ["#"], quotes: ['"', "'"] };

const COMMON =
  "break case class const continue default do else enum false for if import in new null return static struct switch this true try catch throw finally while void";
const FAMILIES = {
  c: {
    ...C_STYLE,
    keywords: words(
      `${COMMON} auto bool char double extern float goto inline int long nullptr namespace operator private protected public register short signed sizeof template typedef typename union unsigned using virtual volatile include define func package type interface map chan go defer range var nil fn final abstract extends implements override string object let val fun when is`,
    ),
  },
  rust: {
    ...C_STYLE,
    quotes: ['"'],
    keywords: words(
      "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
    ),
  },
  script: {
    ...C_STYLE,
    quotes: ['"', "'", "`"],
    keywords: words(
      `${COMMON} async await debugger delete export extends from function instanceof let of super typeof undefined var yield interface type implements private public readonly as`,
    ),
  },
  python: {
    ...HASH,
    triple: true,
    keywords: words(
      "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match case None nonlocal not or pass raise return self True try while with yield",
    ),
  },
  shell: {
    ...HASH,
    keywords: words(
      "if then else elif fi for in do done while until case esac function return export local set unset source echo cd exit sudo",
    ),
  },
  data: { ...HASH, line: ["#", "//"], block: ["/*", "*/"], keywords: words("true false null yes no on off") },
  sql: {
    line: ["--"],
    block: ["/*", "*/"],
    quotes: ["'", '"'],
    ignoreCase: true,
    keywords: words(
      "select from where and or not in is null as join left right inner outer full on group by order having limit offset insert into values update set delete create table drop alter add primary key foreign references index view union all distinct case when then else end exists between like asc desc with begin commit",
    ),
  },
  markup: { line: [], block: ["<!--", "-->"], quotes: ['"', "'"], tags: true, keywords: words("") },
};

/** Names a code fence may give its language by. */
const LANGUAGES = {
  c: words("c h cpp c++ cc cu cuda java go cs csharp kotlin swift scala wgsl glsl zig php dart"),
  rust: words("rust rs"),
  script: words("js javascript mjs ts typescript jsx tsx"),
  python: words("python py ruby rb"),
  shell: words("sh bash shell zsh console dockerfile makefile"),
  data: words("json jsonc yaml yml toml ini css scss"),
  sql: words("sql lua haskell"),
  markup: words("html xml svg vue"),
};

function familyOf(language) {
  const name = Object.keys(LANGUAGES).find((family) => LANGUAGES[family].has(language.toLowerCase()));
  return FAMILIES[name] ?? null;
}

export class Highlighter {
  #family;
  /** The mark that ends what is open, and its kind. */
  #open = null;

  constructor(language) {
    this.#family = familyOf(language);
  }

  /** Colours the next line. @returns {Token[]} */
  line(text) {
    if (!this.#family || text.length > MAX_LINE_CHARS) return [{ text, kind: null }];
    const tokens = [];
    let at = 0;
    while (at < text.length) {
      const { length, kind } = this.#open ? this.#inside(text, at) : this.#next(text, at);
      const last = tokens.at(-1);
      const piece = text.slice(at, at + length);
      if (last && last.kind === kind) last.text += piece;
      else tokens.push({ text: piece, kind });
      at += length;
    }
    return tokens;
  }

  #inside(text, at) {
    const { end, kind } = this.#open;
    const found = text.indexOf(end, at);
    if (found < 0) return { length: text.length - at, kind };
    this.#open = null;
    return { length: found + end.length - at, kind };
  }

  #next(text, at) {
    const { line, block, quotes, triple, tags, keywords, ignoreCase } = this.#family;
    if (
      line.some((mark) => text.startsWith(mark, at) && (mark !== "#" || at === 0 || /\s/.test(text[at - 1])))
    ) {
      return { length: text.length - at, kind: "comment" };
    }
    if (block && text.startsWith(block[0], at)) return this.#begin(block[0], block[1], "comment");
    const quote = quotes.find((mark) => text.startsWith(mark, at));
    if (quote && triple && text.startsWith(quote.repeat(3), at))
      return this.#begin(quote.repeat(3), quote.repeat(3), "string");
    if (quote) return this.#string(text, at, quote);
    const word = /[\p{L}_$][\p{L}\p{N}_$]*|\d[\w.]*|./uy;
    word.lastIndex = at;
    const found = word.exec(text)?.[0] ?? text[at];
    return { length: found.length, kind: this.#wordKind(found, text, at, { tags, keywords, ignoreCase }) };
  }

  #wordKind(found, text, at, { tags, keywords, ignoreCase }) {
    if (/^\d/.test(found)) return "number";
    if (tags) return /[</]/.test(text[at - 1] ?? "") && /^[\p{L}_]/u.test(found) ? "keyword" : null;
    if (keywords.has(ignoreCase ? found.toLowerCase() : found)) return "keyword";
    return text[at + found.length] === "(" && /^[\p{L}_]/u.test(found) ? "call" : null;
  }

  #begin(mark, end, kind) {
    this.#open = { end, kind };
    return { length: mark.length, kind };
  }

  #string(text, at, quote) {
    let end = at + 1;
    while (end < text.length && text[end] !== quote) end += text[end] === "\\" ? 2 : 1;
    if (end >= text.length && quote === "`") return this.#begin(text.slice(at), "`", "string");
    // An apostrophe without a partner (a lifetime, a contraction) is no string.
    if (end >= text.length && quote === "'") return { length: 1, kind: null };
    return { length: Math.min(end + 1, text.length) - at, kind: "string" };
  }
}
