/**
 * The view of the model: its layers, where time and bytes go, which experts are chosen, memory
 * and load. Follows the engine live while it is on screen.
 *
 * Of a live event it expects: `layers[].microseconds` and `.bytes` of a recent step, `experts`
 * counted since the event before.
 */

import { fetchModel, streamLive } from "./api.js";
import { element } from "./dom.js";
import { bytes, count, microseconds, percent, plural, rate, short } from "./format.js";
import { KINDS, kindOf, swatch } from "./layer-kinds.js";
import { ExpertMap, LayerChart, Sparkline, stackedBar } from "./model-charts.js";

const RECONNECT_MS = 2000;
/** How much of the picture a new event replaces, so that it moves and does not flicker. */
const BLEND = 0.35;
const BUSIEST = 5;

const MEMORY = [
  ["weights", "Weights"],
  ["kv_cache", "KV cache"],
  ["states", "Recurrent states"],
  ["activations", "Activations"],
  ["prefix_cache", "Prefix cache"],
];

export class ModelView {
  #root;
  #model = null;
  #controller = null;
  #times = [];
  #heat = new Map();
  #parts = {};

  constructor(root) {
    this.#root = root;
    document.addEventListener("visibilitychange", () => {
      if (this.#root.hidden || !this.#model) return;
      if (document.hidden) this.stop();
      else this.#follow();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#parts.experts?.draw());
    new MutationObserver(() => this.#parts.experts?.draw()).observe(document.documentElement, {
      attributeFilter: ["data-theme"],
    });
  }

  /** Shows `model` (asked of the server where it is not known yet) and follows it. */
  async start(model) {
    if (!this.#model) {
      if (!model)
        this.#root.replaceChildren(
          element("p", { class: "column faint" }, "Asking the server about its model"),
        );
      try {
        this.#model = model ?? (await fetchModel());
      } catch {
        return; // the notice above the view says why; it starts again when the server is back
      }
      this.#times = this.#model.layers.map((layer) => ({ microseconds: 0, bytes: layer.bytes }));
      this.#build();
    }
    this.#follow();
  }

  stop() {
    this.#controller?.abort();
    this.#controller = null;
  }

  async #follow() {
    if (this.#controller) return;
    const controller = (this.#controller = new AbortController());
    while (!controller.signal.aborted) {
      try {
        for await (const event of streamLive(controller.signal)) this.#apply(event);
      } catch {
        // Lost or refused: try again below.
      }
      if (controller.signal.aborted) return;
      this.#parts.load.classList.add("stale");
      await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
    }
  }

  // ---- What stands still

  #build() {
    const model = this.#model;
    const parts = this.#parts;
    const experts = model.layers.filter((layer) => layer.experts > 0);
    parts.layers = new LayerChart(model.layers);
    parts.legend = element("ul", { class: "legend" });
    parts.experts = experts.length > 0 ? new ExpertMap(experts) : null;
    parts.expertTable = element("tbody");
    parts.layerTable = element("tbody");
    this.#root.replaceChildren(
      element(
        "div",
        { class: "model-column" },
        this.#facts(),
        this.#load(),
        section("Layers", parts.layers.node, parts.legend),
        parts.experts
          ? section(
              "Experts",
              parts.experts.node,
              this.#disclosure(
                "Busiest experts as a table",
                ["Layer", "Busiest, with their share of the choices", "Chosen at all"],
                parts.expertTable,
              ),
            )
          : null,
        this.#memory(),
        this.#disclosure(
          "Every layer as a table",
          ["Layer", "Kind", "Parameters", "Weights", "State", "KV per token", "Time", "Bytes read"],
          parts.layerTable,
        ),
      ),
    );
    parts.layers.update(this.#times);
    this.#writeLegend();
  }

  #facts() {
    const {
      architecture,
      parameters,
      file_bytes,
      backend,
      context_tokens,
      vocabulary,
      max_sequences,
      layers,
      name,
    } = this.#model;
    const facts = [
      ["Architecture", architecture],
      ["Parameters", short(parameters)],
      ["File", bytes(file_bytes)],
      ["Layers", count(layers.length)],
      ["Backend", backend],
      ["Context", plural(context_tokens, "token")],
      ["Vocabulary", plural(vocabulary, "token")],
      ["At a time", plural(max_sequences, "conversation")],
    ];
    return element(
      "section",
      { class: "panel", "aria-label": "The model" },
      element("h2", { class: "model-name", dir: "auto" }, name),
      element(
        "dl",
        { class: "facts" },
        ...facts.map(([term, value]) =>
          element("div", {}, element("dt", {}, term), element("dd", {}, value)),
        ),
      ),
    );
  }

  #load() {
    const parts = this.#parts;
    const card = (label, ...more) => {
      const value = element("dd", { class: "big" }, "–");
      return { value, node: element("div", { class: "card" }, element("dt", {}, label), value, ...more) };
    };
    parts.speedLine = new Sparkline();
    parts.promptLine = new Sparkline();
    parts.cacheBar = element("dd", { class: "meter" }, element("span", {}));
    parts.cacheNote = element("dd", { class: "faint" }, "");
    parts.requests = card("Requests");
    parts.speed = card("Answering, tokens/s", element("dd", {}, parts.speedLine.node));
    parts.prompt = card("Reading prompts, tokens/s", element("dd", {}, parts.promptLine.node));
    parts.cache = card("Prefix cache", parts.cacheBar, parts.cacheNote);
    parts.load = element(
      "section",
      { class: "panel", "aria-label": "Right now" },
      element("h2", {}, "Right now"),
      element(
        "dl",
        { class: "cards" },
        parts.requests.node,
        parts.speed.node,
        parts.prompt.node,
        parts.cache.node,
      ),
    );
    return parts.load;
  }

  #memory() {
    const { memory, layers, context_tokens } = this.#model;
    const used = MEMORY.map(([key, name]) => ({
      key,
      name,
      value: memory[key] ?? 0,
      style: `memory-${key}`,
    }));
    const whole = used.reduce((sum, part) => sum + part.value, 0) || 1;
    const state = layers.reduce((sum, layer) => sum + (layer.state_bytes ?? 0), 0);
    const perToken = layers.reduce((sum, layer) => sum + (layer.kv_bytes_per_token ?? 0), 0);
    const legend = used.map(({ name, value, style }) =>
      element(
        "li",
        {},
        element("span", { class: `dot ${style}` }),
        element("span", {}, name),
        element("b", {}, bytes(value)),
        element("span", { class: "faint" }, percent(value / whole)),
      ),
    );
    const words = [`A conversation holds ${bytes(state)} of state however long it grows`];
    words.push(
      perToken > 0
        ? `, and ${bytes(perToken)} more for each token: ${bytes(perToken * context_tokens)} at ${count(context_tokens)} tokens.`
        : ".",
    );
    return section(
      "Memory",
      stackedBar(
        used,
        whole,
        `Memory: ${used.map(({ name, value }) => `${name} ${bytes(value)}`).join(", ")}.`,
      ),
      element(
        "ul",
        { class: "legend memory" },
        ...legend,
        element("li", { class: "total" }, element("span", {}, "Together"), element("b", {}, bytes(whole))),
      ),
      element("p", { class: "faint" }, words.join("")),
    );
  }

  /** A table behind a disclosure; filled when it is opened and while it is open. */
  #disclosure(title, columns, body) {
    const table = element(
      "table",
      {},
      element(
        "thead",
        {},
        element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name))),
      ),
      body,
    );
    const details = element(
      "details",
      { class: "panel table-panel" },
      element("summary", {}, title),
      element("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": title }, table),
    );
    details.addEventListener("toggle", () => this.#writeTables());
    return details;
  }

  // ---- What moves

  #apply(event) {
    const parts = this.#parts;
    parts.load.classList.remove("stale");
    parts.requests.value.textContent = `${count(event.running)} running, ${count(event.waiting)} waiting`;
    for (const [card, line, value] of [
      [parts.speed, parts.speedLine, event.tokens_per_second ?? 0],
      [parts.prompt, parts.promptLine, event.prompt_tokens_per_second ?? 0],
    ]) {
      card.value.textContent = rate(value);
      line.push(value);
    }
    if (event.cache) this.#applyCache(event.cache);
    if (event.layers) this.#applyLayers(event.layers);
    if (event.experts) this.#applyExperts(event.experts);
    this.#writeTables();
  }

  #applyCache({ bytes: used, budget, snapshots, hit_rate }) {
    const { cache, cacheBar, cacheNote } = this.#parts;
    cache.value.textContent = `${bytes(used)} of ${bytes(budget)}`;
    cacheBar.firstChild.style.width = `${Math.min(100, (100 * used) / Math.max(1, budget))}%`;
    cacheNote.textContent = `${plural(snapshots, "snapshot")}, ${percent(hit_rate)} of prompt tokens found`;
  }

  #applyLayers(layers) {
    const places = new Map(this.#model.layers.map((layer, place) => [layer.index, place]));
    for (const measured of layers) {
      const old = this.#times[places.get(measured.index)];
      if (!old) continue;
      const fresh = old.microseconds === 0;
      old.microseconds = fresh
        ? measured.microseconds
        : old.microseconds * (1 - BLEND) + measured.microseconds * BLEND;
      old.bytes = measured.bytes;
    }
    this.#parts.layers.update(this.#times);
    this.#writeLegend();
  }

  #applyExperts(experts) {
    for (const [layer, counts] of Object.entries(experts)) {
      const total = counts.reduce((sum, one) => sum + one, 0);
      if (total === 0) continue;
      const old = this.#heat.get(Number(layer)) ?? counts.map(() => 0);
      const blend = this.#heat.has(Number(layer)) ? BLEND : 1;
      this.#heat.set(
        Number(layer),
        counts.map((one, expert) => (old[expert] ?? 0) * (1 - blend) + (one / total) * blend),
      );
    }
    this.#parts.experts?.update(this.#heat);
  }

  #writeLegend() {
    const sums = new Map();
    const all = { microseconds: 0, bytes: 0 };
    this.#model.layers.forEach((layer, place) => {
      const sum = sums.get(layer.kind) ?? { number: 0, microseconds: 0, bytes: 0 };
      sum.number += 1;
      for (const key of ["microseconds", "bytes"]) {
        sum[key] += this.#times[place][key];
        all[key] += this.#times[place][key];
      }
      sums.set(layer.kind, sum);
    });
    const rows = Array.from(sums, ([kind, sum]) => {
      const shares = [plural(sum.number, "layer")];
      if (all.microseconds > 0) shares.push(`${percent(sum.microseconds / all.microseconds)} of time`);
      shares.push(`${percent(sum.bytes / Math.max(1, all.bytes))} of bytes`);
      return element(
        "li",
        {},
        swatch(kind),
        element("b", {}, KINDS[kind]?.name ?? kind),
        element("span", { class: "faint" }, shares.join(" · ")),
      );
    });
    const total =
      all.microseconds > 0
        ? `All layers: ${microseconds(all.microseconds)}`
        : "Times appear once the model works";
    this.#parts.legend.replaceChildren(...rows, element("li", { class: "total" }, total));
  }

  #writeTables() {
    const { layerTable, expertTable } = this.#parts;
    const row = (cells) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, cells[0]),
        ...cells.slice(1).map((cell) => element("td", {}, cell)),
      );
    if (layerTable.closest("details").open) {
      layerTable.replaceChildren(
        ...this.#model.layers.map((layer, place) => {
          const { microseconds: time, bytes: read } = this.#times[place];
          return row([
            String(layer.index),
            layer.label || kindOf(layer).name,
            short(layer.parameters),
            bytes(layer.bytes),
            layer.state_bytes ? bytes(layer.state_bytes) : "–",
            layer.kv_bytes_per_token ? bytes(layer.kv_bytes_per_token) : "–",
            time ? microseconds(time) : "–",
            bytes(read),
          ]);
        }),
      );
    }
    if (expertTable.closest("details")?.open) {
      expertTable.replaceChildren(
        ...Array.from(this.#heat, ([layer, shares]) => {
          const order = shares.map((share, expert) => ({ share, expert })).sort((a, b) => b.share - a.share);
          const used = order.filter(({ share }) => share > 1e-4).length;
          return row([
            String(layer),
            order
              .slice(0, BUSIEST)
              .map(({ expert, share }) => `${expert} (${percent(share)})`)
              .join(", "),
            `${used} of ${shares.length}`,
          ]);
        }),
      );
    }
  }
}

function section(title, ...content) {
  return element("section", { class: "panel", "aria-label": title }, element("h2", {}, title), ...content);
}
