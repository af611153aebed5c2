/**
 * Keeps conversations in the browser's IndexedDB. Where there is none (private windows of some
 * browsers) they live as long as the page. Other tabs are told about changes.
 */

import { readConversation } from "./conversation.js";

/** Exports carry this, so that a later page can tell what it reads. */
const FORMAT = "mambo-conversations";
const MAX_IMPORT_BYTES = 256 * 1024 * 1024;

export class Store extends EventTarget {
  #database = null;
  #memory = new Map();
  #channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("mambo-conversations");

  /** Opens the database. `change` events name a conversation another tab has written. */
  async open() {
    this.#channel?.addEventListener("message", (event) => {
      this.dispatchEvent(new CustomEvent("change", { detail: event.data }));
    });
    try {
      this.#database = await openDatabase();
    } catch {
      this.#database = null;
    }
  }

  /** Whether conversations outlive the page. */
  get lasting() {
    return this.#database !== null;
  }

  /** Titles, latest first. @returns {Promise<{id: string, title: string, updated: number}[]>} */
  async list() {
    const titles = this.#database
      ? await result(this.#database.transaction("titles").objectStore("titles").getAll())
      : Array.from(this.#memory.values(), titleOf);
    return titles.sort((a, b) => b.updated - a.updated);
  }

  /** @returns {Promise<import("./conversation.js").Conversation|null>} */
  async load(id) {
    const found = this.#database
      ? await result(this.#database.transaction("conversations").objectStore("conversations").get(id))
      : this.#memory.get(id);
    return found ? readConversation(found) : null;
  }

  /** Writes a conversation; says what to do where the browser has no room left. */
  async save(conversation) {
    const copy = structuredClone(conversation);
    if (!this.#database) {
      this.#memory.set(copy.id, copy);
      return;
    }
    await this.#write((conversations, titles) => {
      conversations.put(copy);
      titles.put(titleOf(copy));
    });
    this.#channel?.postMessage(copy.id);
  }

  async remove(id) {
    this.#memory.delete(id);
    if (!this.#database) return;
    await this.#write((conversations, titles) => {
      conversations.delete(id);
      titles.delete(id);
    });
    this.#channel?.postMessage(id);
  }

  async #write(change) {
    const transaction = this.#database.transaction(["conversations", "titles"], "readwrite");
    const finished = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
    change(transaction.objectStore("conversations"), transaction.objectStore("titles"));
    transaction.commit(); // at once: the page may be left in the next moment
    try {
      await finished;
    } catch (error) {
      const full = error?.name === "QuotaExceededError";
      throw new Error(
        full
          ? "The browser has no room left for conversations. Export and delete some."
          : `The browser could not keep this conversation: ${error?.message ?? "unknown reason"}`,
      );
    }
  }

  /** All conversations as the text of a JSON file. */
  async exportAll() {
    const conversations = [];
    for (const { id } of await this.list()) conversations.push(await this.load(id));
    return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
  }

  /**
   * Adds the conversations of an exported file; one with a known id replaces it.
   * @param {File} file
   * @returns {Promise<number>} how many
   */
  async importFrom(file) {
    if (file.size > MAX_IMPORT_BYTES)
      throw new Error("This file is too large to be an export of conversations.");
    let content;
    try {
      content = JSON.parse(await file.text());
    } catch {
      throw new Error(`${file.name} is not JSON.`);
    }
    if (content?.format !== FORMAT || !Array.isArray(content.conversations)) {
      throw new Error(`${file.name} is not an export of conversations.`);
    }
    const conversations = content.conversations.map(readConversation);
    for (const conversation of conversations) await this.save(conversation);
    return conversations.length;
  }
}

function titleOf({ id, title, updated }) {
  return { id, title, updated };
}

function openDatabase() {
  const opening = indexedDB.open("mambo", 1);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("conversations", { keyPath: "id" });
    opening.result.createObjectStore("titles", { keyPath: "id" });
  };
  return result(opening);
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
