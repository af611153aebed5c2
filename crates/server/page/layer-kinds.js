/** How each kind of layer looks: a colour, a pattern and a letter, so that no one needs to tell colours apart. */

import { svg } from "./dom.js";

export const KINDS = {
  mamba: { letter: "M", name: "Mamba-2" },
  attention: { letter: "A", name: "Attention" },
  moe: { letter: "E", name: "Experts" },
  mlp: { letter: "F", name: "MLP" },
};

export function kindOf(layer) {
  return KINDS[layer.kind] ?? { letter: "?", name: layer.kind };
}

/** Strokes over a tile of 8 x 8. */
const PATTERNS = {
  mamba: "M0 2q2 -2 4 0t4 0M0 6q2 -2 4 0t4 0",
  attention: "M0 8L8 0M-2 2L2 -2M6 10L10 6",
  moe: "M2 0v8M6 0v8M0 2h8M0 6h8",
  mlp: "M0 2h8M0 6h8",
};

/** Definitions to put into a drawing once; `fillOf` refers to them. */
export function patternDefinitions() {
  return svg(
    "defs",
    {},
    ...Object.entries(PATTERNS).map(([kind, d]) =>
      svg(
        "pattern",
        { id: `pattern-${kind}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
        svg("rect", { width: 8, height: 8, class: `fill-${kind}` }),
        svg("path", { d, class: "pattern-stroke" }),
      ),
    ),
  );
}

export function fillOf(kind) {
  return kind in PATTERNS ? `url(#pattern-${kind})` : "currentColor";
}

/** A small square in a kind's colour and pattern, with its letter. */
export function swatch(kind) {
  return svg(
    "svg",
    { class: "swatch", viewBox: "0 0 20 20", "aria-hidden": "true" },
    svg("rect", { width: 20, height: 20, rx: 4, fill: fillOf(kind) }),
    svg("text", { x: 10, y: 14.5, class: "swatch-letter" }, KINDS[kind]?.letter ?? "?"),
  );
}
