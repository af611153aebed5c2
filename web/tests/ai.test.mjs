/** The provider for the AI SDK, and the shapes of OpenAI, on the built-in model. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { embed, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { mambo, mamboEmbedding } from "../dist/ai.js";
import { load } from "../dist/index.js";
import { openai, openaiFetch } from "../dist/openai.js";
import { model as file } from "./places.mjs";

const QUESTION = "What is 17 + 25?";
const PLAIN = { providerOptions: { mambo: { thinking: false } }, temperature: 0 };
let model;

before(async () => {
  model = await load(file);
});
after(() => model?.close());

test("generateText", async () => {
  const { text, finishReason, usage } = await generateText({ model: mambo(model), prompt: QUESTION, ...PLAIN });
  assert.match(text, /42/);
  assert.equal(finishReason, "stop");
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
});

test("streamText, with the thought apart", async () => {
  const options = { temperature: 0, providerOptions: { mambo: { thinking: true } } };
  const result = streamText({ model: mambo(model), prompt: QUESTION, ...options });
  let pieces = 0;
  for await (const _ of result.textStream) pieces += 1;
  assert.ok(pieces > 0);
  assert.match(await result.text, /42/);
  assert.ok((await result.reasoningText).length > 0);
});

test("an aborted stream ends", async () => {
  const controller = new AbortController();
  const result = streamText({
    model: mambo(model),
    prompt: "Tell me a long story about a dragon.",
    abortSignal: controller.signal,
    onError: () => {},
    ...PLAIN,
  });
  let pieces = 0;
  try {
    for await (const _ of result.textStream) if ((pieces += 1) === 3) controller.abort();
  } catch (error) {
    assert.equal(error.name, "AbortError");
  }
  assert.ok(pieces >= 3);
});

test("tools are offered in the template's form", async () => {
  const add = tool({
    description: "Adds two numbers.",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async ({ a, b }) => a + b,
  });
  // The built-in model may or may not call it; what it is told must render either way.
  const { text, steps } = await generateText({ model: mambo(model), prompt: QUESTION, tools: { add }, ...PLAIN, maxOutputTokens: 64 });
  assert.ok(text.length > 0 || steps.some((step) => step.toolCalls.length > 0));
});

test("embed", async () => {
  const { embedding } = await embed({ model: mamboEmbedding(model), value: "A dragon slept." });
  assert.equal(embedding.length, model.view.embedding_size);
});

test("a client with OpenAI's shape", async () => {
  const client = openai(model);
  const messages = [{ role: "user", content: QUESTION }];
  const answer = await client.chat.completions.create({ messages, temperature: 0, reasoning_effort: "none" });
  assert.match(answer.choices[0].message.content, /42/);
  assert.equal(answer.choices[0].finish_reason, "stop");
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ messages, temperature: 0, reasoning_effort: "none", stream: true }))
    streamed += chunk.choices[0]?.delta.content ?? "";
  assert.equal(streamed, answer.choices[0].message.content);
  await assert.rejects(client.chat.completions.create({ messages, response_format: { type: "json_object" } }), /response_format/);
});

test("a fetch that answers OpenAI's paths", async () => {
  const local = openaiFetch(model);
  const ask = (path, body) => local(`https://mambo.invalid/v1/${path}`, { method: "POST", body: JSON.stringify(body) });
  const messages = [{ role: "user", content: QUESTION }];
  const stream = await ask("chat/completions", { messages, temperature: 0, stream: true });
  const text = await stream.text();
  assert.match(text, /^data: /);
  assert.match(text, /data: \[DONE\]\n\n$/);
  const embedding = await (await ask("embeddings", { input: ["one", "two"] })).json();
  assert.equal(embedding.data.length, 2);
  const refused = await ask("chat/completions", { messages: [] });
  assert.equal(refused.status, 400);
  assert.match((await refused.json()).error.message, /at least one message/);
  assert.equal((await ask("audio", {})).status, 404);
});
