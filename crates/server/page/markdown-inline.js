/**
 * Emphasis, code, links and the like inside one block of text, as plain data. Emphasis follows
 * CommonMark's delimiter rules. With `open`, more text may follow: what is begun counts as
 * closed at the end, so that markers do not appear and vanish while text streams in.
 *
 * @typedef {{type: string, text?: string, href?: string|null, children?: Inline[]}} Inline
 */

/** Longer text is shown as it is: no honest paragraph is that long. */
const MAX_CHARS = 50_000;
/** Bounds on what can nest or must be searched for, so that hostile text costs no more than text. */
const MAX_DELIMITER_CHARS = 1_000;
const MAX_ADDRESS_CHARS = 2_000;
const MAX_FAILED_LINKS = 100;

const PUNCTUATION = /[\p{P}\p{S}]/u;
const URL_START = /https?:\/\/[^\s<>"`]+/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]*)>/iy;
const LINE_BREAK = /<br[ \t]*\/?>/iy;

/** A web or mail address, or null: other schemes can run code or reach into the machine. */
function safeHref(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** @returns {Inline[]} */
export function parseInline(source, open = false) {
  if (source.length > MAX_CHARS) return [{ type: "text", text: source }];
  // A marker at the very end may be half of one: it shows when its second half is there.
  const text = open ? source.slice(0, endWithout(source, "*_~`\\")) : source;
  return new Scanner(text, open).scan();
}

/** The length of `text` without the run of `chars` that it ends in. */
function endWithout(text, chars) {
  let end = text.length;
  while (end > 0 && chars.includes(text[end - 1])) end -= 1;
  return end;
}

class Scanner {
  constructor(text, open) {
    this.text = text;
    this.open = open;
    this.at = 0;
    /** Flat list of inline nodes and delimiter runs. */
    this.parts = [];
    this.brackets = [];
    /** Closing marks, and lengths of backtick runs, known not to occur further on. */
    this.missing = new Set();
    this.delimiterChars = 0;
    this.failedLinks = 0;
  }

  scan() {
    while (this.at < this.text.length) this.step();
    return this.finish(this.parts);
  }

  step() {
    switch (this.text[this.at]) {
      case "\\":
        return this.backslash();
      case "`":
        return this.codeSpan();
      case "*":
      case "_":
      case "~":
        return this.delimiter();
      case "[":
        return this.openBracket(1);
      case "!":
        return this.text[this.at + 1] === "[" ? this.openBracket(2) : this.literal(1);
      case "]":
        return this.closeBracket();
      case "<":
        return this.angle();
      case "$":
        return this.math("$$", "$$");
      case "\n":
        return this.newline();
      case "h":
        return this.bareUrl();
      default:
        return this.plain();
    }
  }

  literal(length) {
    this.push({ type: "text", text: this.text.slice(this.at, this.at + length) });
    this.at += length;
  }

  push(node) {
    const last = this.parts.at(-1);
    if (node.type === "text" && last?.type === "text" && !last.bracket) last.text += node.text;
    else this.parts.push(node);
  }

  plain() {
    let end = this.at + 1;
    while (end < this.text.length && !"\\`*_~[]!<$\nh".includes(this.text[end])) end += 1;
    this.literal(end - this.at);
  }

  backslash() {
    const next = this.text[this.at + 1];
    if (next === "(") return this.math("\\(", "\\)");
    if (next === "[") return this.math("\\[", "\\]");
    if (next === "\n") {
      this.parts.push({ type: "break" });
      this.at += 2;
    } else if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
      this.push({ type: "text", text: next });
      this.at += 2;
    } else this.literal(1);
  }

  /** Formulas stay as they were written, but no marker inside them counts. */
  math(left, right) {
    if (!this.text.startsWith(left, this.at)) return this.literal(1);
    const from = this.at + left.length;
    let end = this.missing.has(right) ? -1 : this.text.indexOf(right, from);
    if (end < 0) this.missing.add(right);
    if (end < 0 && this.open) end = this.text.length;
    if (end <= from) {
      if (left[0] === "\\") this.at += 1; // an escaped bracket
      return this.literal(1);
    }
    this.parts.push({ type: "math", text: this.text.slice(from, end).trim() });
    this.at = Math.min(this.text.length, end + right.length);
  }

  codeSpan() {
    const length = runLength(this.text, this.at);
    const from = this.at + length;
    let end = this.missing.has(length) ? -1 : findTicks(this.text, from, length);
    if (end < 0) {
      this.missing.add(length);
      if (!this.open || from >= this.text.length) return this.literal(length);
      end = this.text.length;
    }
    let code = this.text.slice(from, end).replaceAll("\n", " ");
    if (/^ .* $/.test(code) && code.trim() !== "") code = code.slice(1, -1);
    this.parts.push({ type: "code", text: code });
    this.at = Math.min(this.text.length, end + length);
  }

  delimiter() {
    const length = runLength(this.text, this.at);
    const char = this.text[this.at];
    this.delimiterChars += length;
    if ((char === "~" && length !== 2) || this.delimiterChars > MAX_DELIMITER_CHARS)
      return this.literal(length);
    const before = this.at === 0 ? "\n" : this.text[this.at - 1];
    const after = this.text[this.at + length] ?? "\n";
    const left =
      !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const right =
      !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const word = char === "_";
    this.parts.push({
      type: "delimiter",
      char,
      length,
      original: length,
      opens: left && (!word || !right || PUNCTUATION.test(before)),
      closes: right && (!word || !left || PUNCTUATION.test(after)),
      inWord: /[\p{L}\p{N}]/u.test(before),
    });
    this.at += length;
  }

  openBracket(length) {
    this.brackets.push({ index: this.parts.length, image: length === 2 });
    this.parts.push({ type: "text", text: this.text.slice(this.at, this.at + length), bracket: true });
    this.at += length;
  }

  closeBracket() {
    const bracket = this.brackets.pop();
    const target = bracket && this.failedLinks < MAX_FAILED_LINKS ? this.linkTarget() : null;
    if (!target) {
      this.parts.push({ type: "text", text: "]" });
      this.at += 1;
      return;
    }
    const children = this.finish(this.parts.splice(bracket.index).slice(1));
    if (!bracket.image) this.brackets = []; // links do not nest
    const href = safeHref(target.address);
    if (bracket.image) this.parts.push({ type: "image", href, text: plainText(children) });
    else this.parts.push({ type: "link", href, children });
    this.at = target.end;
  }

  /** Reads `(address "title")` after a closing bracket. */
  linkTarget() {
    if (this.text[this.at + 1] !== "(") return null;
    let at = this.at + 2;
    let depth = 0;
    const limit = Math.min(this.text.length, at + MAX_ADDRESS_CHARS);
    while (at < limit && !/\s/.test(this.text[at])) {
      if (this.text[at] === "(") depth += 1;
      if (this.text[at] === ")") {
        if (depth === 0) break;
        depth -= 1;
      }
      at += 1;
    }
    const address = this.text.slice(this.at + 2, at).replace(/^<(.*)>$/, "$1");
    const rest = /^[ \t\n]*(?:"[^"]*"|'[^']*')?[ \t\n]*\)/.exec(this.text.slice(at, at + 500));
    if (rest) return { address, end: at + rest[0].length };
    const unfinished = this.open && /^[ \t\n]*(?:"[^"]*|'[^']*)?$/.test(this.text.slice(at, at + 500));
    if (unfinished) return { address: "", end: this.text.length };
    this.failedLinks += 1;
    return null;
  }

  angle() {
    LINE_BREAK.lastIndex = AUTOLINK.lastIndex = this.at;
    const line = LINE_BREAK.exec(this.text);
    const link = line ? null : AUTOLINK.exec(this.text);
    if (!line && !link) return this.literal(1);
    const text = link?.[1];
    this.parts.push(
      line ? { type: "break" } : { type: "link", href: safeHref(text), children: [{ type: "text", text }] },
    );
    this.at += (line ?? link)[0].length;
  }

  bareUrl() {
    URL_START.lastIndex = this.at;
    const before = this.text[this.at - 1];
    const found = before !== undefined && /[\p{L}\p{N}]/u.test(before) ? null : URL_START.exec(this.text);
    if (!found) return this.plain();
    const marker = found[0].search(/[*~]|__/);
    const address = trimAddress(marker < 0 ? found[0] : found[0].slice(0, marker));
    const href = safeHref(address);
    if (!href) return this.plain();
    this.parts.push({ type: "link", href, children: [{ type: "text", text: address }] });
    this.at += address.length;
  }

  newline() {
    const last = this.parts.at(-1);
    const hard = last?.type === "text" && last.text.endsWith("  ");
    if (hard) last.text = last.text.trimEnd();
    this.parts.push(hard ? { type: "break" } : { type: "text", text: "\n" });
    this.at += 1;
    while (this.text[this.at] === " ") this.at += 1;
  }

  finish(parts) {
    const matched = matchEmphasis(parts);
    return mergeText(this.open ? closeAtEnd(matched) : matched);
  }
}

/** Takes punctuation off that belongs to the sentence, and a closing parenthesis opened before it. */
function trimAddress(address) {
  let unmatched = 0;
  for (const char of address) unmatched += char === ")" ? 1 : char === "(" ? -1 : 0;
  let end = address.length;
  while (end > 0 && (".,;:!?'_]".includes(address[end - 1]) || (address[end - 1] === ")" && unmatched > 0))) {
    if (address[end - 1] === ")") unmatched -= 1;
    end -= 1;
  }
  return address.slice(0, end);
}

/** The words alone, without any marks. */
export function plainText(nodes) {
  return nodes
    .map((node) => (node.type === "break" ? "\n" : node.children ? plainText(node.children) : node.text))
    .join("");
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function findTicks(text, from, length) {
  let at = text.indexOf("`", from);
  while (at >= 0) {
    const run = runLength(text, at);
    if (run === length) return at;
    at = text.indexOf("`", at + run);
  }
  return -1;
}

const KINDS = { 1: "emphasis", 2: "strong" };

/** Pairs delimiter runs, innermost first; what stays unpaired is text. */
function matchEmphasis(parts) {
  const out = [];
  const openers = [];
  for (const part of parts) {
    if (part.type !== "delimiter") {
      out.push(part);
      continue;
    }
    if (part.closes) pair(part, out, openers);
    if (part.length > 0) {
      if (part.opens) openers.push({ part, index: out.length });
      out.push(part);
    }
  }
  return out;
}

function pair(closer, out, openers) {
  let at = openers.length - 1;
  while (at >= 0 && closer.length > 0) {
    const { part: opener, index } = openers[at];
    const odd =
      (opener.closes || closer.opens) &&
      (opener.original + closer.original) % 3 === 0 &&
      (opener.original % 3 !== 0 || closer.original % 3 !== 0);
    if (opener.char !== closer.char || (closer.char !== "~" && odd)) {
      at -= 1;
      continue;
    }
    openers.length = at + 1; // openers in between stay text
    const used = opener.length >= 2 && closer.length >= 2 ? 2 : 1;
    const children = mergeText(out.splice(index + 1));
    opener.length -= used;
    closer.length -= used;
    if (opener.length === 0) {
      out.pop();
      openers.pop();
      at -= 1;
    }
    out.push({ type: closer.char === "~" ? "strike" : KINDS[used], children });
  }
}

/** Closes what is still open, the innermost first. */
function closeAtEnd(parts) {
  for (let at = parts.length - 1; at >= 0; at -= 1) {
    const part = parts[at];
    if (part.type !== "delimiter" || !part.opens || part.inWord || part.length > 3) continue;
    const children = mergeText(parts.splice(at).slice(1));
    const inner = part.length === 3 ? [{ type: "emphasis", children }] : children;
    parts.push({ type: part.char === "~" ? "strike" : KINDS[Math.min(2, part.length)], children: inner });
  }
  return parts;
}

function mergeText(parts) {
  const merged = [];
  for (const part of parts) {
    const text =
      part.type === "delimiter" ? part.char.repeat(part.length) : part.type === "text" ? part.text : null;
    const last = merged.at(-1);
    if (text === null) merged.push(part);
    else if (last?.type === "text") last.text += text;
    else merged.push({ type: "text", text });
  }
  return merged;
}
