/** A tiny app, bundled by Vite from the packed package, in Chromium. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import { Browser, findChromium } from "../../crates/server/page/tests/chromium.mjs";
import { model, root, serveFolder } from "./places.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const modules = join(here, "../node_modules");
const skip = findChromium() ? false : "Chromium is not installed";

test("an app that Vite has bundled answers", { skip, timeout: 300_000 }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "web-app-"));
  const packed = readdirSync(join(root, "target/web")).find((name) => name.endsWith(".tgz"));
  assert.ok(packed, "there is no package; `cargo xtask web` packs it");
  let browser;
  let server;
  try {
    cpSync(join(here, "app"), folder, { recursive: true });
    mkdirSync(join(folder, "node_modules/mambo-web"), { recursive: true });
    execFileSync("tar", ["-xzf", join(root, "target/web", packed), "-C", join(folder, "node_modules/mambo-web"), "--strip-components=1"]);
    for (const name of ["vite", "rolldown"]) symlinkSync(join(modules, name), join(folder, "node_modules", name));
    execFileSync("node", [join(modules, "vite/bin/vite.js"), "build", "--logLevel", "error"], { cwd: folder, stdio: "inherit" });
    cpSync(model, join(folder, "dist/tiny-hybrid.gguf"));
    server = await serveFolder(join(folder, "dist"));
    browser = await Browser.start();
    const page = await browser.open(`${server.url}/`);
    await page.until("document.querySelector('#done')");
    assert.match(await page.text("#answer"), /42/);
    assert.deepEqual(page.problems.filter((problem) => !/favicon/.test(problem)), []);
  } finally {
    await browser?.close();
    await server?.close();
    rmSync(folder, { recursive: true });
  }
});
