/**
 * mambo in the browser and in Node: `load` a model, then `generate`, `chat`, `embed`, `snapshot` and `restore`. All work
 * is done in a worker.
 */

import { commonFields, type CoreEvent, type Told } from "./protocol.js";
import { isNode, nodeModule, startWorker, type Port } from "./runtime.js";
import type {
  Answer,
  AnswerOptions,
  ChatOptions,
  Check,
  LiveView,
  LoadOptions,
  Message,
  ModelView,
  Piece,
  Source,
} from "./types.js";

export type * from "./types.js";

/** What went wrong, in the engine's words. */
export class MamboError extends Error {
  override name = "MamboError";
}

interface Waiting {
  resolve: (value: any) => void;
  reject: (error: Error) => void;
}

/** Calls of a worker and the events it tells. */
class Connection {
  #port: Port;
  #next = 1;
  #calls = new Map<number, Waiting>();
  #requests = new Map<number, (event: CoreEvent | Error) => void>();
  /** Events that came before their request was known here. */
  #early = new Map<number, CoreEvent[]>();
  #over: MamboError | null = null;
  onProgress: LoadOptions["onProgress"];
  onNote: LoadOptions["onNote"];
  onLost: LoadOptions["onLost"];

  constructor(port: Port) {
    this.#port = port;
    port.listen((told: Told) => this.#hear(told));
    port.fails((reason) => this.#lose(`the worker has ended: ${reason}`));
  }

  #lose(reason: string): void {
    if (this.#over) return;
    this.end(reason);
    this.onLost?.(reason);
  }

  #hear(told: Told): void {
    if ("call" in told) {
      const waiting = this.#calls.get(told.call);
      this.#calls.delete(told.call);
      if ("error" in told) waiting?.reject(new MamboError(told.error));
      else waiting?.resolve(told.result);
    } else if ("events" in told) told.events.forEach((event) => this.#tell(event));
    else if ("progress" in told) this.onProgress?.(told.progress);
    else if ("note" in told) this.onNote?.(told.note);
    else this.#lose(told.lost);
  }

  #tell(event: CoreEvent): void {
    const listener = this.#requests.get(event.id);
    if (listener) return listener(event);
    const early = this.#early.get(event.id) ?? [];
    this.#early.set(event.id, [...early, event]);
  }

  call(method: string, args: unknown[] = [], transfer?: Transferable[]): Promise<any> {
    if (this.#over) return Promise.reject(this.#over);
    const call = this.#next++;
    return new Promise((resolve, reject) => {
      this.#calls.set(call, { resolve, reject });
      try {
        this.#port.post({ call, method, args }, transfer);
      } catch (error) {
        this.#calls.delete(call);
        reject(error as Error);
      }
    });
  }

  /** The events of a request, until the one that ends it. */
  async *events(method: string, args: unknown[], signal?: AbortSignal): AsyncGenerator<CoreEvent> {
    signal?.throwIfAborted();
    const id: number = await this.call(method, args);
    const queue: (CoreEvent | Error)[] = this.#early.get(id) ?? [];
    this.#early.delete(id);
    let wake: (() => void) | null = null;
    this.#requests.set(id, (event) => {
      queue.push(event);
      wake?.();
    });
    if (this.#over) queue.push(this.#over);
    const stop = () => void this.call("cancel", [id]).catch(() => {});
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) stop();
    let ended = false;
    try {
      for (;;) {
        while (queue.length === 0) await new Promise<void>((resolve) => (wake = resolve));
        const event = queue.shift()!;
        if (event instanceof Error) {
          ended = true;
          throw event;
        }
        if (event.type === "finished" && event.error) {
          ended = true;
          throw new MamboError(String(event.error));
        }
        ended = event.type === "finished";
        yield event;
        if (ended) return;
      }
    } finally {
      signal?.removeEventListener("abort", stop);
      this.#requests.delete(id);
      // Whoever leaves early wants no more of it.
      if (!ended) stop();
    }
  }

  end(reason: string): void {
    this.#over ??= new MamboError(reason);
    for (const { reject } of this.#calls.values()) reject(this.#over);
    this.#calls.clear();
    for (const listener of this.#requests.values()) listener(this.#over);
    this.#port.close();
  }
}

function pieceOf(event: CoreEvent): Piece | null {
  const field = event as any;
  switch (event.type) {
    case "started":
      return { type: "started", promptTokens: field.prompt_tokens, reusedTokens: field.reused_tokens };
    case "reasoning":
    case "content":
      return { type: event.type, text: field.text };
    case "tool_call":
      return { type: "toolCall", call: { name: field.name, arguments: field.arguments } };
    case "token":
      return { type: "token", token: field.token, logprob: field.logprob };
    case "finished":
      return {
        type: "finished",
        reason: field.reason,
        usage: {
          promptTokens: field.prompt_tokens,
          reusedTokens: field.reused_tokens,
          completionTokens: field.completion_tokens,
          promptMs: field.prompt_ms,
          completionMs: field.completion_ms,
        },
      };
    default:
      return null;
  }
}

/** Everything that an answer says, once it has ended. */
export async function collect(pieces: AsyncIterable<Piece>): Promise<Answer> {
  const answer = { content: "", reasoning: "", toolCalls: [] } as unknown as Answer;
  for await (const piece of pieces) {
    if (piece.type === "content") answer.content += piece.text;
    else if (piece.type === "reasoning") answer.reasoning += piece.text;
    else if (piece.type === "toolCall") answer.toolCalls.push(piece.call);
    else if (piece.type === "finished") [answer.reason, answer.usage] = [piece.reason, piece.usage];
  }
  return answer;
}

/** A loaded model. */
export class Model {
  readonly #connection: Connection;
  /** Its layers, and what it takes. */
  readonly view: ModelView;

  /** @internal */
  constructor(connection: Connection, view: ModelView) {
    this.#connection = connection;
    this.view = view;
  }

  get name(): string {
    return this.view.name;
  }

  async *#pieces(method: string, request: unknown, signal?: AbortSignal): AsyncGenerator<Piece> {
    for await (const event of this.#connection.events(method, [JSON.stringify(request)], signal)) {
      const piece = pieceOf(event);
      if (piece) yield piece;
    }
  }

  /** Goes on with a text, piece by piece. Leaving the loop, or the signal, ends the answer. */
  generate(prompt: string, options: AnswerOptions = {}): AsyncGenerator<Piece> {
    return this.#pieces("complete", { prompt, common: commonFields(options) }, options.signal);
  }

  /** Answers a conversation, piece by piece. */
  chat(messages: readonly Message[], options: ChatOptions = {}): AsyncGenerator<Piece> {
    return this.#pieces("chat", chatRequest(messages, options), options.signal);
  }

  /** The embedding of a text: a vector of length one. */
  async embed(text: string): Promise<Float32Array> {
    let values: number[] = [];
    for await (const event of this.#connection.events("embed", [text]))
      if (event.type === "embedding") values = event.values as number[];
    return Float32Array.from(values);
  }

  /**
   * Reads a conversation and gives its memory as bytes, the same as session files of the program: any engine with this
   * model goes on from them, here or there.
   */
  async snapshot(messages: readonly Message[], options: ChatOptions = {}): Promise<Uint8Array> {
    const request = JSON.stringify(chatRequest(messages, options));
    for await (const event of this.#connection.events("snapshot", [request]))
      if (event.type === "snapshot") return this.#connection.call("export", [event.id]);
    throw new MamboError("the engine ended without the conversation's memory; try again");
  }

  /** Takes a snapshot: conversations that begin with its text go on from it. @returns the tokens it spares */
  restore(bytes: Uint8Array): Promise<number> {
    return this.#connection.call("restore", [bytes]);
  }

  /** The tokens of a text. */
  tokens(text: string): Promise<Uint32Array> {
    return this.#connection.call("tokens", [text]);
  }

  /** The logits after each of some tokens, one row after the other. Nothing else may run meanwhile. */
  logits(tokens: Uint32Array | readonly number[]): Promise<Float32Array> {
    return this.#connection.call("logits", [Uint32Array.from(tokens)]);
  }

  /** Starts or stops timing layers and counting experts for `live`. */
  watch(on: boolean): Promise<void> {
    return this.#connection.call("watch", [on]);
  }

  /** What the engine did since this was asked before. */
  live(): Promise<LiveView> {
    return this.#connection.call("live");
  }

  /** Ends the worker and frees all memory. */
  close(): void {
    this.#connection.end("the model was closed");
  }
}

function chatRequest(messages: readonly Message[], options: ChatOptions): unknown {
  return {
    messages,
    tools: options.tools ?? [],
    thinking: options.thinking,
    template: options.template ?? {},
    now: Math.floor(Date.now() / 1000),
    common: commonFields(options),
  };
}

/** An address that means the same in the worker. */
async function absolute(source: Source): Promise<Source> {
  if (source instanceof URL) return source.href;
  if (typeof source !== "string") return Array.isArray(source) ? [...source] : source;
  if (/^[a-z][a-z0-9+.-]+:/i.test(source)) return source;
  if (isNode) return (await nodeModule("url")).pathToFileURL(source).href;
  return new URL(source, document.baseURI).href;
}

/** Opens a model and loads it. */
export async function load(source: Source, options: LoadOptions = {}): Promise<Model> {
  options.signal?.throwIfAborted();
  const connection = new Connection(await startWorker());
  connection.onProgress = options.onProgress;
  connection.onNote = options.onNote;
  const stop = () => connection.end("loading was stopped");
  options.signal?.addEventListener("abort", stop, { once: true });
  try {
    const view = await connection.call("load", [
      {
        source: await absolute(source),
        backend: options.backend ?? "auto",
        store: options.store ?? true,
        settings: {
          context_tokens: options.contextTokens,
          sequences: options.sequences,
          step_tokens: options.stepTokens,
          prefix_cache_bytes: options.prefixCacheBytes,
        },
      },
    ]);
    connection.onLost = options.onLost;
    return new Model(connection, view);
  } catch (error) {
    connection.end("the model could not be loaded");
    throw error;
  } finally {
    options.signal?.removeEventListener("abort", stop);
  }
}

/** Looks at what this browser has of what the engine needs. */
export async function diagnose(): Promise<Check[]> {
  const connection = new Connection(await startWorker());
  try {
    return await connection.call("diagnose");
  } finally {
    connection.end("done");
  }
}

export { removeStored, storedModels } from "./files/store.js";
