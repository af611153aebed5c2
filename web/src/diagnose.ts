/** What this browser has of what the engine needs; each check says what to do where something is missing. */

import { findGpu } from "./gpu.js";
import { isNode } from "./runtime.js";
import type { Check } from "./types.js";

export interface CoreFacts {
  about: { version: string; instruction_sets: string[] };
  readBandwidth: (bytes: number) => number;
  /** Tries a GPU with tasks of known results, up to the first that fails. */
  tryGpu: (name: string) => Promise<{ name: string; problem: string | null }[]>;
}

/** Read for the bandwidth: more than caches hold, less than a phone misses. */
const BANDWIDTH_BYTES = 64 << 20;

const megabytes = (bytes: number) => `${Math.round(bytes / 1e6).toLocaleString("en")} MB`;

function check(name: string, isGood: boolean, detail: string, advice?: string): Check {
  return isGood ? { name, outcome: "good", detail } : { name, outcome: "bad", detail, advice };
}

async function storage(): Promise<Check[]> {
  const name = "Storage";
  if (isNode) return [{ name, outcome: "absent", detail: "Node reads files where they are" }];
  if (!globalThis.isSecureContext)
    return [check(name, false, "the page is not secure", "Open it over https, or from localhost: browsers give no storage otherwise.")];
  if (!navigator.storage?.getDirectory)
    return [check(name, false, "no private files", "Models are fetched anew on every visit; a newer browser keeps them.")];
  try {
    const root = await navigator.storage.getDirectory();
    const file: any = await root.getFileHandle("mambo-check", { create: true });
    const handle = await file.createSyncAccessHandle();
    const bytes = new Uint8Array([1, 2, 3, 4]);
    const back = new Uint8Array(4);
    // Beyond what 32 bits count.
    handle.write(bytes, { at: 0 });
    handle.read(back, { at: 0 });
    handle.close();
    await root.removeEntry("mambo-check");
    const { quota = 0, usage = 0 } = await navigator.storage.estimate();
    const isSame = back.every((byte, at) => byte === bytes[at]);
    const lasting = (await navigator.storage.persisted?.()) ? "kept until you remove it" : "the browser may remove it";
    return [
      check(name, isSame, `private files work, ${lasting}`, "What was written did not come back: another window may be private."),
      check(
        "Room",
        quota - usage > 1e9,
        `${megabytes(usage)} used of ${megabytes(quota)}`,
        "Large models do not fit here: free some space on the disk, or leave private browsing.",
      ),
    ];
  } catch (error) {
    return [check(name, false, (error as Error).message, "Private windows often have no storage; models are fetched anew there.")];
  }
}

/** The adapter, then the tasks of the engine's own that it is tried with. */
async function gpu(tryGpu: CoreFacts["tryGpu"]): Promise<Check[]> {
  const name = "WebGPU";
  const found = await findGpu();
  if ("absent" in found)
    return [{ name, outcome: "absent", detail: found.absent, advice: `The processor computes. ${found.advice}` }];
  const adapter: Check = found.isSoftware
    ? {
        name,
        outcome: "absent",
        detail: `${found.detail}; it is a program on the processor`,
        advice: "The processor itself is faster, and computes unless you choose WebGPU.",
      }
    : { name, outcome: "good", detail: found.detail };
  try {
    const tried = await tryGpu(found.name);
    return [
      adapter,
      ...tried.map(({ name, problem }) =>
        check(`WebGPU: ${name}`, problem === null, problem ?? "as it should be", "Until this is right, choose the processor."),
      ),
    ];
  } catch (error) {
    return [adapter, check("WebGPU: a device", false, (error as Error).message, "Close other tabs that use the graphics card, or choose the processor.")];
  }
}

export async function diagnose(facts: CoreFacts): Promise<Check[]> {
  const checks: Check[] = [];
  const sets = facts.about.instruction_sets.join(", ");
  checks.push(check("Engine", true, `mambo ${facts.about.version}, ${sets}, one thread`));
  const begun = performance.now();
  const speed = facts.readBandwidth(BANDWIDTH_BYTES);
  const took = Math.round(performance.now() - begun);
  checks.push(
    check(
      "Memory",
      speed > 2,
      `${speed.toFixed(1)} GB/s read by one thread, measured in ${took} ms`,
      "This is slow: close other tabs, or plug the machine in. Answers wait for memory.",
    ),
  );
  checks.push(...(await storage()), ...(await gpu(facts.tryGpu)));
  return checks;
}
