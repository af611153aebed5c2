/** The page that runs the model in the tab, in Chromium, from a static server that is then switched off. */

import assert from "node:assert/strict";
import { createReadStream, existsSync, statSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Browser, findChromium } from "../../crates/server/page/tests/chromium.mjs";
import { answerRange, serveFolder, site } from "./places.mjs";

const SHOTS = process.env.SHOTS ?? "";
const skip = !findChromium() ? "Chromium is not installed" : !existsSync(site) ? "there is no site; `cargo xtask web` makes it" : false;
const READY = "document.querySelector('.welcome-title')?.textContent.includes('tiny-hybrid')";
const ANSWERED =
  "document.querySelectorAll('.assistant').length > 0 && !document.querySelector('.streaming') && document.querySelector('#send').title.startsWith('Send')";
const shoot = (page, name) => (SHOTS ? page.screenshot(join(SHOTS, `${name}.png`)) : null);

let server;
let browser;

before(async () => {
  if (skip) return;
  if (SHOTS) await mkdir(SHOTS, { recursive: true });
  server = await serveFolder(site);
  browser = await Browser.start();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

async function ask(page, text) {
  await page.click("#input");
  await page.write(text);
  await page.press("Enter");
}

test("the model answers in the tab, stops, shows its layers, and all of it again without a network", { skip, timeout: 300_000 }, async () => {
  const page = await browser.open(`${server.url}/`);
  await page.until(READY);
  await shoot(page, "tab-welcome");
  await ask(page, "What is 17 + 25?");
  await page.until(ANSWERED);
  assert.match(await page.text(".assistant .body"), /42/);
  await shoot(page, "tab-answer");

  // The page itself presses Stop at the first words.
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

  await page.press("Alt+m");
  await page.until("document.querySelectorAll('.layer-chart .bar').length > 4");
  await page.evaluate(async () => {
    const { engine } = await import("./engine.js");
    const work = async () => {
      for await (const _ of engine.model.generate("Once upon a time", { maxTokens: 200, temperature: 1 }));
      if (!/of time/.test(document.querySelector(".legend").innerText)) await work();
    };
    work();
  });
  await page.until("/of time/.test(document.querySelector('.legend').innerText)");
  await shoot(page, "tab-model");
  await page.press("Alt+m");

  await page.click("#tab-button");
  await page.click("#run-checks");
  await page.until("document.querySelectorAll('.checks li').length > 3 && !document.querySelector('#run-checks').disabled");
  assert.match(await page.text(".checks"), /simd128/);
  assert.match(await page.text(".checks"), /private files work/);
  await page.click("#run-benchmark");
  await page.until("document.querySelector('#benchmark-table')");
  await shoot(page, "tab-dialog");
  await page.press("Escape");

  await page.until("navigator.serviceWorker.controller !== null");
  await server.close();
  await page.send("Page.reload");
  await page.until("document.querySelectorAll('.assistant').length === 2");
  await ask(page, "What is 30 + 12?");
  await page.until("document.querySelectorAll('.assistant').length === 3");
  await page.until(ANSWERED);
  assert.match(await page.evaluate("[...document.querySelectorAll('.assistant .body')].at(-1).innerText"), /42/);
  await shoot(page, "tab-offline");
  const problems = page.problems.filter((problem) => !/ERR_CONNECTION_REFUSED|Failed to load resource/.test(problem));
  assert.deepEqual(problems, []);
  await page.close();
});

test("a download that broke off goes on where it was, and a damaged block is fetched again", { skip, timeout: 300_000 }, async () => {
  const file = join(site, "tiny-hybrid.gguf");
  const { size } = statSync(file);
  const block = 4 << 20;
  const starts = [];
  let reach = 6_000_000;
  const own = await serveFolder(site, {
    "/tiny-hybrid.gguf": (request, response) => {
      if (request.method === "HEAD") return answerRange(request, response, size, { etag: '"one"' }, () => Buffer.alloc(0));
      starts.push(Number(/bytes=(\d+)/.exec(request.headers.range)[1]));
      answerRange(request, response, size, { etag: '"one"' }, (start, end) => {
        const stream = createReadStream(file, { start, end: Math.max(start, Math.min(end, reach) - 1) });
        if (end > reach) stream.on("end", () => response.destroy());
        return stream;
      });
    },
  });
  const page = await browser.open(`${own.url}/`);
  await page.until("/the connection broke/.test(document.querySelector('#notice').innerText)");
  await shoot(page, "tab-broken");
  assert.equal(starts[0], 0);
  assert.ok(starts.slice(1).every((start) => start === block), JSON.stringify(starts));

  // The page tries again by itself.
  starts.length = 0;
  reach = size;
  await page.until(READY);
  assert.equal(starts[0], block, JSON.stringify(starts));

  starts.length = 0;
  await page.evaluate(async (at) => {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("mambo-models");
    for await (const [name, handle] of folder.entries()) {
      if (!name.endsWith(".data")) continue;
      const writable = await handle.createWritable({ keepExistingData: true });
      await writable.write({ type: "write", position: at, data: new Uint8Array(100) });
      await writable.close();
    }
  }, 2 * block + 1000);
  await page.send("Page.reload");
  await page.until(READY);
  assert.deepEqual(starts, [2 * block]);
  await ask(page, "What is 17 + 25?");
  await page.until(ANSWERED);
  assert.match(await page.text(".assistant .body"), /42/);
  await page.close();
  await own.close();
});
