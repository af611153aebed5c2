/** As much of the DOM as the Markdown renderer needs, and a way to print it as HTML. */

class TinyNode {
  childNodes = [];
  parentNode = null;

  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }

  append(...children) {
    for (const child of children) {
      const node = typeof child === "string" ? new TinyText(child) : child;
      node.remove();
      node.parentNode = this;
      this.childNodes.push(node);
    }
  }

  replaceChildren(...children) {
    for (const child of [...this.childNodes]) child.remove();
    this.append(...children);
  }

  remove() {
    if (!this.parentNode) return;
    this.parentNode.childNodes.splice(this.parentNode.childNodes.indexOf(this), 1);
    this.parentNode = null;
  }

  replaceWith(node) {
    node.remove();
    const siblings = this.parentNode.childNodes;
    siblings[siblings.indexOf(this)] = node;
    node.parentNode = this.parentNode;
    this.parentNode = null;
  }

  isEqualNode(other) {
    return html(this) === html(other);
  }

  get textContent() {
    return this.nodeType === 3 ? this.data : this.childNodes.map((child) => child.textContent).join("");
  }
}

class TinyText extends TinyNode {
  nodeType = 3;

  constructor(data) {
    super();
    this.data = String(data);
  }
}

class TinyElement extends TinyNode {
  nodeType = 1;
  attributes = new Map();

  constructor(tag) {
    super();
    this.tagName = tag.toUpperCase();
  }

  setAttribute(name, value) {
    this.attributes.set(name, value);
  }

  getAttribute(name) {
    return this.attributes.get(name) ?? null;
  }

  getAttributeNames() {
    return [...this.attributes.keys()];
  }

  get className() {
    return this.getAttribute("class") ?? "";
  }

  get classList() {
    const names = this.className.split(" ");
    return { contains: (name) => names.includes(name) };
  }

  addEventListener() {}
}

const escape = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
/** Attributes that say nothing about what was understood. */
const UNTOLD = new Set(["dir", "title", "target", "rel", "tabindex", "role", "aria-label", "scope"]);

export function html(node) {
  if (node.nodeType === 3) return escape(node.data);
  const attributes = node
    .getAttributeNames()
    .filter((name) => !UNTOLD.has(name))
    .map((name) => ` ${name}="${escape(node.getAttribute(name))}"`);
  const tag = node.tagName.toLowerCase();
  return `<${tag}${attributes.join("")}>${node.childNodes.map(html).join("")}</${tag}>`;
}

export function installTinyDom() {
  globalThis.document = {
    createElement: (tag) => new TinyElement(tag),
    createElementNS: (_, tag) => new TinyElement(tag),
    createTextNode: (data) => new TinyText(data),
  };
}
