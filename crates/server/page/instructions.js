/** What a conversation tells the model beforehand: the system prompt and the tools it may call. */

import { element } from "./dom.js";
import { fit } from "./message-view.js";

/**
 * @param {import("./conversation.js").Conversation} conversation
 * @param {() => void} onchange
 */
export function instructionsFor(conversation, onchange) {
  const summary = element("summary", {});
  const problem = element("p", { class: "field-problem", role: "alert", hidden: true });
  const describe = () => {
    const parts = [];
    if (conversation.system.trim() !== "")
      parts.push(`System prompt: ${conversation.system.trim().split("\n", 1)[0].slice(0, 80)}`);
    const tools = readTools(conversation.tools);
    if (tools.list?.length) parts.push(`${tools.list.length} tool${tools.list.length === 1 ? "" : "s"}`);
    summary.textContent = parts.length > 0 ? parts.join(" · ") : "System prompt and tools";
    problem.hidden = !tools.problem;
    problem.textContent = tools.problem ?? "";
  };
  const field = (name, label, attributes) => {
    const id = `${name}-${conversation.id}`;
    const area = element("textarea", {
      id,
      rows: 2,
      ...attributes,
      oninput: () => {
        conversation[name] = area.value;
        fit(area);
        describe();
        onchange();
      },
    });
    area.value = conversation[name];
    return element("div", { class: "field" }, element("label", { for: id }, label), area);
  };
  describe();
  const details = element(
    "details",
    { class: "instructions" },
    summary,
    field("system", "System prompt", {
      dir: "auto",
      placeholder: "How the model should behave in this conversation",
    }),
    field("tools", "Tools (JSON)", {
      dir: "ltr",
      spellcheck: "false",
      class: "code-field",
      placeholder: '[{"type": "function", "function": {"name": "weather", "parameters": {…}}}]',
    }),
    problem,
  );
  details.addEventListener("toggle", () => details.querySelectorAll("textarea").forEach(fit));
  return details;
}

/** The tools as the API takes them, or what is wrong with their text. */
export function readTools(text) {
  if (text.trim() === "") return { list: [] };
  try {
    const list = JSON.parse(text);
    if (!Array.isArray(list)) return { problem: "Tools are a JSON list." };
    const nameless = list.findIndex((tool) => typeof tool?.function?.name !== "string");
    return nameless < 0 ? { list } : { problem: `Tool ${nameless + 1} has no function name.` };
  } catch (error) {
    return { problem: `Not JSON: ${error.message}` };
  }
}
