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
  try {
    const shown = new Notification(title, { tag: last, icon: "/icon-192.png" });
    shown.addEventListener("click", () => {
      window.focus();
      location.hash = `#/s/${prompt.session}`;
      shown.close();
    });
  } catch {
    // Android wants notifications from the service worker only; the badge has to do.
  }
}
