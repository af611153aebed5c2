/** Files from the network: by ranges, over connections that break, from servers that know no ranges, beyond 4 GiB. */

import assert from "node:assert/strict";
import { createReadStream, readFileSync, statSync } from "node:fs";
import { test } from "node:test";
import { collect, load } from "../dist/index.js";
import { answerRange, model as file, root, serveFolder } from "./places.mjs";
import { shifted } from "./gguf.mjs";

const QUESTION = [{ role: "user", content: "What is 17 + 25?" }];
const GREEDY = { temperature: 0, thinking: false };
const { size } = statSync(file);

async function answers(url) {
  const progress = [];
  const model = await load(url, { onProgress: (now) => progress.push({ ...now }) });
  try {
    assert.match((await collect(model.chat(QUESTION, GREEDY))).content, /42/);
    return { last: progress.at(-1), view: model.view };
  } finally {
    model.close();
  }
}

const whole = (request, response) =>
  answerRange(request, response, size, {}, (start, end) => createReadStream(file, { start, end: end - 1 }));

test("a file is streamed by ranges", async () => {
  const asked = [];
  const server = await serveFolder(root, {
    "/model.gguf": (request, response) => {
      asked.push(request.headers.range);
      whole(request, response);
    },
  });
  const { last } = await answers(`${server.url}/model.gguf`);
  assert.ok(asked.filter(Boolean).length >= 1);
  assert.ok(last.fetched <= size * 1.01, `${last.fetched} bytes of ${size}`);
  await server.close();
});

test("connections that break are taken up where they ended", async () => {
  let broken = 0;
  const server = await serveFolder(root, {
    "/model.gguf": (request, response) => {
      if (request.method !== "GET" || broken === 3) return whole(request, response);
      broken += 1;
      answerRange(request, response, size, {}, (start, end) => {
        const stream = createReadStream(file, { start, end: Math.min(end, start + 4_500_000) - 1 });
        stream.on("end", () => response.destroy());
        return stream;
      });
    },
  });
  await answers(`${server.url}/model.gguf`);
  assert.equal(broken, 3);
  await server.close();
});

test("a server that knows no ranges is read from the start", async () => {
  const server = await serveFolder(root, {
    "/model.gguf": (request, response) => {
      response.writeHead(200, { "content-length": size });
      if (request.method === "HEAD") return response.end();
      createReadStream(file).on("error", () => response.destroy()).pipe(response);
    },
  });
  await answers(`${server.url}/model.gguf`);
  await server.close();
});

test("refusals say what is wrong", async () => {
  const server = await serveFolder(root, {
    "/secret.gguf": (_, response) => response.writeHead(401).end(),
    "/page.gguf": (request, response) => answerRange(request, response, 2000, {}, (start, end) => Buffer.alloc(end - start, "<html>")),
  });
  await assert.rejects(load(`${server.url}/missing.gguf`), /missing\.gguf: there is no such file/);
  await assert.rejects(load(`${server.url}/secret.gguf`), /token/);
  await assert.rejects(load(`${server.url}/page.gguf`), /page\.gguf/);
  await assert.rejects(load(`${server.url}/Cargo`), /no config\.json/);
  await server.close();
  await assert.rejects(load(`${server.url}/model.gguf`), /cannot be reached/);
});

test("tensors beyond 4 GiB are found", async () => {
  const shift = 5 * 2 ** 30;
  const { head, dataStart, bytes } = shifted(readFileSync(file), shift);
  const all = bytes.length + shift;
  // The header with moved tensors, 5 GiB of nothing, and the tensors.
  const part = (start, end) => {
    const out = Buffer.alloc(end - start);
    if (start < head.length) head.copy(out, 0, start, Math.min(end, head.length));
    const [from, to] = [Math.max(start, dataStart + shift), end];
    if (from < to) bytes.copy(out, from - start, from - shift, to - shift);
    return out;
  };
  let far = 0;
  const server = await serveFolder(root, {
    "/large.gguf": (request, response) =>
      answerRange(request, response, all, {}, (start, end) => {
        if (start > 2 ** 32) far += 1;
        return part(start, Math.min(end, start + (64 << 20)));
      }),
  });
  const { last } = await answers(`${server.url}/large.gguf`);
  assert.ok(far > 0);
  assert.ok(last.fetched < 60e6, `${last.fetched} bytes were fetched for ${bytes.length}`);
  await server.close();
});

test("a folder of safetensors comes over the network", async () => {
  const server = await serveFolder(root);
  const model = await load(`${server.url}/models/tiny-hybrid/`);
  assert.match((await collect(model.chat(QUESTION, GREEDY))).content, /42/);
  model.close();
  await server.close();
});
