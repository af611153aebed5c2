/** Blocks of a file from the network: in the browser's storage, where they survive a reload, or in memory, where only
 * those stay that are about to be read. */

export const BLOCK_BYTES = 4 << 20;

export interface BlockStore {
  /** Whether blocks outlive the page. */
  readonly lasting: boolean;
  has(block: number): boolean;
  /** Whether a block that was there before is still what was written. */
  verify(block: number): Promise<boolean>;
  write(block: number, bytes: Uint8Array): Promise<void>;
  drop(block: number): void;
  /** Copies bytes of blocks that are there. */
  read(start: number, into: Uint8Array): void;
  /** Blocks that must stay until the next are named. */
  keep(first: number, last: number): void;
  close(): void;
}

/** Blocks that stay in memory beside those that are needed. */
const KEPT_BLOCKS = 32;

export class MemoryStore implements BlockStore {
  readonly lasting = false;
  #blocks = new Map<number, Uint8Array>();
  #kept: [number, number] = [0, -1];

  has(block: number): boolean {
    return this.#blocks.has(block);
  }

  async verify(): Promise<boolean> {
    return true;
  }

  async write(block: number, bytes: Uint8Array): Promise<void> {
    this.#blocks.set(block, bytes);
    for (const old of this.#blocks.keys()) {
      if (this.#blocks.size <= KEPT_BLOCKS) break;
      // In the order they came; what has yet to be read stands behind what is read now.
      if (old < this.#kept[0]) this.#blocks.delete(old);
    }
  }

  drop(block: number): void {
    this.#blocks.delete(block);
  }

  read(start: number, into: Uint8Array): void {
    for (let at = 0; at < into.length; ) {
      const block = Math.floor((start + at) / BLOCK_BYTES);
      const bytes = this.#blocks.get(block)!;
      const offset = start + at - block * BLOCK_BYTES;
      const part = bytes.subarray(offset, offset + into.length - at);
      into.set(part, at);
      at += part.length;
    }
  }

  keep(first: number, last: number): void {
    this.#kept = [first, last];
  }

  close(): void {
    this.#blocks.clear();
  }
}

/** What a file in storage was, so that another one under the same address is not taken for it. */
export interface StoredIdentity {
  url: string;
  size: number;
  tag: string;
}

const FOLDER = "mambo-models";
/** Place for the identity, before a hash for each block. */
const HEAD_BYTES = 4096;
const HASH_BYTES = 32;
const VERSION = 1;

async function sha256(bytes: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as BufferSource));
}

const hex = (bytes: Uint8Array) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

async function openHandle(folder: FileSystemDirectoryHandle, name: string): Promise<any> {
  const file: any = await folder.getFileHandle(name, { create: true });
  try {
    // Two tabs write the same bytes, which are checked before they are used.
    return await file.createSyncAccessHandle({ mode: "readwrite-unsafe" });
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return await file.createSyncAccessHandle();
  }
}

/**
 * Blocks in the origin's private files: one file with the bytes, one with what they are and a SHA-256 of each block. A
 * block counts as there once its hash is written, and is checked against it the first time it is used after a reload.
 */
export class LastingStore implements BlockStore {
  readonly lasting = true;
  #data: any;
  #index: any;
  #hashes: Uint8Array;
  #checked = new Set<number>();

  private constructor(
    readonly identity: StoredIdentity,
    data: any,
    index: any,
    hashes: Uint8Array,
  ) {
    this.#data = data;
    this.#index = index;
    this.#hashes = hashes;
  }

  /**
   * What is stored of an address. `found` is what the server says now, or null where it cannot be reached.
   * @returns null where nothing is stored and the server cannot be asked.
   */
  static async open(url: string, found: { size: number; tag: string } | null): Promise<LastingStore | null> {
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle(FOLDER, { create: true });
    const name = hex(await sha256(new TextEncoder().encode(url))).slice(0, 32);
    const data = await openHandle(folder, `${name}.data`);
    let index: any;
    try {
      index = await openHandle(folder, `${name}.blocks`);
    } catch (error) {
      data.close();
      throw error;
    }
    const before = LastingStore.#identityIn(index, url);
    const isSame =
      before !== null &&
      (found === null ||
        (before.size === found.size && (before.tag === "" || found.tag === "" || before.tag === found.tag)));
    if (isSame) {
      const hashes = new Uint8Array(Math.ceil(before.size / BLOCK_BYTES) * HASH_BYTES);
      index.read(hashes, { at: HEAD_BYTES });
      return new LastingStore(before, data, index, hashes);
    }
    if (found === null) {
      data.close();
      index.close();
      return null;
    }
    const identity = { url, ...found };
    const { quota = 0, usage = 0 } = await navigator.storage.estimate();
    if (quota > 0 && quota - usage < found.size) {
      data.close();
      index.close();
      throw new Error(
        `the browser leaves ${Math.floor((quota - usage) / 1e6)} MB of storage and the file has ${Math.ceil(found.size / 1e6)} MB`,
      );
    }
    data.truncate(0);
    const hashes = new Uint8Array(Math.ceil(found.size / BLOCK_BYTES) * HASH_BYTES);
    const head = new Uint8Array(HEAD_BYTES).fill(32);
    const text = new TextEncoder().encode(JSON.stringify({ version: VERSION, ...identity }));
    if (text.length > HEAD_BYTES) throw new Error("the address is too long to be stored");
    head.set(text);
    index.truncate(0);
    index.write(head, { at: 0 });
    index.write(hashes, { at: HEAD_BYTES });
    index.flush();
    return new LastingStore(identity, data, index, hashes);
  }

  static #identityIn(index: any, url: string): StoredIdentity | null {
    const head = new Uint8Array(HEAD_BYTES);
    if (index.read(head, { at: 0 }) !== HEAD_BYTES) return null;
    try {
      const { version, ...identity } = JSON.parse(new TextDecoder().decode(head));
      const isSound = version === VERSION && identity.url === url && Number.isSafeInteger(identity.size);
      return isSound ? identity : null;
    } catch {
      return null;
    }
  }

  #hash(block: number): Uint8Array {
    return this.#hashes.subarray(block * HASH_BYTES, (block + 1) * HASH_BYTES);
  }

  has(block: number): boolean {
    return this.#hash(block).some((byte) => byte !== 0);
  }

  async verify(block: number): Promise<boolean> {
    if (this.#checked.has(block)) return true;
    const start = block * BLOCK_BYTES;
    const bytes = new Uint8Array(Math.min(BLOCK_BYTES, this.identity.size - start));
    if (this.#data.read(bytes, { at: start }) !== bytes.length) return false;
    const hash = await sha256(bytes);
    const isSame = this.#hash(block).every((byte, at) => byte === hash[at]);
    if (isSame) this.#checked.add(block);
    return isSame;
  }

  async write(block: number, bytes: Uint8Array): Promise<void> {
    const hash = await sha256(bytes);
    if (this.#data.write(bytes, { at: block * BLOCK_BYTES }) !== bytes.length)
      throw new Error("the browser's storage is full; remove stored models or free some space");
    this.#hashes.set(hash, block * HASH_BYTES);
    this.#index.write(hash, { at: HEAD_BYTES + block * HASH_BYTES });
    this.#checked.add(block);
  }

  drop(block: number): void {
    this.#hash(block).fill(0);
    this.#index.write(this.#hash(block), { at: HEAD_BYTES + block * HASH_BYTES });
    this.#checked.delete(block);
  }

  read(start: number, into: Uint8Array): void {
    if (this.#data.read(into, { at: start }) !== into.length)
      throw new Error("stored bytes are missing; reload the page");
  }

  keep(): void {}

  close(): void {
    for (const handle of [this.#data, this.#index]) {
      handle.flush();
      handle.close();
    }
  }
}

/** Bytes that stored models take, by address. */
export async function storedModels(): Promise<{ url: string; size: number }[]> {
  const models: { url: string; size: number }[] = [];
  const root = await navigator.storage.getDirectory();
  const folder: any = await root.getDirectoryHandle(FOLDER, { create: true });
  for await (const [name, handle] of folder.entries()) {
    if (!name.endsWith(".blocks")) continue;
    try {
      const head = await (await handle.getFile()).slice(0, HEAD_BYTES).text();
      const data = await (await folder.getFileHandle(name.replace(".blocks", ".data"))).getFile();
      models.push({ url: JSON.parse(head).url, size: data.size });
    } catch {
      // Being written, or damaged: it is replaced when its address is opened again.
    }
  }
  return models;
}

/** Removes all stored models that no tab has open; says how many. */
export async function removeStored(): Promise<number> {
  const root = await navigator.storage.getDirectory();
  const folder: any = await root.getDirectoryHandle(FOLDER, { create: true });
  let removed = 0;
  for await (const name of folder.keys()) {
    try {
      await folder.removeEntry(name);
      if (name.endsWith(".data")) removed += 1;
    } catch {
      // Open in this or another tab.
    }
  }
  return removed;
}
