/** The drawings of the model view. Each takes plain numbers; each has words beside it elsewhere. */

import { element, svg } from "./dom.js";
import { bytes, microseconds, percent } from "./format.js";
import { fillOf, kindOf, patternDefinitions } from "./layer-kinds.js";

const BAR_AREA = 92;
const STRIP = 18;
const GAP = 6;

/** Calls `draw(width)` now and whenever the element's width changes. */
function onWidth(node, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next > 0 && next !== width) draw((width = next));
  }).observe(node);
}

/** Layers from left to right; time stands on the strip of kinds, bytes hang below it. */
export class LayerChart {
  #layers;
  #bars = [];
  #drawing = svg("svg", { class: "layer-chart", role: "img" });
  #detail = element("p", { class: "chart-detail", "aria-hidden": "true" });
  #values = [];

  constructor(layers) {
    this.#layers = layers;
    this.node = element("div", { class: "chart" }, this.#drawing, this.#detail);
    onWidth(this.node, (width) => this.#layOut(width));
    this.#drawing.addEventListener("pointermove", (event) => this.#point(event));
    this.#drawing.addEventListener("pointerleave", () => this.#describe(null));
    this.#describe(null);
  }

  #layOut(width) {
    const height = 2 * BAR_AREA + STRIP + 2 * GAP;
    const step = width / this.#layers.length;
    const bar = Math.max(1, step - Math.min(3, step * 0.2));
    this.#drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#drawing.setAttribute("height", height);
    this.#bars = this.#layers.map((layer, index) => {
      const x = index * step;
      const fill = fillOf(layer.kind);
      return {
        time: svg("rect", { class: "bar", x, width: bar, y: BAR_AREA, height: 0, fill }),
        kind: svg("rect", {
          x,
          width: bar,
          y: BAR_AREA + GAP,
          height: STRIP,
          rx: Math.min(3, bar / 4),
          fill,
        }),
        letter:
          step >= 11
            ? svg(
                "text",
                { class: "swatch-letter", x: x + bar / 2, y: BAR_AREA + GAP + STRIP - 5 },
                kindOf(layer).letter,
              )
            : null,
        bytes: svg("rect", { class: "bar", x, width: bar, y: BAR_AREA + STRIP + 2 * GAP, height: 0, fill }),
      };
    });
    this.#drawing.replaceChildren(
      patternDefinitions(),
      ...this.#bars.flatMap((parts) => Object.values(parts).filter(Boolean)),
    );
    this.#draw();
  }

  /** @param {{microseconds: number, bytes: number}[]} values one for each layer */
  update(values) {
    this.#values = values;
    this.#draw();
  }

  #draw() {
    const longest = Math.max(1e-9, ...this.#values.map((value) => value.microseconds));
    const most = Math.max(1, ...this.#values.map((value) => value.bytes));
    this.#values.forEach((value, index) => {
      const parts = this.#bars[index];
      if (!parts) return;
      const tall = (BAR_AREA * value.microseconds) / longest;
      parts.time.setAttribute("y", BAR_AREA - tall);
      parts.time.setAttribute("height", tall);
      parts.bytes.setAttribute("height", (BAR_AREA * value.bytes) / most);
    });
    this.#drawing.setAttribute(
      "aria-label",
      `Layers in order, with time above and bytes below. Longest: ${microseconds(longest)}. Most bytes: ${bytes(most)}. The table below has every number.`,
    );
  }

  #point(event) {
    const box = this.#drawing.getBoundingClientRect();
    this.#describe(Math.floor(((event.clientX - box.left) / box.width) * this.#layers.length));
  }

  #describe(index) {
    const layer = this.#layers[index];
    if (!layer) {
      this.#detail.textContent = "Above: time. Below: bytes read. Point at a layer for its numbers.";
      return;
    }
    const value = this.#values[index];
    const total = this.#values.reduce((sum, one) => sum + one.microseconds, 0);
    const time = value?.microseconds
      ? ` · ${microseconds(value.microseconds)} (${percent(value.microseconds / total)})`
      : "";
    this.#detail.textContent = `Layer ${layer.index} · ${layer.label || kindOf(layer).name}${time}${value ? ` · ${bytes(value.bytes)}` : ""}`;
  }
}

const ROW = 13;
const ROW_GAP = 3;
const LABEL_WIDTH = 34;

/** One row for each layer of experts, one cell for each expert; the more it is chosen the stronger. */
export class ExpertMap {
  #layers;
  #canvas = element("canvas", {
    class: "expert-map",
    role: "img",
    "aria-label":
      "How often each expert is chosen, one row for each layer. The table below names the busiest.",
  });
  #detail = element("p", { class: "chart-detail", "aria-hidden": "true" });
  #width = 0;
  #heat = new Map();

  constructor(layers) {
    this.#layers = layers;
    this.node = element("div", { class: "chart" }, this.#canvas, this.#detail);
    onWidth(this.node, (width) => {
      this.#width = width;
      this.draw();
    });
    this.#canvas.addEventListener("pointermove", (event) => this.#describe(event));
    this.#canvas.addEventListener("pointerleave", () => this.#describe(null));
    this.#describe(null);
  }

  /** @param {Map<number, number[]>} heat layer index → share of each expert */
  update(heat) {
    this.#heat = heat;
    this.draw();
  }

  draw() {
    const scale = devicePixelRatio || 1;
    const height = this.#layers.length * (ROW + ROW_GAP);
    this.#canvas.width = Math.round(this.#width * scale);
    this.#canvas.height = Math.round(height * scale);
    this.#canvas.style.height = `${height}px`;
    const context = this.#canvas.getContext("2d");
    const style = getComputedStyle(this.#canvas);
    context.scale(scale, scale);
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "middle";
    this.#layers.forEach((layer, row) => {
      const y = row * (ROW + ROW_GAP);
      context.globalAlpha = 1;
      context.fillStyle = style.outlineColor;
      context.fillText(String(layer.index), 0, y + ROW / 2);
      this.#drawRow(context, layer, y, style);
    });
  }

  #drawRow(context, layer, y, style) {
    const shares = this.#heat.get(layer.index);
    const number = layer.experts || shares?.length || 1;
    const cell = (this.#width - LABEL_WIDTH) / number;
    const even = 1 / number;
    context.fillStyle = style.color;
    for (let expert = 0; expert < number; expert += 1) {
      const share = shares?.[expert] ?? 0;
      context.globalAlpha = 0.07 + 0.93 * Math.min(1, share / (4 * even)) ** 0.7;
      context.fillRect(LABEL_WIDTH + expert * cell, y, Math.max(0.5, cell - (cell > 4 ? 1 : 0)), ROW);
    }
  }

  #describe(event) {
    this.#detail.textContent =
      this.#under(event) ??
      "Rows are layers, cells are experts. Faint: not chosen. Full: four times its even share or more.";
  }

  #under(event) {
    if (!event) return null;
    const box = this.#canvas.getBoundingClientRect();
    const layer = this.#layers[Math.floor((event.clientY - box.top) / (ROW + ROW_GAP))];
    const shares = layer && this.#heat.get(layer.index);
    const across = (event.clientX - box.left - LABEL_WIDTH) / (box.width - LABEL_WIDTH);
    if (!shares || across < 0 || across >= 1) return null;
    const expert = Math.floor(across * shares.length);
    return `Layer ${layer.index}, expert ${expert}: ${percent(shares[expert])} of the choices (even would be ${percent(1 / shares.length)})`;
  }
}

/** The last half minute of one number as a line. */
export class Sparkline {
  #values = [];
  #line = svg("polyline", { class: "spark-line" });
  #area = svg("polygon", { class: "spark-area" });

  constructor(points = 60) {
    this.points = points;
    this.node = svg(
      "svg",
      { class: "spark", viewBox: `0 0 ${points - 1} 30`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.#area,
      this.#line,
    );
  }

  push(value) {
    this.#values.push(value);
    if (this.#values.length > this.points) this.#values.shift();
    const top = Math.max(1e-9, ...this.#values);
    const offset = this.points - this.#values.length;
    const line = this.#values
      .map((one, index) => `${offset + index},${(29 - (27 * one) / top).toFixed(1)}`)
      .join(" ");
    this.#line.setAttribute("points", line);
    this.#area.setAttribute("points", `${offset},30 ${line} ${this.points - 1},30`);
  }
}

/** Parts of a whole in one bar. @param {{value: number, style: string}[]} parts */
export function stackedBar(parts, whole, label) {
  let at = 0;
  const segments = parts.map(({ value, style }) => {
    const x = (1000 * at) / whole;
    at += value;
    return svg("rect", { x, width: Math.max(0, (1000 * value) / whole - 1.5), height: 28, class: style });
  });
  return svg(
    "svg",
    {
      class: "stacked-bar",
      viewBox: "0 0 1000 28",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    ...segments,
  );
}
