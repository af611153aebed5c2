/** Drives headless Chromium through the DevTools protocol over a pipe: no library, no port. */

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PLACES = [
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];
/** Long enough for a machine that compiles meanwhile; what is there is seen at once. */
const WAIT_MS = 60_000;

export function findChromium() {
  return PLACES.find((path) => existsSync(path)) ?? null;
}

export class Browser {
  /** How long pages wait for what is to come. */
  waitMs = WAIT_MS;
  #process;
  #folder;
  #next = 1;
  #waiting = new Map();
  #pages = new Map();

  /** With further flags of Chromium's. */
  static async start(flags = []) {
    const browser = new Browser();
    browser.#folder = await mkdtemp(join(tmpdir(), "page-test-"));
    browser.#process = spawn(
      findChromium(),
      [
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        // Without a display Chromium sees no mouse; a desk has one.
        "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
        `--user-data-dir=${browser.#folder}`,
        ...flags,
        "about:blank",
      ],
      { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] },
    );
    let text = "";
    browser.#process.stdio[4].setEncoding("utf8").on("data", (piece) => {
      const messages = (text + piece).split("\0");
      text = messages.pop();
      for (const message of messages) browser.#receive(JSON.parse(message));
    });
    return browser;
  }

  #receive({ id, sessionId, method, params, result, error }) {
    if (method) return this.#pages.get(sessionId)?.receive(method, params);
    const { resolve, reject } = this.#waiting.get(id) ?? {};
    this.#waiting.delete(id);
    if (error) reject?.(new Error(error.message));
    else resolve?.(result);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    this.#process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
  }

  /** A page in a profile of its own, unless it shares that of another page. */
  async open(url, { beside = null, width = 1200, height = 800 } = {}) {
    const context = beside?.context ?? (await this.send("Target.createBrowserContext")).browserContextId;
    const { targetId } = await this.send("Target.createTarget", {
      url: "about:blank",
      browserContextId: context,
    });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, context, targetId);
    this.#pages.set(sessionId, page);
    for (const domain of ["Page", "Runtime", "Log", "Accessibility"]) await page.send(`${domain}.enable`);
    await page.resize(width, height);
    await page.send("Page.navigate", { url });
    return page;
  }

  async close() {
    const ended = new Promise((resolve) => this.#process.once("exit", resolve));
    this.send("Browser.close").catch(() => {});
    await ended;
    await rm(this.#folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

const KEYS = { Enter: 13, Escape: 27, ArrowUp: 38, Tab: 9, " ": 32 };
const MODIFIERS = { Alt: 1, Control: 2, Meta: 4, Shift: 8 };

class Page {
  /** What went wrong in the page: exceptions, errors on the console, refused content. */
  problems = [];

  constructor(browser, session, context, target) {
    Object.assign(this, { browser, session, context, target });
  }

  send(method, params) {
    return this.browser.send(method, params, this.session);
  }

  receive(method, params) {
    if (method === "Runtime.exceptionThrown")
      this.problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled" && params.type === "error")
      this.problems.push(params.args.map((arg) => arg.value).join(" "));
    if (method === "Log.entryAdded" && params.entry.level === "error") this.problems.push(params.entry.text);
  }

  /** Runs an expression, or a function of the page with plain arguments. */
  async evaluate(code, ...args) {
    const expression = typeof code === "function" ? `(${code})(...${JSON.stringify(args)})` : code;
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", {
      expression,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Waits until an expression or function holds. */
  async until(code, ...args) {
    const end = Date.now() + this.browser.waitMs;
    while (Date.now() < end) {
      const value = await this.evaluate(code, ...args).catch(() => null);
      if (value) return value;
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
    const seen = await this.evaluate("document.body.innerText.slice(0, 1500)");
    throw new Error(`Waited in vain for ${code} ${JSON.stringify(args)}\n${seen}`);
  }

  text(selector) {
    return this.evaluate((chosen) => document.querySelector(chosen)?.innerText ?? null, selector);
  }

  /** Clicks the middle of the last element that matches, as a mouse does, once it can be used and has come to rest. */
  async click(selector) {
    const spot = await this.until(async (chosen) => {
      const middle = () => {
        const node = [...document.querySelectorAll(chosen)].at(-1);
        node?.scrollIntoView({ block: "nearest" });
        const box = node?.getBoundingClientRect();
        const usable = box && box.width > 0 && !node.disabled;
        return usable ? { x: box.x + box.width / 2, y: box.y + box.height / 2 } : null;
      };
      const before = middle();
      await new Promise((resolve) => setTimeout(resolve, 40));
      const after = middle();
      return JSON.stringify(before) === JSON.stringify(after) ? after : null;
    }, selector);
    await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", ...spot });
    for (const type of ["mousePressed", "mouseReleased"])
      await this.send("Input.dispatchMouseEvent", { type, ...spot, button: "left", clickCount: 1 });
  }

  write(text) {
    return this.send("Input.insertText", { text });
  }

  /** Presses keys like `Enter`, `Shift+Enter`, `Control+k`. */
  async press(combination) {
    const parts = combination.split("+");
    const key = parts.pop();
    const modifiers = parts.reduce((sum, name) => sum | MODIFIERS[name], 0);
    const code = key.length === 1 ? `Key${key.toUpperCase()}` : key;
    const shared = {
      key,
      code,
      modifiers,
      windowsVirtualKeyCode: KEYS[key] ?? key.toUpperCase().charCodeAt(0),
    };
    const text = key === "Enter" ? "\r" : key === " " ? " " : undefined;
    await this.send("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", ...shared, text });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...shared });
  }

  resize(width, height, { touch = false } = {}) {
    return Promise.all([
      this.send("Emulation.setDeviceMetricsOverride", {
        width,
        height,
        deviceScaleFactor: touch ? 2 : 1,
        mobile: touch,
      }),
      this.send("Emulation.setTouchEmulationEnabled", { enabled: touch }),
    ]);
  }

  media(features) {
    return this.send("Emulation.setEmulatedMedia", {
      features: Object.entries(features).map(([name, value]) => ({ name, value })),
    });
  }

  async screenshot(path) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    await writeFile(path, Buffer.from(data, "base64"));
  }

  /** What assistive technology sees: role and name of every node that is not ignored. */
  async accessible() {
    const { nodes } = await this.send("Accessibility.getFullAXTree");
    return nodes
      .filter((node) => !node.ignored)
      .map((node) => ({
        role: node.role?.value,
        name: node.name?.value ?? "",
        focusable: node.properties?.some(({ name, value }) => name === "focusable" && value.value) ?? false,
      }));
  }

  close() {
    return this.browser.send("Target.closeTarget", { targetId: this.target });
  }
}
