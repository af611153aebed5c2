/**
 * Draws Markdown as DOM nodes, also while it is still being written: finished blocks are never
 * touched again, the last one changes only where its text changed. Model text reaches the page
 * as text nodes alone.
 */

import { element, iconButton } from "./dom.js";
import { Highlighter } from "./highlight.js";
import { parseBlocks } from "./markdown-blocks.js";
import { parseInline, plainText } from "./markdown-inline.js";

/** Characters that hide or reorder others; in code they are shown by their number. */
const INVISIBLE = /[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/;

/** Source of a code block for its copy button. */
const sources = new WeakMap();

/** The text behind a code block's copy button, as the model wrote it. */
export function codeSource(block) {
  return sources.get(block) ?? "";
}

export class MarkdownView {
  #container;
  #text = "";
  /** Characters and nodes that are final. */
  #settled = 0;
  #settledNodes = 0;
  #code = null;

  /** @param {HTMLElement} container its children belong to this view */
  constructor(container) {
    this.#container = container;
  }

  /** Shows `text`; `open` means that more will follow. */
  update(text, open) {
    if (!open) return this.#finish(text);
    if (!text.startsWith(this.#text)) this.#reset();
    this.#text = text;
    const rest = text.slice(this.#settled);
    const blocks = parseBlocks(rest, open);
    const lastIndex = blocks.length - 1;
    blocks.forEach((block, index) => this.#show(this.#settledNodes + index, block, index === lastIndex));
    while (this.#container.childNodes.length > this.#settledNodes + blocks.length)
      this.#container.lastChild.remove();
    if (lastIndex > 0) this.#settle(rest, blocks[lastIndex].line, lastIndex);
  }

  /** The whole text at once: what had to be guessed while it arrived is put right. */
  #finish(text) {
    const fresh = renderBlocks(parseBlocks(text, false), false);
    fresh.forEach((node, index) => {
      const old = this.#container.childNodes[index];
      if (old) morph(old, node);
      else this.#container.append(node);
    });
    while (this.#container.childNodes.length > fresh.length) this.#container.lastChild.remove();
    this.#text = text;
    this.#settled = this.#settledNodes = 0;
    this.#code = null;
  }

  #reset() {
    this.#container.replaceChildren();
    this.#settled = this.#settledNodes = 0;
    this.#code = null;
  }

  /** Everything before the last block is final. */
  #settle(rest, line, blocks) {
    let at = 0;
    for (let skipped = 0; skipped < line; skipped += 1) at = rest.indexOf("\n", at) + 1;
    this.#settled += at;
    this.#settledNodes += blocks;
  }

  #show(index, block, open) {
    const old = this.#container.childNodes[index];
    if (block.type === "code") {
      if (this.#code && this.#code.node === old && this.#code.accepts(block)) return this.#code.update(block);
      this.#code = new CodeView(block);
      this.#code.update(block);
      return old ? old.replaceWith(this.#code.node) : this.#container.append(this.#code.node);
    }
    const fresh = renderBlock(block, open);
    if (!old) this.#container.append(fresh);
    else morph(old, fresh);
  }
}

/** Changes `old` into `fresh` and keeps every part of it that is the same. */
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const alike =
    old.nodeType === 1 &&
    fresh.nodeType === 1 &&
    old.tagName === fresh.tagName &&
    old.className === fresh.className &&
    !old.classList.contains("code-block") &&
    sameAttributes(old, fresh);
  if (!alike) {
    if (old.nodeType === 3 && fresh.nodeType === 3) old.data = fresh.data;
    else old.replaceWith(fresh);
    return;
  }
  const wanted = Array.from(fresh.childNodes);
  wanted.forEach((child, index) => {
    const present = old.childNodes[index];
    if (present) morph(present, child);
    else old.append(child);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function sameAttributes(a, b) {
  const names = a.getAttributeNames();
  return (
    names.length === b.getAttributeNames().length &&
    names.every((name) => a.getAttribute(name) === b.getAttribute(name))
  );
}

function renderBlock(block, open) {
  switch (block.type) {
    case "heading": {
      // The page's own headings are h1 and h2.
      const tag = `h${Math.min(6, block.level + 2)}`;
      return element(tag, { class: `heading-${block.level}`, dir: "auto" }, ...inline(block.text, open));
    }
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, ...renderBlocks(block.blocks, open));
    case "list":
      return renderList(block, open);
    case "table":
      return renderTable(block, open);
    case "code": {
      const code = new CodeView(block);
      code.update(block);
      return code.node;
    }
    default:
      return element("p", { dir: "auto" }, ...inline(block.text, open));
  }
}

function renderBlocks(blocks, open) {
  return blocks.map((block, index) => renderBlock(block, open && index === blocks.length - 1));
}

function renderList(list, open) {
  const items = list.items.map((item, index) => {
    const last = open && index === list.items.length - 1;
    const first = item.blocks[0];
    const tight = !list.loose && first?.type === "paragraph";
    const content = tight
      ? [...inline(first.text, last && item.blocks.length === 1), ...renderBlocks(item.blocks.slice(1), last)]
      : renderBlocks(item.blocks, last);
    if (item.task === null) return element("li", { dir: "auto" }, ...content);
    const box = element("input", {
      type: "checkbox",
      disabled: true,
      checked: item.task,
      "aria-label": item.task ? "done" : "to do",
    });
    return element("li", { class: "task", dir: "auto" }, box, ...content);
  });
  return list.ordered
    ? element("ol", { start: list.start === 1 ? null : list.start }, ...items)
    : element("ul", {}, ...items);
}

function renderTable({ head, align, rows }, open) {
  const cell = (tag, text, column, last) =>
    element(
      tag,
      {
        class: align[column] ? `align-${align[column]}` : null,
        scope: tag === "th" ? "col" : null,
        dir: "auto",
      },
      ...inline(text, last),
    );
  const body = rows.map((row, index) => {
    const last = open && index === rows.length - 1;
    return element("tr", {}, ...row.map((text, column) => cell("td", text, column, last)));
  });
  return element(
    "div",
    { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...head.map((text, column) => cell("th", text, column, false)))),
      element("tbody", {}, ...body),
    ),
  );
}

function inline(text, open) {
  return parseInline(text, open).map(renderInline);
}

const TAGS = { strong: "strong", emphasis: "em", strike: "del" };

function renderInline(node) {
  switch (node.type) {
    case "text":
      return document.createTextNode(node.text);
    case "break":
      return element("br");
    case "code":
      return element("code", { dir: "auto" }, ...showInvisible(node.text));
    case "math":
      return element("code", { class: "math", dir: "ltr" }, ...showInvisible(node.text));
    case "link":
      return renderLink(node.href, node.children.map(renderInline));
    // Images are not loaded: their addresses could carry the conversation to a stranger.
    case "image":
      return renderLink(node.href, [`🖼 ${node.text || "image"}`]);
    default:
      return element(TAGS[node.type], {}, ...node.children.map(renderInline));
  }
}

function renderLink(href, children) {
  if (href === null) return element("span", { class: "dead-link" }, ...children);
  return element(
    "a",
    { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" },
    ...children,
  );
}

/** Text nodes, with a visible mark for every invisible character. */
function showInvisible(text) {
  if (!INVISIBLE.test(text)) return [document.createTextNode(text)];
  return text
    .split(new RegExp(`(${INVISIBLE.source})`))
    .filter(Boolean)
    .map((part) => {
      if (!INVISIBLE.test(part)) return document.createTextNode(part);
      const name = `U+${part.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
      return element("span", { class: "invisible-char", title: "an invisible character" }, name);
    });
}

/** A code block that grows line by line. */
class CodeView {
  #code;
  #highlighter;
  #language;
  /** Characters of complete lines that are drawn, and nodes they took. */
  #drawn = 0;
  #drawnNodes = 0;
  #source = "";

  constructor({ language }) {
    this.#language = language;
    this.#highlighter = new Highlighter(language);
    this.#code = element("code", {});
    const name = language === "" ? "Code" : `Code, ${language}`;
    this.node = element(
      "div",
      { class: "code-block", dir: "ltr" },
      element(
        "div",
        { class: "code-head" },
        element("span", {}, language),
        iconButton("copy", "Copy code", null, { "data-copy": "code" }),
      ),
      element("pre", { tabindex: 0, role: "region", "aria-label": name }, this.#code),
    );
  }

  /** Whether `block` is this one, with perhaps more lines. */
  accepts(block) {
    return block.language === this.#language && block.code.startsWith(this.#source.slice(0, this.#drawn));
  }

  update({ code, closed }) {
    this.#source = code;
    sources.set(this.node, code);
    while (this.#code.childNodes.length > this.#drawnNodes) this.#code.lastChild.remove();
    let end = code.indexOf("\n", this.#drawn);
    while (end >= 0) {
      this.#append(this.#highlighter.line(code.slice(this.#drawn, end)), "\n");
      this.#drawn = end + 1;
      end = code.indexOf("\n", this.#drawn);
    }
    this.#drawnNodes = this.#code.childNodes.length;
    const tail = code.slice(this.#drawn);
    if (tail === "") return;
    // The last line may grow: it is coloured once it is complete.
    this.#append(closed ? this.#highlighter.line(tail) : [{ text: tail, kind: null }], "");
  }

  #append(tokens, end) {
    const nodes = tokens.flatMap(({ text, kind }) =>
      kind === null
        ? showInvisible(text)
        : [element("span", { class: `code-${kind}` }, ...showInvisible(text))],
    );
    this.#code.append(...nodes, ...(end === "" ? [] : [document.createTextNode(end)]));
  }
}

/** What a screen reader should say for Markdown: words, without marks; code by its length. */
export function spokenText(text, open) {
  const say = (block) => {
    switch (block.type) {
      case "code":
        return `Code block, ${block.code.split("\n").length} lines.`;
      case "rule":
        return "";
      case "quote":
        return block.blocks.map(say).join("\n");
      case "list":
        return block.items.flatMap((item) => item.blocks.map(say)).join("\n");
      case "table":
        return [block.head, ...block.rows]
          .map((row) => row.map((cell) => plainText(parseInline(cell))).join(", "))
          .join("\n");
      default:
        return plainText(parseInline(block.text, open));
    }
  };
  return parseBlocks(text, open).map(say).filter(Boolean).join("\n");
}
