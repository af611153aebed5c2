/**
 * Makes elements. Text always becomes a text node, so nothing a model or a user writes is
 * ever read as HTML.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} tag
 * @param {Record<string, any>} attributes `onclick`-like functions become listeners; `null`,
 *   `undefined` and `false` are left out, `true` is an empty attribute.
 * @param {...(Node|string|null|undefined)} children
 */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Like `element`, in the SVG namespace. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Outlines on a 24 x 24 grid. */
const ICONS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V6M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  check: "M5 13l4 4L19 7",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  retry: "M19 8a8 8 0 1 0 1 5M20 4v5h-5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  left: "M15 6l-6 6 6 6",
  right: "M9 6l6 6-6 6",
  down: "M12 5v13M6 13l6 6 6-6",
  settings: "M4 7h9M19 7h1M4 17h1M11 17h9M13 7a3 3 0 1 0 6 0 3 3 0 1 0-6 0M5 17a3 3 0 1 0 6 0 3 3 0 1 0-6 0",
  sun: "M8 12a4 4 0 1 0 8 0 4 4 0 1 0-8 0M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  moon: "M20 14A8 8 0 1 1 10 4a6.5 6.5 0 0 0 10 10z",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  tool: "M14 6a4 4 0 0 1 5-1l-3 3 1 2 2 1 3-3a4 4 0 0 1-6 5l-7 7-3-3 7-7a4 4 0 0 1 1-4z",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
};

/** A decorative icon; the control around it carries the name. */
export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] }),
  );
}

/** A button with an icon; `label` is its name and, unless `showLabel`, its tooltip. */
export function iconButton(name, label, onclick, { showLabel = false, ...attributes } = {}) {
  return element(
    "button",
    {
      type: "button",
      class: showLabel ? "button" : "icon-button",
      "aria-label": showLabel ? null : label,
      title: showLabel ? null : label,
      onclick,
      ...attributes,
    },
    icon(name),
    showLabel ? element("span", {}, label) : null,
  );
}

/** Copies text; pages served over plain HTTP from another machine have no clipboard API. */
async function copyText(text) {
  try {
    return await navigator.clipboard.writeText(text);
  } catch {
    // Not there or not allowed: the old way may still work.
  }
  const area = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

/** Copies, and shows on the button for a moment whether it worked. */
export async function copyWithFeedback(button, text) {
  if (button.classList.contains("done")) return;
  const failed = (await copyText(text)) === false;
  const drawn = button.querySelector(".icon");
  const done = icon(failed ? "close" : "check");
  drawn.replaceWith(done);
  button.classList.add("done");
  setTimeout(() => {
    done.replaceWith(drawn);
    button.classList.remove("done");
  }, 1500);
}
