/** The page against the real server: `mambo serve` with its built-in model. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { ANSWERED, ask, askAndWait, browser, paleTexts, shoot, skip as noBrowser } from "./in-page.mjs";

const program = ["release", "debug"]
  .map((kind) => fileURLToPath(new URL(`../../../../target/${kind}/mambo`, import.meta.url)))
  .find((path) => existsSync(path));
const skip = noBrowser || (program ? false : "there is no program; `cargo build --release` makes it");

let server;
let url;

/** Starts the server on a free port and waits until it says where it listens. */
async function start() {
  server = spawn(program, ["serve", "--port", "0"], { stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  server.stderr.setEncoding("utf8");
  url = await new Promise((resolve, reject) => {
    server.stderr.on("data", (piece) => {
      said += piece;
      const found = said.match(/http:\/\/[\d.:]+/);
      if (found) resolve(found[0]);
    });
    server.once("exit", () => reject(new Error(`${program} does not start: ${said}`)));
  });
}

before(async () => {
  if (!skip) await start();
});
after(() => server?.removeAllListeners("exit").kill("SIGTERM"));

test("a conversation with the built-in model, and a look inside it", { skip, timeout: 300_000 }, async () => {
  const page = await browser.open(url);
  await page.until("document.querySelector('.welcome-title')?.textContent.includes('tiny-hybrid')");
  await askAndWait(page, "What is 17 + 25?");
  assert.match(await page.text(".assistant .body"), /42/);
  assert.match(await page.text(".reasoning summary"), /^Thought for/);
  assert.equal(await page.evaluate("document.querySelector('.reasoning').open"), false);
  await shoot(page, "server-answer");

  // The page itself presses Stop at the first words: from here the answer might be over before.
  await page.evaluate(() => {
    const observer = new MutationObserver(() => {
      const body = [...document.querySelectorAll(".assistant")].at(1)?.querySelector(".body");
      if (!body?.innerText.trim()) return;
      observer.disconnect();
      document.querySelector("#send").click();
    });
    observer.observe(document.querySelector("#messages"), { childList: true, subtree: true, characterData: true });
  });
  await ask(page, "Tell me a long story about a dragon.");
  await page.until("document.querySelectorAll('.assistant').length === 2");
  await page.until(ANSWERED);
  assert.match(await page.evaluate("[...document.querySelectorAll('.status')].at(-1).innerText"), /stopped/);
  const kept = await page.evaluate("[...document.querySelectorAll('.assistant .body')].at(-1).innerText");
  assert.ok(kept.trim().length > 0);

  await page.send("Page.reload");
  await page.until("document.querySelectorAll('.assistant').length === 2");
  assert.match(await page.text(".assistant .body"), /42/);
  await page.until(
    (text) => [...document.querySelectorAll(".assistant .body")].at(-1).innerText === text,
    kept,
  );

  await page.press("Alt+m");
  await page.until("document.querySelectorAll('.layer-chart .bar').length > 4");
  // Another client keeps the model at work until the view has shown which experts are chosen.
  let over = false;
  const work = (async () => {
    while (!over)
      await fetch(`${url}/v1/completions`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ prompt: "Once upon a time", max_tokens: 64, temperature: 1 }),
      }).then((answer) => answer.text());
  })();
  await page.evaluate("[...document.querySelectorAll('.table-panel')].forEach((panel) => (panel.open = true))");
  try {
    await page.until(
      "/\\d+ \\(\\d+(\\.\\d+)?\\s?%\\)/.test(document.querySelector('.panel .table-panel tbody')?.innerText ?? '')",
    );
    await page.until("/of time/.test(document.querySelector('.legend').innerText)");
    await page.evaluate("[...document.querySelectorAll('.table-panel')].forEach((panel) => (panel.open = false))");
    await shoot(page, "server-model");
    await page.evaluate("document.querySelector('.expert-map').scrollIntoView({ block: 'center' })");
    await shoot(page, "server-experts");
  } finally {
    over = true;
    await work;
  }
  assert.deepEqual(await page.evaluate(paleTexts), []);
  assert.deepEqual(page.problems, []);
  await page.close();
});
