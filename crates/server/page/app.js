/** Wires the parts together: which conversation is open, what the buttons do, what is saved when. */

import { Announcer } from "./announcer.js";
import { fetchModel, fetchModelIds } from "./api.js";
import { ChatView } from "./chat-view.js";
import { Composer } from "./composer.js";
import { addMessage, branchWith, choose, messagesOf, newConversation, siblingsOf } from "./conversation.js";
import { icon } from "./dom.js";
import { bytes, short } from "./format.js";
import { byId, download, notice, setUpDrawer, setUpTheme, toast } from "./frame.js";
import { Generations } from "./generation.js";
import { instructionsFor, readTools } from "./instructions.js";
import { askForKey, openSettings } from "./settings-dialog.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";

const SAVE_INTERVAL_MS = 2000;
const RECONNECT_MS = 4000;

const settings = new Settings();
const store = new Store();
const announcer = new Announcer(byId("announcer"));
const generations = new Generations(askForKey);
/** What the server told about itself. */
const server = { models: [], model: null, recommended: {} };

let conversation = newConversation();
/** Unsent text of each conversation. */
const drafts = new Map();
const deleted = new Set();
let modelView = null;

setUpTheme(settings);
const closeDrawer = setUpDrawer();
byId("new-chat").append(icon("plus"), "New chat");
byId("settings-button").append(icon("settings"));
byId("to-end").append(icon("down"), "Latest");

const chat = new ChatView(
  { transcript: byId("transcript"), column: byId("messages"), toEnd: byId("to-end") },
  {
    retry: (message) => answer(message.parent),
    edit: (message, text) => answer(branchWith(conversation, message, text).id),
    switchTo: switchBranch,
    sendResults,
    progressOf: (message) => generations.progressOf(message),
    opensReasoning: () => settings.get("openReasoning"),
  },
  (text) => send(text),
);
const composer = new Composer(
  { form: byId("composer"), input: byId("input"), button: byId("send") },
  { send, stop: () => generations.stop(conversation), editLast: () => chat.editLast() },
);
const sidebar = new Sidebar(
  { list: byId("conversation-list"), empty: byId("no-conversations"), foot: byId("sidebar-foot") },
  { rename, remove, exportAll, importFile },
  (id) => generations.conversationOf(id) !== null,
);

// ---- Messages

function send(text) {
  const last = messagesOf(conversation).at(-1);
  const message = addMessage(conversation, last?.id ?? null, { role: "user", content: text });
  history.replaceState(null, "", `#/chat/${conversation.id}`);
  answer(message.id);
}

function sendResults(message, results) {
  let parent = message.id;
  message.toolCalls.forEach((call, index) => {
    parent = addMessage(conversation, parent, {
      role: "tool",
      content: results[index],
      toolCallId: call.id,
      name: call.name,
    }).id;
  });
  answer(parent);
}

function answer(parent) {
  const tools = readTools(conversation.tools);
  if (tools.problem) toast(`The tools were left out. ${tools.problem}`, { announcer });
  const fields = { model: settings.get("model") || server.models[0] || "default", ...settings.forRequest() };
  if (tools.list?.length) fields.tools = tools.list;
  generations.start(conversation, parent, fields);
  showConversation(false);
  chat.scrollToEnd();
  save(conversation);
}

function switchBranch(message, index) {
  choose(conversation, message, index);
  const shown = conversation.messages[siblingsOf(conversation, message)[index]];
  chat.refresh();
  chat.focusMessage(
    shown,
    index < siblingsOf(conversation, message).indexOf(message.id)
      ? ".branches button:first-child"
      : ".branches button:last-child",
  );
  announcer.say(`Version ${index + 1} of ${siblingsOf(conversation, message).length}`);
  save(conversation);
}

let nextSave = 0;

generations.addEventListener("update", ({ detail }) => {
  if (detail.conversation.id === conversation.id) {
    chat.grow(detail.message);
    if (settings.get("speak") === "sentences") announcer.progress(detail.message);
  }
  if (Date.now() >= nextSave) save(detail.conversation);
});

generations.addEventListener("finish", ({ detail }) => {
  const here = detail.conversation.id === conversation.id;
  save(detail.conversation);
  if (!here) return;
  composer.busy = generations.isRunning(conversation);
  chat.refresh();
  const { error, finish, toolCalls } = detail.message;
  const closing =
    error ??
    (finish === "stopped"
      ? "Stopped."
      : toolCalls?.length
        ? `The model calls ${toolCalls.map((call) => call.name).join(", ")}.`
        : "");
  if (settings.get("speak") !== "off") announcer.finish(detail.message, closing);
});

// ---- Conversations

async function save(changed) {
  nextSave = Date.now() + SAVE_INTERVAL_MS;
  if (deleted.has(changed.id) || changed.roots.length === 0) return;
  try {
    await store.save(changed);
  } catch (error) {
    toast(error.message, { announcer });
  }
  await listConversations();
}

async function listConversations() {
  sidebar.show(await store.list(), conversation.id);
}

/** Draws the open conversation; `anew` where it was another one before. */
function showConversation(anew) {
  byId("title").textContent = conversation.title;
  document.title = conversation.roots.length > 0 ? `${conversation.title} – mambo` : "mambo";
  byId("to-chat").href = conversation.roots.length > 0 ? `#/chat/${conversation.id}` : "#/";
  composer.busy = generations.isRunning(conversation);
  if (anew)
    chat.show(
      conversation,
      instructionsFor(conversation, () => save(conversation)),
    );
  else chat.refresh();
}

async function openConversation(id) {
  const found = generations.conversationOf(id) ?? (await store.load(id));
  if (!found) {
    toast("This conversation is not in this browser.", { announcer });
    location.replace("#/");
    return;
  }
  setConversation(found);
}

function setConversation(next) {
  drafts.set(conversation.id, composer.text);
  conversation = next;
  composer.text = drafts.get(next.id) ?? "";
  showConversation(true);
  listConversations();
}

function newChat() {
  closeDrawer();
  if (conversation.roots.length === 0 && location.hash !== "#/model") composer.focus();
  else location.hash = "#/";
}

async function rename(id, title) {
  const target =
    id === conversation.id ? conversation : (generations.conversationOf(id) ?? (await store.load(id)));
  target.title = title;
  target.named = true;
  await save(target);
  if (id === conversation.id) showConversation(false);
}

async function remove(id) {
  const target = id === conversation.id ? conversation : await store.load(id);
  generations.stop(target);
  deleted.add(id);
  await store.remove(id);
  if (id === conversation.id) location.hash = "#/";
  await listConversations();
  composer.focus();
  toast(`Deleted “${target.title}”.`, {
    announcer,
    action: "Undo",
    onaction: async () => {
      deleted.delete(id);
      await save(target);
      location.hash = `#/chat/${id}`;
    },
  });
}

async function exportAll() {
  download(`mambo-conversations-${new Date().toISOString().slice(0, 10)}.json`, await store.exportAll());
}

async function importFile(file) {
  try {
    const number = await store.importFrom(file);
    toast(`Imported ${number} conversation${number === 1 ? "" : "s"}.`, { announcer });
  } catch (error) {
    toast(error.message, { announcer });
  }
  await listConversations();
}

store.addEventListener("change", async ({ detail: id }) => {
  await listConversations();
  const reading =
    id === conversation.id && !generations.isRunning(conversation) && !document.querySelector(".editing");
  const changed = reading ? await store.load(id) : null;
  if (changed && changed.updated > conversation.updated) setConversation(changed);
});

// ---- Views

async function route() {
  const inModel = location.hash === "#/model";
  byId("chat-view").hidden = inModel;
  byId("model-view").hidden = !inModel;
  byId("to-chat").toggleAttribute("aria-current", !inModel);
  byId("to-model").toggleAttribute("aria-current", inModel);
  byId(inModel ? "to-model" : "to-chat").setAttribute("aria-current", "page");
  closeDrawer();
  if (inModel) {
    byId("title").textContent = "Model";
    document.title = "Model – mambo";
    const { ModelView } = await import("./model-view.js");
    modelView ??= new ModelView(byId("model-view"));
    if (location.hash === "#/model") modelView.start(server.model);
    return;
  }
  modelView?.stop();
  const id = /^#\/chat\/([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (id === conversation.id || (!id && conversation.roots.length === 0)) showConversation(false);
  else if (id) await openConversation(id);
  else setConversation(newConversation());
  composer.focus();
}

async function connect() {
  try {
    const [models, model] = await Promise.all([fetchModelIds(), fetchModel()]);
    Object.assign(server, { models, model, recommended: model.recommended ?? {} });
    chat.modelName = model.name;
    chat.modelLine = `${short(model.parameters)} parameters in ${bytes(model.file_bytes)}, running on ${model.backend}.`;
    notice("");
    if (conversation.roots.length === 0) chat.refresh();
    if (location.hash === "#/model") modelView?.start(model);
  } catch (error) {
    if (error.status === 401 && (await askForKey())) return connect();
    notice(error.message);
    setTimeout(connect, RECONNECT_MS);
  }
}

byId("effort").value = settings.get("effort");
byId("effort").addEventListener("change", (event) => settings.set("effort", event.target.value));
byId("new-chat").addEventListener("click", newChat);
byId("settings-button").addEventListener("click", () => openSettings(settings, server));
byId("skip-link").addEventListener("click", (event) => {
  event.preventDefault();
  byId(location.hash === "#/model" ? "model-view" : "input").focus();
});

document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const command = event.ctrlKey || event.metaKey;
  if (command && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    newChat();
  } else if (event.key === "Escape") generations.stop(conversation);
  else if (event.altKey && !command && event.code === "KeyM") {
    event.preventDefault();
    location.hash = location.hash === "#/model" ? byId("to-chat").getAttribute("href") : "#/model";
  }
});

window.addEventListener("hashchange", route);
// Where the engine is in the tab itself, its model can be exchanged.
window.addEventListener("modelchange", async () => {
  modelView?.stop();
  modelView = null;
  await connect();
  if (location.hash === "#/model") await route();
});
window.addEventListener("pagehide", () => {
  if (generations.isRunning(conversation)) store.save(conversation).catch(() => {});
});

showConversation(true);
connect();
await store.open();
if (!store.lasting)
  toast("This browser window keeps conversations only until you close the page.", { announcer });
await route();
await listConversations();
