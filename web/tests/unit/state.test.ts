// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { App } from "../../src/lib/state/app.svelte";
import { Conversation } from "../../src/lib/state/conversation.svelte";
import { OfflinePage } from "../../src/lib/state/offline.svelte";
import { Outbox } from "../../src/lib/state/outbox.svelte";
import { Resource } from "../../src/lib/state/resource.svelte";
import { Shelf } from "../../src/lib/state/shelf";
import { Vault } from "../../src/lib/state/vault";
import { MemoryChannel } from "./channel";
import { Journal } from "./journal";

let vault: Vault;
let shelf: Shelf;
let names = 0;

beforeEach(async () => {
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  names += 1;
  const opened = await Vault.open(`vault-${names}`);
  if (opened === null) throw new Error("no vault");
  vault = opened;
  shelf = new Shelf(vault);
});

afterEach(() => {
  vi.useRealTimers();
  vault.close();
  vi.unstubAllGlobals();
});

const texts = (conversation: Conversation): string[] =>
  conversation.blocks.flatMap((block) => ("text" in block ? [block.text] : []));

/** What lies in the browser's own storage. */
async function entries(store: "keys" | "sealed"): Promise<unknown[]> {
  const database = await new Promise<IDBDatabase>((resolve) => {
    const request = indexedDB.open(`vault-${names}`);
    request.addEventListener("success", () => resolve(request.result));
  });
  const found = await new Promise<unknown[]>((resolve) => {
    const request = database.transaction(store).objectStore(store).getAll();
    request.addEventListener("success", () => resolve(request.result));
  });
  database.close();
  return found;
}

describe("the vault", () => {
  it("gives back what it was given, and nothing after it was cleared", async () => {
    await vault.put("a", { words: "secret words" });
    expect(await vault.get("a")).toEqual({ words: "secret words" });
    expect(await vault.get("b")).toBeUndefined();
    await vault.clear();
    expect(await vault.get("a")).toBeUndefined();
    await vault.put("a", 1);
    expect(await vault.get("a")).toBe(1);
  });

  it("takes nothing that was on its way when it was cleared", async () => {
    // So long that it is still being sealed when the rest is gone.
    const late = vault.put("late", "words ".repeat(2_000_000));
    await vault.clear();
    await late;
    expect(await entries("sealed")).toEqual([]);
  });

  it("keeps ciphertext only, under a key that can't be exported", async () => {
    await vault.put("a", "secret words");
    const [sealed] = (await entries("sealed")) as { data: ArrayBuffer }[];
    expect(new TextDecoder().decode(sealed?.data)).not.toContain("secret");
    const [key] = (await entries("keys")) as CryptoKey[];
    expect(key?.extractable).toBe(false);
  });

  it("does not take one entry for another", async () => {
    await vault.put("a", 1);
    const raw = await new Promise<IDBDatabase>((resolve) => {
      const request = indexedDB.open(`vault-${names}`);
      request.addEventListener("success", () => resolve(request.result));
    });
    await new Promise<void>((resolve) => {
      const store = raw.transaction("sealed", "readwrite").objectStore("sealed");
      const request = store.get("a");
      request.addEventListener("success", () => {
        store.put(request.result, "b").addEventListener("success", () => resolve());
      });
    });
    expect(await vault.get("b")).toBeUndefined();
  });

  it("is not there without WebCrypto", async () => {
    vi.stubGlobal("crypto", { getRandomValues: () => undefined });
    expect(await Vault.open("other")).toBeNull();
    expect(new Shelf(null).keeps).toBe(false);
    expect(await new Shelf(null).rows(1)).toEqual([]);
  });
});

describe("the shelf", () => {
  it("keeps the newest conversations", async () => {
    const { rows } = new Journal().message(1, "a");
    for (let session = 1; session <= 63; session += 1) await shelf.keepRows(session, rows);
    expect(await shelf.rows(3)).toEqual([]);
    expect(await shelf.rows(63)).toEqual(rows);
  });
});

describe("a conversation", () => {
  it("shows the shelf at once, then what the daemon has, without a hole", async () => {
    const { rows } = new Journal()
      .add("session_created")
      .message(1, "old")
      .start(1)
      .text("answer")
      .end();
    await shelf.keepRows(1, rows.slice(0, 3));
    const memory = new MemoryChannel();
    memory.journal = rows;
    const conversation = new Conversation(1, memory.channel, shelf);
    await conversation.readShelf();
    expect(texts(conversation)).toEqual(["old"]);
    await conversation.load();
    expect(texts(conversation)).toEqual(["old", "answer"]);
    expect(conversation.complete).toBe(true);
  });

  it("drops what was kept when too much lies between", async () => {
    const journal = new Journal().add("session_created");
    for (let i = 1; i <= 700; i += 1)
      journal.message(i, `${i}`).start(i).text(`${i}`, `m${i}`).end();
    await shelf.keepRows(1, journal.rows.slice(0, 10));
    const memory = new MemoryChannel();
    memory.journal = journal.rows;
    const conversation = new Conversation(1, memory.channel, shelf);
    await conversation.readShelf();
    await conversation.load();
    expect(conversation.complete).toBe(false);
    const first = conversation.blocks.length;
    while (!conversation.complete) await conversation.loadOlder();
    expect(conversation.blocks.length).toBeGreaterThan(first);
    expect(texts(conversation)).toHaveLength(1400);
  });

  it("says why it could not be read, and reads it the next time", async () => {
    let fails = true;
    const memory = new MemoryChannel({
      "events.page": () => {
        if (fails) throw new Error("the daemon is away");
        return { events: new Journal().message(1, "there").rows };
      },
    });
    const conversation = new Conversation(1, memory.channel, shelf);
    await conversation.load();
    expect(conversation.error).toBe("the daemon is away");
    fails = false;
    await conversation.load();
    expect([conversation.error, texts(conversation)]).toEqual(["", ["there"]]);
  });
});

describe("the outbox", () => {
  it("sends again under the same key after a reload", async () => {
    const first = new MemoryChannel();
    first.sending = () => new Promise(() => undefined);
    new Outbox(first.channel, shelf).send(1, "hello", "queue");
    await vi.waitFor(async () => expect(await shelf.unsent()).toHaveLength(1));
    const second = new MemoryChannel();
    const outbox = new Outbox(second.channel, shelf);
    await outbox.restore();
    await vi.waitFor(async () => expect(await shelf.unsent()).toEqual([]));
    expect(second.sent).toEqual([{ content: "hello", key: first.sent[0]?.key }]);
    expect(outbox.of(1)).toMatchObject([{ state: "accepted", message: 1 }]);
    outbox.arrived(1);
    expect(outbox.items).toEqual([]);
  });

  it("does not show a message beside its row, whichever comes first", async () => {
    const memory = new MemoryChannel();
    let answer!: (sent: { message_id: number; queued: boolean }) => void;
    memory.sending = () => new Promise((resolve) => (answer = resolve));
    const outbox = new Outbox(memory.channel, shelf);
    outbox.send(1, "a", "queue");
    outbox.arrived(7);
    expect(outbox.of(1)).toHaveLength(1);
    answer({ message_id: 7, queued: true });
    await vi.waitFor(() => expect(outbox.items).toEqual([]));
  });

  it("keeps what was refused until it is sent again or thrown away", async () => {
    const memory = new MemoryChannel();
    memory.sending = () => Promise.reject(new Error("the queue is full"));
    const outbox = new Outbox(memory.channel, shelf);
    outbox.send(1, "a", "queue");
    await vi.waitFor(() =>
      expect(outbox.of(1)).toMatchObject([{ state: "failed", error: "the queue is full" }]),
    );
    const key = outbox.of(1)[0]?.key ?? "";
    memory.sending = () => Promise.resolve({ message_id: 4, queued: true });
    outbox.retry(key);
    await vi.waitFor(() =>
      expect(outbox.of(1)).toMatchObject([{ key, state: "accepted", message: 4 }]),
    );
    outbox.discard(key);
    expect(outbox.items).toEqual([]);
  });
});

describe("the app", () => {
  it("follows the journal into lists, cards and conversations", async () => {
    const memory = new MemoryChannel({
      "sessions.list": () => ({ sessions: [{ id: 1, agent: "a", title: "One" }] }),
      "approvals.list": () => ({
        approvals: [{ id: 2, session: 1, action: "run", rules: [{ action: "allow" }], place: "" }],
      }),
    });
    const app = new App(memory.channel, shelf);
    await app.start();
    await vi.waitFor(() => expect(app.sessionsKnown).toBe(true));
    const conversation = app.conversation(1);
    await vi.waitFor(() => expect(conversation.complete).toBe(true));
    memory.write(
      new Journal()
        .message(1, "hi")
        .start(1)
        .add("approval_requested", { approval: 2, action: "run" }).rows,
    );
    await vi.waitFor(() => expect(texts(conversation)).toEqual(["hi"]));
    expect(app.sessions[0]).toMatchObject({ active: true, messages: 1 });
    await vi.waitFor(() => expect(app.rules.get(2)?.rules).toEqual([{ action: "allow" }]));
    expect(app.prompts).toHaveLength(1);
    memory.write(new Journal(1, 90).add("approval_answered", { approval: 2, approved: true }).rows);
    await vi.waitFor(() => expect(app.prompts).toEqual([]));
  });

  it("does not count history into the lists again", async () => {
    const memory = new MemoryChannel({
      "sessions.list": () => ({ sessions: [{ id: 1, agent: "a", messages: 1 }] }),
    });
    memory.journal = new Journal().message(1, "hi").rows;
    const app = new App(memory.channel, shelf);
    await app.start();
    const conversation = app.conversation(1);
    await vi.waitFor(() => expect(texts(conversation)).toEqual(["hi"]));
    expect(app.sessions[0]?.messages).toBe(1);
  });

  it("opens with what is kept while the daemon is away", async () => {
    const { rows } = new Journal().add("session_created").message(1, "kept");
    await shelf.keepRows(1, rows);
    await shelf.keepSessions([
      {
        id: 1,
        agent: "a",
        title: "Kept",
        createdBy: "",
        messages: 1,
        queued: 0,
        active: false,
        closed: false,
        workspace: "",
        worker: "",
        cost: "",
        lastAt: "",
      },
    ]);
    const memory = new MemoryChannel();
    memory.start = async () => memory.become({ kind: "reconnecting", at: 0, attempt: 1 });
    const app = new App(memory.channel, shelf);
    await app.start();
    expect(app.sessions.map(({ title }) => title)).toEqual(["Kept"]);
    const conversation = app.conversation(1);
    await vi.waitFor(() => expect(texts(conversation)).toEqual(["kept"]));
    expect(memory.asked).toEqual([]);
  });

  it("forgets everything when the device is revoked", async () => {
    await shelf.keepRows(1, new Journal().message(1, "a").rows);
    const memory = new MemoryChannel();
    const app = new App(memory.channel, shelf);
    await app.start();
    memory.become({ kind: "unpaired", reason: "revoked" });
    await vi.waitFor(async () => expect(await shelf.rows(1)).toEqual([]));
    expect(app.sessions).toEqual([]);
  });

  it("keeps nothing of what came right before the device was revoked", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    const memory = new MemoryChannel();
    const app = new App(memory.channel, shelf);
    await app.start();
    const conversation = app.conversation(1);
    await vi.waitFor(() => expect(conversation.complete).toBe(true));
    memory.write(new Journal().message(1, "the last words").rows);
    await vi.waitFor(() => expect(texts(conversation)).toEqual(["the last words"]));
    memory.become({ kind: "unpaired", reason: "revoked" });
    // What is shown is put on the shelf within a second.
    await vi.advanceTimersByTimeAsync(5000);
    expect(await entries("sealed")).toEqual([]);
  });

  it("says when what it kept can't be removed", async () => {
    const memory = new MemoryChannel();
    const app = new App(memory.channel, shelf);
    await app.start();
    vault.close();
    memory.become({ kind: "unpaired", reason: "revoked" });
    await vi.waitFor(() => expect(app.toasts.items).toHaveLength(1));
    expect(app.toasts.items[0]?.text).toContain("could not be removed; remove this site's data");
  });

  it("says what is left to do when it left without the daemon's word, or can't trust it", async () => {
    const memory = new MemoryChannel();
    const app = new App(memory.channel, shelf);
    await app.start();
    await app.leave("unpaired");
    expect(app.left).toBeNull();
    memory.become({ kind: "live" });
    await app.leave("words differ");
    expect(app.left).toEqual({ why: "words differ", id: "d" });
    memory.become({ kind: "reconnecting", at: 0, attempt: 1 });
    expect(app.left).toBeNull();
    await app.leave("unpaired");
    expect(app.left).toEqual({ why: "unpaired", id: "d" });
  });
});

describe("the page offline", () => {
  const kept = async (serviceWorker: unknown, isSecureContext = true): Promise<string> => {
    vi.stubGlobal("isSecureContext", isSecureContext);
    vi.stubGlobal("navigator", serviceWorker === undefined ? {} : { serviceWorker });
    const offline = new OfflinePage();
    expect(offline.state).toBe("starting");
    await offline.keep();
    return offline.state;
  };
  const refusing = (name: string, controller: unknown = null) => ({
    controller,
    register: () => Promise.reject(new DOMException("no", name)),
  });

  it("is what the browser made of it, and not what was hoped for", async () => {
    const register = () => Promise.resolve({});
    expect(await kept({ controller: null, register, ready: Promise.resolve({}) })).toBe("ready");
    expect(await kept(refusing("SecurityError"))).toBe("untrusted");
    expect(await kept(refusing("NotSupportedError"))).toBe("refused");
    expect(await kept(refusing("SecurityError", {}))).toBe("ready");
    expect(await kept(undefined)).toBe("refused");
    expect(await kept(undefined, false)).toBe("insecure");
  });
});

describe("a resource", () => {
  it("shows the last answer of several, and an error as one", async () => {
    const answers: ((value: number) => void)[] = [];
    const resource = new Resource(() => new Promise<number>((resolve) => answers.push(resolve)));
    const both = [resource.load(), resource.load()];
    answers[1]?.(2);
    answers[0]?.(1);
    await Promise.all(both);
    expect(resource.data).toBe(2);
    const failing = new Resource<number>(() =>
      Promise.reject(Object.assign(new Error("no"), { code: "not_available" })),
    );
    await failing.load();
    expect([failing.error, failing.unavailable, failing.loading]).toEqual(["no", true, false]);
  });
});
