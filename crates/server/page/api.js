/** The server's HTTP interface. Knows URLs, the API key and errors; nothing of what is shown. */

import { readEvents } from "./sse.js";

const KEY = "mambo-api-key";

/** An answer the server refused or broke off; `status` 0 means it was not reached. */
export class ApiError extends Error {
  constructor(message, { status = 0, type = "", param = null, retryAfterSeconds = null } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, type, param, retryAfterSeconds });
  }
}

/** Whether the engine may ask for a key. */
export const usesApiKeys = true;

let apiKey = "";
try {
  apiKey = sessionStorage.getItem(KEY) ?? "";
} catch {
  // Storage is forbidden here; the key lives as long as the page.
}

/** The API key lives as long as the tab. */
export function setApiKey(key) {
  apiKey = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // As above.
  }
}

export function hasApiKey() {
  return apiKey !== "";
}

async function request(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey) headers.authorization = `Bearer ${apiKey}`;
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: body ? "POST" : "GET",
      headers,
      body: body ? JSON.stringify(body) : undefined,
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("Cannot reach the server. Is `mambo serve` still running?");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  let detail = {};
  try {
    detail = (await response.json()).error ?? {};
  } catch {
    // Not JSON: a proxy in between. The status has to do.
  }
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  return new ApiError(detail.message ?? `The server answered ${response.status} ${response.statusText}.`, {
    status: response.status,
    type: detail.type ?? "",
    param: detail.param ?? null,
    retryAfterSeconds: Number.isFinite(seconds) ? seconds : null,
  });
}

async function* readJson(response) {
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      const value = JSON.parse(data);
      if (value.error)
        throw new ApiError(value.error.message ?? "The server broke off.", { status: 200, ...value.error });
      yield value;
    }
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("The connection was lost before the answer ended.");
    if (error instanceof SyntaxError) throw new ApiError("The server sent something that is not JSON.");
    throw error;
  }
}

/** Chunks of a streamed answer, in OpenAI's form. */
export async function* streamChat(body, signal) {
  const full = { ...body, stream: true, stream_options: { include_usage: true } };
  yield* readJson(await request("v1/chat/completions", { body: full, signal }));
}

/** What the engine does at this moment, about twice a second until `signal`. */
export async function* streamLive(signal) {
  yield* readJson(await request("api/mambo/live", { signal }));
}

export async function fetchModelIds() {
  const { data } = await (await request("v1/models")).json();
  return data.map((model) => model.id);
}

export async function fetchModel() {
  return (await request("api/mambo/model")).json();
}
