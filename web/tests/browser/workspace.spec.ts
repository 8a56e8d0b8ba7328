import { readFileSync } from "node:fs";
import type { Locator } from "@playwright/test";
import { expect, idle, newSession, PHONE, say, test } from "./fixtures";

test("files: tree, versions, side by side, restore with a preview, download", async ({
  paired,
  daemon,
}) => {
  const session = await newSession(paired, { message: "write notes.txt one\\ntwo\\nthree\\n" });
  await idle(paired);
  // The history begins when the files are first looked at.
  await paired.getByRole("link", { name: "Files" }).click();
  await expect(paired.getByRole("treeitem", { name: /notes\.txt/ })).toBeVisible();
  await paired.goBack();
  await say(paired, "write notes.txt one\\n2\\nthree\\n");
  await idle(paired, 2);
  await paired.getByRole("link", { name: "Files" }).click();
  await paired.getByRole("treeitem", { name: /notes\.txt/ }).click();
  const file = paired.getByRole("region", { name: "notes.txt" });
  await expect(file.getByText("2", { exact: false }).first()).toBeVisible();

  const download = paired.waitForEvent("download");
  await file.getByRole("button", { name: "Download" }).click();
  const saved = await download;
  expect(saved.suggestedFilename()).toBe("notes.txt");
  expect(readFileSync(await saved.path(), "utf8")).toBe("one\n2\nthree\n");

  await file.getByText("Changes").click();
  // What was and what is, beside each other: number and text, number and text.
  const rows = file.getByRole("group", { name: "Changes of notes.txt" }).getByRole("row");
  await expect(rows).toHaveCount(3);
  await expect(rows.nth(0).getByRole("cell")).toHaveText(["1", "one", "1", "one"]);
  await expect(rows.nth(1).getByRole("cell")).toHaveText(["2", "two", "2", "2"]);
  await expect(rows.nth(2).getByRole("cell")).toHaveText(["3", "three", "3", "three"]);
  await expect(file.locator("mark")).toHaveText(["two", "2"]);
  const tint = (mark: Locator) => mark.evaluate((node) => getComputedStyle(node).backgroundColor);
  expect(await tint(file.locator("mark").first())).toBe("rgb(245, 179, 173)");
  expect(await tint(file.locator("mark").last())).toBe("rgb(163, 219, 179)");
  await paired.setViewportSize(PHONE.viewport);
  // A phone has no room for two: sign and text, below each other.
  await expect(rows.filter({ hasText: "two" }).getByRole("cell")).toHaveText(["2", "−", "two"]);
  await paired.setViewportSize({ width: 1280, height: 820 });

  const slider = paired.getByRole("slider", { name: "Version" });
  await slider.press("ArrowLeft");
  await expect(paired.getByText(/^Version \d+/).first()).toBeVisible();
  await slider.press("ArrowRight");
  await expect(paired.getByText(/^Version \d+/)).toHaveCount(0);
  await paired.getByRole("button", { name: "Earlier version" }).click();
  await expect(paired.getByText(/^Version \d+/).first()).toBeVisible();
  await file.getByText("File", { exact: true }).click();
  await expect(file.getByText("two")).toBeVisible();
  await file.getByText("Against now").click();
  await expect(file.getByRole("row").filter({ hasText: "two" }).first()).toBeVisible();

  const sessions = await daemon.json<{ id: number; workspace: string }[]>("sessions");
  const folder = sessions.find(({ id }) => id === session)?.workspace ?? "";
  const onDisk = () => readFileSync(`${folder}/notes.txt`, "utf8");
  await paired.getByRole("button", { name: "Restore…" }).click();
  const dialog = paired.getByRole("dialog");
  await expect(dialog.getByText("1 file would change:")).toBeVisible();
  await expect(dialog.getByRole("listitem")).toHaveText(/write\s+notes\.txt/);
  // A preview is only looked at.
  await dialog.getByRole("button", { name: "Cancel" }).click();
  expect(onDisk()).toBe("one\n2\nthree\n");
  await paired.getByRole("button", { name: "Restore…" }).click();
  await dialog.getByRole("button", { name: "Restore", exact: true }).click();
  await expect(paired.getByText(/Restored version/)).toBeVisible();
  await file.getByText("File", { exact: true }).click();
  await expect(file.getByText("two")).toBeVisible();
  await expect.poll(onDisk).toBe("one\ntwo\nthree\n");
});

test("the tree is walked by keys", async ({ paired }) => {
  await newSession(paired, { message: "write a.txt one" });
  await idle(paired);
  await say(paired, "write b.txt two");
  await idle(paired, 2);
  await paired.getByRole("link", { name: "Files" }).click();
  await paired.getByRole("treeitem", { name: /a\.txt/ }).focus();
  await paired.keyboard.press("ArrowDown");
  await paired.keyboard.press("Enter");
  await expect(paired.getByRole("region", { name: "b.txt" })).toBeVisible();
});
