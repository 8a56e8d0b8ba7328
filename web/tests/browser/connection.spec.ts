import { Daemon } from "./daemon";
import { answers, connection, expect, idle, newSession, pair, say, test, watch } from "./fixtures";

test("the daemon goes and comes back: nothing is lost or doubled", async ({ browser }) => {
  const daemon = await Daemon.start();
  const context = await browser.newContext();
  const broken = watch(context, daemon);
  const page = await context.newPage();
  await pair(page, daemon);
  await newSession(page, { message: "before" });
  await expect(answers(page)).toHaveText("You said: before");
  await daemon.kill();
  await expect(connection(page)).toHaveText(/Reconnecting/);
  await expect(page.getByText(/in \d+ s/).first()).toBeVisible();
  await say(page, "while away");
  await expect(page.getByTestId("outgoing")).toContainText("Waits for the connection");
  await daemon.up();
  await page.getByRole("button", { name: "Try now" }).click();
  await expect(connection(page)).toHaveText(/Live/);
  await expect(answers(page).last()).toHaveText("You said: while away");
  await expect(page.getByTestId("outgoing")).toHaveCount(0);
  await expect(page.getByRole("article", { name: "You said" })).toHaveText([
    /before/,
    /while away/,
  ]);
  await page.reload();
  await expect(page.getByRole("article", { name: "You said" })).toHaveText([
    /before/,
    /while away/,
  ]);
  await expect(answers(page)).toHaveText(["You said: before", "You said: while away"]);
  expect(broken).toEqual([]);
  await context.close();
  await daemon.stop();
});

test("what was seen is readable without the daemon, and an unsent message is kept over a reload", async ({
  browser,
}) => {
  const daemon = await Daemon.start();
  // A secure context by its name: there the page may keep things.
  const url = daemon.url.replace("127.0.0.1", "localhost");
  const context = await browser.newContext();
  const page = await context.newPage();
  const { code } = await daemon.pair();
  await page.goto(url);
  await page.getByLabel("Code").fill(code);
  await page.getByRole("button", { name: "They match" }).click();
  await newSession(page, { message: "remember this" });
  await idle(page);
  await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  // The shelf is written within a second of the last change.
  await expect
    .poll(() =>
      page.evaluate(
        () =>
          new Promise<number>((resolve) => {
            const request = indexedDB.open("quintet-vault");
            request.addEventListener("success", () => {
              const count = request.result
                .transaction("sealed")
                .objectStore("sealed")
                .count("sessions");
              count.addEventListener("success", () => {
                request.result.close();
                resolve(count.result);
              });
            });
          }),
      ),
    )
    .toBe(1);
  await expect.poll(() => stored(page)).toContain("rows/1");
  await daemon.kill();
  await page.reload();
  await expect(answers(page)).toHaveText("You said: remember this");
  await expect(page.getByText(/Reconnecting|Connecting|Offline/).first()).toBeVisible();
  await say(page, "sent later");
  await expect.poll(() => stored(page)).toContain("unsent");
  await page.reload();
  await daemon.up();
  await expect(answers(page).last()).toHaveText("You said: sent later", { timeout: 40_000 });
  await expect(page.getByRole("article", { name: "You said" })).toHaveCount(2);
  await context.close();
  await daemon.stop();
});

/** The names of what the page keeps. */
function stored(page: import("@playwright/test").Page): Promise<string[]> {
  return page.evaluate(
    () =>
      new Promise<string[]>((resolve) => {
        const request = indexedDB.open("quintet-vault");
        request.addEventListener("success", () => {
          const keys = request.result.transaction("sealed").objectStore("sealed").getAllKeys();
          keys.addEventListener("success", () => {
            request.result.close();
            resolve(keys.result.map(String));
          });
        });
      }),
  );
}

test("over plain http the page says so", async ({ browser }) => {
  const daemon = await Daemon.start();
  const context = await browser.newContext();
  const page = await context.newPage();
  // What a phone sees on an address of the local network: no secure context, no WebCrypto.
  await page.addInitScript(() => {
    Object.defineProperty(globalThis, "isSecureContext", { value: false });
    Object.defineProperty(globalThis.crypto, "subtle", { value: undefined });
  });
  await page.goto(daemon.url);
  await expect(page.getByText(/came over plain http/)).toBeVisible();
  const { code } = await daemon.pair();
  await page.getByLabel("Code").fill(code);
  await page.getByRole("button", { name: "They match" }).click();
  await expect(connection(page)).toHaveText(/Live/);
  await newSession(page, { message: "without WebCrypto" });
  await expect(answers(page)).toHaveText("You said: without WebCrypto");
  await context.close();
  await daemon.stop();
});
