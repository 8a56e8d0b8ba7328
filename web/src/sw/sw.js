/**
 * The service worker: the page opens without the daemon, to read what was seen, and a click on a
 * notification leads to what waits.
 *
 * It keeps the page's own files and nothing else. Conversations are not here: they come over the
 * encrypted channel, and the page keeps them sealed in IndexedDB. SHELL and VERSION are put in by the
 * build.
 */

/** @type {string[]} */
const SHELL = JSON.parse("__SHELL__");
const CACHE = "quintet-__VERSION__";

const worker = /** @type {ServiceWorkerGlobalScope} */ (/** @type {unknown} */ (self));

worker.addEventListener("install", (event) => {
  event.waitUntil(
    caches
      .open(CACHE)
      .then((cache) => cache.addAll(SHELL.map((url) => new Request(url, { cache: "reload" }))))
      .then(() => worker.skipWaiting()),
  );
});

worker.addEventListener("activate", (event) => {
  event.waitUntil(
    caches
      .keys()
      .then((names) =>
        Promise.all(names.filter((name) => name !== CACHE).map((name) => caches.delete(name))),
      )
      .then(() => worker.clients.claim()),
  );
});

worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== location.origin) return;
  if (request.mode === "navigate") {
    // The daemon's page if it is there, so that an update is seen at once.
    event.respondWith(fetch(request).catch(() => kept("/")));
  } else if (url.pathname.startsWith("/assets/")) {
    // Named by their content: what is kept is right for ever.
    event.respondWith(caches.match(request).then((found) => found ?? fetchAndKeep(request)));
  } else if (SHELL.includes(url.pathname)) {
    event.respondWith(fetch(request).catch(() => kept(url.pathname)));
  }
});

worker.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(lead(event.notification.data.fragment));
});

/**
 * Brings the page to the front and to what waits; opens it when there is none.
 *
 * @param {string} fragment
 * @returns {Promise<void>}
 */
async function lead(fragment) {
  const [page] = await worker.clients.matchAll({ type: "window" });
  if (page === undefined) {
    await worker.clients.openWindow(`/${fragment}`);
    return;
  }
  // Told and not navigated: what is being written in it stays.
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- that is a window's; this has none
  page.postMessage({ fragment });
  await page.focus();
}

/**
 * @param {string} path
 * @returns {Promise<Response>}
 */
async function kept(path) {
  return (await caches.match(path)) ?? Response.error();
}

/**
 * Parts that are loaded on demand are kept once they were.
 *
 * @param {Request} request
 * @returns {Promise<Response>}
 */
async function fetchAndKeep(request) {
  const response = await fetch(request);
  if (response.ok) {
    const cache = await caches.open(CACHE);
    await cache.put(request, response.clone());
  }
  return response;
}
