import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Page } from "@playwright/test";
import { connection, expect, idle, newSession, outside, say, test } from "./fixtures";

/** Every page is opened at both sizes in light and dark; SCREENSHOTS=1 keeps what it looks like. */
const KEEP = process.env["SCREENSHOTS"] === "1";
const FOLDER = join(import.meta.dirname, "../../../docs/screenshots");

const SIZES = [
  { name: "desktop", viewport: { width: 1280, height: 820 }, phone: false },
  { name: "phone", viewport: { width: 390, height: 844 }, phone: true },
];

async function shot(page: Page, name: string): Promise<void> {
  // Nothing lies outside of the screen, whatever its size.
  const wider = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
  expect(wider).toBe(false);
  expect(await outside(page), name).toEqual([]);
  if (!KEEP) return;
  // Nothing looks as if it were pointed at.
  await page.mouse.move(0, 0);
  await page.screenshot({ path: join(FOLDER, `${name}.png`), animations: "disabled" });
}

for (const { name, viewport, phone } of SIZES) {
  for (const colorScheme of ["light", "dark"] as const) {
    test(`${name}, ${colorScheme}`, async ({ alone }) => {
      test.setTimeout(90_000);
      if (KEEP) mkdirSync(FOLDER, { recursive: true });
      const { daemon, page } = await alone({
        browser: { viewport, colorScheme, hasTouch: phone, isMobile: phone },
      });
      const kept = `${name}-${colorScheme}`;
      const go = (route: string) => page.goto(`${daemon.url}/#/${route}`);

      await page.goto(daemon.url);
      await page.getByLabel("Code").waitFor();
      await shot(page, `${kept}-pair`);
      await page.goto((await daemon.pair()).url);
      const match = page.getByRole("button", { name: "They match" });
      await expect(match).toBeVisible();
      await shot(page, `${kept}-words`);
      await match.click();
      await expect(connection(page)).toHaveText(/Live/);
      await daemon.worker("box", "--label", "gpu=yes", "--label", "zone=attic");

      const other = await newSession(page, { message: "Translate the guide into German" });
      await idle(page);
      await go("");
      await page
        .getByRole("button", { name: "New session" })
        .locator("visible=true")
        .first()
        .click();
      const dialog = page.getByRole("dialog", { name: "New session" });
      await dialog.getByRole("radio", { name: "tester" }).check();
      await dialog.getByLabel("First message").fill("Why does the nightly build fail?");
      await shot(page, `${kept}-new-session`);
      await page.keyboard.press("Escape");
      const session = await newSession(page, { message: "make the watcher survive a full disk" });
      await expect(page.getByTestId("file")).toBeVisible();
      await idle(page);
      await page.getByRole("log").evaluate((node) => node.scrollTo(0, 0));
      await shot(page, `${kept}-conversation`);
      await say(page, "now run the whole suite");
      await expect(page.getByText("survives_full_disk").last()).toBeVisible();
      await page.getByText("Queue", { exact: true }).click();
      await say(page, "Then open a pull request with a short summary");
      await expect(page.getByTestId("queue")).toBeVisible();
      await shot(page, `${kept}-working`);

      await go(`s/${other}`);
      await say(page, "approve rm -rf target/debug && cargo clean");
      await expect(page.getByRole("region", { name: "Waiting for you" })).toBeVisible();
      await shot(page, `${kept}-approval`);
      await page.getByRole("button", { name: "Always…" }).click();
      await expect(page.getByRole("textbox", { name: "command" }).first()).toBeVisible();
      await shot(page, `${kept}-rule`);
      await page.getByRole("button", { name: "Back", exact: true }).click();
      await page.getByRole("button", { name: "Allow once" }).click();
      await idle(page, 2);
      await say(page, "ask me which branch it goes to");
      await expect(page.getByTestId("ask").locator("visible=true").last()).toBeVisible();
      await page.getByText("next", { exact: true }).last().click();
      await shot(page, `${kept}-question`);
      await page.getByRole("button", { name: "Answer" }).click();
      await idle(page, 3);

      const guide = "# Der Wegweiser\\n\\nEin Programm, fünf Protokolle.\\n";
      await say(page, `write guide.md ${guide}`);
      await idle(page, 4);
      await go(`s/${other}/files`);
      await expect(page.getByRole("treeitem", { name: /guide/ })).toBeVisible();
      await go(`s/${other}`);
      await say(page, `write guide.md ${guide.replace("Programm", "Werkzeug")}Und eine Datei.\\n`);
      await idle(page, 5);
      await go(`s/${other}/files/guide.md`);
      await page.getByText("Changes", { exact: true }).click();
      await expect(page.getByText("Werkzeug").first()).toBeVisible();
      await shot(page, `${kept}-files`);

      await go("terminal/local");
      await page.getByRole("button", { name: "New shell" }).click();
      await page.waitForURL(/terminal\/local\/.+/);
      await page.getByTestId("screen").click();
      await page.keyboard.type("echo $((6*7))\n");
      await expect(page.getByTestId("screen")).toContainText("42");
      await shot(page, `${kept}-terminal`);
      await page.getByRole("button", { name: "End" }).click();

      if (phone) {
        await go("");
        await shot(page, `${kept}-sessions`);
      }
      await daemon.run("cron", "add", "--once", "* * * * * *", "morning", String(other));
      await daemon.run("cron", "add", "0 9 * * 1-5", "morning", String(other), "--timezone", "UTC");
      await go("cron");
      await expect(page.getByText("finished").first()).toBeVisible();
      await shot(page, `${kept}-schedules`);
      for (const route of ["workers", "usage", "settings", "devices"]) {
        await go(route);
        await expect(page.getByRole("main").getByRole("heading").first()).toBeVisible();
        await expect(page.getByRole("main").getByText(/^Loading/)).toHaveCount(0);
        if (route === "workers") await expect(page.getByText("gpu=yes")).toBeVisible();
        await shot(page, `${kept}-${route}`);
      }
      await page.goto(`${daemon.url}/#/s/${session}`);
      await daemon.kill();
      await expect(page.getByText("Try now")).toBeVisible();
      await shot(page, `${kept}-reconnecting`);
    });
  }
}
