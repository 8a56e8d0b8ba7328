import { answers, expect, idle, newSession, say, test } from "./fixtures";

test("a new session with an agent, a folder and a first message", async ({ paired, daemon }) => {
  const id = await newSession(paired, { message: "hello there", folder: daemon.home });
  await expect(answers(paired)).toHaveText("You said: hello there");
  await expect(paired.getByRole("heading", { name: "hello there" })).toBeVisible();
  const sessions =
    await daemon.json<{ id: number; agent: string; workspace: string }[]>("sessions");
  expect(sessions.find((session) => session.id === id)).toMatchObject({
    agent: "tester",
    workspace: daemon.home,
  });
});

test("sessions are listed, searched and renamed", async ({ paired }) => {
  await newSession(paired, { message: "about apples" });
  await idle(paired);
  await newSession(paired, { message: "about pears" });
  await idle(paired);
  const list = paired.getByRole("complementary").getByRole("list");
  await expect(list.getByRole("link", { name: /about pears/ }).first()).toBeVisible();
  await paired.keyboard.press("Control+k");
  await paired.keyboard.type("apples");
  await expect(list.getByRole("link", { name: /about pears/ })).toHaveCount(0);
  await paired.keyboard.press("Enter");
  await expect(paired.getByRole("heading", { name: "about apples" })).toBeVisible();
  await paired.getByRole("button", { name: "Session menu" }).click();
  await paired.getByLabel("Title").fill("Fruit");
  await paired.getByRole("button", { name: "Rename" }).click();
  await expect(paired.getByRole("heading", { name: "Fruit" })).toBeVisible();
});

test("Markdown streams in, safe, with code to copy", async ({ paired, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await newSession(paired, { message: "markdown" });
  const answer = answers(paired);
  await expect(answer.getByRole("heading", { name: "A title" })).toBeVisible();
  await expect(answer.getByRole("cell", { name: "2" })).toBeVisible();
  await expect(answer.locator(".hljs-keyword").first()).toHaveText("def");
  await answer.getByRole("button", { name: "Copy code" }).click();
  expect(await paired.evaluate(() => navigator.clipboard.readText())).toBe(
    "def answer():\n    return 42",
  );
  await expect(answer.getByText("The end.")).toBeVisible();
  expect(await paired.evaluate(() => "pwned" in window)).toBe(false);
  await expect(answer.locator("img, script, [onerror]")).toHaveCount(0);
  await expect(answer.locator('a[href^="javascript"]')).toHaveCount(0);
});

test("Markdown is there while it streams", async ({ paired }) => {
  await newSession(paired, { message: "stream" });
  const answer = answers(paired);
  await expect(answer.getByRole("heading", { name: "Half a title" })).toBeVisible();
  await expect(answer.locator("code").getByText("print(1)")).toBeVisible();
  await expect(paired.getByTestId("working")).toBeVisible();
  await say(paired, "go on");
  await expect(answer.locator("strong")).toHaveText("bold");
  await idle(paired);
});

test("thinking is folded", async ({ paired }) => {
  await newSession(paired, { message: "think" });
  const thinking = paired.getByTestId("thinking");
  await expect(thinking.getByText("First I think about it.")).toHaveCount(0);
  await thinking.getByRole("button").click();
  await expect(thinking.getByText("First I think about it.")).toBeVisible();
});

test("tools show live output, their time and how they ended", async ({ paired }) => {
  await newSession(paired, { message: "tool" });
  const tool = paired.getByTestId("tool").first();
  await expect(tool.getByText("compiling one")).toBeVisible();
  await expect(tool.getByText("make all").first()).toBeVisible();
  // The time of a tool that runs goes on.
  const time = tool.getByRole("button").getByText(/^[\d.]+ m?s$/);
  const first = await time.textContent();
  await expect(time).not.toHaveText(first ?? "");
  await say(paired, "go on");
  await expect(tool.getByText("1.2 s")).toBeVisible();
  await expect(paired.getByTestId("tool").nth(1)).toHaveClass(/bad/);
  await tool.getByRole("button", { name: /exec/ }).click();
  await expect(tool.getByText("built everything")).toBeVisible();
});

test("a changed file shows its diff", async ({ paired }) => {
  await newSession(paired, { message: "diff" });
  const file = paired.getByTestId("file");
  await expect(file.getByText("+1 −1").first()).toBeVisible();
  await expect(file.getByText("new();")).toBeVisible();
  await expect(file.getByText("old();")).toBeVisible();
});

test("steer while it works", async ({ paired }) => {
  await newSession(paired, { message: "wait" });
  await expect(answers(paired)).toContainText("I wait.");
  await expect(paired.getByTestId("working")).toBeVisible();
  await say(paired, "to the left");
  await expect(answers(paired).last()).toContainText("You steered me: to the left");
  await expect(paired.getByRole("article", { name: "Steered" })).toContainText("to the left");
});

test("queue while it works, edit and delete what is queued, then stop", async ({ paired }) => {
  await newSession(paired, { message: "wait" });
  await expect(answers(paired)).toContainText("I wait.");
  await paired.getByRole("radio", { name: "Queue" }).check();
  await say(paired, "first queued");
  await say(paired, "second queued");
  const queue = paired.getByTestId("queue");
  await expect(queue.getByRole("listitem")).toHaveCount(2);
  const first = queue.getByRole("listitem").first();
  await first.getByRole("button", { name: "Edit" }).click();
  await queue.getByLabel("Edit the message").fill("first, edited");
  await queue.getByRole("button", { name: "Save" }).click();
  await expect(first).toContainText("first, edited");
  await queue.getByRole("listitem").nth(1).getByRole("button", { name: "Delete" }).click();
  await expect(queue.getByRole("listitem")).toHaveCount(1);
  await paired.getByRole("button", { name: "Stop" }).click();
  await expect(paired.getByTestId("turn-end").first()).toContainText("Stopped");
  await expect(answers(paired).last()).toHaveText("You said: first, edited");
  await expect(queue).toHaveCount(0);
});

test("a queued message that the page has only the beginning of can't be cut by an edit", async ({
  paired,
}) => {
  await newSession(paired, { message: "wait" });
  await expect(answers(paired)).toContainText("I wait.");
  await paired.getByRole("radio", { name: "Queue" }).check();
  await say(paired, `count ${"x".repeat(600_000)}`);
  await say(paired, "a short one");
  const [long, short] = [0, 1].map((at) =>
    paired.getByTestId("queue").getByRole("listitem").nth(at),
  );
  await expect(short!.getByRole("button", { name: "Edit" })).toBeVisible();
  await expect(long!).toContainText("Too long to edit here");
  await expect(long!.getByRole("button", { name: "Edit" })).toHaveCount(0);
  await short!.getByRole("button", { name: "Delete" }).click();
  await paired.getByRole("button", { name: "Stop" }).click();
  await expect(answers(paired).last()).toHaveText("That was 600006 letters.");
});

test("a failed turn can be run again", async ({ paired }) => {
  await newSession(paired, { message: "fail" });
  const end = paired.getByTestId("turn-end").first();
  await end.getByRole("button", { name: "Retry" }).click();
  await expect(answers(paired)).toHaveText("Now it works.");
  await expect(paired.getByRole("button", { name: "Retry" })).toHaveCount(0);
});

test("compaction is shown and can be undone", async ({ paired }) => {
  await newSession(paired, { message: "hello" });
  await idle(paired);
  await paired.getByRole("button", { name: "Session menu" }).click();
  await paired.getByRole("button", { name: "Compact" }).click();
  const notice = paired.getByTestId("compacted");
  await expect(notice).toContainText("Conversation compacted");
  await notice.getByRole("button").first().click();
  await expect(notice).toContainText("A summary of what was said.");
  await notice.getByRole("button", { name: "Undo" }).click();
  await expect(notice).toContainText("Compaction undone");
});

test("a closed session stays readable", async ({ paired }) => {
  await newSession(paired, { message: "hello" });
  await idle(paired);
  await paired.getByRole("button", { name: "Session menu" }).click();
  await paired.getByRole("button", { name: "Close session" }).click();
  await expect(paired.getByText(/This session is closed\. Its history/)).toBeVisible();
  await expect(answers(paired)).toHaveText("You said: hello");
});

test("10,000 events: only what is near is on the page, and the beginning is reached by scrolling", async ({
  paired,
  daemon,
}) => {
  // Made before anybody looks: what is tested is the opening of a long session.
  await daemon.run("send", "tester", "many 3400", "--new");
  const sessions = await daemon.json<{ id: number }[]>("sessions");
  const session = Math.max(...sessions.map(({ id }) => id));
  await paired.goto(`${daemon.url}/#/s/${session}`);
  await expect(answers(paired).last()).toContainText("Step 3399 is done.");
  await idle(paired);
  expect(await paired.getByTestId("tool").count()).toBeLessThan(400);
  const log = paired.getByRole("log");
  const first = paired.getByRole("article", { name: "You said" });
  await expect
    .poll(
      async () => {
        await log.evaluate((node) => node.scrollTo(0, 0));
        return first.count();
      },
      { timeout: 30_000, intervals: [20] },
    )
    .toBe(1);
  await expect(first).toContainText("many 3400");
  expect(await paired.getByTestId("tool").count()).toBeLessThan(400);
});
