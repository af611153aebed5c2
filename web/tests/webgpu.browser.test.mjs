/** The page with the model on WebGPU, in Chromium on its software adapter: from the first answer to a lost device. */

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { Browser, findChromium } from "../../crates/server/page/tests/chromium.mjs";
import { serveFolder, site } from "./places.mjs";

const SHOTS = process.env.SHOTS ?? "";
const skip = !findChromium() ? "Chromium is not installed" : !existsSync(site) ? "there is no site; `cargo xtask web` makes it" : false;
/** The adapter that is a program takes ten times as long to compile a kernel that checks indices and clears memory. */
const FLAGS = [
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  "--enable-dawn-features=disable_robustness,disable_workgroup_init",
];
/** All kernels are compiled before the first answer, by a program beside whatever else this machine does. */
const WAIT_MS = 240_000;
const ANSWERED =
  "document.querySelectorAll('.assistant').length > 0 && !document.querySelector('.streaming') && document.querySelector('#send').title.startsWith('Send')";
const LAST = "[...document.querySelectorAll('.assistant .body')].at(-1).innerText";
const shoot = (page, name) => (SHOTS ? page.screenshot(join(SHOTS, `${name}.png`)) : null);

/** Put before the worker's script: devices that can be destroyed from the page. */
const DESTROYER = `
const open = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...args) {
  const device = await open.apply(this, args);
  new BroadcastChannel("destroy").addEventListener("message", () => device.destroy());
  return device;
};
`;

async function ask(page, text, answers) {
  await page.click("#input");
  await page.write(text);
  await page.press("Enter");
  await page.until(`document.querySelectorAll('.assistant').length === ${answers}`);
}

function choose(page, selector, value) {
  const choice = ([selector, value]) => {
    const select = document.querySelector(selector);
    select.value = value;
    select.dispatchEvent(new Event("change"));
  };
  return page.evaluate(choice, [selector, value]);
}

/** The backend of the loaded model, once there is one that the page runs. */
const backend = (page) =>
  page.until(async () => {
    const { engine } = await import("./engine.js");
    return engine.model?.view.backend;
  });

/** Snapshots of a conversation on each backend, gone on from on the other. */
async function moves() {
  const { engine } = await import("./engine.js");
  const { collect, load } = await import("./mambo/index.js");
  const cpu = await load(engine.choice.address, { backend: "cpu" });
  const gpu = engine.model;
  const chat = (question) => [
    { role: "system", content: "You like arithmetic." },
    { role: "user", content: question },
  ];
  const move = async (from, to, question, maxTokens) => {
    const tokens = await to.restore(await from.snapshot(chat(question)));
    const { content, usage } = await collect(to.chat(chat(question), { temperature: 0, thinking: false, maxTokens }));
    return { tokens, reused: usage.reusedTokens, content };
  };
  const results = [await move(gpu, cpu, "What is 17 + 25?", 20), await move(cpu, gpu, "What is 30 + 12?", 3)];
  cpu.close();
  return results;
}

test("the model answers through WebGPU, its sessions move, and it comes back after its device is lost, without a network", { skip, timeout: 600_000 }, async () => {
  if (SHOTS) await mkdir(SHOTS, { recursive: true });
  const script = DESTROYER + readFileSync(join(site, "mambo/worker.js"), "utf8");
  const server = await serveFolder(site, {
    "/mambo/worker.js": (_, response) => response.writeHead(200, { "content-type": "text/javascript" }).end(script),
  });
  const browser = await Browser.start(FLAGS);
  browser.waitMs = WAIT_MS;
  try {
    const page = await browser.open(`${server.url}/`);
    // A software adapter is not chosen, and the page says why.
    assert.match(await backend(page), /^cpu\//);
    await page.until("/is no graphics card/.test(document.querySelector('#toasts').innerText)");
    await page.click("#tab-button");
    await choose(page, "#backend", "webgpu");
    await choose(page, "#effort", "none");
    assert.match(await backend(page), /^webgpu\/browser .*swiftshader/i);
    await page.until("/webgpu.browser/.test(document.body.innerText)");
    await shoot(page, "webgpu-welcome");

    await ask(page, "What is 17 + 25?", 1);
    await page.until(ANSWERED);
    assert.match(await page.evaluate(LAST), /42/);
    await shoot(page, "webgpu-answer");

    const [here, there] = await page.evaluate(moves);
    for (const { tokens, reused } of [here, there]) assert.equal(reused, tokens);
    assert.match(here.content, /42/);
    assert.match(there.content, /^30 \+/);

    await page.click("#tab-button");
    await page.click("#run-checks");
    await page.until("document.querySelectorAll('.checks li').length > 3 && !document.querySelector('#run-checks').disabled");
    const checks = await page.text(".checks");
    assert.match(checks, /✓ WebGPU: the end of a large buffer/);
    assert.doesNotMatch(checks, /✗ WebGPU/);
    await shoot(page, "webgpu-checks");
    await page.press("Escape");

    // Without a network, so that the model comes from the browser's storage.
    await page.until("navigator.serviceWorker.controller !== null");
    await server.close();
    await page.evaluate("new BroadcastChannel('destroy').postMessage(null)");
    await page.until("/was lost/.test(document.querySelector('#notice').innerText)");
    await shoot(page, "webgpu-lost");
    await ask(page, "Tell me a story.", 2);
    // It comes in pieces, the first of which is there long before the last.
    await page.until(`${LAST}.trim().length > 0`);
    await page.click("#send");
    await page.until(ANSWERED);
    assert.match(await page.evaluate("[...document.querySelectorAll('.status')].at(-1).innerText"), /stopped/);
    assert.match(await backend(page), /^webgpu\//);
    await shoot(page, "webgpu-again");
    const problems = page.problems.filter((problem) => !/ERR_CONNECTION_REFUSED|Failed to load resource/.test(problem));
    assert.deepEqual(problems, []);
  } finally {
    await browser.close();
    await server.close();
  }
});
