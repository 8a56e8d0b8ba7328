import { answers, expect, idle, newSession, PHONE, say, tabTo, test } from "./fixtures";

test("a schedule is made, runs and is removed", async ({ paired, daemon }) => {
  await newSession(paired, { message: "hello" });
  await idle(paired);
  await paired.goto(`${daemon.url}/#/cron`);
  await paired.getByRole("main").getByRole("button", { name: "New", exact: true }).click();
  const dialog = paired.getByRole("dialog", { name: "New schedule" });
  await dialog.getByLabel("Skill").fill("morning");
  // Each second: the run is there before the test looks for it.
  await dialog.getByLabel("When").fill("* * * * * *");
  await dialog.getByRole("button", { name: "Add" }).click();
  await expect(paired.getByRole("heading", { name: "morning" })).toBeVisible();
  await expect(
    paired.getByRole("region", { name: "Runs" }).getByText("finished").first(),
  ).toBeVisible();
  await paired.getByRole("button", { name: "Remove morning" }).click();
  await paired.getByRole("button", { name: "Remove it" }).click();
  await expect(paired.getByText("Nothing is scheduled")).toBeVisible();
  // On a phone, too, a run is seen whole, and it is clear that its schedule is gone.
  await paired.setViewportSize(PHONE.viewport);
  const ran = paired.getByRole("region", { name: "Runs" });
  await expect(ran.getByText(/^#\d+, removed$/).first()).toBeVisible();
  const wider = await ran
    .locator(".scroll")
    .evaluate((node) => node.scrollWidth > node.clientWidth);
  expect(wider).toBe(false);
});

test("usage by day, agent and session, in money and in tokens", async ({ pairedAlone }) => {
  const { daemon, page } = await pairedAlone();
  await newSession(page, { message: "spend" });
  await idle(page);
  await expect(page.getByTestId("turn-end")).toContainText("1,200 in, 34 out · $0.25");
  await newSession(page, { message: "spend more" });
  await idle(page);
  await say(page, "spend again");
  await idle(page, 2);

  await page.goto(`${daemon.url}/#/usage`);
  const main = page.getByRole("main");
  const chart = main.getByRole("img", { name: /bar for each day/ });
  const rows = main.getByRole("row");
  const total = (name: string) => main.locator("dt", { hasText: name }).locator("+ dd");
  await expect(total("Cost")).toHaveText("$0.75");
  await expect(total("Tokens")).toHaveText("3,702");
  await expect(chart.locator("rect")).toHaveCount(30);
  await expect(chart.locator("rect").last().locator("title")).toHaveText(/: \$0\.75$/);
  const heights = () =>
    chart
      .locator("rect")
      .evaluateAll((bars) => bars.map((bar) => Number(bar.getAttribute("height"))));
  expect((await heights()).map((height) => height > 0)).toEqual([...Array(29).fill(false), true]);
  await main.getByRole("radio", { name: "Tokens" }).check();
  await expect(chart.locator("rect").last().locator("title")).toHaveText(/: 3,600 in, 102 out$/);
  await main.getByRole("radio", { name: "7 days" }).check();
  await expect(chart.locator("rect")).toHaveCount(7);
  await expect(rows.nth(1).getByRole("cell")).toHaveText([
    /^\d{4}-\d\d-\d\d$/,
    "3,600",
    "102",
    "$0.75",
  ]);

  await main.getByRole("radio", { name: "Agents" }).check();
  await expect(rows.nth(1).getByRole("cell")).toHaveText(["tester", "3,600", "102", "$0.75"]);
  const bars = main.getByRole("figure").getByRole("listitem");
  await expect(bars).toHaveText([/tester\s+3,600 in, 102 out/]);

  await main.getByRole("radio", { name: "Sessions" }).check();
  await main.getByRole("radio", { name: "Cost" }).check();
  await expect(bars).toHaveText([/spend more\s+\$0\.50/, /spend\s+\$0\.25/]);
  const widths = await bars.evaluateAll((items) =>
    items.map((item) => item.querySelector(".bar")?.getBoundingClientRect().width ?? 0),
  );
  expect(widths[1]! / widths[0]!).toBeCloseTo(0.5, 1);
});

test("devices are listed, renamed and revoked", async ({ paired, daemon, stranger }) => {
  const { code } = await daemon.pair();
  await stranger.goto(daemon.url);
  await stranger.getByLabel("Name of this device").fill("To be removed");
  await stranger.getByLabel("Code").fill(code);
  await stranger.getByRole("button", { name: "They match" }).click();
  await paired.goto(`${daemon.url}/#/devices`);
  await paired.getByRole("button", { name: "Rename To be removed" }).click();
  await paired.getByLabel("Name", { exact: true }).fill("Old phone");
  await paired.getByRole("button", { name: "Save" }).click();
  await paired.getByRole("button", { name: "Revoke Old phone" }).click();
  await paired.getByRole("button", { name: "Remove it" }).click();
  await expect(stranger.getByText(/This device was removed/)).toBeVisible();
  await expect(paired.getByRole("listitem", { name: "Old phone" })).toHaveCount(0);
});

test("themes are chosen, kept, and follow the system without a choice", async ({
  paired,
  daemon,
}) => {
  const ground = () => paired.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await paired.emulateMedia({ colorScheme: "dark" });
  expect(await ground()).toBe("rgb(18, 21, 20)");
  await paired.goto(`${daemon.url}/#/settings`);
  await paired.getByRole("radio", { name: "Paper" }).check();
  expect(await ground()).toBe("rgb(246, 240, 226)");
  await paired.reload();
  await expect.poll(ground).toBe("rgb(246, 240, 226)");
});

test("the whole way by keyboard", async ({ page, daemon }) => {
  const { code } = await daemon.pair();
  await page.goto(daemon.url);
  await tabTo(page, page.getByLabel("Code"));
  await page.keyboard.type(code);
  const match = page.getByRole("button", { name: "They match" });
  await expect(match).toBeVisible();
  if (!(await match.evaluate((node) => node === document.activeElement))) await tabTo(page, match);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("dialog")).toHaveCount(0);

  await page.keyboard.press("Alt+n");
  const dialog = page.getByRole("dialog", { name: "New session" });
  await expect(dialog.getByRole("radio", { name: "tester" })).toBeVisible();
  await tabTo(page, dialog.getByRole("radio", { checked: true }));
  // A group of radio buttons is one stop of the Tab key; the arrows choose.
  const tester = dialog.getByRole("radio", { name: "tester" });
  for (let presses = 0; presses < 10 && !(await tester.isChecked()); presses += 1) {
    await page.keyboard.press("ArrowDown");
  }
  await tabTo(page, dialog.getByLabel("First message"));
  await page.keyboard.type("approve by keys alone");
  await tabTo(page, dialog.getByRole("button", { name: "Start" }));
  await page.keyboard.press("Enter");

  await tabTo(page, page.getByRole("button", { name: "Allow once" }).locator("visible=true"));
  await page.keyboard.press("Enter");
  await expect(answers(page)).toHaveText("I may.");
  await tabTo(page, page.getByRole("textbox", { name: "Message" }));
  await page.keyboard.type("and again");
  await page.keyboard.press("Enter");
  await expect(answers(page).last()).toHaveText("You said: and again");
  await tabTo(page, page.getByRole("link", { name: "Workers" }).locator("visible=true"));
  await page.keyboard.press("Enter");
  await expect(page.getByRole("listitem", { name: "local" })).toBeVisible();
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog", { name: "Keyboard" })).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toHaveCount(0);
});

test("installable, under a strict policy", async ({ daemon, request }) => {
  const manifest = await request.get(`${daemon.url}/manifest.webmanifest`);
  expect(manifest.headers()["content-type"]).toContain("manifest+json");
  const page = await request.get(`${daemon.url}/`);
  const policy = page.headers()["content-security-policy"] ?? "";
  expect(policy).toContain("default-src 'none'");
  // No host, nothing inline: only the daemon itself, and pictures that the page made.
  const sources = policy.split(";").flatMap((rule) => rule.trim().split(/\s+/).slice(1));
  expect([...new Set(sources)].toSorted()).toEqual(["'none'", "'self'", "blob:", "data:"]);
});

test("the browser holds the page to its policy", async ({ browser, daemon }) => {
  // Not watched: what is tested is what every other test fails at.
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(daemon.url);
  await page.evaluate(async () => {
    const refused: string[] = [];
    Object.assign(window, { refused });
    document.addEventListener("securitypolicyviolation", (event) => {
      refused.push(event.effectiveDirective);
    });
    const script = document.createElement("script");
    script.textContent = "window.inline = true";
    document.head.append(script);
    new Image().src = "http://127.0.0.1:9/picture";
    await fetch("http://127.0.0.1:9/").catch(() => undefined);
  });
  const refused = () =>
    page.evaluate(() => (window as unknown as { refused: string[] }).refused.toSorted());
  await expect.poll(refused).toEqual(["connect-src", "img-src", "script-src-elem"]);
  expect(await page.evaluate(() => "inline" in window)).toBe(false);
  await context.close();
});
