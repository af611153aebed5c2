/** Where things are, and a static server with ranges that tests can break on purpose. */

import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

export const root = fileURLToPath(new URL("../../", import.meta.url));
export const model = join(root, "crates/cli/assets/tiny-hybrid.gguf");
export const site = join(root, "target/web/site");

/** The program, for what it and the browser must agree on; null where it was not built. */
export const program = ["release", "debug"].map((kind) => join(root, "target", kind, "mambo")).find((path) => existsSync(path)) ?? null;

const KINDS = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".wasm": "application/wasm",
  ".svg": "image/svg+xml",
  ".webmanifest": "application/manifest+json",
};

/** Answers a request for bytes: `bytes(start, end)` gives a stream or a buffer. */
export function answerRange(request, response, size, headers, bytes) {
  const found = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const start = found ? Number(found[1]) : 0;
  const end = found?.[2] ? Math.min(Number(found[2]), size - 1) : size - 1;
  const all = { "accept-ranges": "bytes", "content-length": end - start + 1, ...headers };
  if (found) all["content-range"] = `bytes ${start}-${end}/${size}`;
  response.writeHead(found ? 206 : 200, all);
  if (request.method === "HEAD") return response.end();
  const body = bytes(start, end + 1);
  if (body instanceof Uint8Array) response.end(body);
  else body.on("error", () => response.destroy()).pipe(response);
}

/** Serves a folder; `seen` has the paths that were asked for. */
export async function serveFolder(folder, more = {}) {
  const seen = [];
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://here");
    seen.push(`${request.method} ${pathname}`);
    if (more[pathname]) return more[pathname](request, response);
    const path = join(folder, normalize(decodeURIComponent(pathname === "/" ? "/index.html" : pathname)));
    if (!path.startsWith(folder) || !existsSync(path) || !statSync(path).isFile()) return response.writeHead(404).end();
    const { size, mtimeMs } = statSync(path);
    const headers = { "content-type": KINDS[extname(path)] ?? "application/octet-stream", etag: `"${size}-${mtimeMs}"`, "cache-control": "no-cache" };
    answerRange(request, response, size, headers, (start, end) => createReadStream(path, { start, end: end - 1 }));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { url, seen, close };
}
