/**
 * A client with the shape of OpenAI's, and a `fetch` that answers its paths: apps written for either switch a line.
 *
 * ```ts
 * const client = openai(await load("model.gguf"));
 * const stream = await client.chat.completions.create({ messages, stream: true });
 *
 * const sdk = new OpenAI({ apiKey: "none", dangerouslyAllowBrowser: true, fetch: openaiFetch(model) });
 * ```
 */

import { collect, MamboError, type Model } from "./index.js";
import type { Answer, AnswerOptions, ChatOptions, FinishReason, Message, Piece, Usage } from "./types.js";

/** What a chat completion is asked with; fields that are not here are refused where they would change the answer. */
export interface ChatParams {
  model?: string;
  messages: Message[];
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  repetition_penalty?: number | null;
  seed?: number | null;
  stop?: string | string[] | null;
  tools?: unknown[] | null;
  tool_choice?: unknown;
  reasoning_effort?: string | null;
  chat_template_kwargs?: Record<string, unknown> | null;
  response_format?: { type: string } | null;
  [field: string]: unknown;
}

const newId = (kind: string) => `${kind}-${crypto.randomUUID().replaceAll("-", "")}`;
const given = <T>(value: T | null | undefined): T | undefined => value ?? undefined;

function answerOptions(params: ChatParams | Record<string, any>, signal?: AbortSignal): AnswerOptions {
  return {
    maxTokens: given(params.max_completion_tokens as number) ?? given(params.max_tokens as number),
    temperature: given(params.temperature as number),
    topP: given(params.top_p as number),
    topK: given(params.top_k as number),
    minP: given(params.min_p as number),
    presencePenalty: given(params.presence_penalty as number),
    frequencyPenalty: given(params.frequency_penalty as number),
    repetitionPenalty: given(params.repetition_penalty as number),
    seed: given(params.seed as number),
    stop: given(params.stop as string | string[]),
    signal,
  };
}

function chatOptions(params: ChatParams, signal?: AbortSignal): ChatOptions {
  if (params.response_format && params.response_format.type !== "text")
    throw new MamboError("`response_format` cannot be enforced in the browser; leave it out, or ask `mambo serve`");
  const choice = params.tool_choice ?? "auto";
  if (choice !== "auto" && choice !== "none")
    throw new MamboError("`tool_choice` can be `auto` or `none` in the browser; `mambo serve` takes all of them");
  const effort = params.reasoning_effort;
  return {
    ...answerOptions(params, signal),
    tools: choice === "none" ? [] : (params.tools ?? []),
    thinking: effort ? effort !== "none" && effort !== "minimal" : undefined,
    template: params.chat_template_kwargs ?? {},
  };
}

const finishName = (reason: FinishReason) => (reason === "context" ? "length" : reason === "cancelled" ? "stop" : reason);

function usageOf(usage: Usage): Record<string, unknown> {
  return {
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    prompt_tokens_details: { cached_tokens: usage.reusedTokens },
  };
}

/** What mambo tells besides: speeds. */
function extraOf(usage: Usage): Record<string, unknown> {
  const rate = (tokens: number, ms: number) => (ms > 0 && tokens > 0 ? (1000 * tokens) / ms : null);
  return {
    prompt_tokens_per_second: rate(usage.promptTokens - usage.reusedTokens, usage.promptMs),
    tokens_per_second: rate(usage.completionTokens - 1, usage.completionMs),
    time_to_first_token_ms: usage.promptMs,
  };
}

const toolCall = (call: { name: string; arguments: unknown }, index?: number) => ({
  ...(index === undefined ? {} : { index }),
  id: newId("call"),
  type: "function",
  function: { name: call.name, arguments: JSON.stringify(call.arguments ?? {}) },
});

/** An answer's pieces as the chunks of a stream. */
export async function* chunksOf(
  pieces: AsyncIterable<Piece>,
  model: string,
  includeUsage: boolean,
): AsyncGenerator<any> {
  const head = { id: newId("chatcmpl"), object: "chat.completion.chunk", created: Math.floor(Date.now() / 1000), model };
  const chunk = (delta: unknown, finish: string | null = null) => ({
    ...head,
    choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }],
  });
  let calls = 0;
  yield chunk({ role: "assistant", content: "" });
  for await (const piece of pieces) {
    if (piece.type === "content") yield chunk({ content: piece.text });
    else if (piece.type === "reasoning") yield chunk({ reasoning_content: piece.text });
    else if (piece.type === "toolCall") yield chunk({ tool_calls: [toolCall(piece.call, calls++)] });
    else if (piece.type === "finished") {
      yield chunk({}, finishName(piece.reason));
      if (includeUsage) yield { ...head, choices: [], usage: usageOf(piece.usage), mambo: extraOf(piece.usage) };
    }
  }
}

function completionOf(answer: Answer, model: string): any {
  const message: Record<string, unknown> = { role: "assistant", content: answer.content };
  if (answer.reasoning) message.reasoning_content = answer.reasoning;
  if (answer.toolCalls.length > 0) message.tool_calls = answer.toolCalls.map((call) => toolCall(call));
  return {
    id: newId("chatcmpl"),
    object: "chat.completion",
    created: Math.floor(Date.now() / 1000),
    model,
    choices: [{ index: 0, message, logprobs: null, finish_reason: finishName(answer.reason) }],
    usage: usageOf(answer.usage),
    mambo: extraOf(answer.usage),
  };
}

/** A client for a loaded model. */
export function openai(model: Model) {
  return {
    chat: {
      completions: {
        /** A completion, or its chunks where `stream` is set. */
        async create(params: ChatParams, { signal }: { signal?: AbortSignal } = {}): Promise<any> {
          const pieces = model.chat(params.messages, chatOptions(params, signal));
          const includeUsage = params.stream_options?.include_usage === true;
          if (params.stream) return chunksOf(pieces, model.name, includeUsage);
          return completionOf(await collect(pieces), model.name);
        },
      },
    },
    embeddings: {
      async create(params: { input: string | string[]; model?: string }): Promise<any> {
        const inputs = typeof params.input === "string" ? [params.input] : params.input;
        const data = [];
        let tokens = 0;
        for (const [index, input] of inputs.entries()) {
          tokens += (await model.tokens(input)).length;
          data.push({ object: "embedding", index, embedding: Array.from(await model.embed(input)) });
        }
        return { object: "list", data, model: model.name, usage: { prompt_tokens: tokens, total_tokens: tokens } };
      },
    },
    models: {
      async list(): Promise<any> {
        return { object: "list", data: [{ id: model.name, object: "model", created: 0, owned_by: "mambo" }] };
      },
    },
  };
}

function errorResponse(error: unknown, status: number): Response {
  const message = (error as Error)?.message ?? String(error);
  return Response.json({ error: { message, type: "invalid_request_error", param: null, code: null } }, { status });
}

/** A body of server-sent events. */
function eventStream(chunks: AsyncGenerator<any>): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  const event = (data: string) => encoder.encode(`data: ${data}\n\n`);
  return new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await chunks.next();
        controller.enqueue(event(done ? "[DONE]" : JSON.stringify(value)));
        if (done) controller.close();
      } catch (error) {
        const message = (error as Error)?.message ?? String(error);
        controller.enqueue(event(JSON.stringify({ error: { message, type: "server_error" } })));
        controller.close();
      }
    },
    async cancel() {
      await chunks.return(undefined);
    },
  });
}

/** A `fetch` that answers OpenAI's paths from a loaded model, for clients that take one. */
export function openaiFetch(model: Model): typeof fetch {
  const client = openai(model);
  return async (input, settings) => {
    const asked = new Request(input, settings);
    const path = new URL(asked.url).pathname;
    try {
      if (path.endsWith("/models")) return Response.json(await client.models.list());
      const body = await asked.json();
      if (path.endsWith("/embeddings")) return Response.json(await client.embeddings.create(body));
      if (!path.endsWith("/chat/completions")) return errorResponse(new Error(`there is no \`${path}\` in the browser`), 404);
      const answer = await client.chat.completions.create(body, { signal: asked.signal });
      if (!body.stream) return Response.json(answer);
      return new Response(eventStream(answer), { headers: { "content-type": "text/event-stream" } });
    } catch (error) {
      if (asked.signal.aborted) throw error;
      return errorResponse(error, 400);
    }
  };
}
