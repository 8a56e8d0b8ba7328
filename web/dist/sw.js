/**
 * The service worker: the page opens without the daemon, to read what was seen.
 *
 * It keeps the page's own files and nothing else. Conversations are not here: they come over the
 * encrypted channel, and the page keeps them sealed in IndexedDB. SHELL and VERSION are put in by the
 * build.
 */

/** @type {string[]} */
const SHELL = JSON.parse("[\"/\",\"/assets/Connection-Cxeu3gcO.css\",\"/assets/Connection-dWPyM-0t.js\",\"/assets/CronPage-C-gqFE-p.css\",\"/assets/CronPage-NtpL1OhQ.js\",\"/assets/DevicesPage-Ba78UWpv.css\",\"/assets/DevicesPage-CciIeJ9q.js\",\"/assets/Dialog-BJ3CvOJx.css\",\"/assets/Dialog-BJ3vWLuH.js\",\"/assets/DiffView-DmOzBRHy.js\",\"/assets/DiffView-HT45uMoD.css\",\"/assets/EmptyState-BbeDQ0_u.js\",\"/assets/EmptyState-Ccgzle9Q.css\",\"/assets/Icon-DBDltVpe.js\",\"/assets/Icon-MvzS7mkx.css\",\"/assets/Page-25ms_x_y.js\",\"/assets/Page-B8-Wy6Te.css\",\"/assets/Segmented-BNduQt3E.css\",\"/assets/Segmented-BT8JhIIW.js\",\"/assets/SettingsPage-CsamWAYx.css\",\"/assets/SettingsPage-DlwUsptF.js\",\"/assets/Trouble-D-kW9Dkv.js\",\"/assets/Trouble-DKFVsVTR.css\",\"/assets/UsagePage-Cy2mQn_y.js\",\"/assets/UsagePage-DHZCEN6Q.css\",\"/assets/WorkersPage-BWBowKlC.css\",\"/assets/WorkersPage-CxOE-PNH.js\",\"/assets/WorkspacePage-BSYmovPd.css\",\"/assets/WorkspacePage-C6HmXsoc.js\",\"/assets/bash-BqpFWvKu.js\",\"/assets/c-DBVbJFpC.js\",\"/assets/clock.svelte-B3HD8WI4.js\",\"/assets/core-PxJAoCJq.js\",\"/assets/cpp-N2d8M7Nc.js\",\"/assets/css-D8M8GYaw.js\",\"/assets/diff-BhdZizse.js\",\"/assets/go-CYstVVJV.js\",\"/assets/index-DGcExCwI.js\",\"/assets/index-Dzpz6FQ6.css\",\"/assets/ini-B1CroMsf.js\",\"/assets/java-Dde-Wnb4.js\",\"/assets/javascript-DMgQAH-8.js\",\"/assets/json-PmyKWHmm.js\",\"/assets/markdown-D6FrnlqJ.js\",\"/assets/preload-helper-DygEbaNj.js\",\"/assets/python-gHmu6VPG.js\",\"/assets/ruby-BGpZ3p4_.js\",\"/assets/rust-BIKPVoi6.js\",\"/assets/sql-DWRKyvJ-.js\",\"/assets/typescript-Da0fK7fQ.js\",\"/assets/xml-COl5yFSC.js\",\"/assets/yaml-DjOhhVLG.js\",\"/icon-192.png\",\"/icon-512.png\",\"/icon-maskable-512.png\",\"/icon.svg\",\"/manifest.webmanifest\"]");
const CACHE = "quintet-b6676ccd9017d192";

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
