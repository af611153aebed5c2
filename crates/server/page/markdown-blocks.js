/**
 * Splits Markdown into blocks. Follows CommonMark where chat models do, and is kinder where
 * they are careless (two spaces nest a list; a fence inside a list item may lose its indent).
 * Left out on purpose: HTML, indented code, underlined headings, link references.
 *
 * @typedef {{type: string, line: number, text?: string, level?: number, language?: string,
 *   code?: string, closed?: boolean, ordered?: boolean, start?: number, loose?: boolean,
 *   items?: {blocks: Block[], task: boolean|null}[], blocks?: Block[],
 *   head?: string[], align?: string[], rows?: string[][]}} Block
 */

/** Quotes and lists nested deeper than this are text: a guard against hostile input. */
const MAX_DEPTH = 12;
const MAX_COLUMNS = 40;
const MAX_DELIMITER_ROW_CHARS = 1_000;
const MAX_MARKER_CHARS = 64;

const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-+*]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const DELIMITER_ROW = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const UNFINISHED_DELIMITER_ROW = /^[ \t]*\|[ \t:|-]*$/;
/** A last line that may still become a marker of any kind. */
const UNDECIDED =
  /^[ \t]*(?:>[ \t]?)*[ \t]*(?:#{1,6}|[-+*]|[-*_]{2,}|\d{1,9}[.)]?|>|`{1,2}|~{1,2}|\||[-+*] \[[ xX]?\]?)[ \t]*$/;

/**
 * @param {string} text
 * @param {boolean} open more text may follow: what cannot be decided yet is held back
 * @returns {Block[]}
 */
export function parseBlocks(text, open) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  if (open && lines.at(-1).length < MAX_MARKER_CHARS && UNDECIDED.test(lines.at(-1)))
    lines[lines.length - 1] = "";
  return parseLines(lines, 0, open);
}

/** @returns {Block[]} */
function parseLines(lines, depth, open) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { block, next } = parseBlock(lines, at, depth, open);
    block.line = at;
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function parseBlock(lines, at, depth, open) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return parseFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading)
    return {
      block: { type: "heading", level: heading[1].length, text: headingText(heading[2] ?? "") },
      next: at + 1,
    };
  if (RULE.test(line)) return { block: { type: "rule" }, next: at + 1 };
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return parseQuote(lines, at, depth, open);
    if (ITEM.test(line)) return parseList(lines, at, depth, open);
  }
  return parseTable(lines, at, open) ?? parseParagraph(lines, at, depth, open);
}

/** A heading may end in as many # as it likes, after a space. */
function headingText(rest) {
  const text = rest.trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  return end === 0 || " \t".includes(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

function isBlank(line) {
  return line.trim() === "";
}

function parseFence(lines, at, [, indent, marker, info]) {
  const code = [];
  const closing = new RegExp(`^ {0,3}\\${marker[0]}{${marker.length},}[ \\t]*$`);
  let next = at + 1;
  while (next < lines.length && !closing.test(lines[next])) {
    code.push(lines[next].startsWith(indent) ? lines[next].slice(indent.length) : lines[next].trimStart());
    next += 1;
  }
  const closed = next < lines.length;
  // The name of the language may still be arriving while the fence is the last line.
  const language = at + 1 < lines.length ? info.trim().split(/[\s,{]/, 1)[0] : "";
  return { block: { type: "code", language, code: code.join("\n"), closed }, next: closed ? next + 1 : next };
}

/** Whether a line begins something other than a paragraph. */
function interrupts(line, depth) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth >= MAX_DEPTH) return false;
  const item = ITEM.exec(line);
  // "1986. What a year" inside a paragraph is no list; lists interrupt only with 1 or a bullet.
  return (
    QUOTE.test(line) || (item !== null && Boolean(item[4]) && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2])))
  );
}

function parseParagraph(lines, at, depth, open) {
  let next = at + 1;
  while (
    next < lines.length &&
    !isBlank(lines[next]) &&
    !interrupts(lines[next], depth) &&
    !startsTable(lines, next, open)
  ) {
    next += 1;
  }
  const text = lines
    .slice(at, next)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
  return { block: { type: "paragraph", text }, next };
}

function parseQuote(lines, at, depth, open) {
  const inner = [];
  let next = at;
  while (next < lines.length) {
    const line = lines[next];
    if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ""));
    else if (isBlank(line) || isBlank(inner.at(-1)) || interrupts(line, depth)) break;
    else inner.push(line);
    next += 1;
  }
  return {
    block: { type: "quote", blocks: parseLines(inner, depth + 1, open && next === lines.length) },
    next,
  };
}

function widthOf(space) {
  let width = 0;
  for (const char of space) width += char === "\t" ? 4 - (width % 4) : 1;
  return width;
}

function indentOf(line) {
  return widthOf(/^[ \t]*/.exec(line)[0]);
}

/** Takes up to `width` columns of indentation away. */
function dedent(line, width) {
  let column = 0;
  let at = 0;
  while (at < line.length && column < width && (line[at] === " " || line[at] === "\t")) {
    column += line[at] === "\t" ? 4 - (column % 4) : 1;
    at += 1;
  }
  return " ".repeat(Math.max(0, column - width)) + line.slice(at);
}

function parseList(lines, at, depth, open) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const base = widthOf(first[1]);
  const block = {
    type: "list",
    ordered,
    start: ordered ? Number.parseInt(first[2], 10) : 1,
    loose: false,
    items: [],
  };
  let next = at;
  while (next < lines.length) {
    const marker = ITEM.exec(lines[next]);
    if (
      !marker ||
      RULE.test(lines[next]) ||
      /\d/.test(marker[2]) !== ordered ||
      widthOf(marker[1]) > base + 1
    )
      break;
    const item = collectItem(lines, next, marker, base, depth);
    if (item.blankBefore && item.next < lines.length) block.loose ||= item.continues;
    block.loose ||= item.loose;
    block.items.push(readItem(item.lines, depth, open && item.next === lines.length));
    next = item.next;
  }
  return { block, next };
}

function collectItem(lines, at, marker, base, depth) {
  const gap = marker[3] ? widthOf(marker[3]) : 1;
  const content = widthOf(marker[1]) + marker[2].length + (gap > 4 ? 1 : gap);
  let width = null; // what the item's further lines are indented by
  const own = [marker[4] ?? ""];
  let fence = FENCE.exec(own[0])?.[2] ?? null;
  let next = at + 1;
  let blanks = 0;
  let loose = false;
  while (next < lines.length) {
    const line = lines[next];
    if (isBlank(line)) {
      blanks += 1;
      next += 1;
      continue;
    }
    const inside = indentOf(line) >= base + 2;
    const lazy = blanks === 0 && !interrupts(line, depth) && !ITEM.test(line);
    if (fence === null && !inside && !lazy) break;
    for (; blanks > 0; blanks -= 1) {
      own.push("");
      loose ||= fence === null;
    }
    if (inside) width ??= Math.min(content, indentOf(line));
    const text = dedent(line, width ?? content);
    const mark = FENCE.exec(text.trimStart());
    if (fence === null) fence = mark?.[2] ?? null;
    else if (mark && mark[2][0] === fence[0] && mark[2].length >= fence.length && mark[3].trim() === "")
      fence = null;
    own.push(text);
    next += 1;
  }
  const following = next < lines.length ? ITEM.exec(lines[next]) : null;
  return { lines: own, next, loose, blankBefore: blanks > 0, continues: following !== null };
}

function readItem(lines, depth, open) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
  if (task) lines[0] = lines[0].slice(task[0].length);
  return { task: task ? task[1] !== " " : null, blocks: parseLines(lines, depth + 1, open) };
}

/** Cells of a table row; `\|` is a pipe inside a cell. */
function cellsOf(line) {
  const cells = [""];
  const row = line.trim().replace(/^\|/, "");
  for (let at = 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cells[cells.length - 1] += "|";
      at += 1;
    } else if (row[at] === "|") cells.push("");
    else cells[cells.length - 1] += row[at];
  }
  if (cells.length > 1 && isBlank(cells.at(-1))) cells.pop();
  return cells.slice(0, MAX_COLUMNS).map((cell) => cell.trim());
}

/**
 * A header row and its delimiter row. While text arrives, a header whose delimiter row is
 * missing or half there counts too, so that a table does not first appear as a paragraph.
 */
function startsTable(lines, at, open) {
  const head = lines[at];
  if (!head.includes("|")) return false;
  const below = lines[at + 1];
  if (below?.length > MAX_DELIMITER_ROW_CHARS) return false;
  const arriving = open && head.trimStart().startsWith("|") && at + 2 >= lines.length;
  if (arriving && (below === undefined || below === "" || UNFINISHED_DELIMITER_ROW.test(below))) return true;
  if (below !== undefined && DELIMITER_ROW.test(below) && below.includes("-")) {
    return cellsOf(head).length === cellsOf(below).length;
  }
  return false;
}

function parseTable(lines, at, open) {
  if (!startsTable(lines, at, open)) return null;
  const head = cellsOf(lines[at]);
  const align = cellsOf(lines[at + 1] ?? "").map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return cell.startsWith(":") ? "left" : "";
  });
  const rows = [];
  let next = at + 2;
  while (
    next < lines.length &&
    !isBlank(lines[next]) &&
    lines[next].includes("|") &&
    !FENCE.test(lines[next])
  ) {
    const cells = cellsOf(lines[next]);
    rows.push(head.map((_, column) => cells[column] ?? ""));
    next += 1;
  }
  return { block: { type: "table", head, align, rows }, next: Math.min(next, lines.length) };
}
