/** Server-sent events cut anywhere, answers put together from chunks, and the tree of messages. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  addMessage,
  applyChunk,
  branchWith,
  choose,
  messagesOf,
  newConversation,
  readConversation,
  toApiMessages,
} from "../conversation.js";
import { readEvents, SseParser } from "../sse.js";
import { awkwardPieces } from "./mock-server.mjs";

const SOURCE =
  ': comment\r\n\r\ndata: {"a": "ü世🐍"}\r\n\r\ndata:one\ndata: two\n\nevent: x\nid: 3\ndata\n\ndata: last\r\rdata: unfinished';
const EXPECTED = ['{"a": "ü世🐍"}', "one\ntwo", "", "last"];

test("events do not depend on where the bytes are cut", async () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const pieces = awkwardPieces(Buffer.from(SOURCE), seed);
    const body = new ReadableStream({
      start(controller) {
        for (const piece of pieces) controller.enqueue(new Uint8Array(piece));
        controller.close();
      },
    });
    const events = [];
    for await (const event of readEvents(body)) events.push(event);
    assert.deepEqual(events, EXPECTED);
  }
});

test("a CRLF split between two pieces is one line end", () => {
  const parser = new SseParser();
  assert.deepEqual(
    [...parser.feed("data: a\r"), ...parser.feed("\n\r"), ...parser.feed("\ndata: b\n\n")],
    ["a", "b"],
  );
});

test("an endless line is refused", () => {
  const parser = new SseParser();
  assert.throws(() => {
    for (let piece = 0; piece < 40; piece += 1) parser.feed("x".repeat(1024 * 1024));
  }, /endless/);
});

test("chunks become a message", () => {
  const message = { content: "" };
  const delta = (fields, finish = null) => ({ choices: [{ delta: fields, finish_reason: finish }] });
  applyChunk(message, delta({ role: "assistant" }), 0);
  applyChunk(message, delta({ reasoning_content: "hm" }), 1000);
  applyChunk(message, delta({ reasoning_content: "m" }), 3500);
  applyChunk(message, delta({ content: "Yes" }), 4000);
  applyChunk(
    message,
    delta({ tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: "{" } }] }),
    4000,
  );
  applyChunk(message, delta({ tool_calls: [{ index: 0, function: { arguments: "}" } }] }), 4000);
  applyChunk(message, delta({ tool_calls: [{ index: 7, function: { arguments: "x" } }] }), 4000);
  applyChunk(message, delta({}, "tool_calls"), 4000);
  applyChunk(
    message,
    { choices: [], usage: { completion_tokens: 5 }, mambo: { tokens_per_second: 9 } },
    4000,
  );
  assert.equal(message.reasoning, "hmm");
  assert.equal(message.reasoningMs, 2500);
  assert.equal(message.content, "Yes");
  assert.deepEqual(message.toolCalls, [{ id: "c", name: "f", arguments: "{}" }]);
  assert.equal(message.finish, "tool_calls");
  assert.equal(message.usage.completion_tokens, 5);
});

function sample() {
  const conversation = newConversation();
  const question = addMessage(conversation, null, { role: "user", content: "Hello there\nyou" });
  const answer = addMessage(conversation, question.id, { role: "assistant", content: "Hi", reasoning: "r" });
  return { conversation, question, answer };
}

test("editing and asking again make branches", () => {
  const { conversation, question, answer } = sample();
  assert.equal(conversation.title, "Hello there");
  const second = addMessage(conversation, question.id, { role: "assistant", content: "Hey" });
  assert.deepEqual(
    messagesOf(conversation).map((message) => message.content),
    ["Hello there\nyou", "Hey"],
  );
  choose(conversation, second, 0);
  assert.equal(messagesOf(conversation).at(-1), answer);
  const edited = branchWith(conversation, question, "Other");
  assert.deepEqual(
    messagesOf(conversation).map((message) => message.content),
    ["Other"],
  );
  assert.equal(edited.parent, null);
});

test("editing one tool result keeps those after it", () => {
  const { conversation, answer } = sample();
  answer.toolCalls = [
    { id: "a", name: "f", arguments: "{}" },
    { id: "b", name: "g", arguments: "{}" },
  ];
  const first = addMessage(conversation, answer.id, {
    role: "tool",
    content: "1",
    toolCallId: "a",
    name: "f",
  });
  addMessage(conversation, first.id, { role: "tool", content: "2", toolCallId: "b", name: "g" });
  const last = branchWith(conversation, first, "one");
  assert.deepEqual(toApiMessages(conversation, last.id).slice(2), [
    { role: "tool", tool_call_id: "a", content: "one" },
    { role: "tool", tool_call_id: "b", content: "2" },
  ]);
});

test("the API gets the system prompt, reasoning and calls", () => {
  const { conversation, answer } = sample();
  conversation.system = "Be brief.";
  answer.toolCalls = [{ id: "c", name: "f", arguments: "{}" }];
  assert.deepEqual(toApiMessages(conversation, answer.id), [
    { role: "system", content: "Be brief." },
    { role: "user", content: "Hello there\nyou" },
    {
      role: "assistant",
      content: "Hi",
      reasoning_content: "r",
      tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
    },
  ]);
});

test("a stored conversation reads back the same", () => {
  const { conversation } = sample();
  assert.deepEqual(readConversation(JSON.parse(JSON.stringify(conversation))), conversation);
});

test("damaged files do no harm", () => {
  for (const bad of [null, 1, "x", {}, { messages: {} }, { messages: null, roots: [] }])
    assert.throws(() => readConversation(bad));
  const id = "0123456789ab";
  const loop = {
    messages: { [id]: { role: "user", content: {}, children: [id, "__proto__", 5], chosen: 9 } },
    roots: [id, id, "missing"],
    chosen: -1,
  };
  const read = readConversation(JSON.parse(JSON.stringify(loop)));
  assert.deepEqual(
    messagesOf(read).map((message) => message.content),
    [""],
  );
  const proto = JSON.parse(
    '{"messages": {"__proto__": {"role": "user", "children": []}}, "roots": ["__proto__"]}',
  );
  assert.deepEqual(readConversation(proto).roots, []);
});

test("an answer that was being written when the page closed is marked", () => {
  const { conversation, answer } = sample();
  answer.state = "streaming";
  const read = readConversation(structuredClone(conversation));
  assert.equal(messagesOf(read).at(-1).finish, "interrupted");
  assert.equal(messagesOf(read).at(-1).state, undefined);
});
