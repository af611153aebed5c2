/** Conversations move between the program and the package, both ways, as session files. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { collect, load } from "../dist/index.js";
import { model as file, program } from "./places.mjs";

const skip = program ? false : "there is no program; `cargo build --release` makes it";
const MESSAGES = [
  { role: "system", content: "You are a helpful assistant who likes arithmetic and short answers. ".repeat(6) },
  { role: "user", content: "What is 17 + 25?" },
];

/** Starts the program on a free port with a folder of sessions. */
async function serve(folder) {
  const child = spawn(program, ["serve", "--port", "0", "--backend", "cpu", "--sessions", folder], { stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  child.stderr.setEncoding("utf8");
  const url = await new Promise((resolve, reject) => {
    child.stderr.on("data", (piece) => {
      said += piece;
      const found = said.match(/listening on (http:\/\/[\d.:]+)/);
      if (found) resolve(found[1]);
    });
    child.once("exit", () => reject(new Error(`${program} does not start: ${said}`)));
  });
  const post = async (path, body) => {
    const answer = await fetch(`${url}${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body ?? {}) });
    const value = await answer.json();
    assert.ok(answer.ok, JSON.stringify(value));
    return value;
  };
  const close = () =>
    new Promise((resolve) => {
      child.removeAllListeners("exit").once("exit", resolve);
      child.kill("SIGTERM");
    });
  return { post, close };
}

test("a session goes from the program to the package and back", { skip, timeout: 240_000 }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "web-sessions-"));
  const asked = { messages: MESSAGES, temperature: 0, reasoning_effort: "none" };
  const model = await load(file);
  try {
    let server = await serve(folder);
    const saved = await server.post("/sessions", { name: "there", messages: MESSAGES });
    const native = await server.post("/v1/chat/completions", asked);
    await server.close();

    const tokens = await model.restore(new Uint8Array(readFileSync(join(folder, "there.snapshot"))));
    assert.equal(tokens, saved.tokens);
    const here = await collect(model.chat(MESSAGES, { temperature: 0, thinking: false }));
    assert.equal(here.usage.reusedTokens, tokens);
    assert.equal(here.content, native.choices[0].message.content);

    const more = [...MESSAGES, { role: "assistant", content: here.content }, { role: "user", content: "And 1 more?" }];
    writeFileSync(join(folder, "back.snapshot"), await model.snapshot(more));
    server = await serve(folder);
    const loaded = await server.post("/sessions/back/load");
    const answer = await server.post("/v1/chat/completions", { ...asked, messages: more });
    await server.close();
    assert.equal(answer.usage.prompt_tokens_details.cached_tokens, loaded.tokens);
    const again = await collect(model.chat(more, { temperature: 0, thinking: false }));
    assert.equal(again.content, answer.choices[0].message.content);
  } finally {
    model.close();
    rmSync(folder, { recursive: true });
  }
});
