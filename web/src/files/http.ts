/** A file on the network, fetched by ranges into blocks: one request streams ahead of the reader, as far as it may. */

import type { Counts, RangeFile } from "./file.js";
import { BLOCK_BYTES, LastingStore, MemoryStore, type BlockStore } from "./store.js";

/** Blocks of one request, and how far it may be ahead of the reader. */
const RUN_BLOCKS = 64;
const AHEAD_BLOCKS = 16;
const ATTEMPTS = 5;
const FIRST_PAUSE_MS = 300;

export class HttpError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** A server's refusal in words. */
export function refusal(status: number): string {
  if (status === 404) return "there is no such file at that address";
  if (status === 401 || status === 403) return `the server refuses it (${status}); it may want a token, or not allow pages of other sites`;
  return `the server answered ${status}`;
}

/** Asks for size and identity; null where the server cannot be reached. */
async function ask(url: string, signal: AbortSignal): Promise<{ size: number; tag: string } | null> {
  let response: Response;
  try {
    response = await fetch(url, { method: "HEAD", signal });
  } catch (error) {
    if (signal.aborted) throw error;
    return null;
  }
  if (response.status === 503 || response.status === 504) return null;
  if (!response.ok) throw new HttpError(refusal(response.status), response.status);
  let size = Number(response.headers.get("content-length"));
  if (!size || response.headers.get("content-encoding")) {
    const part = await fetch(url, { headers: { range: "bytes=0-0" }, signal });
    await part.body?.cancel();
    size = Number(/\/(\d+)$/.exec(part.headers.get("content-range") ?? "")?.[1]);
  }
  if (!Number.isSafeInteger(size) || size <= 0)
    throw new Error("the server does not say how large the file is; serve it with a Content-Length");
  return { size, tag: response.headers.get("etag") ?? "" };
}

/** Whether this browser gives pages files of their own. */
const canStore = () => typeof navigator !== "undefined" && typeof navigator.storage?.getDirectory === "function";

export class HttpFile implements RangeFile {
  #abort = new AbortController();
  /** The block the running request writes next, and where it ends. */
  #run: { next: number; end: number; abort: AbortController } | null = null;
  #wanted = 0;
  #waiting = new Set<() => void>();
  #failure: Error | null = null;
  /** Blocks that were taken into the counts of what was stored. */
  #counted = new Set<number>();

  private constructor(
    readonly name: string,
    readonly url: string,
    readonly size: number,
    readonly store: BlockStore,
    readonly counts: Counts,
    readonly changed: () => void,
  ) {}

  static async open(
    url: string,
    options: { store: boolean; counts: Counts; changed: () => void; note: (text: string) => void; signal: AbortSignal },
  ): Promise<HttpFile> {
    const name = decodeURIComponent(new URL(url).pathname.split("/").at(-1) || url);
    const found = await ask(url, options.signal).catch((error: Error) => {
      if (options.signal.aborted || !(error instanceof HttpError)) throw error;
      throw new HttpError(`${name}: ${error.message}`, error.status);
    });
    let store: BlockStore | null = null;
    if (options.store && canStore()) {
      try {
        store = await LastingStore.open(url, found);
      } catch (error) {
        options.note(`${name} is not kept for next time: ${(error as Error).message}.`);
      }
    }
    if (!store && !found) throw new Error(`${name}: the server cannot be reached, and the file is not stored here`);
    const size = store instanceof LastingStore ? store.identity.size : found!.size;
    return new HttpFile(name, url, size, store ?? new MemoryStore(), options.counts, options.changed);
  }

  async fetch(start: number, end: number): Promise<void> {
    if (end > this.size) throw new Error(`it has ${this.size} bytes, and ${end} are needed; download it again`);
    if (end <= start) return;
    const [first, last] = [Math.floor(start / BLOCK_BYTES), Math.floor((end - 1) / BLOCK_BYTES)];
    this.store.keep(first, last);
    for (let block = first; block <= last; block += 1) {
      if (this.store.has(block) && !(await this.store.verify(block))) this.store.drop(block);
      if (this.store.has(block)) this.#countStored(block);
      else await this.#need(block);
    }
  }

  read(start: number, into: Uint8Array): boolean {
    if (into.length === 0) return true;
    const [first, last] = [Math.floor(start / BLOCK_BYTES), Math.floor((start + into.length - 1) / BLOCK_BYTES)];
    for (let block = first; block <= last; block += 1) if (!this.store.has(block)) return false;
    this.store.read(start, into);
    return true;
  }

  release(): void {}

  close(): void {
    this.#abort.abort();
    this.#wake();
    this.store.close();
  }

  #countStored(block: number): void {
    if (this.#counted.has(block)) return;
    this.#counted.add(block);
    this.counts.cached += Math.min(BLOCK_BYTES, this.size - block * BLOCK_BYTES);
    this.changed();
  }

  #wake(): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const resolve of waiting) resolve();
  }

  #change(): Promise<void> {
    return new Promise((resolve) => this.#waiting.add(resolve));
  }

  async #need(block: number): Promise<void> {
    this.#wanted = block;
    this.#wake();
    while (!this.store.has(block)) {
      if (this.#abort.signal.aborted) throw new Error("the file was closed");
      if (this.#failure) {
        const failure = this.#failure;
        this.#failure = null;
        throw failure;
      }
      const run = this.#run;
      if (!run || block < run.next || block >= Math.min(run.end, run.next + AHEAD_BLOCKS)) this.#start(block);
      await this.#change();
    }
  }

  /** Starts a request for a block and the missing ones behind it, in place of the running one. */
  #start(block: number): void {
    this.#run?.abort.abort();
    const blocks = Math.ceil(this.size / BLOCK_BYTES);
    let end = block + 1;
    while (end < blocks && end < block + RUN_BLOCKS && !this.store.has(end)) end += 1;
    const run = { next: block, end, abort: new AbortController() };
    this.#run = run;
    this.#stream(run)
      .catch((error: Error) => {
        if (!run.abort.signal.aborted && !this.#abort.signal.aborted) this.#failure = error;
      })
      .finally(() => {
        if (this.#run === run) this.#run = null;
        this.#wake();
      });
  }

  /** Streams blocks, and goes on where it was when the connection breaks. */
  async #stream(run: { next: number; end: number; abort: AbortController }): Promise<void> {
    for (let attempt = 1; run.next < run.end; attempt += 1) {
      const before = run.next;
      try {
        await this.#request(run);
      } catch (error) {
        const isOurs = run.abort.signal.aborted || this.#abort.signal.aborted;
        if (isOurs || error instanceof HttpError) throw error;
        if (run.next > before) attempt = 1;
        if (attempt >= ATTEMPTS)
          throw new Error(`the connection broke ${ATTEMPTS} times; what has come is kept, try again later`);
        await new Promise((resolve) => setTimeout(resolve, FIRST_PAUSE_MS * 2 ** attempt));
      }
    }
  }

  async #request(run: { next: number; end: number; abort: AbortController }): Promise<void> {
    const [start, end] = [run.next * BLOCK_BYTES, Math.min(run.end * BLOCK_BYTES, this.size)];
    const signal = AbortSignal.any([run.abort.signal, this.#abort.signal]);
    const response = await fetch(this.url, { headers: { range: `bytes=${start}-${end - 1}` }, signal });
    if (!response.ok) throw new HttpError(refusal(response.status), response.status);
    // A server that knows no ranges sends everything.
    let skip = response.status === 206 ? 0 : start;
    const reader = response.body!.getReader();
    let block = new Uint8Array(this.#blockBytes(run.next));
    let filled = 0;
    try {
      while (run.next < run.end) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the connection ended early");
        let part = value;
        this.counts.fetched += part.length;
        this.changed();
        const skipped = Math.min(skip, part.length);
        skip -= skipped;
        part = part.subarray(skipped);
        while (part.length > 0 && run.next < run.end) {
          const taken = Math.min(part.length, block.length - filled);
          block.set(part.subarray(0, taken), filled);
          filled += taken;
          part = part.subarray(taken);
          if (filled < block.length) continue;
          // Trying again would fail again.
          await this.store.write(run.next, block).catch((error: Error) => {
            throw new HttpError(error.message, 0);
          });
          this.#counted.add(run.next);
          run.next += 1;
          this.#wake();
          filled = 0;
          block = new Uint8Array(this.#blockBytes(run.next));
          while (run.next > this.#wanted + AHEAD_BLOCKS && !signal.aborted) await this.#change();
          signal.throwIfAborted();
        }
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  #blockBytes(block: number): number {
    return Math.max(0, Math.min(BLOCK_BYTES, this.size - block * BLOCK_BYTES));
  }
}
