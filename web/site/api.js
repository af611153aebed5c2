/** The same interface as the server's `api.js`, answered by the model in this tab. */

import { engine } from "./engine.js";
import { openai } from "./mambo/openai.js";

const TICK_MS = 500;

/** An answer that was refused or broke off. */
export class ApiError extends Error {
  constructor(message, { status = 0, type = "", param = null, retryAfterSeconds = null } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, type, param, retryAfterSeconds });
  }
}

/** Nothing leaves this tab, so there is nobody to show a key to. */
export const usesApiKeys = false;
export function setApiKey() {}
export const hasApiKey = () => false;

/** Tokens read and written since the page was opened, for the live view. */
const counts = { prompt: 0, answer: 0 };

async function model() {
  try {
    return await engine.ready();
  } catch (error) {
    throw new ApiError(error.message, { status: 503 });
  }
}

/** Chunks of a streamed answer, in OpenAI's form. */
export async function* streamChat(body, signal) {
  const params = { ...body, stream: true, stream_options: { include_usage: true } };
  try {
    const chunks = await openai(await model()).chat.completions.create(params, { signal });
    for await (const chunk of chunks) {
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.content || delta.reasoning_content) counts.answer += 1;
      if (chunk.usage) counts.prompt += chunk.usage.prompt_tokens - chunk.usage.prompt_tokens_details.cached_tokens;
      yield chunk;
    }
  } catch (error) {
    if (signal?.aborted || error instanceof ApiError) throw error;
    throw new ApiError(error.message, { status: 400 });
  }
  signal?.throwIfAborted();
}

/** What the engine does at this moment, about twice a second until `signal`. */
export async function* streamLive(signal) {
  const watched = await model();
  await watched.watch(true);
  let before = { at: performance.now(), ...counts };
  try {
    while (!signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, TICK_MS));
      if (signal.aborted) return;
      const sample = await watched.live();
      const now = { at: performance.now(), ...counts };
      const seconds = (now.at - before.at) / 1000;
      yield {
        ...sample,
        prompt_tokens_per_second: (now.prompt - before.prompt) / seconds,
        tokens_per_second: (now.answer - before.answer) / seconds,
      };
      before = now;
    }
  } finally {
    watched.watch(false).catch(() => {});
  }
}

export async function fetchModelIds() {
  return [(await model()).name];
}

export async function fetchModel() {
  return (await model()).view;
}

