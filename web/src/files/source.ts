/** From what a page names to the files of a model: one GGUF file or all its parts, or safetensors weights with the texts
 * beside them. */

import { isNode, nodeModule } from "../runtime.js";
import type { Source } from "../types.js";
import { BlobFile, BytesFile, NodeFile, type Counts, type RangeFile } from "./file.js";
import { HttpError, HttpFile, refusal } from "./http.js";

export interface ModelFiles {
  name: string;
  files: RangeFile[];
  /** Texts beside safetensors weights, by name. */
  beside: Record<string, string>;
}

export interface FileOptions {
  store: boolean;
  counts: Counts;
  changed: () => void;
  note: (text: string) => void;
  signal: AbortSignal;
}

const BESIDE = [
  "config.json",
  "generation_config.json",
  "tokenizer_config.json",
  "hf_quant_config.json",
  "tokenizer.json",
  "chat_template.jinja",
];
const SINGLE = "model.safetensors";
const INDEX = "model.safetensors.index.json";
const PART = /-(\d{5})-of-(\d{5})\.gguf$/;

/** Names of all parts of a GGUF model, from that of one. */
function partNames(name: string): string[] {
  const found = PART.exec(name);
  if (!found) return [name];
  const count = Number(found[2]);
  const number = (index: number) => String(index).padStart(5, "0");
  return Array.from({ length: count }, (_, index) => name.replace(PART, `-${number(index + 1)}-of-${found[2]}.gguf`));
}

/** Names of the safetensors files that an index lists. */
function shardsOf(index: string): string[] {
  const map = JSON.parse(index).weight_map;
  if (typeof map !== "object" || map === null) throw new Error(`${INDEX} has no weight_map; download it again`);
  return [...new Set(Object.values(map) as string[])].sort();
}

/** A folder of files, wherever it is. */
interface Folder {
  /** The text of a file, or null where there is none. */
  text(name: string): Promise<string | null>;
  open(name: string): Promise<RangeFile>;
}

async function fromFolder(name: string, folder: Folder): Promise<ModelFiles> {
  const beside: Record<string, string> = {};
  for (const file of BESIDE) {
    const text = await folder.text(file);
    if (text !== null) beside[file] = text;
  }
  if (!("config.json" in beside)) throw new Error(`${name} has no config.json; name a folder with a model, or a .gguf file`);
  const index = await folder.text(INDEX);
  const names = index === null ? [SINGLE] : shardsOf(index);
  const files = [];
  for (const file of names) files.push(await folder.open(file));
  return { name, files, beside };
}

const lastOf = (path: string) => decodeURIComponent(path.replace(/\/+$/, "").split("/").at(-1) || path);

async function fromAddress(address: string, options: FileOptions): Promise<ModelFiles> {
  const url = new URL(address);
  if (/\.gguf$/i.test(url.pathname)) {
    const files = [];
    for (const name of partNames(url.pathname)) {
      const part = new URL(url);
      part.pathname = name;
      files.push(await openAddress(part, options));
    }
    return { name: lastOf(url.pathname), files, beside: {} };
  }
  const folder = new URL(/\.(safetensors|json)$/i.test(url.pathname) ? "." : url.href.replace(/\/?$/, "/"), url);
  return fromFolder(lastOf(folder.pathname), {
    text: (name) => textAt(new URL(name, folder), options.signal),
    open: (name) => openAddress(new URL(name, folder), options),
  });
}

async function openAddress(url: URL, options: FileOptions): Promise<RangeFile> {
  if (url.protocol === "file:" && isNode) {
    return NodeFile.open(lastOf(url.pathname), url, await nodeModule("fs"));
  }
  return HttpFile.open(url.href, options);
}

async function textAt(url: URL, signal: AbortSignal): Promise<string | null> {
  if (url.protocol === "file:" && isNode) {
    const fs = await nodeModule("fs/promises");
    return fs.readFile(url, "utf8").catch((error: any) => {
      if (error.code === "ENOENT") return null;
      throw error;
    });
  }
  const response = await fetch(url, { signal });
  if (response.status === 404 || response.status === 403) return null;
  if (!response.ok) throw new HttpError(`${lastOf(url.pathname)}: ${refusal(response.status)}`, response.status);
  return response.text();
}

async function fromFiles(chosen: readonly File[]): Promise<ModelFiles> {
  const byName = new Map(chosen.map((file) => [file.name, file]));
  const parts = chosen.filter((file) => /\.gguf$/i.test(file.name)).map((file) => file.name);
  if (parts.length > 0) {
    const names = partNames(parts[0]!);
    const missing = names.filter((name) => !byName.has(name));
    if (missing.length > 0) throw new Error(`${missing[0]} is missing; choose all ${names.length} parts of the model together`);
    return { name: parts[0]!, files: names.map((name) => new BlobFile(name, byName.get(name)!)), beside: {} };
  }
  const weights = chosen.find((file) => /\.safetensors$/i.test(file.name));
  const named = weights?.webkitRelativePath.split("/").at(-2);
  return fromFolder(named || weights?.name || "the chosen files", {
    text: async (name) => (await byName.get(name)?.text()) ?? null,
    open: async (name) => {
      const file = byName.get(name) ?? (name === SINGLE ? weights : undefined);
      if (!file) throw new Error(`${name} is missing; choose all files of the model's folder together`);
      return new BlobFile(name, file);
    },
  });
}

/** Opens the files of a source; no more than headers and small texts are read. */
export async function openSource(source: Source, options: FileOptions): Promise<ModelFiles> {
  if (source instanceof URL || typeof source === "string") return fromAddress(String(source), options);
  if (typeof Blob !== "undefined" && source instanceof Blob) {
    const name = (source as File).name ?? "a file";
    return { name, files: [new BlobFile(name, source)], beside: {} };
  }
  if (Array.isArray(source)) return fromFiles(source as File[]);
  const { name, bytes } = source as { name: string; bytes: Uint8Array };
  if (!(bytes instanceof Uint8Array)) throw new Error("a source is an address, files, or { name, bytes }");
  return { name, files: [new BytesFile(name, bytes)], beside: {} };
}
