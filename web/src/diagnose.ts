/** What this browser has of what the engine needs; each check says what to do where something is missing. */

import { isNode } from "./runtime.js";
import type { Check } from "./types.js";

export interface CoreFacts {
  about: { version: string; instruction_sets: string[] };
  readBandwidth: (bytes: number) => number;
  isLoaded: boolean;
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

async function gpu(): Promise<Check[]> {
  const name = "WebGPU";
  const api = (globalThis.navigator as any)?.gpu;
  if (!api)
    return [{ name, outcome: "absent", detail: "this browser offers none", advice: "The processor computes; a browser with WebGPU can use the graphics card." }];
  const adapter = await api.requestAdapter().catch(() => null);
  if (!adapter)
    return [{ name, outcome: "absent", detail: "there is no adapter", advice: "The processor computes; check the browser's page about graphics for why the card is not used." }];
  const { vendor = "", architecture = "", description = "" } = adapter.info ?? {};
  const { maxStorageBufferBindingSize, maxBufferSize } = adapter.limits;
  const features = ["shader-f16", "subgroups"].filter((feature) => adapter.features.has(feature));
  const what = [vendor, architecture, description].filter(Boolean).join(" ") || "unnamed";
  const detail = `${what}; bindings of ${megabytes(maxStorageBufferBindingSize)}, buffers of ${megabytes(maxBufferSize)}; ${features.join(", ") || "no optional features"}`;
  return [{ name, outcome: "good", detail }];
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
  checks.push(...(await storage()), ...(await gpu()));
  return checks;
}
