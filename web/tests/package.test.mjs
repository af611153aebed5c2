/** The package in Node: the built-in model answers, streams, stops, embeds, and agrees with the program to the last bit. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { collect, diagnose, load } from "../dist/index.js";
import { model as file, program, root } from "./places.mjs";
import { readSafetensors } from "./safetensors.mjs";

const QUESTION = [{ role: "user", content: "What is 17 + 25?" }];
const GREEDY = { temperature: 0, thinking: false };
let model;
const progress = [];

before(async () => {
  model = await load(file, { onProgress: (now) => progress.push({ ...now }), sequences: 2 });
});
after(() => model?.close());

test("the model says what it is", () => {
  assert.match(model.view.backend, /^cpu\/simd128 x1$/);
  assert.equal(model.view.architecture.length > 0, true);
  const last = progress.at(-1);
  assert.equal(last.loaded, last.total);
  assert.ok(last.total > 4e6);
});

test("it adds", async () => {
  const answer = await collect(model.chat(QUESTION, GREEDY));
  assert.match(answer.content, /42/);
  assert.equal(answer.reason, "stop");
  assert.ok(answer.usage.completionTokens > 1);
});

test("it thinks where it is asked to, and the thought is no content", async () => {
  const answer = await collect(model.chat(QUESTION, { temperature: 0, thinking: true }));
  assert.ok(answer.reasoning.length > 0);
  assert.match(answer.content, /42/);
});

test("answers come in pieces, and leaving the loop ends them", async () => {
  let pieces = 0;
  for await (const piece of model.generate("Once upon a time", { temperature: 1, seed: 1 })) {
    if (piece.type === "content") pieces += 1;
    if (pieces === 5) break;
  }
  assert.equal(pieces, 5);
  const controller = new AbortController();
  const told = [];
  for await (const piece of model.generate("Once upon a time", { temperature: 1, seed: 1, signal: controller.signal })) {
    told.push(piece.type);
    if (told.length === 4) controller.abort();
  }
  assert.equal(told.at(-1), "finished");
});

test("stop strings end an answer and are not part of it", async () => {
  const whole = await collect(model.generate("Once upon a time", { temperature: 0, maxTokens: 24 }));
  const word = whole.content.trim().split(" ")[4];
  const cut = await collect(model.generate("Once upon a time", { temperature: 0, maxTokens: 24, stop: word }));
  assert.equal(cut.content, whole.content.slice(0, whole.content.indexOf(word)));
  assert.equal(cut.reason, "stop");
});

test("two conversations at once say what each says alone", async () => {
  const ask = (content) => collect(model.chat([{ role: "user", content }], GREEDY));
  const alone = [await ask("What is 8 + 5?"), await ask("What is 30 + 12?")];
  const together = await Promise.all([ask("What is 8 + 5?"), ask("What is 30 + 12?")]);
  assert.deepEqual(together.map(({ content }) => content), alone.map(({ content }) => content));
});

test("embeddings have length one and tell texts apart", async () => {
  const [dragon, wyrm, sum] = await Promise.all(["A dragon slept.", "A dragon sleeps.", "17 + 25"].map((text) => model.embed(text)));
  const product = (a, b) => a.reduce((total, value, at) => total + value * b[at], 0);
  assert.equal(dragon.length, model.view.embedding_size);
  assert.ok(Math.abs(product(dragon, dragon) - 1) < 1e-5);
  assert.ok(product(dragon, wyrm) > product(dragon, sum));
});

test("a conversation that was read is not read again", async () => {
  const first = await collect(model.chat(QUESTION, GREEDY));
  const messages = [...QUESTION, { role: "assistant", content: first.content }, { role: "user", content: "And 1 more?" }];
  const { usage } = await collect(model.chat(messages, GREEDY));
  assert.ok(usage.reusedTokens > 0, JSON.stringify(usage));
});

test("a snapshot goes on in another worker", async () => {
  const system = { role: "system", content: "You are a helpful assistant who likes arithmetic. ".repeat(8) };
  const bytes = await model.snapshot([system, ...QUESTION]);
  const other = await load(file);
  try {
    const tokens = await other.restore(bytes);
    const answer = await collect(other.chat([system, ...QUESTION], GREEDY));
    assert.equal(answer.usage.reusedTokens, tokens);
    assert.equal(answer.content, (await collect(model.chat([system, ...QUESTION], GREEDY))).content);
    const damaged = bytes.slice();
    damaged[damaged.length >> 1] ^= 1;
    await assert.rejects(other.restore(damaged), /not a snapshot/);
    await assert.rejects(other.restore(new Uint8Array(3)), /not a snapshot/);
  } finally {
    other.close();
  }
});

test("mistakes are refused in words", async () => {
  const rejects = (pieces, words) => assert.rejects(collect(pieces), words);
  await rejects(model.chat([]), /at least one message/);
  await rejects(model.chat([{ content: "no role" }]), /role/);
  await rejects(model.chat(QUESTION, { temperature: -1 }), /temperature/);
  await rejects(model.generate(""), /empty|at least one token/i);
  await rejects(model.generate("x ".repeat(20000)), /context/);
  await assert.rejects(load(join(root, "Cargo.toml")), /./);
  await assert.rejects(load("/nowhere/model.gguf"), /no such file/i);
  await assert.rejects(load(file, { backend: "webgpu" }), /WebGPU/i);
  const bytes = readFileSync(file);
  await assert.rejects(load({ name: "cut.gguf", bytes: bytes.subarray(0, 5000) }), /cut\.gguf/);
  await assert.rejects(load({ name: "cut.gguf", bytes: bytes.subarray(0, bytes.length - 100) }), /cut\.gguf/);
  for (let at = 8; at < 400; at += 7) {
    const damaged = Uint8Array.from(bytes);
    damaged[at] ^= 0xff;
    // Loads or says why not; the worker survives neither way.
    await load({ name: "damaged.gguf", bytes: damaged }).then((loaded) => loaded.close(), (error) => assert.equal(error.name, "MamboError"));
  }
  assert.match((await collect(model.chat(QUESTION, GREEDY))).content, /42/);
});

test("golden checkpoints of several families, from safetensors folders", async () => {
  const families = join(root, "tests/fixtures/families");
  for (const family of ["llama-hub", "bamba-hub", "granite-h-hub", "lfm2-hub", "qwen3-next-hub", "gemma3-hub", "mamba2-hub"]) {
    const folder = join(families, family);
    const { input_ids: ids, logits } = readSafetensors(join(folder, "expected.safetensors"));
    const small = await load(folder, { prefixCacheBytes: 0 });
    try {
      const got = await small.logits(Array.from(ids, Number));
      let off = 0;
      logits.forEach((value, at) => (off = Math.max(off, Math.abs(value - got[at]))));
      assert.equal(got.length, logits.length);
      assert.ok(off < 2e-3, `${family}: off by ${off}`);
    } finally {
      small.close();
    }
  }
});

test("logits have the program's bits", { skip: program ? false : "there is no program; `cargo build --release` makes it" }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "web-logits-"));
  try {
    const ids = [...(await model.tokens("The river carries sand and stories past the old mill, where nobody has ground corn."))];
    execFileSync(program, ["logits", "--backend", "cpu", "--ids", ids.join(","), "-o", join(folder, "logits.safetensors")], { stdio: "ignore" });
    const { logits } = readSafetensors(join(folder, "logits.safetensors"));
    const got = await model.logits(ids);
    const bits = (values) => new Uint32Array(values.buffer, values.byteOffset, values.length);
    assert.deepEqual(bits(got), bits(logits));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("diagnostics name what there is", async () => {
  const checks = await diagnose();
  assert.ok(checks.some(({ name, detail }) => name === "Engine" && detail.includes("simd128")));
  assert.ok(checks.every(({ outcome, advice }) => outcome !== "bad" || advice));
});
