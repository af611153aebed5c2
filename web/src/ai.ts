/** A provider for the AI SDK (`ai`): `streamText({ model: mambo(model), prompt })`. */

import type {
  EmbeddingModelV4,
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4Content,
  LanguageModelV4FinishReason,
  LanguageModelV4Message,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
  SharedV4Warning,
} from "@ai-sdk/provider";
import type { Model } from "./index.js";
import type { ChatOptions, FinishReason, Message, Piece, Usage } from "./types.js";

const PROVIDER = "mambo";

/** Parts that are text, joined; others are not understood. */
function textOf(parts: readonly { type: string; text?: string }[]): string {
  const other = parts.find((part) => part.type !== "text");
  if (other) throw new Error(`a message holds a part of type \`${other.type}\`; this model reads text alone`);
  return parts.map((part) => part.text ?? "").join("");
}

function outputText(output: any): string {
  switch (output.type) {
    case "text":
    case "error-text":
      return output.value;
    case "json":
    case "error-json":
      return JSON.stringify(output.value);
    case "execution-denied":
      return output.reason ?? "The call was refused.";
    default:
      return textOf(output.value);
  }
}

/** A prompt of the SDK as chat messages. */
export function messagesOf(prompt: readonly LanguageModelV4Message[]): Message[] {
  return prompt.flatMap((message): Message[] => {
    switch (message.role) {
      case "system":
        return [{ role: "system", content: message.content }];
      case "user":
        return [{ role: "user", content: textOf(message.content as any[]) }];
      case "tool":
        return message.content
          .filter((part) => part.type === "tool-result")
          .map((part) => ({
            role: "tool",
            tool_call_id: part.toolCallId,
            name: part.toolName,
            content: outputText(part.output),
          }));
      default: {
        const calls = message.content.filter((part) => part.type === "tool-call");
        const reasoning = message.content.filter((part) => part.type === "reasoning").map((part) => part.text);
        const text = message.content.filter((part) => part.type === "text").map((part) => part.text);
        const answer: Message = { role: "assistant", content: text.join("") };
        if (reasoning.length > 0) answer.reasoning_content = reasoning.join("");
        if (calls.length > 0)
          answer.tool_calls = calls.map((call) => ({
            id: call.toolCallId,
            type: "function",
            function: {
              name: call.toolName,
              arguments: typeof call.input === "string" ? call.input : JSON.stringify(call.input),
            },
          }));
        return [answer];
      }
    }
  });
}

function request(options: LanguageModelV4CallOptions): { chat: ChatOptions; warnings: SharedV4Warning[] } {
  const warnings: SharedV4Warning[] = [];
  const unsupported = (feature: string, details?: string) => warnings.push({ type: "unsupported", feature, details });
  if (options.responseFormat?.type === "json")
    unsupported("responseFormat", "answers have no enforced form in the browser; the model is only asked for it");
  const choice = options.toolChoice?.type ?? "auto";
  if (choice === "required" || choice === "tool") unsupported("toolChoice", "the model decides whether to call a tool");
  const tools = (choice === "none" ? [] : (options.tools ?? [])).flatMap((tool) => {
    if (tool.type === "function")
      return [
        {
          type: "function",
          function: { name: tool.name, description: tool.description ?? "", parameters: tool.inputSchema },
        },
      ];
    unsupported(`tool ${tool.name}`, "only functions are");
    return [];
  });
  const effort = (options as { reasoning?: string }).reasoning;
  const thinking = effort === undefined || effort === "provider-default" ? undefined : effort !== "none";
  const chat: ChatOptions = {
    tools,
    thinking: (options.providerOptions?.[PROVIDER]?.thinking as boolean | undefined) ?? thinking,
    maxTokens: options.maxOutputTokens,
    temperature: options.temperature,
    topP: options.topP,
    topK: options.topK,
    presencePenalty: options.presencePenalty,
    frequencyPenalty: options.frequencyPenalty,
    seed: options.seed,
    stop: options.stopSequences,
    signal: options.abortSignal,
  };
  return { chat, warnings };
}

function finishOf(reason: FinishReason): LanguageModelV4FinishReason {
  const unified = ({ stop: "stop", length: "length", context: "length", tool_calls: "tool-calls", cancelled: "other" } as const)[reason];
  return { unified, raw: reason };
}

function usageOf(usage: Usage): LanguageModelV4Usage {
  const { promptTokens, reusedTokens, completionTokens } = usage;
  return {
    inputTokens: {
      total: promptTokens,
      noCache: promptTokens - reusedTokens,
      cacheRead: reusedTokens,
      cacheWrite: undefined,
    },
    outputTokens: { total: completionTokens, text: undefined, reasoning: undefined },
  };
}

/** The parts of a stream from the pieces of an answer. */
async function* partsOf(
  pieces: AsyncIterable<Piece>,
  warnings: SharedV4Warning[],
): AsyncGenerator<LanguageModelV4StreamPart> {
  yield { type: "stream-start", warnings };
  let open: "text" | "reasoning" | null = null;
  let number = 0;
  const close = (): LanguageModelV4StreamPart[] => {
    const ended = open;
    open = null;
    return ended ? [{ type: `${ended}-end`, id: String(number) }] : [];
  };
  for await (const piece of pieces) {
    if (piece.type === "content" || piece.type === "reasoning") {
      const kind = piece.type === "content" ? "text" : "reasoning";
      if (open !== kind) {
        yield* close();
        number += 1;
        open = kind;
        yield { type: `${kind}-start`, id: String(number) };
      }
      yield { type: `${kind}-delta`, id: String(number), delta: piece.text };
    } else if (piece.type === "toolCall") {
      yield* close();
      const input = JSON.stringify(piece.call.arguments ?? {});
      yield { type: "tool-call", toolCallId: `call-${crypto.randomUUID()}`, toolName: piece.call.name, input };
    } else if (piece.type === "finished") {
      yield* close();
      yield { type: "finish", finishReason: finishOf(piece.reason), usage: usageOf(piece.usage) };
    }
  }
}

/** A loaded model as a language model of the SDK. */
export function mambo(model: Model): LanguageModelV4 {
  return {
    specificationVersion: "v4",
    provider: PROVIDER,
    modelId: model.name,
    supportedUrls: {},
    async doStream(options) {
      const { chat, warnings } = request(options);
      const parts = partsOf(model.chat(messagesOf(options.prompt), chat), warnings);
      const stream = new ReadableStream<LanguageModelV4StreamPart>({
        async pull(controller) {
          try {
            const { done, value } = await parts.next();
            if (done) controller.close();
            else controller.enqueue(value);
          } catch (error) {
            controller.enqueue({ type: "error", error });
            controller.close();
          }
        },
        async cancel() {
          await parts.return(undefined);
        },
      });
      return { stream };
    },
    async doGenerate(options) {
      const { chat, warnings } = request(options);
      const content: LanguageModelV4Content[] = [];
      let finishReason: LanguageModelV4FinishReason = { unified: "other", raw: undefined };
      let usage = usageOf({ promptTokens: 0, reusedTokens: 0, completionTokens: 0, promptMs: 0, completionMs: 0 });
      for await (const part of partsOf(model.chat(messagesOf(options.prompt), chat), warnings)) {
        if (part.type === "text-start") content.push({ type: "text", text: "" });
        else if (part.type === "reasoning-start") content.push({ type: "reasoning", text: "" });
        else if (part.type === "text-delta" || part.type === "reasoning-delta")
          (content.at(-1) as { text: string }).text += part.delta;
        else if (part.type === "tool-call") content.push(part);
        else if (part.type === "finish") ({ finishReason, usage } = part);
      }
      return { content, finishReason, usage, warnings };
    },
  };
}

/** A loaded model as an embedding model of the SDK. */
export function mamboEmbedding(model: Model): EmbeddingModelV4 {
  return {
    specificationVersion: "v4",
    provider: PROVIDER,
    modelId: model.name,
    maxEmbeddingsPerCall: 64,
    supportsParallelCalls: false,
    async doEmbed({ values, abortSignal }) {
      const embeddings: number[][] = [];
      for (const value of values) {
        abortSignal?.throwIfAborted();
        embeddings.push(Array.from(await model.embed(value)));
      }
      return { embeddings, warnings: [] };
    },
  };
}
