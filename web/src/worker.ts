/** The worker: holds the core, runs its steps, and lets messages in between two of them. */

import init, { about, diagnoseGpu, openGpu, openModel, readBandwidth, type Core, type Gpu } from "./core/core.js";
import { diagnose } from "./diagnose.js";
import type { RangeFile } from "./files/file.js";
import { openSource } from "./files/source.js";
import { findGpu } from "./gpu.js";
import type { Call, LoadCall, Told } from "./protocol.js";
import { isNode, makeTurn, nodeModule, ownPort } from "./runtime.js";
import type { BackendChoice, Progress } from "./types.js";

/** Between two messages about progress. */
const TELL_MS = 50;

const port = await ownPort();
const turn = makeTurn();
const tell = (message: Told, transfer?: Transferable[]) => port.post(message, transfer);

let core: Core | null = null;
let files: RangeFile[] = [];
let loading: AbortController | null = null;
let running = false;

const ready = (async () => {
  const address = new URL("./core/core_bg.wasm", import.meta.url);
  await init({ module_or_path: isNode ? (await nodeModule("fs/promises")).readFile(address) : address });
})();

function loaded(): Core {
  if (!core) throw new Error("no model is loaded");
  return core;
}

/** The GPU that is to compute, or nothing where the processor is. Whoever leaves the choice to us hears of a GPU that is not used. */
async function chooseGpu(backend: BackendChoice, note: (text: string) => void): Promise<Gpu | undefined> {
  if (backend === "cpu") return undefined;
  const found = await findGpu();
  const unused = "absent" in found ? found.absent : found.isSoftware ? `${found.name} is no graphics card but a program` : null;
  if (backend === "webgpu") {
    if ("absent" in found) throw new Error(`${found.absent}. ${found.advice} Or set \`backend\` to \`cpu\`.`);
    return openGpu(found.name);
  }
  if (unused === null && "name" in found) {
    try {
      return await openGpu(found.name);
    } catch (error) {
      note(`The processor computes: ${(error as Error).message}.`);
    }
  } else if (!isNode) note(`The processor computes: ${unused}.`);
  return undefined;
}

async function load({ source, settings, backend, store }: LoadCall): Promise<unknown> {
  unload();
  loading = new AbortController();
  const progress: Progress = { fetched: 0, cached: 0, loaded: 0, total: 0 };
  let last = 0;
  const changed = () => {
    const now = performance.now();
    if (now - last < TELL_MS) return;
    last = now;
    tell({ progress });
  };
  const note = (text: string) => tell({ note: text });
  const opened = await openSource(source, { store, counts: progress, changed, note, signal: loading.signal });
  files = opened.files;
  const onEvent = (text: string) => {
    const event = JSON.parse(text);
    if (event.type === "note") return note(event.text);
    [progress.loaded, progress.total] = [event.done, event.total];
    changed();
  };
  let own: Core;
  try {
    const gpu = await chooseGpu(backend, note);
    own = await openModel(
      opened.name,
      opened.files as any[],
      JSON.stringify(opened.beside),
      JSON.stringify(settings),
      gpu,
      onEvent,
    );
  } finally {
    // Weights are in the core by now, or the model is not to be had.
    files.forEach((file) => file.close());
    files = [];
    loading = null;
  }
  core = own;
  own.loss().then((reason) => {
    // What it held is gone with it; whoever loads again begins anew.
    if (core === own) fail(`the graphics card was lost (${reason.replace(/\.$/, "")}); load the model again`);
  });
  tell({ progress });
  return JSON.parse(own.view());
}

function unload(): void {
  core?.free();
  core = null;
}

/** Gives the core up. */
function fail(reason: string): void {
  core = null;
  tell({ lost: reason });
}

/** Runs steps as long as there is something to do; where a device still runs one, until it has something to give. */
async function run(): Promise<void> {
  if (running) return;
  running = true;
  try {
    while (core && !core.isIdle()) {
      const events = core.step();
      if (events !== undefined && events !== "[]") tell({ events: JSON.parse(events) });
      await (events === undefined ? core.arrival() : turn());
    }
  } catch (error) {
    // The core never throws from a step: it has trapped, and nothing in it can be trusted.
    fail(`the engine failed and has to be loaded again (${(error as Error).message})`);
  } finally {
    running = false;
  }
}

/** A request that the core has taken: its events follow. */
function started(id: number): number {
  queueMicrotask(run);
  return id;
}

async function exported(id: number): Promise<Uint8Array> {
  for (;;) {
    const bytes = loaded().export(id);
    if (bytes) return bytes;
    await loaded().arrival();
  }
}

/** Opens a GPU of its own, so that a model that is loaded runs on. */
async function tryGpu(name: string): Promise<{ name: string; problem: string | null }[]> {
  return JSON.parse(await diagnoseGpu(await openGpu(name)));
}

const methods: Record<string, (...args: any[]) => unknown> = {
  load,
  unload,
  stopLoading: () => loading?.abort(),
  chat: (request: string) => started(loaded().chat(request)),
  complete: (request: string) => started(loaded().complete(request)),
  embed: (text: string) => started(loaded().embed(text)),
  snapshot: (request: string) => started(loaded().snapshot(request)),
  export: exported,
  restore: (bytes: Uint8Array) => loaded().restore(bytes),
  tokens: (text: string) => loaded().tokens(text),
  logits: (tokens: Uint32Array) => loaded().logits(tokens),
  cancel: (id: number) => {
    loaded().cancel(id);
    started(id);
  },
  watch: (on: boolean) => loaded().watch(on),
  live: () => JSON.parse(loaded().live()),
  diagnose: () => diagnose({ about: JSON.parse(about()), readBandwidth, tryGpu }),
};

port.listen(async ({ call, method, args }: Call) => {
  try {
    await ready;
    const result = await methods[method]!(...args);
    const transfer = result instanceof Uint8Array || result instanceof Float32Array ? [result.buffer] : [];
    tell({ call, result: result ?? null }, transfer as Transferable[]);
  } catch (error) {
    tell({ call, error: (error as Error)?.message ?? String(error) });
  }
});
