import type { Page } from "@playwright/test";
import { networkAddress } from "./daemon";
import { answers, connection, expect, idle, live, newSession, PHONE, say, test } from "./fixtures";

test("the daemon goes and comes back: nothing is lost or doubled", async ({ pairedAlone }) => {
  const { daemon, page } = await pairedAlone();
  await newSession(page, { message: "before" });
  await expect(answers(page)).toHaveText("You said: before");
  await daemon.kill();
  await expect(connection(page)).toHaveText(/Reconnecting/);
  await expect(page.getByText(/in \d+ s/).first()).toBeVisible();
  await say(page, "while away");
  await expect(page.getByTestId("outgoing")).toContainText("Waits for the connection");
  // Pressed while nobody answers: it only brings the next try nearer.
  await page.getByRole("button", { name: "Try now" }).click();
  await expect(connection(page)).toHaveText(/Reconnecting/);
  await daemon.up();
  await live(page);
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
});

test("what was seen is readable without the daemon, and an unsent message is kept over a reload", async ({
  alone,
}) => {
  const { daemon, page } = await alone();
  // A secure context by its name: there the page may keep things.
  const url = daemon.url.replace("127.0.0.1", "localhost");
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
  const before = page.url();
  await page.goto(`${url}/#/settings`);
  await expect(page.getByText(/open without the daemon/)).toBeVisible();
  await page.goto(before);
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
});

/** The names of what the page keeps. */
function stored(page: Page): Promise<string[]> {
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

test("without a network the page says so, and what is written goes out when it is back", async ({
  pairedAlone,
}) => {
  const { daemon, context, page } = await pairedAlone();
  await newSession(page, { message: "with a network" });
  await idle(page);
  await context.setOffline(true);
  // A browser leaves an open connection to itself: what goes with the network is its other end.
  await daemon.kill();
  await expect(connection(page)).toHaveText(/Offline/);
  await say(page, "written on a train");
  await expect(page.getByTestId("outgoing")).toContainText("Waits for the connection");
  await daemon.up();
  await context.setOffline(false);
  await live(page);
  await expect(answers(page)).toHaveText([
    "You said: with a network",
    "You said: written on a train",
  ]);
  await expect(page.getByRole("article", { name: "You said" })).toHaveCount(2);
});

test("on a phone, too, the whole of what is told about the connection is seen", async ({
  pairedAlone,
}) => {
  const { daemon, page } = await pairedAlone({ browser: PHONE });
  await daemon.kill();
  const told = page.getByText(/What you saw is still here/);
  await expect(told).toBeVisible();
  expect(await told.evaluate((node) => node.scrollWidth > node.clientWidth)).toBe(false);
});

test("a phone over the daemon's TLS", async ({ alone }) => {
  // On an address of the network the daemon makes a certificate by itself.
  const address = networkAddress();
  const { daemon, page } = await alone({
    address: address ?? "0.0.0.0",
    browser: { ...PHONE, ignoreHTTPSErrors: true },
  });
  const { url } = await daemon.pair();
  expect(url).toMatch(/^https:/);
  await page.goto(url);
  await page.getByRole("button", { name: "They match" }).tap();
  await expect(page.getByText(/came over plain http/)).toHaveCount(0);
  expect(await page.evaluate(() => isSecureContext && crypto.subtle !== undefined)).toBe(true);
  await newSession(page, { message: "from the sofa" });
  await expect(answers(page)).toHaveText("You said: from the sofa");
  await page.reload();
  await expect(answers(page)).toHaveText("You said: from the sofa");
});

test("over a certificate that is only let through nothing is kept offline, and Settings say so", async ({
  alone,
}) => {
  const { daemon, page } = await alone({ address: networkAddress() ?? "0.0.0.0" });
  const { url } = await daemon.pair();
  await expect(page.goto(url)).rejects.toThrow(/CERT/);
  await page.getByRole("button", { name: "Advanced" }).click();
  await page.getByRole("link", { name: /Proceed to/ }).click();
  await page.getByRole("button", { name: "They match" }).click();
  await page.goto(`${page.url().split("#")[0]}#/settings`);
  await expect(page.getByText(/does not trust the daemon's certificate/)).toBeVisible();
});

test("a phone over plain http, where there is no WebCrypto, and the page says so", async ({
  alone,
}) => {
  const address = networkAddress();
  const { daemon, page } = await alone({
    address: address ?? "127.0.0.1",
    flags: ["--insecure"],
    browser: PHONE,
  });
  if (address === undefined) {
    // Without a network there is no address that a browser mistrusts: it is told to.
    await page.addInitScript(() => {
      Object.defineProperty(globalThis, "isSecureContext", { value: false });
      Object.defineProperty(globalThis.crypto, "subtle", { value: undefined });
    });
  }
  const { url, code } = await daemon.pair();
  await page.goto(url.split("#")[0] ?? "");
  expect(await page.evaluate(() => isSecureContext || crypto.subtle !== undefined)).toBe(false);
  await expect(page.getByText(/came over plain http/)).toBeVisible();
  await page.getByLabel("Code").fill(code);
  await page.getByRole("button", { name: "They match" }).tap();
  await newSession(page, { message: "without WebCrypto" });
  await expect(answers(page)).toHaveText("You said: without WebCrypto");
  await page.reload();
  await expect(answers(page)).toHaveText("You said: without WebCrypto");
});
