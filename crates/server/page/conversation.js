/**
 * A conversation is a tree: editing a message or asking again adds a branch, nothing is
 * overwritten. Plain data and functions on it; knows neither storage nor screen.
 *
 * @typedef {{id: string, parent: string|null, children: string[], chosen: number, role: string,
 *   content: string, reasoning?: string, reasoningMs?: number, toolCalls?: ToolCall[],
 *   toolCallId?: string, name?: string, created: number, state?: "streaming", finish?: string,
 *   usage?: object, speed?: object, error?: string}} Message
 * @typedef {{id: string, name: string, arguments: string}} ToolCall
 * @typedef {{id: string, title: string, named: boolean, created: number, updated: number,
 *   system: string, tools: string, roots: string[], chosen: number,
 *   messages: Record<string, Message>}} Conversation
 */

const TITLE_CHARS = 60;
const ID = /^[0-9a-f]{8,64}$/;

function newId() {
  const random = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @returns {Conversation} */
export function newConversation() {
  const now = Date.now();
  return {
    id: newId(),
    title: "New chat",
    named: false,
    created: now,
    updated: now,
    system: "",
    tools: "",
    roots: [],
    chosen: 0,
    messages: {},
  };
}

/** Adds a message below `parent` (null: at the root) and chooses it. */
export function addMessage(conversation, parent, fields) {
  const message = {
    id: newId(),
    parent,
    children: [],
    chosen: 0,
    content: "",
    created: Date.now(),
    ...fields,
  };
  conversation.messages[message.id] = message;
  const siblings = siblingsOf(conversation, message);
  siblings.push(message.id);
  choose(conversation, message, siblings.length - 1);
  conversation.updated = message.created;
  if (!conversation.named && message.role === "user") conversation.title = titleFrom(conversation);
  return message;
}

function titleFrom(conversation) {
  const first = messagesOf(conversation).find((message) => message.role === "user");
  const line = (first?.content ?? "").trim().split("\n", 1)[0].replace(/\s+/g, " ");
  const chars = Array.from(line);
  if (chars.length === 0) return "New chat";
  return chars.length > TITLE_CHARS ? `${chars.slice(0, TITLE_CHARS - 1).join("")}…` : line;
}

export function siblingsOf(conversation, message) {
  return message.parent === null ? conversation.roots : conversation.messages[message.parent].children;
}

/** Shows the `index`-th branch among a message and its siblings. */
export function choose(conversation, message, index) {
  const owner = message.parent === null ? conversation : conversation.messages[message.parent];
  owner.chosen = index;
}

/** The chosen branch from the first message to the last. @returns {Message[]} */
export function messagesOf(conversation) {
  const path = [];
  let next = conversation.roots[conversation.chosen];
  while (next !== undefined) {
    const message = conversation.messages[next];
    path.push(message);
    next = message.children[message.chosen];
  }
  return path;
}

/** Messages from the root down to `id`, included. */
function pathTo(conversation, id) {
  const path = [];
  for (let at = id; at !== null; at = conversation.messages[at].parent) path.push(conversation.messages[at]);
  return path.reverse();
}

/** A new branch beside `message` with other words; tool results that stood after it come along. */
export function branchWith(conversation, message, content) {
  const following = message.role === "tool" ? laterToolResults(conversation, message) : [];
  let last = addMessage(conversation, message.parent, {
    role: message.role,
    content,
    toolCallId: message.toolCallId,
    name: message.name,
  });
  for (const result of following) {
    const { role, content: text, toolCallId, name } = result;
    last = addMessage(conversation, last.id, { role, content: text, toolCallId, name });
  }
  return last;
}

function laterToolResults(conversation, message) {
  const results = [];
  let next = conversation.messages[message.children[message.chosen]];
  while (next?.role === "tool") {
    results.push(next);
    next = conversation.messages[next.children[next.chosen]];
  }
  return results;
}

/** The messages of the API for everything up to and including `id` (null: nothing yet). */
export function toApiMessages(conversation, id) {
  const messages = [];
  if (conversation.system.trim() !== "") messages.push({ role: "system", content: conversation.system });
  for (const message of id === null ? [] : pathTo(conversation, id)) {
    if (message.role === "assistant") {
      // An answer that failed before its first word says nothing.
      if (message.content !== "" || message.toolCalls?.length) messages.push(assistantForApi(message));
    } else if (message.role === "tool") {
      messages.push({ role: "tool", tool_call_id: message.toolCallId, content: message.content });
    } else messages.push({ role: message.role, content: message.content });
  }
  return messages;
}

function assistantForApi(message) {
  const sent = { role: "assistant", content: message.content };
  if (message.reasoning) sent.reasoning_content = message.reasoning;
  if (message.toolCalls?.length) {
    sent.tool_calls = message.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return sent;
}

/** Adds one streamed chunk to an answer. `now` is in milliseconds. */
export function applyChunk(message, chunk, now) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) {
    message.reasoningStart ??= now;
    message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
    message.reasoningMs = now - message.reasoningStart;
  }
  if (delta.content) message.content += delta.content;
  for (const part of delta.tool_calls ?? []) addToolCallPart(message, part);
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  if (chunk.usage) message.usage = chunk.usage;
  if (chunk.mambo) message.speed = chunk.mambo;
}

function addToolCallPart(message, part) {
  message.toolCalls ??= [];
  const index = part.index ?? message.toolCalls.length;
  if (index > message.toolCalls.length) return; // a gap: not a call we have seen begin
  message.toolCalls[index] ??= { id: "", name: "", arguments: "" };
  const call = message.toolCalls[index];
  if (part.id) call.id = part.id;
  if (part.function?.name) call.name += part.function.name;
  if (part.function?.arguments) call.arguments += part.function.arguments;
}

/**
 * Reads a conversation from a file or from storage; throws where it is not one. Every link is
 * checked, so that no later walk can leave the tree or go in circles.
 * @returns {Conversation}
 */
export function readConversation(value) {
  const text = (input, limit = Infinity) => (typeof input === "string" ? input.slice(0, limit) : "");
  if (
    typeof value !== "object" ||
    value === null ||
    typeof value.messages !== "object" ||
    value.messages === null ||
    !Array.isArray(value.roots)
  ) {
    throw new Error("This is not a conversation.");
  }
  const conversation = {
    ...newConversation(),
    title: text(value.title, 200) || "Untitled",
    named: value.named === true,
  };
  for (const field of ["created", "updated"])
    if (Number.isFinite(value[field])) conversation[field] = value[field];
  if (ID.test(value.id)) conversation.id = value.id;
  conversation.system = text(value.system);
  conversation.tools = text(value.tools);
  const seen = new Set();
  const copyLevel = (ids, parent) => {
    const kept = [];
    for (const id of Array.isArray(ids) ? ids : []) {
      const from = Object.hasOwn(value.messages, id) ? value.messages[id] : null;
      if (!ID.test(id) || seen.has(id) || !from || !["user", "assistant", "tool"].includes(from.role))
        continue;
      seen.add(id);
      kept.push(id);
      conversation.messages[id] = readMessage(from, id, parent, text);
      pending.push([from.children, id]);
    }
    return kept;
  };
  const index = (chosen, kept) =>
    Number.isInteger(chosen) && chosen >= 0 && chosen < kept.length ? chosen : Math.max(0, kept.length - 1);
  const pending = [];
  conversation.roots = copyLevel(value.roots, null);
  conversation.chosen = index(value.chosen, conversation.roots);
  while (pending.length > 0) {
    const [children, id] = pending.pop();
    const message = conversation.messages[id];
    message.children = copyLevel(children, id);
    message.chosen = index(value.messages[id].chosen, message.children);
  }
  return conversation;
}

function readMessage(from, id, parent, text) {
  const message = {
    id,
    parent,
    children: [],
    chosen: 0,
    role: from.role,
    content: text(from.content),
    created: Number(from.created) || 0,
  };
  for (const field of ["reasoning", "toolCallId", "name", "finish", "error"])
    if (typeof from[field] === "string") message[field] = from[field];
  if (Number.isFinite(from.reasoningMs)) message.reasoningMs = from.reasoningMs;
  if (from.usage && typeof from.usage === "object") message.usage = from.usage;
  if (from.speed && typeof from.speed === "object") message.speed = from.speed;
  if (Array.isArray(from.toolCalls)) {
    message.toolCalls = from.toolCalls.map((call) => ({
      id: text(call?.id),
      name: text(call?.name),
      arguments: text(call?.arguments),
    }));
  }
  if (from.state === "streaming") message.finish = "interrupted";
  return message;
}
