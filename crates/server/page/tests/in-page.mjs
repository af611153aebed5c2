/** What every test in a browser needs: a mock server, Chromium, and a page with a fresh profile. */

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Browser, findChromium } from "./chromium.mjs";
import { startMockServer } from "./mock-server.mjs";

const SHOTS = process.env.SHOTS ?? "";
export const skip = findChromium() ? false : "Chromium is not installed";

/** The running mock server and browser. */
export let server;
export let browser;

before(async () => {
  if (skip) return;
  server = await startMockServer();
  browser = await Browser.start();
  if (SHOTS) await mkdir(SHOTS, { recursive: true });
});
after(async () => {
  await browser?.close();
  await server?.close();
});

/** Runs a test on a page with a fresh profile; nothing may go wrong in it unseen. */
export function inPage(name, body, options = {}) {
  test(name, { skip, timeout: 300_000 }, async () => {
    const page = await browser.open(server.url, options);
    await page.until("document.querySelector('.welcome-title')?.textContent.startsWith('Nemotron')");
    await body(page);
    const problems = page.problems.filter((problem) => !options.expected?.test(problem));
    assert.deepEqual(problems, []);
    await page.close();
  });
}

export const shoot = (page, name) => (SHOTS ? page.screenshot(join(SHOTS, `${name}.png`)) : null);
export const ANSWERED =
  "document.querySelectorAll('.assistant').length > 0 && !document.querySelector('.streaming') && document.querySelector('#send').title.startsWith('Send')";

export async function ask(page, text) {
  await page.click("#input");
  await page.write(text);
  await page.press("Enter");
}

export async function askAndWait(page, text) {
  const before = await page.evaluate("document.querySelectorAll('.assistant').length");
  await ask(page, text);
  await page.until((number) => document.querySelectorAll(".assistant").length > number, before);
  await page.until(ANSWERED);
}

/** Texts whose contrast with what lies behind them is below WCAG's 4.5. */
export function paleTexts() {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const channels = (color, under = [255, 255, 255]) => {
    canvas.globalAlpha = 1;
    canvas.fillStyle = `rgb(${under.join(" ")})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const backdrop = (node) =>
    node ? channels(getComputedStyle(node).backgroundColor, backdrop(node.parentElement)) : [255, 255, 255];
  const luminance = (color) =>
    color
      .map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
      .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const pale = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (
      !text.data.trim() ||
      node.closest("svg, noscript, :disabled, .visually-hidden, option") ||
      !node.checkVisibility({ visibilityProperty: true, opacityProperty: true })
    )
      continue;
    const behind = backdrop(node);
    const [light, dark] = [luminance(behind), luminance(channels(getComputedStyle(node).color, behind))].sort(
      (a, b) => b - a,
    );
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5)
      pale.push(`${ratio.toFixed(2)} ${node.className || node.tagName}: ${text.data.slice(0, 30)}`);
  }
  return pale;
}
