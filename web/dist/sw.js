/**
 * The service worker: the page opens without the daemon, to read what was seen, and a click on a
 * notification leads to what waits.
 *
 * It keeps the page's own files and nothing else. Conversations are not here: they come over the
 * encrypted channel, and the page keeps them sealed in IndexedDB. SHELL and VERSION are put in by the
 * build.
 */

/** @type {string[]} */
const SHELL = JSON.parse("[\"/\",\"/assets/Connection-Cxeu3gcO.css\",\"/assets/Connection-DPNoiabr.js\",\"/assets/CronPage-CP19LwjM.js\",\"/assets/CronPage-D8yE7ADJ.css\",\"/assets/DevicesPage-Ba78UWpv.css\",\"/assets/DevicesPage-CGBI8GO1.js\",\"/assets/Dialog-CNVAA7p0.js\",\"/assets/Dialog-Drs4r7l5.css\",\"/assets/DiffView-6c2-UXej.js\",\"/assets/DiffView-8NZlf3qq.css\",\"/assets/EmptyState-BJaV5qMT.js\",\"/assets/EmptyState-Ccgzle9Q.css\",\"/assets/Icon-D47-xPPl.js\",\"/assets/Icon-MvzS7mkx.css\",\"/assets/Page-BNk2Fchf.css\",\"/assets/Page-BWZf06st.js\",\"/assets/Segmented-BNduQt3E.css\",\"/assets/Segmented-CEVjrNkX.js\",\"/assets/SettingsPage-BpPjBCJh.js\",\"/assets/SettingsPage-CsamWAYx.css\",\"/assets/Trouble-BBhouvIW.js\",\"/assets/Trouble-DKFVsVTR.css\",\"/assets/UsagePage-C1hggXxU.js\",\"/assets/UsagePage-DHZCEN6Q.css\",\"/assets/WorkersPage-BWBowKlC.css\",\"/assets/WorkersPage-NSFZ4fzS.js\",\"/assets/WorkspacePage-BSYmovPd.css\",\"/assets/WorkspacePage-BYTgPI_Y.js\",\"/assets/bash-BqpFWvKu.js\",\"/assets/c-DBVbJFpC.js\",\"/assets/clock.svelte-icZsxrDT.js\",\"/assets/core-PxJAoCJq.js\",\"/assets/cpp-N2d8M7Nc.js\",\"/assets/css-D8M8GYaw.js\",\"/assets/diff-BhdZizse.js\",\"/assets/go-CYstVVJV.js\",\"/assets/index-BmRZBSF5.js\",\"/assets/index-D7ZksYXV.css\",\"/assets/ini-B1CroMsf.js\",\"/assets/java-Dde-Wnb4.js\",\"/assets/javascript-DMgQAH-8.js\",\"/assets/json-PmyKWHmm.js\",\"/assets/markdown-D6FrnlqJ.js\",\"/assets/preload-helper-DygEbaNj.js\",\"/assets/python-gHmu6VPG.js\",\"/assets/ruby-BGpZ3p4_.js\",\"/assets/rust-BIKPVoi6.js\",\"/assets/sql-DWRKyvJ-.js\",\"/assets/typescript-Da0fK7fQ.js\",\"/assets/xml-COl5yFSC.js\",\"/assets/yaml-DjOhhVLG.js\",\"/icon-192.png\",\"/icon-512.png\",\"/icon-maskable-512.png\",\"/icon.svg\",\"/manifest.webmanifest\"]");
const CACHE = "quintet-298aa1e1a864aec8";

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
