/**
 * What the page has beside the server's when the model runs in the tab itself: which model, what is stored, what this
 * browser has, and a benchmark.
 */

import { benchmark } from "./benchmark.js";
import { copyWithFeedback, element, iconButton } from "./dom.js";
import { BACKENDS, BUILT_IN, engine } from "./engine.js";
import { bytes, percent } from "./format.js";
import { byId, notice, toast } from "./frame.js";
import { diagnose, removeStored, storedModels } from "./mambo/index.js";

const button = element(
  "button",
  { type: "button", class: "button tab-button", id: "tab-button", "aria-haspopup": "dialog", onclick: openDialog },
  "This tab",
);
byId("settings-button").before(button);

// ---- How far the model is

function progressText() {
  const { fetched, cached, loaded, total } = engine.progress;
  const from = fetched > 0 ? `${bytes(fetched)} downloaded` : cached > 0 ? "from this browser's storage" : "asking for it";
  const share = total > 0 ? `${percent(loaded / total)} of ${bytes(total)} loaded, ` : "";
  return `Loading ${engine.choice.name}: ${share}${from}.`;
}

engine.addEventListener("progress", () => {
  if (!engine.model) notice(progressText());
});
engine.addEventListener("problem", () => notice(engine.problem));
engine.addEventListener("change", () => {
  notice("");
  for (const note of engine.notes) toast(note);
  window.dispatchEvent(new Event("modelchange"));
});

// ---- The dialog

function openDialog() {
  const dialog = element("dialog", { class: "dialog", "aria-labelledby": "tab-title" });
  dialog.append(
    element(
      "header",
      { class: "dialog-head" },
      element("h2", { id: "tab-title" }, "The model in this tab"),
      iconButton("close", "Close", () => dialog.close()),
    ),
    element("div", { class: "dialog-body" }, modelGroup(dialog), storageGroup(), checksGroup(), benchmarkGroup()),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const group = (title, ...fields) => element("fieldset", {}, element("legend", {}, title), ...fields);
const plainButton = (label, onclick, id = null) => element("button", { type: "button", class: "button", id, onclick }, label);

function use(choice, dialog) {
  dialog.close();
  engine.use(choice).catch(() => {});
}

function modelGroup(dialog) {
  const address = element("input", {
    type: "url",
    id: "model-address",
    placeholder: "https://example.org/model.gguf, or a folder with safetensors",
    "aria-label": "Address of a model",
  });
  const picked = (input) => {
    const files = [...input.files];
    if (files.length > 0) use({ name: files[0].name, files }, dialog);
  };
  const chooser = (id, more) =>
    element("input", { type: "file", id, class: "visually-hidden", tabindex: -1, ...more, onchange: (event) => picked(event.target) });
  const file = chooser("model-file", { multiple: true });
  const folder = chooser("model-folder", { webkitdirectory: true });
  const open = (event) => {
    event.preventDefault();
    try {
      const url = new URL(address.value.trim());
      use({ name: decodeURIComponent(url.pathname.split("/").filter(Boolean).at(-1) ?? url.host), address: url.href }, dialog);
    } catch {
      address.setCustomValidity("Give an address such as https://example.org/model.gguf");
      address.reportValidity();
      address.addEventListener("input", () => address.setCustomValidity(""), { once: true });
    }
  };
  const now = engine.model
    ? `${engine.model.name}, on ${engine.model.view.backend}. Nothing you write leaves this tab.`
    : engine.problem || progressText();
  const backend = element(
    "select",
    { id: "backend", onchange: (event) => (dialog.close(), engine.runOn(event.target.value).catch(() => {})) },
    ...Object.entries(BACKENDS).map(([value, label]) => element("option", { value, selected: value === engine.backend }, label)),
  );
  return group(
    "Model",
    element("p", { class: "faint" }, now),
    element("label", { class: "tab-row" }, "Run it on", backend),
    element(
      "div",
      { class: "tab-row" },
      plainButton("Built-in model", () => use(BUILT_IN, dialog)),
      plainButton("File from disk", () => file.click()),
      plainButton("Folder from disk", () => folder.click()),
      file,
      folder,
    ),
    element("form", { class: "tab-row", onsubmit: open }, address, element("button", { class: "button" }, "Open")),
  );
}

function storageGroup() {
  const list = element("ul", { class: "tab-list" });
  const draw = async () => {
    try {
      const models = await storedModels();
      list.replaceChildren(
        ...models.map(({ url, size }) => element("li", {}, element("span", {}, url.split("/").at(-1)), element("b", {}, bytes(size)))),
      );
      if (models.length === 0) list.append(element("li", { class: "faint" }, "Nothing is stored."));
    } catch {
      list.replaceChildren(element("li", { class: "faint" }, "This browser stores nothing for this page."));
    }
  };
  draw();
  const remove = async () => {
    await removeStored().catch(() => 0);
    await draw();
  };
  return group("Stored in this browser", list, element("div", { class: "tab-row" }, plainButton("Remove all", remove)));
}

const MARKS = { good: "✓", bad: "✗", absent: "–" };

function checksGroup() {
  const list = element("ul", { class: "tab-list checks" });
  const run = async (event) => {
    event.target.disabled = true;
    try {
      const checks = await diagnose();
      list.replaceChildren(
        ...checks.map(({ name, outcome, detail, advice }) =>
          element(
            "li",
            { class: outcome },
            element("span", {}, `${MARKS[outcome]} ${name}: ${detail}`),
            advice && outcome !== "good" ? element("small", {}, advice) : null,
          ),
        ),
      );
    } catch (error) {
      list.replaceChildren(element("li", { class: "bad" }, error.message));
    }
    event.target.disabled = false;
  };
  return group("Diagnostics", element("div", { class: "tab-row" }, plainButton("Check this browser", run, "run-checks")), list);
}

function benchmarkGroup() {
  const result = element("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Benchmark" });
  const run = async (event) => {
    event.target.disabled = true;
    try {
      const { rows, text } = await benchmark(engine, (state) => result.replaceChildren(element("p", { class: "faint" }, state)));
      const copy = iconButton("copy", "Copy the table", () => copyWithFeedback(copy, text), { showLabel: true });
      const [head, ...body] = rows;
      const cells = (tag, values) => element("tr", {}, ...values.map((value) => element(tag, {}, value)));
      result.replaceChildren(
        element("table", { id: "benchmark-table" }, element("thead", {}, cells("th", head)), element("tbody", {}, ...body.map((row) => cells("td", row)))),
        element("div", { class: "tab-row" }, copy),
      );
    } catch (error) {
      result.replaceChildren(element("p", {}, error.message));
    }
    event.target.disabled = false;
  };
  return group("Benchmark", element("div", { class: "tab-row" }, plainButton("Run", run, "run-benchmark")), result);
}

// ---- Offline

if ("serviceWorker" in navigator && window.isSecureContext)
  navigator.serviceWorker.register("service-worker.js", { type: "classic" }).catch(() => {
    // The page works without; only offline it does not open.
  });

engine.ready().catch(() => {});
