import { expect, test } from "./fixtures";

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
  await paired.keyboard.type("echo $((40+2))-answer\n");
  await expect(screen).toContainText("42-answer");
  await paired.keyboard.type("export KEPT=still-here\n");
  await paired.getByRole("button", { name: "Detach" }).click();
  await paired.getByRole("button", { name: "Attach" }).first().click();
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
