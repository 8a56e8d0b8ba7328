/** What every browser test stands on: a daemon, and pages that keep to the rules. */

import {
  test as base,
  expect,
  type BrowserContext,
  type Locator,
  type Page,
} from "@playwright/test";
import { Daemon } from "./daemon";

export { expect } from "@playwright/test";

interface TestFixtures {
  /** A page that is paired and live. */
  paired: Page;
}

interface WorkerFixtures {
  daemon: Daemon;
}

export const test = base.extend<TestFixtures, WorkerFixtures>({
  daemon: [
    // oxlint-disable-next-line no-empty-pattern
    async ({}, use) => {
      const daemon = await Daemon.start();
      await use(daemon);
      await daemon.stop();
    },
    { scope: "worker" },
  ],
  context: async ({ context, daemon }, use) => {
    const broken = watch(context, daemon);
    await use(context);
    expect(broken).toEqual([]);
  },
  paired: async ({ page, daemon }, use) => {
    await pair(page, daemon);
    await use(page);
  },
});

/** Notes what a page must never do: reach another host, break the policy, throw. */
export function watch(context: BrowserContext, daemon: Daemon): string[] {
  const broken: string[] = [];
  context.on("request", (request) => {
    const url = new URL(request.url());
    if (/^https?:$/.test(url.protocol) && url.origin !== new URL(daemon.url).origin) {
      broken.push(`asked ${url.origin}`);
    }
  });
  context.on("weberror", (error) => broken.push(`threw ${error.error().stack ?? ""}`));
  context.on("console", (message) => {
    if (/Content Security Policy/.test(message.text())) broken.push(message.text());
  });
  return broken;
}

/** Pairs by the link, as a phone that scans the code does. */
export async function pair(page: Page, daemon: Daemon): Promise<void> {
  const { url } = await daemon.pair();
  await page.goto(url);
  await page.getByRole("button", { name: "They match" }).click();
  await expect(connection(page)).toHaveText(/Live/);
}

export function connection(page: Page): Locator {
  return page.getByTestId("connection").locator("visible=true").first();
}

/** Waits until the page has come back by itself; its tries may be far apart by now. */
export async function live(page: Page): Promise<void> {
  await expect(connection(page)).toHaveText(/Live/, { timeout: 40_000 });
}

/** Starts a session with the test agent; returns its number. */
export async function newSession(
  page: Page,
  more: { agent?: string; message?: string; folder?: string; worker?: string } = {},
): Promise<number> {
  // The page may show another session until this one is there.
  const before = page.url();
  await page.getByRole("button", { name: "New session" }).locator("visible=true").first().click();
  const dialog = page.getByRole("dialog", { name: "New session" });
  await dialog.getByRole("radio", { name: more.agent ?? "tester" }).check();
  if (more.message) await dialog.getByLabel("First message").fill(more.message);
  if (more.folder) await dialog.getByLabel("Folder").fill(more.folder);
  if (more.worker) await dialog.getByLabel("Worker").selectOption(more.worker);
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.waitForURL((url) => url.href !== before && /^#\/s\/\d+$/.test(url.hash));
  return Number(/\d+$/.exec(page.url())?.[0]);
}

/** Presses Tab until something has the focus, as a person without a mouse does. */
export async function tabTo(page: Page, target: Locator): Promise<void> {
  await expect(target).toBeVisible();
  for (let presses = 0; presses < 100; presses += 1) {
    await page.keyboard.press("Tab");
    if (await target.evaluate((node) => node === document.activeElement)) return;
  }
  throw new Error(`the Tab key never came to ${target}`);
}

export async function say(page: Page, text: string): Promise<void> {
  await page.getByRole("textbox", { name: "Message" }).fill(text);
  await page.getByRole("button", { name: "Send" }).click();
}

export function answers(page: Page): Locator {
  return page.getByTestId("answer");
}

/** Waits until so many turns of the open session are over, and none runs. */
export async function idle(page: Page, turns = 1): Promise<void> {
  await expect(page.getByTestId("turn-end")).toHaveCount(turns);
  await expect(page.getByTestId("working")).toHaveCount(0);
}
