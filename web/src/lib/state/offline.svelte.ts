/** Whether the page opens without the daemon: a service worker keeps it, and not every browser lets one. */

export type Offline =
  /** It is not known yet, or the page's files are still being fetched. */
  | "starting"
  | "ready"
  /** Plain http. */
  | "insecure"
  /** The page was let through over a certificate that the device does not trust; a service worker is not. */
  | "untrusted"
  /** The browser has none, or refused for another reason. */
  | "refused";

export class OfflinePage {
  state = $state<Offline>("starting");

  /** Has the browser keep the page. Without that it works, only not offline. */
  async keep(): Promise<void> {
    this.state = await register();
  }
}

async function register(): Promise<Offline> {
  if (!isSecureContext) return "insecure";
  if (!("serviceWorker" in navigator)) return "refused";
  try {
    await navigator.serviceWorker.register("/sw.js");
    await navigator.serviceWorker.ready;
    return "ready";
  } catch (error) {
    // One from before goes on to serve the page.
    if (navigator.serviceWorker.controller !== null) return "ready";
    return error instanceof DOMException && error.name === "SecurityError"
      ? "untrusted"
      : "refused";
  }
}
