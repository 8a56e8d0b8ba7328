import type { Page } from "@playwright/test";
import { expect, idle, newSession, pair, say, test } from "./fixtures";

const CONTROL =
  "button|link|textbox|searchbox|checkbox|radio|slider|combobox|switch|tab|treeitem|dialog";

/** Controls that a screen reader could only call by their kind. */
async function nameless(page: Page): Promise<string[]> {
  const heard = await page.locator("body").ariaSnapshot();
  const without = new RegExp(`^\\s*- (?:${CONTROL})(?: \\[[^\\]]*\\])*:?$`);
  return heard.split("\n").filter((line) => without.test(line));
}

/** Texts that are fainter on their ground than WCAG AA wants (1.4.3). */
function faint(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    type Colour = [number, number, number, number];
    const read = (text: string): Colour => {
      const numbers = (text.match(/[\d.]+%?/g) ?? []).map(Number.parseFloat);
      const [r = 0, g = 0, b = 0, a = 1] = numbers;
      return text.startsWith("color(srgb") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
    };
    const over = ([r, g, b, a]: Colour, [R, G, B]: Colour): Colour => [
      r * a + R * (1 - a),
      g * a + G * (1 - a),
      b * a + B * (1 - a),
      1,
    ];
    const luminance = ([r, g, b]: Colour): number => {
      const [R = 0, G = 0, B = 0] = [r, g, b]
        .map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
      return 0.2126 * R + 0.7152 * G + 0.0722 * B;
    };
    const ground = (node: Element | null): Colour => {
      if (node === null) return [255, 255, 255, 1];
      const own = read(getComputedStyle(node).backgroundColor);
      return own[3] === 1 ? own : over(own, ground(node.parentElement));
    };
    const opacity = (node: Element | null): number =>
      node === null ? 1 : Number(getComputedStyle(node).opacity) * opacity(node.parentElement);
    const found = new Set<string>();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      const text = walker.currentNode.textContent?.trim() ?? "";
      if (node === null || text === "") continue;
      // What can't be used is exempt.
      if (node.closest(":disabled, [aria-disabled=true]")) continue;
      if (!node.checkVisibility({ visibilityProperty: true })) continue;
      const box = node.getBoundingClientRect();
      if (box.width < 2 || box.height < 2) continue;
      const style = getComputedStyle(node);
      const behind = ground(node);
      const [r, g, b, a] = read(style.color);
      const front = over([r, g, b, a * opacity(node)], behind);
      const [low = 0, high = 0] = [luminance(front), luminance(behind)].toSorted((x, y) => x - y);
      const contrast = (high + 0.05) / (low + 0.05);
      const size = Number.parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (contrast < (large ? 3 : 4.5)) {
        found.add(`${contrast.toFixed(2)} .${node.className} ${text.slice(0, 40)}`);
      }
    }
    return [...found];
  });
}

const THEMES = ["Light", "Dark", "Paper", "Midnight"];

test("every page in every theme: each control has a name, each text stands out", async ({
  alone,
}) => {
  test.setTimeout(120_000);
  const { daemon, page } = await alone();
  const check = async (what: string): Promise<void> => {
    expect(await nameless(page), `${what}: controls without a name`).toEqual([]);
    // Colours of another theme fade in.
    await expect.poll(() => faint(page), `${what}: texts that are too faint`).toEqual([]);
  };
  await page.goto(daemon.url);
  await expect(page.locator("html")).toHaveAttribute("lang", "en");
  await page.getByLabel("Code").waitFor();
  await check("pairing");
  await pair(page, daemon);
  const session = await newSession(page, { message: "make it so" });
  await expect(page.getByTestId("file")).toBeVisible();
  await idle(page);
  await say(page, "markdown");
  await idle(page, 2);
  await say(page, "write notes.rs fn main() {}\\n// two\\n");
  await idle(page, 3);
  await page.goto(`${daemon.url}/#/s/${session}/files`);
  await expect(page.getByRole("treeitem", { name: /notes/ })).toBeVisible();
  await page.goto(`${daemon.url}/#/s/${session}`);
  await say(page, "write notes.rs fn main() { run(); }\\n");
  await idle(page, 4);
  await say(page, "tool");
  await expect(page.getByText("compiling one")).toBeVisible();
  await page.getByRole("radio", { name: "Queue" }).check();
  await say(page, "later");
  await expect(page.getByTestId("queue")).toBeVisible();
  const asking = await newSession(page, { message: "approve make clean" });
  await expect(page.getByRole("region", { name: "Waiting for you" })).toBeVisible();

  for (const theme of THEMES) {
    await page.goto(`${daemon.url}/#/settings`);
    await page.getByRole("radio", { name: theme, exact: true }).check();
    await check(`${theme}, settings`);
    for (const route of ["workers", "cron", "usage", "devices", "terminal/local"]) {
      await page.goto(`${daemon.url}/#/${route}`);
      await expect(page.getByRole("main").getByRole("heading").first()).toBeVisible();
      await expect(page.getByRole("main").getByText(/^Loading/)).toHaveCount(0);
      await check(`${theme}, ${route}`);
    }
    await page.goto(`${daemon.url}/#/s/${session}`);
    await expect(page.getByText("compiling one")).toBeVisible();
    await check(`${theme}, a conversation that goes on`);
    // Code is coloured when it comes into view.
    await page.getByText("self.settle(sequence)").first().scrollIntoViewIfNeeded();
    await expect(page.locator(".hljs-keyword").first()).toBeVisible();
    await check(`${theme}, its code`);
    await page.goto(`${daemon.url}/#/s/${asking}`);
    await expect(page.getByRole("button", { name: "Allow once" }).first()).toBeVisible();
    await check(`${theme}, an approval`);
    await page.goto(`${daemon.url}/#/s/${session}/files/notes.rs`);
    await page.getByText("Changes", { exact: true }).click();
    await expect(page.getByText("run();").first()).toBeVisible();
    await check(`${theme}, a file's changes`);
    await page.getByRole("button", { name: "New session" }).locator("visible=true").first().click();
    await expect(page.getByRole("dialog").getByRole("radio", { name: "tester" })).toBeVisible();
    await check(`${theme}, a new session`);
    await page.keyboard.press("Escape");
  }
});
