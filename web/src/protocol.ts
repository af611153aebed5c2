/** What the page and the worker tell each other. */

import type { BackendChoice, Progress, Source } from "./types.js";

/** A call of the worker; every one is answered once. */
export interface Call {
  call: number;
  method: string;
  args: unknown[];
}

/** Settings of the core, as it reads them. */
export interface CoreSettings {
  context_tokens?: number;
  sequences?: number;
  step_tokens?: number;
  prefix_cache_bytes?: number;
  memory_bytes?: number;
}

export interface LoadCall {
  source: Source;
  settings: CoreSettings;
  backend: BackendChoice;
  store: boolean;
}

/** An event of the core; `id` is the request's. */
export interface CoreEvent {
  id: number;
  type: string;
  [field: string]: unknown;
}

export type Told =
  | { call: number; result: unknown }
  | { call: number; error: string }
  | { events: CoreEvent[] }
  | { progress: Progress }
  | { note: string }
  | { lost: string };

/** Options as the core's JSON has them: names with underscores, nothing where nothing was said. */
export function commonFields(options: Record<string, any>): Record<string, unknown> {
  const stop = typeof options.stop === "string" ? [options.stop] : (options.stop ?? []);
  const sampling = {
    temperature: options.temperature,
    top_p: options.topP,
    top_k: options.topK,
    min_p: options.minP,
    repetition_penalty: options.repetitionPenalty,
    presence_penalty: options.presencePenalty,
    frequency_penalty: options.frequencyPenalty,
    seed: options.seed,
  };
  const random = crypto.getRandomValues(new Uint32Array(1))[0];
  return {
    max_tokens: options.maxTokens,
    stop,
    sampling,
    logprobs: options.logprobs === true,
    random_seed: random,
  };
}
