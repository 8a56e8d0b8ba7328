import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, idle, newSession, test } from "./fixtures";

test("workers with state, load and labels; a session on one of them; its terminal among the files", async ({
  pairedAlone,
}) => {
  const { daemon, page } = await pairedAlone();
  await daemon.worker("box", "--label", "gpu=yes", "--label", "zone=attic");
  await page.goto(`${daemon.url}/#/workers`);
  await expect(page.getByRole("listitem", { name: "local" }).getByText("online")).toBeVisible();
  const box = page.getByRole("listitem", { name: "box" });
  await expect(box.getByText("online")).toBeVisible();
  await expect(box.getByRole("list", { name: "Labels" }).getByRole("listitem")).toHaveText([
    "gpu=yes",
    "zone=attic",
  ]);
  await expect(box.getByText("0 commands running")).toBeVisible();
  // With the worker's next heartbeat.
  await expect(box.getByLabel("CPU")).toBeVisible({ timeout: 30_000 });
  await expect(box.getByLabel("Memory")).toBeVisible();

  const folder = join(daemon.home, "given");
  mkdirSync(folder);
  writeFileSync(join(folder, "given.txt"), "from-the-folder");
  const message = "pwd; cat given.txt; printf made-there > made.txt";
  const session = await newSession(page, { agent: "shell", worker: "box", folder, message });
  await idle(page);
  await expect(page.getByRole("log")).toContainText("from-the-folder");
  expect(readFileSync(join(folder, "made.txt"), "utf8")).toBe("made-there");
  await expect(page.getByRole("log")).toContainText(`${daemon.home}/workers/box/root/workspaces/`);
  const sessions = await daemon.json<{ id: number }[]>("sessions");
  expect(sessions.find(({ id }) => id === session)).toMatchObject({
    agent: "shell",
    worker: "box",
    workspace: folder,
  });

  await page.getByRole("button", { name: "Session menu" }).click();
  await page.getByRole("link", { name: "Terminal" }).click();
  await page.waitForURL(/#\/terminal\/box\/.+/);
  await expect(page.getByText("box · given", { exact: true })).toBeVisible();
  const screen = page.getByTestId("screen");
  await screen.click();
  await page.keyboard.type("echo it-says-$(cat made.txt)\n");
  await expect(screen).toContainText("it-says-made-there");
  daemon.begin("exec", "local", "--", "sleep 1000");
  await expect
    .poll(async () => {
      const workers = await daemon.json<{ id: string; running: number }[]>("workers");
      return workers.find(({ id }) => id === "local")?.running;
    })
    .toBe(1);
  await page.goto(`${daemon.url}/#/workers`);
  const local = page.getByRole("listitem", { name: "local" });
  await expect(local.getByText("1 command running")).toBeVisible();
});

test("a worker that goes is shown as gone", async ({ pairedAlone }) => {
  const { daemon, page } = await pairedAlone();
  await daemon.worker("box");
  await page.goto(`${daemon.url}/#/workers`);
  const box = page.getByRole("listitem", { name: "box" });
  await expect(box.getByText("online")).toBeVisible();
  await daemon.endOthers();
  await expect(box.getByText("offline")).toBeVisible();
});
