/**
 * Answers in the making: one per conversation at most, going on while another is on screen.
 * Events: `update` (text came), `finish`; both carry the conversation and the message.
 */

import { ApiError, streamChat } from "./api.js";
import { addMessage, applyChunk, toApiMessages } from "./conversation.js";

const MAX_ATTEMPTS = 5;
const MAX_WAIT_SECONDS = 30;

export class Generations extends EventTarget {
  #running = new Map();
  #askForKey;

  /** @param {() => Promise<boolean>} askForKey called when the server wants a key */
  constructor(askForKey) {
    super();
    this.#askForKey = askForKey;
  }

  isRunning(conversation) {
    return this.#running.has(conversation.id);
  }

  /** How far the answer `message` is, or null where it is not being written. */
  progressOf(message) {
    for (const run of this.#running.values()) if (run.message === message) return run;
    return null;
  }

  /** The living object of a conversation with an answer in the making, so that none works on a copy. */
  conversationOf(id) {
    return this.#running.get(id)?.conversation ?? null;
  }

  stop(conversation) {
    this.#running.get(conversation.id)?.controller.abort();
  }

  /**
   * Answers everything up to the message `parent`.
   * @param {object} fields of the request, beside the messages
   */
  async start(conversation, parent, fields) {
    this.stop(conversation);
    const message = addMessage(conversation, parent, { role: "assistant", state: "streaming" });
    const run = {
      conversation,
      message,
      controller: new AbortController(),
      note: "",
      startedAt: performance.now(),
      chunks: 0,
      firstAt: 0,
    };
    this.#running.set(conversation.id, run);
    this.#tell("update", run);
    const body = { ...fields, messages: toApiMessages(conversation, parent) };
    try {
      await this.#attempt(run, body);
    } catch (error) {
      if (run.controller.signal.aborted) message.finish = "stopped";
      else if (error instanceof ApiError) message.error = error.message;
      else message.error = `Something in this page went wrong: ${error?.message ?? error}`;
    }
    delete message.state;
    delete message.reasoningStart;
    if (this.#running.get(conversation.id) === run) this.#running.delete(conversation.id);
    conversation.updated = Date.now();
    this.#tell("finish", run);
  }

  async #attempt(run, body) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#receive(run, body);
      } catch (error) {
        if (!(error instanceof ApiError) || attempt === MAX_ATTEMPTS || run.chunks > 0) throw error;
        if (error.status === 429) await this.#wait(run, error.retryAfterSeconds ?? 2 ** attempt);
        else if (error.status !== 401 || !(await this.#askForKey())) throw error;
      }
    }
  }

  async #receive(run, body) {
    const { message, controller } = run;
    for await (const chunk of streamChat(body, controller.signal)) {
      const now = performance.now();
      run.firstAt ||= now;
      run.lastAt = now;
      run.chunks += 1;
      run.note = "";
      applyChunk(message, chunk, now);
      this.#tell("update", run);
    }
    if (!message.finish) throw new ApiError("The connection ended before the answer did.");
  }

  /** Counts down until the server has room. */
  async #wait(run, seconds) {
    for (let left = Math.min(MAX_WAIT_SECONDS, Math.max(1, Math.ceil(seconds))); left > 0; left -= 1) {
      run.note = `The server is busy. Next try in ${left} s.`;
      this.#tell("update", run);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, 1000);
        run.controller.signal.addEventListener(
          "abort",
          () => {
            clearTimeout(timer);
            resolve();
          },
          { once: true },
        );
      });
      run.controller.signal.throwIfAborted();
    }
    run.note = "";
  }

  #tell(type, { conversation, message }) {
    this.dispatchEvent(new CustomEvent(type, { detail: { conversation, message } }));
  }
}
