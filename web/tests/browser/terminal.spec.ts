import type { Locator } from "@playwright/test";
import { expect, live, PHONE, test } from "./fixtures";

/** What is drawn, without its copy for screen readers. */
const rows = (screen: Locator) => screen.locator(".xterm-rows");

/** Something stands there one time. */
const once = (text: string) => new RegExp(`^(?!.*${text}.*${text}).*${text}`, "s");

test("a terminal on a worker, left and taken up again", async ({ paired, daemon }) => {
  await paired.goto(`${daemon.url}/#/workers`);
  await paired
    .getByRole("listitem", { name: "local" })
    .getByRole("link", { name: "Terminal" })
    .click();
  await paired.getByRole("button", { name: "New shell" }).click();
  await paired.waitForURL(/#\/terminal\/local\/.+/);
  const screen = paired.getByTestId("screen");
  await screen.click();
  // A person can't tell shells apart by 36 digits.
  const id = /[^/]+$/.exec(paired.url())?.[0] ?? "";
  const name = `Shell ${id.slice(-6)}`;
  await expect(paired.getByText(name, { exact: true })).toBeVisible();
  await expect(paired.getByText(id)).toHaveCount(0);
  await paired.keyboard.type("echo $((40+2))-answer\n");
  await expect(screen).toContainText("42-answer");
  await paired.keyboard.type("export KEPT=still-here\n");
  await paired.getByRole("button", { name: "Detach" }).click();
  const own = paired.getByRole("listitem").filter({ hasText: name });
  await own.getByRole("button", { name: "Attach" }).click();
  await screen.click();
  await paired.keyboard.type("echo it-is-$KEPT\n");
  await expect(screen).toContainText("it-is-still-here");
  // A reload comes back to the same shell.
  await paired.reload();
  await screen.click();
  await paired.keyboard.type("echo again-$KEPT\n");
  await expect(screen).toContainText("again-still-here");
  await paired.getByRole("button", { name: "End" }).click();
  await expect(paired.getByRole("button", { name: "New shell" })).toBeVisible();
});

test("a phone has the keys that its keyboard lacks, and keeps the keyboard", async ({
  pairedAlone,
}) => {
  const { daemon, page } = await pairedAlone({ browser: PHONE });
  await page.goto(`${daemon.url}/#/terminal/local`);
  await page.getByRole("button", { name: "New shell" }).tap();
  await page.waitForURL(/#\/terminal\/local\/.+/);
  const screen = page.getByTestId("screen");
  await screen.tap();
  await page.keyboard.type("cat\n");
  await page.keyboard.type("to-be-cut");
  await expect(screen).toContainText("to-be-cut");
  const keys = page.getByRole("group", { name: "Terminal keys" });
  await keys.getByRole("button", { name: "Control C" }).tap();
  await expect(screen).toContainText("^C");
  // Without another tap on the terminal.
  await page.keyboard.type("echo $((90+9))-after\n");
  await expect(screen).toContainText("99-after");
  await keys.getByRole("button", { name: "Up" }).tap();
  await page.keyboard.type("-again\n");
  await expect(screen).toContainText("99-after-again");
});

test("a second device takes a terminal over, and the first can take it back", async ({
  paired,
  daemon,
  other,
}) => {
  await paired.goto(`${daemon.url}/#/terminal/local`);
  await paired.getByRole("button", { name: "New shell" }).click();
  await paired.waitForURL(/#\/terminal\/local\/.+/);
  const screen = paired.getByTestId("screen");
  await screen.click();
  await paired.keyboard.type("echo $((50+5))-first\n");
  await expect(screen).toContainText("55-first");

  await other.goto(paired.url());
  const theirs = other.getByTestId("screen");
  await expect(theirs).toContainText("55-first");
  await expect(paired.getByRole("alert")).toContainText("Somebody else attached.");
  await theirs.click();
  await other.keyboard.type("echo $((60+6))-second\n");
  await expect(theirs).toContainText("66-second");

  await paired.getByRole("button", { name: "Attach again" }).click();
  await expect(screen).toContainText("66-second");
  await expect(other.getByRole("alert")).toContainText("Somebody else attached.");
  // What was on the screen is not written a second time.
  await expect(rows(screen)).toHaveText(once("55-first"));
  await paired.getByRole("button", { name: "End" }).click();
});

test("a terminal goes on where it was when the connection is back", async ({ pairedAlone }) => {
  const { daemon, page } = await pairedAlone();
  await daemon.worker("box");
  await page.goto(`${daemon.url}/#/terminal/box`);
  await page.getByRole("button", { name: "New shell" }).click();
  await page.waitForURL(/#\/terminal\/box\/.+/);
  const screen = page.getByTestId("screen");
  await screen.click();
  await page.keyboard.type("KEPT=still; echo $((70+7))-before\n");
  await expect(screen).toContainText("77-before");
  await daemon.kill();
  await expect(page.getByRole("alert")).toContainText("The connection was lost");
  await daemon.up();
  await live(page);
  await expect(page.getByRole("button", { name: "Detach" })).toBeEnabled();
  await screen.click();
  await page.keyboard.type("echo $KEPT-$((80+8))-after\n");
  await expect(screen).toContainText("still-88-after");
  await expect(rows(screen)).toHaveText(once("77-before"));
});
