import { answers, expect, idle, newSession, outside, PHONE, test } from "./fixtures";

test("a question is a card on every page, and its answer reaches the agent", async ({ paired }) => {
  await newSession(paired, { message: "ask" });
  const card = paired.getByTestId("ask").locator("visible=true").last();
  await expect(paired.getByText("Which branch?").last()).toBeVisible();
  await expect(paired).toHaveTitle(/^\(1\)/);
  await paired.getByRole("link", { name: "Workers" }).click();
  await expect(card.getByText("Which branch?")).toBeVisible();
  await card.getByText("next").click();
  await card.getByRole("button", { name: "Answer" }).click();
  await expect(paired.getByRole("region", { name: "Waiting for you" })).toHaveCount(0);
  await paired.goBack();
  await expect(answers(paired)).toHaveText("You chose [['next']]");
});

test("an answer in one's own words", async ({ paired }) => {
  await newSession(paired, { message: "ask" });
  const waiting = paired.getByRole("region", { name: "Waiting for you" });
  await waiting.getByPlaceholder("In your own words").fill("a third one");
  await waiting.getByRole("button", { name: "Answer" }).click();
  await expect(answers(paired)).toHaveText("You chose [['a third one']]");
});

test("a question is on every device, and gone from all when one has answered", async ({
  paired,
  other,
}) => {
  await newSession(paired, { message: "ask" });
  for (const page of [paired, other]) {
    const waiting = page.getByRole("region", { name: "Waiting for you" });
    await expect(waiting.getByText("Which branch?")).toBeVisible();
  }
  const card = other.getByTestId("ask").locator("visible=true").last();
  await card.getByText("main").click();
  await card.getByRole("button", { name: "Answer" }).click();
  for (const page of [paired, other]) {
    await expect(page.getByRole("region", { name: "Waiting for you" })).toHaveCount(0);
  }
  await expect(answers(paired)).toHaveText("You chose [['main']]");
});

test("allow once asks again the next time", async ({ paired }) => {
  await newSession(paired, { message: "approve rm -rf build" });
  const card = paired.getByTestId("approval").locator("visible=true").last();
  await expect(card.getByText("rm -rf build")).toBeVisible();
  await card.getByRole("button", { name: "Allow once" }).click();
  await expect(answers(paired)).toHaveText("I may.");
  await paired.getByRole("textbox", { name: "Message" }).fill("approve rm -rf build");
  await paired.keyboard.press("Enter");
  await expect(paired.getByRole("region", { name: "Waiting for you" })).toBeVisible();
  await card.getByRole("button", { name: "For this session" }).click();
  await expect(answers(paired)).toHaveCount(2);
  await paired.getByRole("textbox", { name: "Message" }).fill("approve rm -rf build");
  await paired.keyboard.press("Enter");
  await expect(answers(paired)).toHaveCount(3);
  await expect(paired.getByRole("region", { name: "Waiting for you" })).toHaveCount(0);
});

test("deny with a reason that the agent sees", async ({ paired }) => {
  await newSession(paired, { message: "approve curl evil" });
  const card = paired.getByTestId("approval").locator("visible=true").last();
  await card.getByRole("button", { name: "Deny…" }).click();
  await card.getByLabel(/Why not/).fill("not from there");
  await card.getByRole("button", { name: "Deny", exact: true }).click();
  await expect(answers(paired)).toHaveText("I may not: not from there");
});

test("a rule is read and edited before it is written", async ({ paired, daemon }) => {
  await newSession(paired, { message: "approve make install" });
  const card = paired.getByTestId("approval").locator("visible=true").last();
  await card.getByRole("button", { name: "Always…" }).click();
  await expect(card.getByRole("textbox", { name: "command" })).toHaveValue(/make install/);
  await expect(card).toContainText("config.toml, at the end of [policy] rules, and allows");
  await card.getByRole("textbox", { name: "command" }).fill("make *");
  await card.getByRole("button", { name: "Save rule and allow" }).click();
  await expect(answers(paired)).toHaveText("I may.");
  expect(await daemon.run("config", "get")).toContain("make *");
});

test("all the rules that would be written are shown", async ({ paired, daemon }) => {
  await newSession(paired, { message: "approve brew one && brew two" });
  const card = paired.getByTestId("approval").locator("visible=true").last();
  await card.getByRole("button", { name: "Always…" }).click();
  const commands = card.getByRole("textbox", { name: "command" });
  await expect(commands).toHaveCount(2);
  await expect(commands.nth(0)).toHaveValue("brew one");
  await commands.nth(1).fill("brew t*");
  await card.getByRole("button", { name: "Save rules and allow" }).click();
  await expect(answers(paired)).toHaveText("I may.");
  const config = await daemon.run("config", "get");
  expect(config).toContain("brew one");
  expect(config).toContain("brew t*");
});

test("an approval is there after a reload, and goes from every device with its turn", async ({
  paired,
  other,
}) => {
  await newSession(paired, { message: "approve format the disk" });
  const waiting = [paired, other].map((page) =>
    page.getByRole("region", { name: "Waiting for you" }),
  );
  for (const card of waiting) await expect(card.getByText("format the disk").first()).toBeVisible();
  await other.reload();
  for (const card of waiting) await expect(card.getByText("format the disk").first()).toBeVisible();
  await paired.getByRole("button", { name: "Stop" }).click();
  for (const card of waiting) await expect(card).toHaveCount(0);
  await idle(paired);
  await other.reload();
  await expect(other.getByRole("main")).toBeVisible();
  await expect(waiting[1]!).toHaveCount(0);
});

test("two browsers on one session see the same, and one answer is enough", async ({
  paired,
  daemon,
  other,
}) => {
  const session = await newSession(paired, { message: "approve deploy" });
  const card = other.getByRole("region", { name: "Waiting for you" });
  await expect(card.getByText("deploy").first()).toBeVisible();
  await other.goto(`${daemon.url}/#/s/${session}`);
  await expect(other.getByRole("article", { name: "You said" })).toContainText("approve deploy");
  await card.getByRole("button", { name: "Allow once" }).click();
  await expect(paired.getByRole("region", { name: "Waiting for you" })).toHaveCount(0);
  for (const page of [paired, other]) await expect(answers(page)).toHaveText("I may.");
  await paired.getByRole("textbox", { name: "Message" }).fill("from the first");
  await paired.keyboard.press("Enter");
  await expect(answers(other).last()).toHaveText("You said: from the first");
});

test("the card is about the session in view, and what one turns to stays", async ({
  pairedAlone,
}) => {
  const { daemon, page } = await pairedAlone();
  const waiting = page.getByRole("region", { name: "Waiting for you" });
  const asking = await newSession(page, { message: "ask" });
  await expect(waiting.getByText("Which branch?")).toBeVisible();
  await newSession(page, { message: "approve make install" });
  await expect(waiting.getByText("2 of 2")).toBeVisible();
  await expect(waiting.getByText("make install")).toBeVisible();
  await page.goto(`${daemon.url}/#/s/${asking}`);
  await expect(waiting.getByText("Which branch?")).toBeVisible();
  await page.goto(`${daemon.url}/#/workers`);
  await waiting.getByRole("button", { name: "Next" }).click();
  await expect(waiting.getByText("make install").last()).toBeVisible();
  await page.goto(`${daemon.url}/#/usage`);
  await expect(waiting.getByText("make install").last()).toBeVisible();
});

test("a card that comes in another's place takes no click that was meant for that one", async ({
  pairedAlone,
}) => {
  const { page } = await pairedAlone();
  const waiting = page.getByRole("region", { name: "Waiting for you" });
  const content = waiting.locator(".content");
  await newSession(page, { message: "approve the first" });
  await expect(waiting.getByText("the first", { exact: true })).toBeVisible();
  await expect(content).toHaveJSProperty("inert", false);
  // Time stands still until the test lets it go on.
  await page.clock.install();
  await page.clock.pauseAt(Date.now() + 60_000);
  await newSession(page, { message: "approve the second" });
  await expect(waiting.getByText("the second", { exact: true })).toBeVisible();
  await expect(content).toHaveJSProperty("inert", true);
  await page.clock.runFor(1000);
  await expect(content).toHaveJSProperty("inert", false);
});

test("on a phone nothing lies outside of its card, however long a title is", async ({
  pairedAlone,
}) => {
  const { daemon, page } = await pairedAlone({ browser: PHONE });
  const path = "/home/user/projects/quintet/crates/runtime/src/channel/conversation.rs";
  const session = await newSession(page, { message: `approve cat ${path}` });
  await daemon.run("cron", "add", "0 9 * * *", "morning", String(session));
  const waiting = page.getByRole("region", { name: "Waiting for you" });
  await page.goto(`${daemon.url}/#/cron`);
  await expect(page.getByRole("heading", { name: "morning" })).toBeVisible();
  await expect(waiting.getByRole("link", { name: /approve cat/ })).toBeVisible();
  expect(await outside(page)).toEqual([]);
  // A word that belongs to what follows stands beside it.
  const [word, folder] = await Promise.all(
    ["dt", "dd"].map((name) => waiting.locator(name).first().boundingBox()),
  );
  expect(Math.abs((word?.y ?? 0) - (folder?.y ?? 99))).toBeLessThan(8);
  // With a second one the header also has the way to it.
  await page.goto(`${daemon.url}/#/`);
  await newSession(page, { message: `ask ${path.replaceAll("/", "-")}` });
  await expect(waiting.getByText(/^\d of 2$/)).toBeVisible();
  for (const route of ["cron", "workers", "usage"]) {
    await page.goto(`${daemon.url}/#/${route}`);
    await expect(waiting.getByRole("link", { name: /approve cat/ })).toBeVisible();
    expect(await outside(page), route).toEqual([]);
  }
});

test("a notification comes from the service worker, and a click on it leads to what waits", async ({
  pairedAlone,
}) => {
  const { daemon, context, page } = await pairedAlone({
    browser: { permissions: ["notifications"] },
  });
  await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
  await page.goto(`${daemon.url}/#/settings`);
  await page.getByRole("switch", { name: /Notify me/ }).check();
  const asking = await newSession(page, { message: "hello" });
  await idle(page);
  await page.goto(`${daemon.url}/#/workers`);
  // Behind another tab, as the page would be told.
  await page.evaluate(() => Object.defineProperty(document, "hidden", { get: () => true }));
  daemon.begin("send", "--session", String(asking), "tester", "ask");
  const told = () =>
    page.evaluate(async () => {
      const registration = await navigator.serviceWorker.ready;
      return (await registration.getNotifications()).map(({ title }) => title);
    });
  await expect.poll(told).toEqual(["A question for you"]);
  const [worker] = context.serviceWorkers();
  await worker?.evaluate(async () => {
    const scope = self as unknown as {
      registration: ServiceWorkerRegistration;
      NotificationEvent: new (type: string, init: { notification?: Notification }) => Event;
      dispatchEvent: (event: Event) => boolean;
    };
    const [notification] = await scope.registration.getNotifications();
    scope.dispatchEvent(
      new scope.NotificationEvent("notificationclick", { ...(notification && { notification }) }),
    );
  });
  await page.waitForURL(new RegExp(`#/s/${asking}$`));
  await expect.poll(told).toEqual([]);
});
