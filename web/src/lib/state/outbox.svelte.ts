/**
 * Messages on their way. A message is shown at once, kept over a reload, and sent exactly once: its
 * key lets the daemon tell a second sending from a second message.
 */

import type { Channel } from "../channel";
import type { Shelf, Unsent } from "./shelf";

export interface Outgoing extends Unsent {
  state: "sending" | "accepted" | "failed";
  error: string;
  /** The message's number, once the daemon has it. */
  message: number | null;
}

const MAX_SEEN = 100;

export class Outbox {
  items = $state.raw<readonly Outgoing[]>([]);

  #channel: Channel;
  #shelf: Shelf;
  /** Messages whose row came in before the answer that names them; the newest ones. */
  #seen = new Set<number>();

  constructor(channel: Channel, shelf: Shelf) {
    this.#channel = channel;
    this.#shelf = shelf;
  }

  /** Sends again what an earlier page could not. */
  async restore(): Promise<void> {
    for (const unsent of await this.#shelf.unsent()) {
      if (this.items.some(({ key }) => key === unsent.key)) continue;
      void this.#deliver({ ...unsent, state: "sending", error: "", message: null });
    }
  }

  send(session: number, content: string, mode: "queue" | "steer"): void {
    const key = [...crypto.getRandomValues(new Uint8Array(16))]
      .map((byte) => byte.toString(16).padStart(2, "0"))
      .join("");
    void this.#deliver({
      key,
      session,
      content,
      mode,
      state: "sending",
      error: "",
      message: null,
    });
  }

  retry(key: string): void {
    const item = this.items.find((candidate) => candidate.key === key);
    if (item !== undefined) void this.#deliver({ ...item, state: "sending", error: "" });
  }

  discard(key: string): void {
    this.#set(this.items.filter((item) => item.key !== key));
  }

  of(session: number): Outgoing[] {
    return this.items.filter((item) => item.session === session);
  }

  /** A message is in the conversation: it need not be shown beside it. */
  arrived(message: number): void {
    if (this.items.some((item) => item.message === message)) {
      this.#set(this.items.filter((item) => item.message !== message));
      return;
    }
    this.#seen.add(message);
    const [oldest] = this.#seen;
    if (this.#seen.size > MAX_SEEN && oldest !== undefined) this.#seen.delete(oldest);
  }

  clear(): void {
    this.#set([]);
  }

  async #deliver(item: Outgoing): Promise<void> {
    const others = this.items.filter(({ key }) => key !== item.key);
    this.#set([...others, item]);
    const { session, content, mode, key } = item;
    try {
      const answer = await this.#channel.send({ session, content, mode }, { clientKey: key });
      // A steer shows as a row of its own; a queued message is matched by its number.
      const shown = this.#seen.delete(answer.message_id);
      if (shown || (mode === "steer" && !answer.queued)) this.discard(key);
      else this.#change(key, { state: "accepted", message: answer.message_id });
    } catch (error) {
      this.#change(key, { state: "failed", error: error instanceof Error ? error.message : "" });
    }
  }

  #change(key: string, change: Partial<Outgoing>): void {
    this.#set(this.items.map((item) => (item.key === key ? { ...item, ...change } : item)));
  }

  #set(items: readonly Outgoing[]): void {
    this.items = items;
    const unsent = items
      .filter(({ state }) => state !== "accepted")
      .map(({ key, session, content, mode }) => ({ key, session, content, mode }));
    void this.#shelf.keepUnsent(unsent);
  }
}
