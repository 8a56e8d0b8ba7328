import { answers, expect, idle, newSession, pair, say, test } from "./fixtures";

/** The check values of the original protocol, as its page publishes them. */
const CHECK = {
  clientPub: "j0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8",
  agentPub: "NYBy1jZYgNGu6jKa35EhODhR7SGijjt16WXQ0s0WYlQ",
  key: "1957xB7BOPMwR6betsLoxSCgwxV0NO7Z0LOHHT89ol4",
};

test("the browser's own WebCrypto comes to the published key, from both sides", async ({
  page,
  daemon,
}) => {
  await page.goto(daemon.url);
  const keys = await page.evaluate(async (check) => {
    const decode = (text: string) =>
      Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const encode = (bytes: Uint8Array) =>
      btoa(String.fromCharCode(...bytes))
        .replaceAll("+", "-")
        .replaceAll("/", "_")
        .replaceAll("=", "");
    const X25519 = { name: "X25519" };
    const derive = async (from: number, peer: string): Promise<string> => {
      // PKCS #8 of an X25519 key: a fixed beginning, then the 32 bytes.
      const head = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 110, 4, 34, 4, 32];
      const secret = Array.from({ length: 32 }, (_, at) => from + at);
      const pkcs8 = Uint8Array.from([...head, ...secret]);
      const ours = await crypto.subtle.importKey("pkcs8", pkcs8, X25519, false, ["deriveBits"]);
      const theirs = await crypto.subtle.importKey("raw", decode(peer), X25519, true, []);
      const shared = await crypto.subtle.deriveBits({ name: "X25519", public: theirs }, ours, 256);
      const label = new TextEncoder().encode("webchannel-e2e-v1");
      const input = Uint8Array.from([...label, ...new Uint8Array(shared)]);
      return encode(new Uint8Array(await crypto.subtle.digest("SHA-256", input)));
    };
    return [await derive(0, check.agentPub), await derive(32, check.clientPub)];
  }, CHECK);
  expect(keys).toEqual([CHECK.key, CHECK.key]);
});

test("the device's key stays in the browser: no script can take its bytes", async ({ paired }) => {
  const taken = await paired.evaluate(async () => {
    const names = await indexedDB.databases();
    const keys: CryptoKey[] = [];
    for (const { name } of names) {
      const database = await new Promise<IDBDatabase>((resolve) => {
        const request = indexedDB.open(name ?? "");
        request.addEventListener("success", () => resolve(request.result));
      });
      for (const store of database.objectStoreNames) {
        const values = await new Promise<unknown[]>((resolve) => {
          const request = database.transaction(store).objectStore(store).getAll();
          request.addEventListener("success", () => resolve(request.result));
        });
        const find = (value: unknown): void => {
          if (value instanceof CryptoKey) keys.push(value);
          else if (typeof value === "object" && value !== null) Object.values(value).forEach(find);
        };
        values.forEach(find);
      }
      database.close();
    }
    const secret = keys.filter(({ type }) => type === "private");
    const tries = await Promise.all(
      secret.map((key) =>
        crypto.subtle.exportKey("pkcs8", key).then(
          () => "exported",
          (error: Error) => error.name,
        ),
      ),
    );
    return {
      extractable: keys.filter(({ type, extractable }) => type !== "public" && extractable).length,
      tries,
    };
  });
  expect(taken).toEqual({ extractable: 0, tries: ["InvalidAccessError"] });
});

test("what goes over the page's socket has no word of what is done in it", async ({
  page,
  daemon,
}) => {
  const seen = { sent: [] as Buffer[], received: [] as Buffer[] };
  page.on("websocket", (socket) => {
    socket.on("framesent", ({ payload }) => seen.sent.push(Buffer.from(payload)));
    socket.on("framereceived", ({ payload }) => seen.received.push(Buffer.from(payload)));
  });
  await pair(page, daemon);
  await newSession(page, { message: "say pineapple submarine" });
  await expect(answers(page)).toContainText("pineapple");
  await say(page, "write secret-recipe.txt rhubarb");
  await idle(page, 2);
  await say(page, "diff");
  await idle(page, 3);
  await say(page, "approve rm -rf watermelon");
  await page.getByRole("button", { name: "Allow once" }).locator("visible=true").click();
  await idle(page, 4);
  await page.getByRole("link", { name: "Files", exact: true }).click();
  await page.getByRole("treeitem", { name: /secret-recipe/ }).click();
  await expect(page.getByText("rhubarb")).toBeVisible();
  await page.goto(`${daemon.url}/#/terminal/local`);
  await page.getByRole("button", { name: "New shell" }).click();
  await page.waitForURL(/#\/terminal\/local\/.+/);
  await page.getByTestId("screen").click();
  await page.keyboard.type("echo $((6*7))-cucumber\n");
  await expect(page.getByTestId("screen")).toContainText("42-cucumber");
  await page.getByRole("button", { name: "End" }).click();
  await expect(page.getByRole("button", { name: "New shell" })).toBeVisible();

  const words = ["pineapple", "submarine", "recipe", "rhubarb", "hello.rs", "watermelon"];
  words.push("cucumber", "tester", "local", "session", "approval", "items", "text_delta", '"id"');
  for (const frames of [seen.sent, seen.received]) {
    expect(frames.length).toBeGreaterThan(20);
    const bytes = Buffer.concat(frames).toString("latin1");
    expect(words.filter((word) => bytes.includes(word))).toEqual([]);
  }
});
