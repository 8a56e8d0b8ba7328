import "fake-indexeddb/auto";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { delay } from "./backoff";
import { utf8 } from "./bytes";
import { ChannelClient } from "./client";
import { daemonKeys, FakeConnection, FakeSocket } from "./fake-daemon";
import type { ConnectionState, FollowItem } from "./types";
import { IdentityVault } from "./vault";

type Handler = (
  request: { id: number; op: string; args: Record<string, unknown> },
  connection: FakeConnection,
) => void;

let connections: FakeConnection[];
let accepting: boolean;
let onRequest: Handler;
let store: string;
let count = 0;

/** What every daemon answers first. */
const hello = { daemon_id: "d", version: "1", device: { id: "x", name: "phone" } };

beforeEach(async () => {
  connections = [];
  accepting = true;
  onRequest = () => undefined;
  store = `test-${count++}`;
  // The shortest wait of the seed's: half of a second.
  vi.spyOn(Math, "random").mockReturnValue(0);
  vi.stubGlobal(
    "WebSocket",
    class extends FakeSocket {
      constructor() {
        super(
          (connection) => {
            if (accepting) connections.push(connection);
            return accepting;
          },
          (request, connection) => {
            if (request.op === "hello") connection.say({ id: request.id, ok: hello });
            else onRequest(request, connection);
          },
        );
      }
    },
  );
  await save();
});

/** As if this browser had been paired. */
function save(): Promise<void> {
  return new IdentityVault(store).save({
    keys: { kind: "noble", secret: new Uint8Array(32).fill(3) },
    daemon: daemonKeys.publicKey,
    deviceId: "x",
    name: "phone",
    checkWords: ["a", "b", "c", "d"],
  });
}

afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

async function started(): Promise<ChannelClient> {
  const client = new ChannelClient("ws://daemon/ws", store);
  await client.start();
  await becomes(client, "live");
  return client;
}

function becomes(client: ChannelClient, kind: ConnectionState["kind"]): Promise<ConnectionState> {
  return new Promise((resolve) => {
    let stop: () => void = () => undefined;
    stop = client.onState((state) => {
      if (state.kind === kind) queueMicrotask(() => (stop(), resolve(state)));
    });
  });
}

describe("the seed's backoff", () => {
  it("doubles from one second to thirty, and waits half to all of it", () => {
    const full = [1, 2, 3, 4, 5, 6, 7].map((attempt) => delay(attempt, () => 1));
    expect(full).toEqual([1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    expect(delay(1, () => 0)).toBe(500);
    expect(delay(7, () => 0)).toBe(15_000);
  });
});

describe("the connection", () => {
  it("goes live with what is stored, and says who it is", async () => {
    const client = await started();
    expect(client.device).toEqual({ id: "x", name: "phone", checkWords: ["a", "b", "c", "d"] });
    expect(client.hello).toEqual(hello);
    expect(client.keyStorage).toBe("plain");
  });

  it("is unpaired where nothing is stored", async () => {
    const client = new ChannelClient("ws://daemon/ws", `${store}-empty`);
    await client.start();
    expect(client.state).toEqual({ kind: "unpaired" });
    await expect(client.request("stats", {})).rejects.toMatchObject({ code: "unauthorized" });
  });

  it("comes back after it is lost, and not after it was switched off", async () => {
    const client = await started();
    const lost = becomes(client, "reconnecting");
    connections[0]!.close();
    expect(await lost).toMatchObject({ attempt: 1 });
    await becomes(client, "live");
    expect(connections).toHaveLength(2);
    client.disconnect();
    expect(client.state.kind).toBe("offline");
    await expect(client.request("stats", {})).rejects.toMatchObject({ code: "connection_lost" });
    client.retryNow();
    await becomes(client, "live");
    expect(connections).toHaveLength(3);
  });

  it("tries again while the daemon can't be reached", async () => {
    accepting = false;
    const client = new ChannelClient("ws://daemon/ws", store);
    await client.start();
    expect(client.state).toMatchObject({ kind: "reconnecting", attempt: 1 });
    accepting = true;
    await becomes(client, "live");
  });

  it("forgets everything when the daemon revokes it, and only then", async () => {
    const client = await started();
    connections[0]!.garbage();
    await becomes(client, "reconnecting");
    await becomes(client, "live");
    connections[1]!.say({ error: { code: "unauthorized", message: "revoked" } });
    connections[1]!.close();
    expect(await becomes(client, "unpaired")).toEqual({ kind: "unpaired", reason: "revoked" });
    expect(await new IdentityVault(store).load()).toBeNull();
    expect(client.device).toBeNull();
  });

  it("ends its device at the daemon when it leaves, and says whether it could", async () => {
    const asked: unknown[] = [];
    let answer: (id: number, connection: FakeConnection) => void;
    onRequest = ({ id, op, args }, connection) => {
      asked.push([op, args]);
      answer(id, connection);
    };
    const leaves = async (): Promise<unknown[]> => {
      const client = await started();
      const states: ConnectionState[] = [];
      client.onState((state) => states.push(state));
      const ended = await client.forget();
      expect(states.slice(1)).toEqual([{ kind: "unpaired" }]);
      expect(await new IdentityVault(store).load()).toBeNull();
      return [ended, ...asked.splice(0)];
    };
    const told = ["devices.revoke", { id: "x" }];
    answer = (id, connection) => connection.say({ id, ok: {} });
    expect(await leaves()).toEqual([true, told]);

    // The daemon hangs up on whom it revokes, perhaps before it has answered.
    await save();
    answer = (_, connection) => {
      connection.say({ error: { code: "unauthorized", message: "revoked" } });
      connection.close();
    };
    expect(await leaves()).toEqual([true, told]);

    await save();
    answer = (_, connection) => connection.close();
    expect(await leaves()).toEqual([false, told]);

    await save();
    accepting = false;
    const client = new ChannelClient("ws://daemon/ws", store);
    await client.start();
    expect([await client.forget(), ...asked]).toEqual([false]);
    expect(await new IdentityVault(store).load()).toBeNull();
  });
});

describe("requests", () => {
  it("answer, fail, and are cancelled", async () => {
    const client = await started();
    onRequest = ({ id, op }, connection) => {
      if (op === "stats") connection.say({ id, ok: { workers: 2 } });
      if (op === "sessions.kill") {
        connection.say({ id, error: { code: "not_found", message: "no" } });
      }
    };
    expect(await client.request("stats", {})).toEqual({ workers: 2 });
    await expect(client.request("sessions.kill", { session: 9 })).rejects.toMatchObject({
      code: "not_found",
      message: "no",
    });
    const aborting = new AbortController();
    const waiting = client.request("cron.list", {}, { signal: aborting.signal });
    await vi.waitFor(() => expect(connections[0]!.requests.at(-1)?.op).toBe("cron.list"));
    aborting.abort();
    await expect(waiting).rejects.toMatchObject({ code: "cancelled" });
    await vi.waitFor(() => expect(connections[0]!.requests.at(-1)?.cancel).toBeTypeOf("number"));
  });

  it("that read are asked again after a reconnect, and no others", async () => {
    const client = await started();
    onRequest = ({ id, op }, connection) => {
      if (connection === connections[0]) connection.close();
      else if (op === "stats") connection.say({ id, ok: { workers: 3 } });
    };
    const killing = client.request("sessions.kill", { session: 1 });
    await expect(killing).rejects.toMatchObject({ code: "connection_lost" });
    expect(await client.request("stats", {})).toEqual({ workers: 3 });
  });

  it("send a message exactly once", async () => {
    const client = await started();
    const keys: unknown[] = [];
    onRequest = ({ id, op, args }, connection) => {
      if (op !== "messages.send") return;
      keys.push(args["client_key"]);
      if (connection === connections[0]) connection.close();
      else connection.say({ id, ok: { message_id: 4, queued: false } });
    };
    const message = { session: 1, content: "hi", mode: "queue" } as const;
    const sent = await client.send(message, { clientKey: "mine" });
    expect(sent).toEqual({ message_id: 4, queued: false });
    expect(keys).toEqual(["mine", "mine"]);
  });

  it("that are too long for a record are refused in words, and the connection stays", async () => {
    const client = await started();
    onRequest = ({ id }, connection) => connection.say({ id, ok: { message_id: 1, queued: true } });
    const message = { session: 1, mode: "queue" } as const;
    const long = client.send({ ...message, content: "ü".repeat(1 << 19) });
    await expect(long).rejects.toMatchObject({ code: "over_limit" });
    expect(await client.send({ ...message, content: "ü".repeat((1 << 19) - 200) })).toBeDefined();
    expect(connections).toHaveLength(1);
  });
});

describe("follow", () => {
  const row = (seq: number) => ({ seq, at: "", session: 1, kind: "note", data: {}, turn: null });

  it("goes on where it was, without a gap or a repeat", async () => {
    const client = await started();
    const asked: unknown[] = [];
    onRequest = ({ id, op, args }, connection) => {
      if (op !== "events.follow") return;
      asked.push(args);
      if (connection === connections[0]) {
        connection.say({ id, items: [row(1), row(2), { caught_up: 2 }] });
        connection.say({ id, items: [row(3)] });
        connection.close();
      } else {
        connection.say({ id, items: [row(3), row(4), { caught_up: 4 }, row(5)] });
      }
    };
    const stop = new AbortController();
    const seen: FollowItem[] = [];
    for await (const item of client.follow({ after: 0, session: 1 }, { signal: stop.signal })) {
      seen.push(item);
      if ("row" in item && item.row.seq === 5) stop.abort();
    }
    expect(asked).toEqual([
      { after: 0, session: 1 },
      { after: 3, session: 1 },
    ]);
    expect(seen).toEqual([
      { row: row(1) },
      { row: row(2) },
      { caughtUp: 2 },
      { row: row(3) },
      { row: row(4) },
      { row: row(5) },
    ]);
  });

  it("ends with the daemon's refusal", async () => {
    const client = await started();
    onRequest = ({ id }, connection) =>
      connection.say({ id, error: { code: "not_found", message: "no session" } });
    const following = client.follow({ after: 0, session: 9 });
    await expect(following.next()).rejects.toMatchObject({ code: "not_found" });
  });
});

describe("terminals and downloads", () => {
  it("carry bytes, give credit, and end", async () => {
    const client = await started();
    onRequest = ({ id, op }, connection) => {
      if (op !== "shells.open") return;
      // Output may be ahead of the answer that names its stream.
      connection.bytes(3, utf8("early "));
      connection.say({ id, ok: { shell: "s1", stream: 3, from: 0 } });
      connection.bytes(3, new Uint8Array(70_000));
      connection.say({ stream_end: { stream: 3, code: 7 } });
    };
    const terminal = await client.openShell({ worker: "local", rows: 24, cols: 80 });
    const pieces: Uint8Array[] = [];
    for await (const piece of terminal.output) pieces.push(piece);
    expect(pieces.map((piece) => piece.length)).toEqual([6, 70_000]);
    expect(await terminal.ended).toEqual({ code: 7 });
    await vi.waitFor(() =>
      expect(connections[0]!.requests.at(-1)).toEqual({ credit: { stream: 3, bytes: 70_006 } }),
    );
  });

  it("take what is longer than a record in pieces", async () => {
    const client = await started();
    onRequest = ({ id, op }, connection) => {
      if (op === "shells.open") connection.say({ id, ok: { shell: "s1", stream: 1, from: 0 } });
    };
    const terminal = await client.openShell({ worker: "local", rows: 24, cols: 80 });
    const pasted = Uint8Array.from({ length: (1 << 20) + 77 }, (_, at) => at % 251);
    terminal.write(pasted);
    terminal.write(utf8("x"));
    const { written } = connections[0]!;
    await vi.waitFor(() => expect(written.at(-1)).toEqual(utf8("x")));
    expect(Buffer.concat(written.slice(0, -1)).equals(pasted)).toBe(true);
  });

  it("end without a code when the connection does", async () => {
    const client = await started();
    onRequest = ({ id, op }, connection) => {
      if (op === "shells.open") connection.say({ id, ok: { shell: "s1", stream: 1, from: 0 } });
    };
    const terminal = await client.openShell({ worker: "local", rows: 24, cols: 80 });
    connections[0]!.close();
    expect(await terminal.ended).toEqual({ code: null });
  });

  it("say where their output begins and why they ended", async () => {
    const client = await started();
    onRequest = ({ id, op, args }, connection) => {
      if (op !== "shells.attach") return;
      expect(args).toMatchObject({ shell: "s1", from: 100 });
      connection.say({ id, ok: { shell: "s1", stream: 1, from: 140 } });
      connection.say({ stream_end: { stream: 1, code: null, reason: "somebody else attached" } });
    };
    const again = { worker: "local", shell: "s1", rows: 24, cols: 80, from: 100 };
    const terminal = await client.attachShell(again);
    expect(terminal.from).toBe(140);
    expect(await terminal.ended).toEqual({ code: null, reason: "somebody else attached" });
  });

  it("gather a file's bytes", async () => {
    const client = await started();
    onRequest = ({ id, op }, connection) => {
      if (op !== "workspace.download") return;
      connection.bytes(id, utf8("one "));
      connection.bytes(id, utf8("two"));
      connection.say({ id, ok: { size: 7, hash: "h" } });
    };
    const progress: number[] = [];
    const onProgress = (received: number) => progress.push(received);
    const file = await client.download({ session: 1, path: "a" }, { onProgress });
    expect(file).toEqual({ size: 7, hash: "h", bytes: utf8("one two") });
    expect(progress).toEqual([4, 7]);
  });
});
