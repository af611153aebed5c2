/**
 * A stand-in for `mambo serve`: the page's files with the real content security policy, and the
 * API with canned answers. The last message decides what happens (see `ANSWERS`). Streams are cut
 * into pieces of 1 to 23 bytes, so characters, lines and fields break everywhere.
 *
 * On its own: `node mock-server.mjs 8080`.
 */

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { ANSWERS, DEFAULT_ANSWER } from "./mock-answers.mjs";
import { liveEvent, MODEL } from "./mock-model.mjs";

const PAGE = fileURLToPath(new URL("..", import.meta.url));
const CSP =
  "default-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'";
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
};

/** A small generator of repeatable numbers in [0, 1). */
export function repeatable(seed) {
  let state = seed;
  return () => {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    return state / 2 ** 31;
  };
}

/** Cuts bytes where it hurts. */
export function awkwardPieces(bytes, seed) {
  const random = repeatable(seed);
  const pieces = [];
  for (let at = 0; at < bytes.length;) {
    const length = 1 + Math.floor(random() * 23);
    pieces.push(bytes.subarray(at, at + length));
    at += length;
  }
  return pieces;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * @param {{port?: number, key?: string}} options `key`: refuse requests without it
 * @returns {Promise<{url: string, requests: object[], close: () => Promise<void>}>}
 */
export async function startMockServer({ port = 0, key = "" } = {}) {
  const requests = [];
  const state = { key, requests, busyLeft: 1 };
  const server = createServer((request, response) => {
    handle(request, response, state).catch((error) => {
      if (!response.headersSent)
        json(response, 500, { error: { message: String(error), type: "server_error" } });
      else response.destroy();
    });
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const close = () =>
    new Promise((resolve) => {
      server.close(resolve);
      server.closeAllConnections();
    });
  return { url: `http://127.0.0.1:${server.address().port}/`, requests, state, close };
}

async function handle(request, response, state) {
  const { pathname } = new URL(request.url, "http://localhost");
  const isApi = pathname.startsWith("/v1/") || pathname.startsWith("/api/");
  if (isApi && state.key && request.headers.authorization !== `Bearer ${state.key}`) {
    return json(response, 401, {
      error: { message: "A key is needed.", type: "authentication_error", param: null, code: null },
    });
  }
  if (pathname === "/v1/models")
    return json(response, 200, { object: "list", data: [{ id: MODEL.name, object: "model" }] });
  if (pathname === "/health") return json(response, 200, { status: "ok" });
  if (pathname === "/api/mambo/model") return json(response, 200, MODEL);
  if (pathname === "/api/mambo/live") return live(response);
  if (pathname === "/v1/chat/completions") return chat(request, response, state);
  const file = normalize(pathname === "/" ? "/index.html" : pathname);
  const type = TYPES[extname(file)];
  try {
    const content = type && !file.startsWith("/tests") ? await readFile(join(PAGE, file)) : null;
    if (!content) return json(response, 404, { error: { message: "Not found", type: "not_found" } });
    response.writeHead(200, {
      "content-type": type,
      "content-security-policy": CSP,
      "x-content-type-options": "nosniff",
    });
    response.end(content);
  } catch {
    json(response, 404, { error: { message: "Not found", type: "not_found" } });
  }
}

function json(response, status, value, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(value));
}

function startStream(response) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  response.write(": the stream begins\r\n\r\n");
}

async function live(response) {
  startStream(response);
  for (let tick = 0; !response.destroyed; tick += 1) {
    response.write(`data: ${JSON.stringify(liveEvent(tick))}\n\n`);
    await sleep(tick < 20 ? 40 : 500);
  }
}

async function chat(request, response, state) {
  let text = "";
  for await (const piece of request) text += piece;
  const body = JSON.parse(text);
  state.requests.push(body);
  const last = body.messages.at(-1);
  const command = typeof last.content === "string" ? /^\/(\w+)/.exec(last.content)?.[1] : null;
  if (command === "busy" && state.busyLeft > 0) {
    state.busyLeft -= 1;
    return json(
      response,
      429,
      { error: { message: "The queue is full.", type: "rate_limit" } },
      { "retry-after": "1" },
    );
  }
  if (command === "fail")
    return json(response, 500, {
      error: { message: "The model stumbled over its own feet.", type: "server_error" },
    });
  const answer = (ANSWERS[command] ?? DEFAULT_ANSWER)({
    last,
    number: state.requests.length,
    messages: body.messages,
  });
  await stream(response, answer, body);
}

/** Sends `{reasoning, content, toolCalls, finish, delayMs, breakAfter, cutAfter}` in OpenAI's form. */
async function stream(response, answer, body) {
  startStream(response);
  const { delayMs = 1 } = answer;
  const id = "chatcmpl-mock";
  const chunk = (delta, finish = null) => ({
    id,
    object: "chat.completion.chunk",
    model: body.model,
    choices: [{ index: 0, delta, finish_reason: finish }],
  });
  const chunks = [chunk({ role: "assistant" })];
  for (const part of words(answer.reasoning)) chunks.push(chunk({ reasoning_content: part }));
  for (const part of words(answer.content)) chunks.push(chunk({ content: part }));
  (answer.toolCalls ?? []).forEach((call, index) => {
    chunks.push(
      chunk({
        tool_calls: [
          { index, id: `call_${index}`, type: "function", function: { name: call.name, arguments: "" } },
        ],
      }),
    );
    for (const part of words(JSON.stringify(call.arguments)))
      chunks.push(chunk({ tool_calls: [{ index, function: { arguments: part } }] }));
  });
  const broken = answer.breakAfter ?? answer.cutAfter;
  const sent = broken === undefined ? chunks : chunks.slice(0, broken);
  const random = repeatable(7);
  for (const [index, one] of sent.entries()) {
    const end = index % 3 === 0 ? "\r\n\r\n" : "\n\n";
    for (const piece of awkwardPieces(Buffer.from(`data: ${JSON.stringify(one)}${end}`), index + 1)) {
      if (response.destroyed) return;
      response.write(piece);
      if (random() < 0.03) await sleep(1);
    }
    await sleep(delayMs);
  }
  if (answer.cutAfter !== undefined) return response.destroy();
  if (answer.breakAfter !== undefined) {
    response.write(
      `data: ${JSON.stringify({ error: { message: "The device was lost.", type: "server_error" } })}\n\n`,
    );
    return response.end();
  }
  const tokens = chunks.length - 1;
  const prompt = 100 + 50 * body.messages.length;
  const cached = body.messages.length > 2 ? 1024 : 0;
  response.write(
    `data: ${JSON.stringify(chunk({}, answer.finish ?? (answer.toolCalls ? "tool_calls" : "stop")))}\n\n`,
  );
  response.write(
    `data: ${JSON.stringify({
      id,
      object: "chat.completion.chunk",
      choices: [],
      usage: {
        prompt_tokens: prompt + cached,
        completion_tokens: tokens,
        total_tokens: prompt + cached + tokens,
        prompt_tokens_details: { cached_tokens: cached },
      },
      mambo: {
        prompt_tokens_per_second: 1234.5,
        tokens_per_second: 48.31,
        time_to_first_token_ms: 183,
        reuse: cached
          ? "The first 1,024 tokens were in the cache; the match ended where your new message begins."
          : "Nothing in the cache began like this prompt.",
      },
    })}\n\ndata: [DONE]\n\n`,
  );
  response.end();
}

function words(text) {
  return text ? (text.match(/\s*\S+\s*?|\s+$/g) ?? [text]) : [];
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { url } = await startMockServer({ port: Number(process.argv[2] ?? 8080) });
  console.log(url);
}
