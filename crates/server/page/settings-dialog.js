/** The settings dialog, and the question for an API key. */

import { hasApiKey, setApiKey, usesApiKeys } from "./api.js";
import { element, iconButton } from "./dom.js";
import { SAMPLING } from "./settings.js";

const SHORTCUTS = [
  ["Enter", "send"],
  ["Shift Enter", "new line"],
  ["Esc", "stop the answer"],
  ["Ctrl K", "new chat"],
  ["↑", "edit the last message (in an empty box)"],
  ["Alt M", "between chat and model"],
];

/**
 * @param {import("./settings.js").Settings} settings
 * @param {{models: string[], recommended: object}} server
 */
export function openSettings(settings, server) {
  const dialog = element("dialog", { class: "dialog", "aria-labelledby": "settings-title" });
  const close = () => dialog.close();
  dialog.append(
    element(
      "header",
      { class: "dialog-head" },
      element("h2", { id: "settings-title" }, "Settings"),
      iconButton("close", "Close", close),
    ),
    element(
      "div",
      { class: "dialog-body" },
      samplingGroup(settings, server),
      group(
        "Answers",
        server.models.length > 1
          ? choice(settings, "model", "Model", [
              ["", "the server's first"],
              ...server.models.map((id) => [id, id]),
            ])
          : null,
        toggle(settings, "openReasoning", "Show reasoning while the model thinks"),
        choice(settings, "speak", "Screen reader", [
          ["sentences", "reads sentences as they come"],
          ["finished", "reads finished answers"],
          ["off", "is told nothing"],
        ]),
      ),
      group(
        "Page",
        choice(settings, "theme", "Theme", [
          ["auto", "as the system"],
          ["light", "light"],
          ["dark", "dark"],
        ]),
        usesApiKeys ? keyField() : null,
      ),
      group(
        "Keyboard",
        element(
          "dl",
          { class: "shortcuts" },
          ...SHORTCUTS.flatMap(([keys, does]) => [
            element("dt", {}, ...keys.split(" ").map((key) => element("kbd", {}, key))),
            element("dd", {}, does),
          ]),
        ),
      ),
    ),
  );
  show(dialog);
}

function group(title, ...fields) {
  return element("fieldset", {}, element("legend", {}, title), ...fields);
}

function samplingGroup(settings, server) {
  const fields = SAMPLING.map((field) => numberField(settings, field, server.recommended?.[field.name]));
  const reset = element(
    "button",
    {
      type: "button",
      class: "button",
      onclick: () => {
        settings.resetSampling();
        for (const field of fields) field.querySelector("input").value = "";
      },
    },
    "Use the server's values",
  );
  return group("Sampling", element("div", { class: "field-grid" }, ...fields), reset);
}

function numberField(settings, { name, label, min, max, step, help }, recommended) {
  const id = `setting-${name}`;
  const input = element("input", {
    id,
    type: "number",
    min,
    max,
    step,
    inputmode: Number.isInteger(step) ? "numeric" : "decimal",
    placeholder: recommended ?? "default",
    "aria-describedby": `${id}-help`,
    oninput: () => {
      if (input.checkValidity()) settings.set(name, input.value === "" ? "" : Number(input.value));
    },
  });
  input.value = String(settings.get(name));
  return element(
    "div",
    { class: "field" },
    element("label", { for: id }, label),
    input,
    element("small", { id: `${id}-help` }, help),
  );
}

function choice(settings, name, label, options) {
  const id = `setting-${name}`;
  const select = element(
    "select",
    { id, onchange: () => settings.set(name, select.value) },
    ...options.map(([value, text]) =>
      element("option", { value, selected: settings.get(name) === value }, text),
    ),
  );
  return element("div", { class: "field row" }, element("label", { for: id }, label), select);
}

function toggle(settings, name, label) {
  const input = element("input", {
    type: "checkbox",
    checked: settings.get(name),
    onchange: () => settings.set(name, input.checked),
  });
  return element("label", { class: "field row check" }, element("span", {}, label), input);
}

function keyField() {
  const input = element("input", {
    id: "setting-key",
    type: "password",
    autocomplete: "off",
    placeholder: hasApiKey() ? "kept for this tab" : "none",
    onchange: () => setApiKey(input.value.trim()),
  });
  return element("div", { class: "field row" }, element("label", { for: "setting-key" }, "API key"), input);
}

function show(dialog) {
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // the backdrop
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Asks for the API key; false where the user would rather not. @returns {Promise<boolean>} */
export function askForKey() {
  return new Promise((resolve) => {
    const input = element("input", { id: "key", type: "password", autocomplete: "off", required: true });
    let given = false;
    const form = element(
      "form",
      {
        method: "dialog",
        onsubmit: () => {
          setApiKey(input.value.trim());
          given = true;
        },
      },
      element(
        "p",
        {},
        "This server asks for the key it was started with. The key is kept until you close this tab.",
      ),
      element("div", { class: "field" }, element("label", { for: "key" }, "API key"), input),
      element(
        "div",
        { class: "dialog-actions" },
        element("button", { type: "button", class: "button quiet", onclick: () => dialog.close() }, "Cancel"),
        element("button", { class: "button primary" }, "Continue"),
      ),
    );
    const dialog = element(
      "dialog",
      { class: "dialog small", "aria-labelledby": "key-title" },
      element("header", { class: "dialog-head" }, element("h2", { id: "key-title" }, "API key needed")),
      element("div", { class: "dialog-body" }, form),
    );
    dialog.addEventListener("close", () => resolve(given));
    show(dialog);
    input.focus();
  });
}
