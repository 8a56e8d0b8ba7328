/** Reaches the person when the page is not in front: a badge on the icon, and a notification if wanted. */

import type { Prompt } from "../model/prompts";
import { promptKey } from "../model/prompts";

let last = "";

export function notify(prompt: Prompt | undefined, wanted: boolean, count: number): void {
  if ("setAppBadge" in navigator) {
    void (count > 0 ? navigator.setAppBadge(count) : navigator.clearAppBadge()).catch(
      () => undefined,
    );
  }
  if (prompt === undefined || promptKey(prompt) === last) return;
  last = promptKey(prompt);
  if (!wanted || !document.hidden || !("Notification" in globalThis)) return;
  if (Notification.permission !== "granted") return;
  // Only that something waits: the text of a notification lies outside of the encryption.
  const title = prompt.type === "ask" ? "A question for you" : "Approval needed";
  void show(title, last, `#/s/${prompt.session}`);
}

/** By the service worker, which alone may on Android; without one, by the page. */
async function show(title: string, tag: string, fragment: string): Promise<void> {
  const options = { tag, icon: "/icon-192.png", data: { fragment } };
  const registration = await navigator.serviceWorker?.getRegistration().catch(() => undefined);
  if (registration?.active) {
    // A click on it comes to the service worker (src/sw/sw.js).
    await registration.showNotification(title, options);
    return;
  }
  try {
    const shown = new Notification(title, options);
    shown.addEventListener("click", () => {
      window.focus();
      location.hash = fragment;
      shown.close();
    });
  } catch {
    // Android without a service worker: the badge has to do.
  }
}
