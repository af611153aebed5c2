/** Draws one message: its text, reasoning, tool calls, branches, numbers and buttons. */

import { siblingsOf } from "./conversation.js";
import { copyWithFeedback, element, icon, iconButton } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { codeSource, MarkdownView } from "./markdown.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };

/**
 * @typedef {object} Actions what a message can ask for
 * @property {(message) => void} retry
 * @property {(message, text: string) => void} edit
 * @property {(message, index: number) => void} switchTo
 * @property {(message, results: string[]) => void} sendResults
 * @property {(message) => object|null} progressOf
 * @property {() => boolean} opensReasoning
 */

export class MessageView {
  #actions;
  #conversation;
  #parts = {};
  #markdown;
  #reasoningView;
  #editing = false;
  #toolsDrawn = "";
  #footDrawn = "";

  /** @param {Actions} actions */
  constructor(conversation, message, actions) {
    this.#conversation = conversation;
    this.#actions = actions;
    this.message = message;
    this.#build();
  }

  #build() {
    const { role, name } = this.message;
    const label = role === "tool" && name ? `Result of ${name}` : NAMES[role];
    const parts = this.#parts;
    parts.body = element("div", {
      class: role === "assistant" ? "body markdown" : "body plain",
      dir: "auto",
    });
    parts.reasoning = element("details", { class: "reasoning", hidden: true });
    parts.reasoningTitle = element("summary", {});
    parts.reasoningBody = element("div", { class: "markdown reasoning-text" });
    parts.reasoning.append(parts.reasoningTitle, parts.reasoningBody);
    parts.tools = element("div", { class: "tool-calls", hidden: true });
    parts.note = element("p", { class: "note", hidden: true });
    parts.foot = element("div", { class: "foot" });
    const heading = element(
      "h2",
      { class: role === "tool" ? "tool-heading" : "visually-hidden", dir: "auto" },
      label,
    );
    this.node = element(
      "article",
      { class: `message ${role}`, "data-id": this.message.id },
      heading,
      ...(role === "assistant" ? [parts.reasoning, parts.body, parts.tools, parts.note] : [parts.body]),
      parts.foot,
    );
    this.#markdown = new MarkdownView(parts.body);
    this.#reasoningView = new MarkdownView(parts.reasoningBody);
    this.node.addEventListener("click", (event) => {
      const button = event.target.closest("[data-copy]");
      if (button) copyWithFeedback(button, codeSource(button.closest(".code-block")));
    });
  }

  /** Draws the message as it is now. `isLast`: nothing follows it on the chosen branch. */
  update(isLast) {
    const { message } = this;
    if (this.#editing) return;
    if (message.role === "assistant") this.#updateAnswer(isLast);
    else this.#parts.body.textContent = message.content;
    this.#updateFoot();
  }

  #updateAnswer(isLast) {
    const { message } = this;
    const streaming = message.state === "streaming";
    const progress = this.#actions.progressOf(message);
    this.node.classList.toggle("streaming", streaming);
    this.node.setAttribute("aria-busy", String(streaming));
    this.#markdown.update(message.content, streaming);
    this.#updateReasoning(streaming);
    this.#updateTools(isLast && !streaming);
    const { note } = this.#parts;
    const text = message.error ?? progress?.note ?? "";
    const waiting = streaming && progress?.chunks === 0 && text === "";
    note.hidden = text === "" && !waiting;
    note.classList.toggle("error", Boolean(message.error));
    note.classList.toggle("waiting", waiting);
    const shown = waiting ? "Reading the prompt" : text;
    if (note.textContent !== shown) note.textContent = shown;
  }

  #updateReasoning(streaming) {
    const { reasoning, reasoningTitle } = this.#parts;
    const { message } = this;
    if (!message.reasoning) return;
    const thinking = streaming && message.content === "" && !message.toolCalls;
    if (reasoning.hidden) {
      reasoning.hidden = false;
      reasoning.open = thinking && this.#actions.opensReasoning();
      reasoning.dataset.auto = String(reasoning.open);
      reasoning.addEventListener("toggle", () => this.#drawReasoning());
    }
    const title = thinking
      ? `Thinking for ${duration(Math.max(1000, message.reasoningMs)).replace(/\.\d/, "")}`
      : message.reasoningMs
        ? `Thought for ${duration(message.reasoningMs)}`
        : "Thoughts";
    if (reasoningTitle.textContent !== title) reasoningTitle.textContent = title;
    reasoning.classList.toggle("thinking", thinking);
    if (!thinking && reasoning.dataset.auto === "true") {
      reasoning.dataset.auto = "false";
      reasoning.open = false;
    }
    this.#drawReasoning(thinking);
  }

  /** Folded reasoning costs nothing: it is drawn when it is opened. */
  #drawReasoning(thinking = false) {
    if (this.#parts.reasoning.open) this.#reasoningView.update(this.message.reasoning, thinking);
  }

  #updateTools(canAnswer) {
    const calls = this.message.toolCalls ?? [];
    const { tools } = this.#parts;
    const drawn = JSON.stringify([calls, canAnswer]);
    if (calls.length === 0 || drawn === this.#toolsDrawn) return;
    this.#toolsDrawn = drawn;
    tools.hidden = false;
    const fields = [];
    const cards = calls.map((call, index) => {
      const card = element(
        "section",
        { class: "tool-call", "aria-label": `Tool call ${call.name}` },
        element("header", {}, icon("tool"), element("bdi", {}, call.name || "…")),
        element(
          "pre",
          { tabindex: 0, role: "region", "aria-label": "Arguments", dir: "ltr" },
          pretty(call.arguments),
        ),
      );
      if (canAnswer) {
        const id = `result-${this.message.id}-${index}`;
        const field = element("textarea", { id, rows: 2, dir: "auto", placeholder: "What the tool answers" });
        fields.push(field);
        card.append(element("label", { for: id }, "Result"), field);
      }
      return card;
    });
    const send = canAnswer
      ? element(
          "button",
          {
            type: "button",
            class: "button primary",
            onclick: () =>
              this.#actions.sendResults(
                this.message,
                fields.map((field) => field.value),
              ),
          },
          calls.length > 1 ? "Send results" : "Send result",
        )
      : null;
    tools.replaceChildren(...cards, ...(send ? [send] : []));
  }

  #updateFoot() {
    const { message } = this;
    const { foot } = this.#parts;
    const streaming = message.state === "streaming";
    const siblings = siblingsOf(this.#conversation, message);
    const live = streaming ? this.#liveStatus() : "";
    const { finish, usage, speed } = message;
    const shown = JSON.stringify([
      streaming,
      live,
      siblings.indexOf(message.id),
      siblings.length,
      finish,
      usage,
      speed,
    ]);
    if (shown === this.#footDrawn) return; // buttons keep the focus, details stay open
    this.#footDrawn = shown;
    const parts = streaming
      ? [element("span", { class: "status", "aria-hidden": "true" }, live)]
      : [
          this.#branches(siblings),
          this.#buttons(),
          message.role === "assistant" ? statusLine(message) : null,
        ];
    foot.replaceChildren(...parts.filter(Boolean));
  }

  #liveStatus() {
    const run = this.#actions.progressOf(this.message);
    if (!run || run.chunks < 5) return "";
    return `about ${rate((run.chunks - 1) / Math.max(0.001, (run.lastAt - run.firstAt) / 1000))} tokens/s`;
  }

  #branches(siblings) {
    if (siblings.length < 2) return null;
    const at = siblings.indexOf(this.message.id);
    const go = (step) => () => this.#actions.switchTo(this.message, at + step);
    return element(
      "div",
      { class: "branches", role: "group", "aria-label": "Versions" },
      iconButton("left", "Previous version", go(-1), { disabled: at === 0 }),
      element(
        "span",
        { "aria-label": `Version ${at + 1} of ${siblings.length}`, role: "img" },
        `${at + 1}/${siblings.length}`,
      ),
      iconButton("right", "Next version", go(1), { disabled: at === siblings.length - 1 }),
    );
  }

  #buttons() {
    const { message } = this;
    const copy = iconButton("copy", "Copy", () => copyWithFeedback(copy, message.content), {
      "data-action": "copy",
    });
    const second =
      message.role === "assistant"
        ? iconButton("retry", "Try again", () => this.#actions.retry(message), { "data-action": "retry" })
        : iconButton("edit", "Edit", () => this.edit(), { "data-action": "edit" });
    return element("div", { class: "buttons" }, copy, second);
  }

  /** Turns the text into a field; saving it makes a new branch. */
  edit() {
    if (this.#editing) return;
    this.#editing = true;
    const { body, foot } = this.#parts;
    const field = element("textarea", { class: "edit-field", dir: "auto", "aria-label": "Edit the message" });
    field.value = this.message.content;
    const leave = () => {
      this.#editing = false;
      this.#footDrawn = "";
      this.node.classList.remove("editing");
      this.update(false);
      this.node.querySelector("[data-action=edit]")?.focus();
    };
    const save = () => {
      const text = field.value;
      leave();
      if (text.trim() !== "" && text !== this.message.content) this.#actions.edit(this.message, text);
    };
    field.addEventListener("input", () => fit(field));
    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && !event.shiftKey) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.node.classList.add("editing");
    body.replaceChildren(field);
    foot.replaceChildren(
      element("span", { class: "hint" }, "Sends as a new version; the old one stays."),
      element("button", { type: "button", class: "button quiet", onclick: leave }, "Cancel"),
      element("button", { type: "button", class: "button primary", onclick: save }, "Send"),
    );
    fit(field);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

/** Makes a text field as tall as its text. What surrounds it keeps its size while it is measured. */
export function fit(field) {
  const holder = field.parentElement;
  holder.style.minHeight = `${holder.offsetHeight}px`;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
  holder.style.minHeight = "";
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const FINISHES = {
  length: "cut off at the token limit",
  stopped: "stopped",
  interrupted: "interrupted",
  content_filter: "filtered",
};

/** Tokens, speed and what came from the cache; the details say why. */
function statusLine({ usage, speed, finish }) {
  const number = (value) => (Number.isFinite(value) ? value : null);
  const told = [];
  if (FINISHES[finish]) told.push(FINISHES[finish]);
  const tokens = number(usage?.completion_tokens);
  if (tokens !== null) told.push(plural(tokens, "token"));
  const perSecond = number(speed?.tokens_per_second);
  if (perSecond !== null) told.push(`${rate(perSecond)} tokens/s`);
  const first = number(speed?.time_to_first_token_ms);
  if (first !== null) told.push(`first after ${duration(first)}`);
  const prompt = number(usage?.prompt_tokens);
  const cached = number(usage?.prompt_tokens_details?.cached_tokens);
  if (told.length === 0) return null;
  const why = [];
  if (prompt !== null) {
    why.push(
      cached === null
        ? plural(prompt, "prompt token")
        : `${count(cached)} of ${plural(prompt, "prompt token")} from cache`,
    );
  }
  const reading = number(speed?.prompt_tokens_per_second);
  if (reading !== null) why.push(`Prompt read at ${rate(reading)} tokens/s`);
  const reuse = typeof speed?.reuse === "string" ? speed.reuse : "";
  if (why.length === 0 && reuse === "") return element("span", { class: "status" }, told.join(" · "));
  const inSummary = cached ? `${told.join(" · ")} · ${why[0]}` : told.join(" · ");
  return element(
    "details",
    { class: "status" },
    element("summary", { title: reuse || null }, inSummary),
    element("p", {}, [...(cached ? why.slice(1) : why)].join(" · ")),
    reuse ? element("p", { dir: "auto" }, reuse) : null,
  );
}
