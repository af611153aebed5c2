/** Tells screen readers what happens: whole sentences, never single tokens. */

import { element } from "./dom.js";
import { spokenText } from "./markdown.js";

const KEPT_LINES = 30;
const MIN_INTERVAL_MS = 1000;

export class Announcer {
  #region;
  /** How much of each answer has been said. */
  #spoken = new WeakMap();
  #last = 0;

  /** @param {HTMLElement} region an `aria-live` element */
  constructor(region) {
    this.#region = region;
  }

  say(text) {
    this.#region.append(element("p", {}, text));
    while (this.#region.childNodes.length > KEPT_LINES) this.#region.firstChild.remove();
  }

  /** Says the sentences of a growing answer that are complete and not yet said. */
  progress(message) {
    const now = performance.now();
    if (now - this.#last < MIN_INTERVAL_MS) return;
    this.#last = now;
    const text = spokenText(message.content, true);
    const from = this.#spoken.get(message) ?? 0;
    const end = lastSentenceEnd(text, from);
    if (end > from) this.say(text.slice(from, end).trim());
    this.#spoken.set(message, end);
  }

  /** Says what is left of an answer. */
  finish(message, closing) {
    const rest = spokenText(message.content, false)
      .slice(this.#spoken.get(message) ?? 0)
      .trim();
    if (rest !== "") this.say(rest);
    if (closing) this.say(closing);
  }
}

function lastSentenceEnd(text, from) {
  let end = from;
  const mark = /[.!?…。！？](?=\s)|\n/g;
  mark.lastIndex = from;
  for (let found = mark.exec(text); found; found = mark.exec(text)) end = mark.lastIndex;
  return end;
}
