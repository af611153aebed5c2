/**
 * Keeps the page so that it opens without a network. The build writes the names of its files and their digest here;
 * models are not among them: the engine keeps those itself.
 */

const FILES = /* files */ [];
const VERSION = "/* version */";
const CACHE = `mambo-page-${VERSION}`;

self.addEventListener("install", (event) => {
  const keep = async () => {
    const cache = await caches.open(CACHE);
    await cache.addAll(FILES.map((name) => new Request(name, { cache: "reload" })));
    await self.skipWaiting();
  };
  event.waitUntil(keep());
});

self.addEventListener("activate", (event) => {
  const tidy = async () => {
    const names = await caches.keys();
    const old = names.filter((name) => name.startsWith("mambo-page-") && name !== CACHE);
    await Promise.all(old.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(tidy());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== location.origin || request.headers.has("range")) return;
  const name = url.pathname.startsWith(new URL("./", location.href).pathname) ? url.pathname.slice(new URL("./", location.href).pathname.length) : null;
  if (name === null || !FILES.includes(name === "" ? "index.html" : name)) return;
  const answer = async () => {
    const cache = await caches.open(CACHE);
    return (await cache.match(name === "" ? "index.html" : name)) ?? fetch(request);
  };
  event.respondWith(answer());
});
