import type { Page } from "@playwright/test";
import { connection, expect, newSession, pair, test } from "./fixtures";

interface Device {
  id: string;
  name: string;
  check_words: string[];
}

test("a person types the code and is in", async ({ page, daemon }) => {
  const { code } = await daemon.pair();
  await page.goto(daemon.url);
  // An empty field does not look like a typed one.
  await expect(page.getByLabel("Code")).toHaveAttribute("placeholder", /^\D*$/);
  await page.getByLabel("Name of this device").fill("My tablet");
  await page.getByLabel("Code").fill(code);
  const dialog = page.getByRole("dialog", { name: "This browser is paired" });
  await expect(dialog).toBeVisible();
  const devices = await daemon.json<Device[]>("devices");
  const words = devices.find(({ name }) => name === "My tablet")?.check_words ?? [];
  expect(words).toHaveLength(4);
  await expect(dialog.getByText(words.join(" "), { exact: true })).toBeVisible();
  await page.getByRole("button", { name: "They match" }).click();
  await expect(connection(page)).toHaveText(/Live/);
});

test("words that differ end the pairing here and there, and the person is told to look", async ({
  page,
  daemon,
}) => {
  const before = await daemon.json<Device[]>("devices");
  await page.goto((await daemon.pair()).url);
  const dialog = page.getByRole("dialog", { name: "This browser is paired" });
  await expect(dialog).toContainText("quintet devices revoke");
  expect(await daemon.json<Device[]>("devices")).toHaveLength(before.length + 1);
  await dialog.getByRole("button", { name: "They differ" }).click();
  await expect(page.getByLabel("Code")).toBeVisible();
  await expect(page.getByRole("status")).toContainText("quintet devices");
  expect(await daemon.json<Device[]>("devices")).toHaveLength(before.length);
  await page.reload();
  await expect(page.getByLabel("Code")).toBeVisible();
});

test("a link pairs by itself, and its code does not stay in the address", async ({
  page,
  daemon,
}) => {
  const { code } = await daemon.pair().then(async (invitation) => {
    await page.goto(invitation.url);
    return invitation;
  });
  await expect(page.getByRole("dialog", { name: "This browser is paired" })).toBeVisible();
  expect(page.url()).not.toContain(code);
});

test("the pairing outlives a reload", async ({ paired }) => {
  await paired.reload();
  await expect(connection(paired)).toHaveText(/Live/);
  await expect(paired.getByRole("dialog")).toHaveCount(0);
});

test("a wrong code says so, and the right one works after it", async ({ page, daemon }) => {
  const { code } = await daemon.pair();
  await page.goto(daemon.url);
  const wrong = code === "000000" ? "000001" : "000000";
  await page.getByLabel("Code").fill(wrong);
  await expect(page.getByRole("alert")).toBeVisible();
  await page.getByLabel("Code").fill(code);
  await expect(page.getByRole("dialog", { name: "This browser is paired" })).toBeVisible();
});

test("five wrong codes lock pairing, the right one included", async ({ alone }) => {
  const { daemon, page } = await alone();
  const { code } = await daemon.pair();
  await page.goto(daemon.url);
  for (let i = 0; i < 5; i += 1) {
    const wrong = String((Number(code) + 1 + i) % 1_000_000).padStart(6, "0");
    await page.getByLabel("Code").fill(wrong);
    // The field is emptied when the answer is there.
    await expect(page.getByLabel("Code")).toHaveValue("");
    await expect(page.getByRole("alert")).toBeVisible();
  }
  await page.getByLabel("Code").fill(code);
  await expect(page.getByRole("alert")).toContainText(/lock|wait|minute/i);
  await expect(page.getByRole("heading", { name: "Pair this browser" })).toBeVisible();
});

test("a revoked device is out at once and keeps nothing", async ({ page, daemon }) => {
  const before = await daemon.json<Device[]>("devices");
  await pair(page, daemon);
  const after = await daemon.json<Device[]>("devices");
  const mine = after.find(({ id }) => !before.some((other) => other.id === id));
  await newSession(page, { message: "to be forgotten" });
  await expect.poll(() => kept(page)).toContainEqual(expect.stringMatching(/^sealed\/rows\//));
  expect(await kept(page)).toContain("identity/this");
  await daemon.run("devices", "revoke", mine?.id ?? "");
  await expect(page.getByText(/This device was removed/)).toBeVisible();
  await expect.poll(() => kept(page)).toEqual([]);
  await page.reload();
  await expect(page.getByLabel("Code")).toBeVisible();
});

test("unpairing ends the device at the daemon and removes what is kept here", async ({
  paired,
  daemon,
}) => {
  const before = await daemon.json<Device[]>("devices");
  await unpair(paired);
  await expect(paired.getByLabel("Code")).toBeVisible();
  await expect(paired.getByRole("status")).toHaveCount(0);
  await expect.poll(() => kept(paired)).toEqual([]);
  expect(await daemon.json<Device[]>("devices")).toHaveLength(before.length - 1);
  await paired.reload();
  await expect(paired.getByLabel("Code")).toBeVisible();
});

test("unpairing while the daemon is away says that it still lists the device", async ({
  pairedAlone,
}) => {
  const { daemon, page } = await pairedAlone();
  const [mine] = await daemon.json<Device[]>("devices");
  await page.goto(`${daemon.url}/#/settings`);
  await expect(page.getByRole("button", { name: "Unpair…" })).toBeVisible();
  await daemon.kill();
  await expect(connection(page)).toHaveText(/Reconnecting/);
  await unpair(page);
  await expect(page.getByLabel("Code")).toBeVisible();
  await expect(page.getByRole("status")).toContainText(`quintet devices revoke ${mine?.id}`);
  await daemon.up();
  await daemon.run("devices", "revoke", mine?.id ?? "");
  expect(await daemon.json<Device[]>("devices")).toEqual([]);
});

/** What the page keeps in this browser: who it is, and what was read. */
function kept(page: Page): Promise<string[]> {
  return page.evaluate(async () => {
    const found: string[] = [];
    for (const { name = "" } of await indexedDB.databases()) {
      const database = await new Promise<IDBDatabase>((resolve) => {
        const request = indexedDB.open(name);
        request.addEventListener("success", () => resolve(request.result));
      });
      // The key of an empty vault opens nothing.
      for (const store of [...database.objectStoreNames].filter((store) => store !== "keys")) {
        const keys = await new Promise<IDBValidKey[]>((resolve) => {
          const request = database.transaction(store).objectStore(store).getAllKeys();
          request.addEventListener("success", () => resolve(request.result));
        });
        found.push(...keys.map((key) => `${store}/${String(key)}`));
      }
      database.close();
    }
    return found;
  });
}

async function unpair(page: Page): Promise<void> {
  await page.goto(`${page.url().split("#")[0]}#/settings`);
  await page.getByRole("button", { name: "Unpair…" }).click();
  await page.getByRole("button", { name: /Unpair and delete/ }).click();
}
