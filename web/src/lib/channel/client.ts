/** The page's channel: one link at a time, and everything that has to survive its loss. */

import { deferred } from "./deferred";
import { delay } from "./backoff";
import { concat, random } from "./bytes";
import { generateKeys, loadKeys } from "./dh";
import { ChannelError } from "./error";
import { ByteQueue, Link } from "./link";
import type {
  Channel,
  ConnectionState,
  Device,
  Download,
  FollowItem,
  Hello,
  JournalRow,
  KeyStorage,
  Op,
  Ops,
  RequestOptions,
  SendOptions,
  StreamEnd,
  Terminal,
} from "./types";
import { IdentityVault, type StoredIdentity } from "./vault";

/** How long a browser that leaves waits for the daemon's word. */
const REVOKE_MS = 5000;

/** Requests that change nothing and can be asked again on the next connection. */
const READS: ReadonlySet<string> = new Set<Op>([
  "hello",
  "agents.list",
  "sessions.list",
  "events.page",
  "queue.list",
  "approvals.list",
  "asks.list",
  "workspace.tree",
  "workspace.file",
  "workspace.log",
  "workspace.diff",
  "workers.list",
  "shells.list",
  "cron.list",
  "cron.runs",
  "usage.report",
  "devices.list",
  "config.get",
  "stats",
]);

export class ChannelClient implements Channel {
  #url: string;
  #vault: IdentityVault;
  #state: ConnectionState = { kind: "connecting" };
  #listeners = new Set<(state: ConnectionState) => void>();
  #identity: StoredIdentity | null = null;
  #hello: Hello | null = null;
  #link: Link | null = null;
  /** Counts up with each link and each `disconnect`, so that what an old one does late is not heard. */
  #era = 0;
  #attempt = 0;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #changed = deferred<void>();

  constructor(url: string, store: string) {
    this.#url = url;
    this.#vault = new IdentityVault(store);
    globalThis.addEventListener?.("online", () => this.#wake());
    globalThis.document?.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.#wake();
    });
  }

  get state(): ConnectionState {
    return this.#state;
  }

  get hello(): Hello | null {
    return this.#hello;
  }

  get device(): Device | null {
    if (this.#identity === null) return null;
    const { deviceId, name, checkWords } = this.#identity;
    return { id: deviceId, name, checkWords };
  }

  get keyStorage(): KeyStorage {
    if (this.#identity !== null) {
      return this.#identity.keys.kind === "webcrypto" ? "non-extractable" : "plain";
    }
    return globalThis.crypto.subtle === undefined ? "plain" : "non-extractable";
  }

  onState(listener: (state: ConnectionState) => void): () => void {
    this.#listeners.add(listener);
    listener(this.#state);
    return () => this.#listeners.delete(listener);
  }

  async start(): Promise<void> {
    this.#identity = await this.#vault.load();
    if (this.#identity === null) this.#become({ kind: "unpaired" });
    else await this.#connect();
  }

  async pair(code: string, name: string): Promise<Device> {
    const era = this.#newEra();
    const stored = await generateKeys();
    const { link, paired } = await Link.pair(this.#url, code, name, loadKeys(stored));
    const identity: StoredIdentity = {
      keys: stored,
      daemon: paired.daemon,
      deviceId: paired.deviceId,
      name,
      checkWords: paired.checkWords,
    };
    await this.#vault.save(identity);
    this.#identity = identity;
    await this.#adopt(link, era);
    return { id: identity.deviceId, name, checkWords: identity.checkWords };
  }

  retryNow(): void {
    if (this.#identity === null || this.#state.kind === "live") return;
    this.#attempt = 0;
    void this.#connect();
  }

  disconnect(): void {
    this.#newEra();
    this.#become({ kind: "offline", reason: "Switched off." });
  }

  async forget(): Promise<boolean> {
    const { device } = this;
    const link = this.#state.kind === "live" ? this.#link : null;
    // From here on the link's end is no loss, and no news either.
    this.#link = null;
    this.#newEra();
    const ended = link !== null && device !== null && (await revoke(link, device.id));
    link?.close();
    await this.#unpair();
    return ended;
  }

  async request<K extends Op>(
    op: K,
    args: Ops[K]["args"],
    { signal }: RequestOptions = {},
  ): Promise<Ops[K]["ok"]> {
    for (;;) {
      const link = await this.#live(signal);
      try {
        return (await link.request(op, args, { signal })) as Ops[K]["ok"];
      } catch (error) {
        if (!isLost(error) || !READS.has(op)) throw error;
      }
    }
  }

  async send(
    message: { session: number; content: string; mode: "queue" | "steer" },
    { signal, clientKey = hex(random(16)) }: SendOptions = {},
  ): Promise<{ message_id: number; queued: boolean }> {
    const args = { ...message, client_key: clientKey };
    for (;;) {
      const link = await this.#live(signal);
      try {
        const sent = await link.request("messages.send", args, { signal });
        return sent as Ops["messages.send"]["ok"];
      } catch (error) {
        // The daemon knows the key: the same message again is the same message.
        if (!isLost(error)) throw error;
      }
    }
  }

  async *follow(
    from: { after: number; session?: number },
    { signal }: RequestOptions = {},
  ): AsyncGenerator<FollowItem> {
    let { after } = from;
    let told = false;
    for (;;) {
      const queue: unknown[] = [];
      let wake: (() => void) | null = null;
      let ended: { error: unknown } | null = null;
      let link: Link;
      try {
        link = await this.#live(signal);
      } catch (error) {
        if (signal?.aborted) return;
        throw error;
      }
      const items = (more: unknown[]) => {
        queue.push(...more);
        wake?.();
      };
      link.request("events.follow", { ...from, after }, { items, signal }).then(
        () => ((ended = { error: null }), wake?.()),
        (error: unknown) => ((ended = { error }), wake?.()),
      );
      for (;;) {
        for (const item of queue.splice(0) as (JournalRow | { caught_up: number })[]) {
          if ("caught_up" in item) {
            if (!told) yield { caughtUp: item.caught_up };
            told = true;
          } else if (item.seq > after) {
            after = item.seq;
            yield { row: item };
          }
          if (signal?.aborted) return;
        }
        if (queue.length > 0) continue;
        if (ended !== null) break;
        await new Promise<void>((resolve) => (wake = resolve));
        wake = null;
      }
      const { error } = ended as { error: unknown };
      if (signal?.aborted) return;
      if (error !== null && !isLost(error)) throw error;
    }
  }

  async openShell(args: {
    worker: string;
    rows: number;
    cols: number;
    session?: number;
  }): Promise<Terminal> {
    return this.#terminal("shells.open", args.worker, args);
  }

  async attachShell(args: {
    worker: string;
    shell: string;
    rows: number;
    cols: number;
    from?: number;
  }): Promise<Terminal> {
    return this.#terminal("shells.attach", args.worker, args);
  }

  async download(
    args: { session: number; path: string; at?: number },
    {
      signal,
      onProgress,
    }: RequestOptions & { onProgress?: (received: number) => void } = {},
  ): Promise<Download> {
    const link = await this.#live(signal);
    const pieces: Uint8Array[] = [];
    let received = 0;
    const bytes = (piece: Uint8Array) => {
      pieces.push(piece);
      received += piece.length;
      onProgress?.(received);
    };
    const answer = await link.request("workspace.download", args, { signal, bytes });
    const { size, hash } = answer as { size: number; hash: string };
    return { size, hash, bytes: concat(...pieces) };
  }

  async #terminal(op: string, worker: string, args: object): Promise<Terminal> {
    const link = await this.#live();
    const answer = await link.request(op, args);
    const { shell, stream, from } = answer as { shell: string; stream: number; from: number };
    const output = new ByteQueue((read) => link.credit(stream, read));
    const ended = deferred<StreamEnd>();
    const end = (how: StreamEnd) => {
      output.end();
      ended.resolve(how);
    };
    link.openStream(stream, { bytes: (bytes) => output.push(bytes), end });
    const tell = (what: string, more: object = {}) =>
      // A stream that ended by itself in between is what was asked for.
      void link.request(what, { stream, ...more }).catch(() => undefined);
    return {
      worker,
      shell,
      from,
      output,
      write: (bytes) => link.sendBytes(stream, bytes),
      resize: (rows, cols) => tell("shells.resize", { rows, cols }),
      detach: () => {
        tell("shells.detach");
        link.forgetStream(stream);
        end({ code: null });
      },
      close: () => tell("shells.close"),
      ended: ended.promise,
    };
  }

  /** The live link, now or later. Rejects where no try is made any more. */
  async #live(signal?: AbortSignal): Promise<Link> {
    for (;;) {
      if (signal?.aborted) throw new ChannelError("cancelled", "Cancelled.");
      if (this.#state.kind === "live" && this.#link !== null) return this.#link;
      if (this.#state.kind === "unpaired") {
        throw new ChannelError("unauthorized", "This browser is not paired.");
      }
      if (this.#state.kind === "offline") {
        throw new ChannelError("connection_lost", this.#state.reason);
      }
      const aborted = deferred<void>();
      const abort = () => aborted.resolve();
      signal?.addEventListener("abort", abort, { once: true });
      await Promise.race([this.#changed.promise, aborted.promise]);
      signal?.removeEventListener("abort", abort);
    }
  }

  async #connect(): Promise<void> {
    const identity = this.#identity;
    if (identity === null) return;
    const era = this.#newEra();
    this.#become({ kind: "connecting" });
    try {
      const keys = loadKeys(identity.keys);
      const link = await Link.resume(this.#url, { keys, daemon: identity.daemon });
      await this.#adopt(link, era);
    } catch (error) {
      if (era !== this.#era) return;
      if (error instanceof ChannelError && error.code === "wrong_daemon") {
        this.#become({ kind: "offline", reason: error.message });
      } else this.#again();
    }
  }

  async #adopt(link: Link, era: number): Promise<void> {
    if (era !== this.#era) return link.close();
    this.#link = link;
    void link.ended.then(({ revoked }) => {
      if (era !== this.#era) return;
      this.#link = null;
      if (revoked) {
        this.#newEra();
        void this.#unpair("revoked");
      } else this.#again();
    });
    try {
      this.#hello = (await link.request("hello", {})) as Hello;
    } catch (error) {
      if (isLost(error)) return;
      throw error;
    }
    if (era !== this.#era) return;
    this.#attempt = 0;
    this.#become({ kind: "live" });
  }

  #again(): void {
    const era = this.#newEra();
    this.#attempt += 1;
    const wait = delay(this.#attempt);
    this.#timer = setTimeout(() => {
      if (era === this.#era) void this.#connect();
    }, wait);
    this.#become({ kind: "reconnecting", at: Date.now() + wait, attempt: this.#attempt });
  }

  #wake(): void {
    if (this.#state.kind === "reconnecting") void this.#connect();
  }

  async #unpair(reason?: "revoked"): Promise<void> {
    this.#identity = null;
    this.#hello = null;
    await this.#vault.clear();
    this.#become(reason === undefined ? { kind: "unpaired" } : { kind: "unpaired", reason });
  }

  #newEra(): number {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#era += 1;
    const link = this.#link;
    this.#link = null;
    link?.close();
    return this.#era;
  }

  #become(state: ConnectionState): void {
    this.#state = state;
    this.#changed.resolve();
    this.#changed = deferred();
    for (const listener of this.#listeners) listener(state);
  }
}

/** Ends a device at the daemon; whether the daemon said that it did. */
async function revoke(link: Link, id: string): Promise<boolean> {
  try {
    await link.request("devices.revoke", { id }, { signal: AbortSignal.timeout(REVOKE_MS) });
    return true;
  } catch (error) {
    // The connections of a revoked device end, perhaps before the answer is out.
    return isLost(error) && (await link.ended).revoked;
  }
}

function isLost(error: unknown): boolean {
  return error instanceof ChannelError && error.code === "connection_lost";
}

function hex(bytes: Uint8Array): string {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
