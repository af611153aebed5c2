/** What the package takes and gives. */

/** Where a model is: an address, a path (in Node), files chosen from disk, or bytes. */
export type Source = string | URL | Blob | readonly File[] | { name: string; bytes: Uint8Array };

/** What computes: the GPU where there is one that works, else the processor. */
export type BackendChoice = "auto" | "webgpu" | "cpu";

export interface Progress {
  /** Bytes that came over the network, and those that were in the browser's storage already. */
  fetched: number;
  cached: number;
  /** Bytes of weights that were loaded, and all. The total is 0 until the headers are read. */
  loaded: number;
  total: number;
}

export interface LoadOptions {
  onProgress?: (progress: Progress) => void;
  /** Told of what a user should know: how weights are held, or that nothing can be stored here. */
  onNote?: (note: string) => void;
  /** `auto` by default; `model.view.backend` says what it came to, and `onNote` why a GPU is not used. */
  backend?: BackendChoice;
  /** Told when the model cannot go on: its GPU was lost, or its worker ended. It can be loaded again. */
  onLost?: (reason: string) => void;
  /** Most tokens of a conversation; by default what the model was trained on, at most 8192. */
  contextTokens?: number;
  /** Conversations answered at once; others wait. */
  sequences?: number;
  /** Most prompt tokens of one step. */
  stepTokens?: number;
  /** Bytes of memory for conversations that were read, so that their next turn reads only what is new. */
  prefixCacheBytes?: number;
  /** Whether files from the network are kept in the browser's storage. */
  store?: boolean;
  signal?: AbortSignal;
}

export interface SamplingOptions {
  temperature?: number;
  topP?: number;
  topK?: number;
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  seed?: number;
}

export interface AnswerOptions extends SamplingOptions {
  maxTokens?: number;
  stop?: string | readonly string[];
  /** Whether every token is told with its log probability. */
  logprobs?: boolean;
  signal?: AbortSignal;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool" | (string & {});
  content?: unknown;
  [field: string]: unknown;
}

export interface ChatOptions extends AnswerOptions {
  /** Functions on offer, as OpenAI writes them. */
  tools?: readonly unknown[];
  /** Whether the model thinks first; by default as its template has it. */
  thinking?: boolean;
  /** Further variables of the chat template. */
  template?: Record<string, unknown>;
}

export type FinishReason = "stop" | "length" | "context" | "tool_calls" | "cancelled";

export interface Usage {
  promptTokens: number;
  /** Of them those that did not have to be read again. */
  reusedTokens: number;
  completionTokens: number;
  /** Milliseconds until the first token, and from there to the last. */
  promptMs: number;
  completionMs: number;
}

export interface ToolCall {
  name: string;
  arguments: unknown;
}

/** A piece of an answer, as it becomes certain. */
export type Piece =
  | { type: "started"; promptTokens: number; reusedTokens: number }
  | { type: "reasoning"; text: string }
  | { type: "content"; text: string }
  | { type: "toolCall"; call: ToolCall }
  | { type: "token"; token: number; logprob: number }
  | { type: "finished"; reason: FinishReason; usage: Usage };

/** A whole answer. */
export interface Answer {
  content: string;
  reasoning: string;
  toolCalls: ToolCall[];
  reason: FinishReason;
  usage: Usage;
}

/** A layer, and what it takes. */
export interface LayerView {
  index: number;
  kind: string;
  label: string;
  parameters: number;
  bytes: number;
  state_bytes: number;
  kv_bytes_per_token: number;
  experts: number;
  experts_used: number;
}

/** The model as the page of the server draws it. */
export interface ModelView {
  name: string;
  architecture: string;
  parameters: number;
  file_bytes: number;
  backend: string;
  context_tokens: number;
  vocabulary: number;
  max_sequences: number;
  layers: LayerView[];
  memory: Record<string, number>;
  recommended: { temperature: number; top_p: number };
  fingerprint: string;
  can_chat: boolean;
  embedding_size: number | null;
}

/** What the engine did since this was asked before. */
export interface LiveView {
  running: number;
  waiting: number;
  cache: { bytes: number; budget: number; snapshots: number; hit_rate: number } | null;
  layers: { index: number; microseconds: number; bytes: number }[];
  experts: Record<string, number[]>;
}

/** One thing that was looked at, and what to do where it is not as it should be. */
export interface Check {
  name: string;
  outcome: "good" | "bad" | "absent";
  detail: string;
  advice?: string;
}
