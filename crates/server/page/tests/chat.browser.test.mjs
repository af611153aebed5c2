/** Chatting in a real browser: streams, branches, storage, tools, errors, keys. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { ANSWERED, ask, askAndWait, browser, inPage, paleTexts, server, shoot, skip } from "./in-page.mjs";
import { startMockServer } from "./mock-server.mjs";

inPage("a message is sent and its answer streams in", async (page) => {
  assert.equal(await page.evaluate("document.activeElement.id"), "input");
  await shoot(page, "welcome");
  await ask(page, "/slow");
  await page.until("document.querySelector('.assistant .body')?.innerText.includes('slow word')");
  const first = await page.text(".assistant .body");
  await page.until(
    (length) => document.querySelector(".assistant .body").innerText.length > length,
    first.length,
  );
  assert.equal(await page.evaluate("document.querySelector('#send').getAttribute('aria-label')"), "Stop");
  await page.press("Escape");
  await page.until(ANSWERED);
  assert.match(await page.text(".status"), /stopped/);
  await askAndWait(page, "Hallo");
  assert.match(
    await page.evaluate("[...document.querySelectorAll('.assistant')].at(-1).innerText"),
    /to “Hallo”\. Grüße, 世界 🐍!/,
  );
  const status = await page.evaluate("[...document.querySelectorAll('.status')].at(-1).innerText");
  assert.match(
    status,
    /\d+ tokens · 48\.3 tokens\/s · first after 183 ms · 1,024 of 1,274 prompt tokens from cache/,
  );
  assert.deepEqual(
    server.requests.at(-1).messages.map((message) => message.role),
    ["user", "assistant", "user"],
  );
});

inPage("the stop button stops; what came stays", async (page) => {
  await ask(page, "/slow");
  await page.until("document.querySelector('.assistant .body')?.innerText.length > 60");
  await page.click("#send");
  await page.until(ANSWERED);
  const kept = await page.text(".assistant .body");
  assert.ok(kept.length > 60);
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.equal(await page.text(".assistant .body"), kept);
});

inPage("retry and edit make branches that arrows switch", async (page) => {
  await askAndWait(page, "first");
  const one = await page.text(".assistant .body");
  await page.click("[data-action=retry]");
  await page.until(
    (text) =>
      document.querySelector(".assistant .body").innerText.includes("Answer") &&
      document.querySelector(".assistant .body").innerText !== text,
    one,
  );
  await page.until(ANSWERED);
  assert.equal(await page.text(".assistant .branches"), "2/2");
  await page.click(".assistant .branches button:first-child");
  await page.until((text) => document.querySelector(".assistant .body").innerText === text, one);
  await page.click(".user [data-action=edit]");
  await page.until("document.activeElement.className === 'edit-field'");
  await page.evaluate("document.activeElement.select()");
  await page.write("second");
  await shoot(page, "edit");
  await page.press("Enter");
  await page.until("document.querySelector('.assistant .body')?.innerText.includes('to “second”')");
  await page.until(ANSWERED);
  assert.equal(await page.text(".user .branches"), "2/2");
  await page.click(".user .branches button:first-child");
  await page.until((text) => document.querySelector(".assistant .body")?.innerText === text, one);
  assert.equal(await page.text(".assistant .branches"), "1/2");
});

inPage("conversations survive a reload and can be renamed, deleted, brought back", async (page) => {
  await askAndWait(page, "Remember me");
  await page.press("Control+k");
  await page.until("document.querySelector('.welcome')");
  await askAndWait(page, "And me");
  await page.send("Page.reload");
  await page.until("document.querySelector('.assistant .body')?.innerText.includes('And me')");
  await page.until(
    "document.querySelector('#conversation-list').innerText.trim() === 'And me\\nRemember me'",
  );
  await page.click("#conversation-list li:last-child a");
  await page.until("document.querySelector('.assistant .body')?.innerText.includes('Remember me')");
  await page.click("#conversation-list li.current [aria-label^=Rename]");
  await page.write("A better name");
  await page.press("Enter");
  await page.until("document.querySelector('#title').textContent === 'A better name'");
  await page.click("#conversation-list li.current [aria-label^=Delete]");
  await page.until("document.querySelectorAll('#conversation-list li').length === 1");
  assert.deepEqual(await page.evaluate(paleTexts), []);
  await page.click(".toast .button");
  await page.until(
    "document.querySelector('.assistant .body')?.innerText.includes('Remember me') && document.querySelectorAll('#conversation-list li').length === 2",
  );
});

inPage("two tabs see each other's conversations", async (page) => {
  const other = await browser.open(server.url, { beside: page });
  await other.until("document.querySelector('.welcome-title')");
  await askAndWait(page, "From the first tab");
  await other.until("document.querySelector('#conversation-list')?.innerText.includes('From the first tab')");
  await other.close();
});

inPage("an export reads back as an import", async (page) => {
  await askAndWait(page, "Keep this");
  const number = await page.evaluate(async () => {
    const { Store } = await import("./store.js");
    const store = new Store();
    await store.open();
    const text = await store.exportAll();
    const [{ id }] = await store.list();
    await store.remove(id);
    const imported = await store.importFrom(new File([text], "export.json"));
    return imported === 1 && (await store.list()).length;
  });
  assert.equal(number, 1);
});

inPage("reasoning is folded away and says how long it took", async (page) => {
  await ask(page, "/think");
  await page.until("/^Thinking for/.test(document.querySelector('.reasoning summary')?.innerText ?? '')");
  assert.equal(await page.evaluate("document.querySelector('.reasoning').open"), false);
  await page.until(ANSWERED);
  assert.match(await page.text(".reasoning summary"), /^Thought for [\d.]+ (ms|s)$/);
  await page.click(".reasoning summary");
  await page.until("document.querySelector('.reasoning-text strong')?.innerText === 'think'");
  await shoot(page, "reasoning");
  await page.click("#settings-button");
  await page.until("document.querySelector('dialog[open]')");
  await shoot(page, "settings");
  await page.click("dialog input[type=checkbox]");
  await page.press("Escape");
  await page.until("!document.querySelector('dialog')");
  await ask(page, "/think");
  await page.until(
    "[...document.querySelectorAll('.reasoning')].at(-1).classList.contains('thinking') && [...document.querySelectorAll('.reasoning')].at(-1).open",
  );
  await page.until(ANSWERED);
  assert.equal(await page.evaluate("[...document.querySelectorAll('.reasoning')].at(-1).open"), false);
});

inPage("tool calls are shown and answered by hand", async (page) => {
  await page.click(".instructions summary");
  await page.click(".instructions .code-field");
  await page.write('[{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]');
  await page.click(".instructions textarea:not(.code-field)");
  await page.write("Use tools.");
  await askAndWait(page, "/tool");
  const request = server.requests.at(-1);
  assert.equal(request.tools[0].function.name, "get_weather");
  assert.equal(request.messages[0].content, "Use tools.");
  assert.match(await page.text(".tool-call"), /get_weather\s+\{\s+"city": "Zürich",\s+"days": 3\s+\}/);
  await page.evaluate("document.querySelector('.tool-call textarea').focus()");
  await page.write("Sunny");
  await shoot(page, "tools");
  await page.click(".tool-calls > .button");
  await page.until("[...document.querySelectorAll('.assistant')].at(-1).innerText.includes('The tool said')");
  await page.until(ANSWERED);
  const sent = server.requests.at(-1).messages;
  assert.deepEqual(sent.slice(-2), [
    { role: "tool", tool_call_id: "call_0", content: "Sunny" },
    { role: "tool", tool_call_id: "call_1", content: "" },
  ]);
  assert.equal(sent.at(-3).tool_calls[0].function.arguments, '{"city":"Zürich","days":3}');
});

inPage(
  "errors are told and can be retried",
  async (page) => {
    for (const [command, pattern] of [
      ["/fail", /stumbled/],
      ["/break", /The device was lost/],
      ["/cut", /connection (was lost|ended)/],
    ]) {
      await askAndWait(page, command);
      assert.match(
        await page.evaluate("[...document.querySelectorAll('.note.error')].at(-1).innerText"),
        pattern,
      );
    }
    await ask(page, "/busy");
    await page.until(
      "document.querySelector('.note:not(.error)')?.innerText.includes('The server is busy. Next try in 1 s.')",
    );
    await page.until(
      "[...document.querySelectorAll('.assistant')].at(-1).innerText.includes('room after all')",
    );
    await page.until(ANSWERED);
    await askAndWait(page, "/length");
    assert.match(
      await page.evaluate("[...document.querySelectorAll('.status')].at(-1).innerText"),
      /cut off/,
    );
    await shoot(page, "errors");
  },
  { expected: /Failed to load resource|ERR_INCOMPLETE/ },
);

test("a server with a key asks for it once", { skip, timeout: 300_000 }, async () => {
  const locked = await startMockServer({ key: "sesame" });
  const page = await browser.open(locked.url);
  await page.until("document.activeElement.id === 'key'");
  await page.write("sesame");
  await page.press("Enter");
  await page.until("document.querySelector('.welcome-title')?.textContent.startsWith('Nemotron')");
  await askAndWait(page, "Open");
  assert.match(await page.text(".assistant .body"), /to “Open”/);
  assert.equal(await page.evaluate("localStorage.getItem('mambo-api-key')"), null);
  await page.close();
  await locked.close();
});

test("a server that is not there is waited for", { skip, timeout: 300_000 }, async () => {
  const short = await startMockServer();
  const page = await browser.open(short.url);
  await page.until("document.querySelector('.welcome-title')?.textContent.startsWith('Nemotron')");
  await short.close();
  await askAndWait(page, "Hello?");
  assert.match(await page.text(".note.error"), /Is `mambo serve` still running/);
  const again = await startMockServer({ port: Number(new URL(short.url).port) });
  await page.click("[data-action=retry]");
  await page.until("document.querySelector('.assistant .body')?.innerText.includes('to “Hello?”')");
  await page.close();
  await again.close();
});
