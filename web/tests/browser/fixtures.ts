/** What every browser test stands on: a daemon, and pages that keep to the rules. */

import {
  test as base,
  expect,
  type BrowserContext,
  type BrowserContextOptions,
  type Locator,
  type Page,
} from "@playwright/test";
import { Daemon } from "./daemon";

export { expect } from "@playwright/test";

export const PHONE = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true };

/** A daemon of a test's own and a page in a browser of its own. */
interface Alone {
  daemon: Daemon;
  context: BrowserContext;
  page: Page;
}

interface AloneOptions {
  /** Where the daemon listens, and the flags of `up`. */
  address?: string;
  flags?: string[];
  browser?: BrowserContextOptions;
}

interface TestFixtures {
  /** A page that is paired and live. */
  paired: Page;
  /** A page of a second browser. */
  stranger: Page;
  /** A page of a second browser, paired and live: another device of the same person. */
  other: Page;
  /** Starts a daemon that the test may stop, kill or fill, and opens a page beside it. */
  alone: (options?: AloneOptions) => Promise<Alone>;
  /** The same, paired and live. */
  pairedAlone: (options?: AloneOptions) => Promise<Alone>;
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
  stranger: async ({ browser, daemon }, use) => {
    const context = await browser.newContext();
    const broken = watch(context, daemon);
    await use(await context.newPage());
    await context.close();
    expect(broken).toEqual([]);
  },
  other: async ({ stranger, daemon }, use) => {
    await pair(stranger, daemon);
    await use(stranger);
  },
  alone: async ({ browser }, use) => {
    const opened: (Alone & { broken: string[] })[] = [];
    await use(async ({ address, flags, browser: options } = {}) => {
      const daemon = await Daemon.start(address, flags);
      const context = await browser.newContext(options);
      const broken = watch(context, daemon);
      const page = await context.newPage();
      opened.push({ daemon, context, page, broken });
      return { daemon, context, page };
    });
    for (const { daemon, context } of opened) {
      await context.close();
      // A stop would wait for turns that wait for a person.
      await daemon.kill();
      await daemon.stop();
    }
    expect(opened.flatMap(({ broken }) => broken)).toEqual([]);
  },
  pairedAlone: async ({ alone }, use) => {
    await use(async (options) => {
      const opened = await alone(options);
      await pair(opened.page, opened.daemon);
      return opened;
    });
  },
});

/** Notes what a page must never do: reach another host, break the policy, throw. */
function watch(context: BrowserContext, daemon: Daemon): string[] {
  const broken: string[] = [];
  context.on("request", (request) => {
    const url = new URL(request.url());
    if (/^https?:$/.test(url.protocol) && !daemon.origins.has(url.origin)) {
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

/** What a person can't see or press whole: parts that lie outside of their card, and controls that overlap. */
export function outside(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const SLACK = 1;
    const name = (node: Element): string =>
      `${node.tagName.toLowerCase()} ${(node.textContent ?? "").trim().slice(0, 40)}`;
    /** The boxes of a part, as far as what scrolls or cuts inside of the card lets them be seen. */
    const boxes = (node: Element, card: Element): DOMRect[] => {
      let seen = [...node.getClientRects()];
      for (let up = node.parentElement; up !== null && up !== card; up = up.parentElement) {
        if (getComputedStyle(up).overflowX === "visible") continue;
        const edge = up.getBoundingClientRect();
        seen = seen.map((box) => {
          const left = Math.max(box.left, edge.left);
          return new DOMRect(left, box.top, Math.min(box.right, edge.right) - left, box.height);
        });
      }
      return seen.filter(({ width, height }) => width > 0 && height > 0);
    };
    const found: string[] = [];
    for (const card of document.querySelectorAll(".card, [aria-label='Waiting for you'], dialog")) {
      if (!card.checkVisibility()) continue;
      const edge = card.getBoundingClientRect();
      const scrolls = card.matches(".scroll");
      for (const node of card.querySelectorAll("*:not(option):not(.sr-only)")) {
        if (scrolls || !node.checkVisibility({ visibilityProperty: true })) continue;
        const out = boxes(node, card).some(
          ({ left, right }) => left < edge.left - SLACK || right > edge.right + SLACK,
        );
        if (out) found.push(`outside of its card: ${name(node)}`);
      }
      const controls = [...card.querySelectorAll("a, button, input, select, textarea")]
        .filter((node) => node.checkVisibility({ visibilityProperty: true }))
        .filter((node) => node.closest("label") === null);
      for (const [i, one] of controls.entries()) {
        for (const other of controls.slice(i + 1)) {
          const over = boxes(one, card).some((a) =>
            boxes(other, card).some(
              (b) =>
                Math.min(a.right, b.right) - Math.max(a.left, b.left) > SLACK &&
                Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > SLACK,
            ),
          );
          if (over) found.push(`over each other: ${name(one)}, ${name(other)}`);
        }
      }
    }
    return found;
  });
}
