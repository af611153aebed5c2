/** The GPU as the browser offers it: whether there is one, what it is called, and whether it is one. */

import { isNode } from "./runtime.js";

/** An adapter, or why there is none. */
export type Found = { name: string; isSoftware: boolean; detail: string } | { absent: string; advice: string };

const megabytes = (bytes: number) => `${Math.round(bytes / 1e6).toLocaleString("en")} MB`;

export async function findGpu(): Promise<Found> {
  const api = (globalThis.navigator as any)?.gpu;
  if (!api) {
    const where = isNode ? "Node" : "this browser";
    return { absent: `${where} offers no WebGPU`, advice: "A browser with WebGPU, on a page over https or from localhost, can use the graphics card." };
  }
  const adapter = await api.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter)
    return { absent: "WebGPU finds no graphics card", advice: "Check the browser's page about graphics for why the card is not used." };
  const { vendor = "", architecture = "", description = "", isFallbackAdapter = false } = adapter.info ?? {};
  const { maxStorageBufferBindingSize, maxBufferSize } = adapter.limits;
  const features = ["shader-f16", "subgroups"].filter((feature) => adapter.features.has(feature));
  const name = description || [vendor, architecture].filter(Boolean).join(" ") || "GPU";
  const detail = `${name}; bindings of ${megabytes(maxStorageBufferBindingSize)}, buffers of ${megabytes(maxBufferSize)}; ${features.join(", ") || "no optional features"}`;
  return { name, isSoftware: isFallbackAdapter, detail };
}
