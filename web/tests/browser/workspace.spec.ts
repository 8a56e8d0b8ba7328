import { readFileSync } from "node:fs";
import { expect, idle, newSession, say, test } from "./fixtures";

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
  await expect(
    file.getByRole("row").filter({ hasText: "two" }).filter({ hasText: "2" }).first(),
  ).toBeVisible();

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
