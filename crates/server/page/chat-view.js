/** The transcript of one conversation: which messages are drawn, when, and where it is scrolled. */

import { messagesOf } from "./conversation.js";
import { element } from "./dom.js";
import { MessageView } from "./message-view.js";

const NEAR_END_PX = 40;
/** Layout may move the page this much by itself. */
const TREMOR_PX = 3;
/** A frame may spend this share of the time on drawing text that streams in. */
const DRAWING_SHARE = 0.25;

const STARTERS = [
  "Explain how a state-space model remembers.",
  "Write a Rust function that merges two sorted lists.",
  "Tell me a short story about a lighthouse.",
];

export class ChatView {
  #transcript;
  #column;
  #toEnd;
  #actions;
  #start;
  #conversation = null;
  #views = new Map();
  #stuck = true;
  #lastTop = 0;
  /** A finger is on the text: it must not move by itself. */
  #held = false;
  #scheduled = false;
  /** Text has come since the last drawing. */
  #behind = false;

  /**
   * @param {{transcript: HTMLElement, column: HTMLElement, toEnd: HTMLElement}} elements
   * @param {import("./message-view.js").Actions} actions
   * @param {(text: string) => void} start sends a suggested first message
   */
  constructor({ transcript, column, toEnd }, actions, start) {
    this.#transcript = transcript;
    this.#column = column;
    this.#toEnd = toEnd;
    this.#actions = actions;
    this.#start = start;
    const listen = (type, does) => transcript.addEventListener(type, does, { passive: true });
    listen("scroll", () => this.#scrolled());
    listen("wheel", (event) => {
      if (event.deltaY < 0) this.#stuck = false;
    });
    listen("touchstart", () => (this.#held = true));
    for (const type of ["touchend", "touchcancel"]) listen(type, () => (this.#held = false));
    toEnd.addEventListener("click", () => this.scrollToEnd());
    new ResizeObserver(() => this.#follow()).observe(transcript);
    new ResizeObserver(() => this.#follow()).observe(column);
  }

  /** Shows a conversation from its end. */
  show(conversation, instructions) {
    this.#conversation = conversation;
    this.#views.clear();
    this.#column.replaceChildren();
    this.instructions = instructions;
    this.refresh();
    this.scrollToEnd();
  }

  /** Draws what has changed: branches, new messages, finished answers. */
  refresh() {
    const messages = messagesOf(this.#conversation);
    const nodes = messages.map((message, index) => {
      let view = this.#views.get(message.id);
      if (!view || view.message !== message) {
        view = new MessageView(this.#conversation, message, this.#actions);
        this.#views.set(message.id, view);
      }
      view.update(index === messages.length - 1);
      return view.node;
    });
    const wanted = [this.instructions, ...(nodes.length > 0 ? nodes : [this.#welcome()])];
    for (const node of Array.from(this.#column.children)) if (!wanted.includes(node)) node.remove();
    wanted.forEach((node, index) => {
      const present = this.#column.children[index];
      if (present !== node) this.#column.insertBefore(node, present ?? null);
    });
    this.#follow();
  }

  /** Draws an answer that has grown, at most once a frame and less often where drawing is slow. */
  grow(message) {
    this.#behind = true;
    if (this.#scheduled || !this.#views.has(message.id)) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      const began = performance.now();
      this.#behind = false;
      if (message.state === "streaming") this.#views.get(message.id)?.update(true);
      this.#follow();
      setTimeout(
        () => {
          this.#scheduled = false;
          if (this.#behind) this.grow(message);
        },
        (performance.now() - began) / DRAWING_SHARE,
      );
    });
  }

  /** Opens the last message of the user for editing. */
  editLast() {
    const last = messagesOf(this.#conversation).findLast((message) => message.role === "user");
    if (last) this.#views.get(last.id)?.edit();
  }

  /** Puts the focus on a message's button, after the message was drawn anew. */
  focusMessage(message, selector) {
    const node = this.#views.get(message.id)?.node;
    (node?.querySelector(selector) ?? node?.querySelector("button"))?.focus();
  }

  scrollToEnd() {
    this.#stuck = true;
    this.#lastTop = 0;
    this.#follow();
  }

  #follow() {
    this.#scrolled(); // the reader may have moved since the last event
    if (!this.#stuck || this.#held) return;
    const { scrollHeight, clientHeight } = this.#transcript;
    this.#transcript.scrollTop = scrollHeight - clientHeight;
    this.#lastTop = this.#transcript.scrollTop;
  }

  /** A reader who scrolls up leaves the end; text that grows does not count. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#transcript;
    const left = scrollHeight - clientHeight - scrollTop;
    if (left <= 1 || (scrollTop > this.#lastTop && left < NEAR_END_PX)) this.#stuck = true;
    else if (scrollTop < this.#lastTop - TREMOR_PX) this.#stuck = false;
    this.#lastTop = scrollTop;
    this.#toEnd.hidden = this.#stuck || left < NEAR_END_PX;
  }

  #welcome() {
    const starters = STARTERS.map((text) =>
      element("button", { type: "button", class: "starter", onclick: () => this.#start(text) }, text),
    );
    return element(
      "section",
      { class: "welcome", "aria-label": "Ideas to begin with" },
      element("p", { class: "welcome-title" }, this.modelName ?? "mambo"),
      element("p", { class: "faint" }, this.modelLine ?? "Write a message, or begin with one of these."),
      element("div", { class: "starters" }, ...starters),
    );
  }
}
