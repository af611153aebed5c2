/** A file as the core reads it: bytes are made readable first, where one may wait, and copied where one may not. */
export interface RangeFile {
  readonly name: string;
  readonly size: number;
  /** Makes bytes readable. */
  fetch(start: number, end: number): Promise<void>;
  /** Copies bytes; false if they have to be fetched first. */
  read(start: number, into: Uint8Array): boolean;
  /** These will hardly be read again. */
  release(start: number, end: number): void;
  close(): void;
}

/** Bytes counted while a model is opened. */
export interface Counts {
  fetched: number;
  cached: number;
}

/** A file in memory. */
export class BytesFile implements RangeFile {
  constructor(
    readonly name: string,
    readonly bytes: Uint8Array,
  ) {}

  get size(): number {
    return this.bytes.length;
  }

  async fetch(): Promise<void> {}

  read(start: number, into: Uint8Array): boolean {
    const part = this.bytes.subarray(start, start + into.length);
    if (part.length !== into.length) throw new Error(`it has ${this.size} bytes, and ${start + into.length} are needed`);
    into.set(part);
    return true;
  }

  release(): void {}
  close(): void {}
}

/** Of workers alone, so that it is missing from the types of pages. */
declare const FileReaderSync: { new (): { readAsArrayBuffer(blob: Blob): ArrayBuffer } };

/** A file chosen from disk, read where it is. Only a worker may read without waiting. */
export class BlobFile implements RangeFile {
  #reader = new FileReaderSync();

  constructor(
    readonly name: string,
    readonly blob: Blob,
  ) {}

  get size(): number {
    return this.blob.size;
  }

  async fetch(): Promise<void> {}

  read(start: number, into: Uint8Array): boolean {
    const part = new Uint8Array(this.#reader.readAsArrayBuffer(this.blob.slice(start, start + into.length)));
    if (part.length !== into.length) throw new Error("the file was changed or removed while it was read; choose it again");
    into.set(part);
    return true;
  }

  release(): void {}
  close(): void {}
}

/** A file of the disk, in Node. */
export class NodeFile implements RangeFile {
  private constructor(
    readonly name: string,
    readonly size: number,
    readonly fs: any,
    readonly handle: number,
  ) {}

  static async open(name: string, address: URL, fs: any): Promise<NodeFile> {
    const handle = fs.openSync(address, "r");
    return new NodeFile(name, fs.fstatSync(handle).size, fs, handle);
  }

  async fetch(): Promise<void> {}

  read(start: number, into: Uint8Array): boolean {
    let at = 0;
    while (at < into.length) {
      const read = this.fs.readSync(this.handle, into, at, into.length - at, start + at);
      if (read === 0) throw new Error("the file has become shorter while it was read");
      at += read;
    }
    return true;
  }

  release(): void {}

  close(): void {
    this.fs.closeSync(this.handle);
  }
}
