/** A channel in memory, for tests of the state around it. The product never loads this. */

import type { Channel, ConnectionState, FollowItem, JournalRow, Op } from "../../src/lib/channel";
import type { Row } from "../../src/lib/model/rows";

type Answers = Partial<Record<Op, (args: Record<string, unknown>) => unknown>>;

export class MemoryChannel {
  state: ConnectionState = { kind: "connecting" };
  device = { id: "d", name: "test", checkWords: ["a", "b", "c", "d"] };
  keyStorage = "non-extractable" as const;
  hello = null;
  readonly asked: [string, unknown][] = [];
  readonly sent: { content: string; key: string | undefined }[] = [];
  journal: Row[] = [];
  sending: (content: string) => Promise<{ message_id: number; queued: boolean }> = () =>
    Promise.resolve({ message_id: 1, queued: true });

  #answers: Answers;
  #listeners = new Set<(state: ConnectionState) => void>();
  #followers = new Set<(row: Row) => void>();

  constructor(answers: Answers = {}) {
    this.#answers = {
      "sessions.list": () => ({ sessions: [] }),
      "approvals.list": () => ({ approvals: [] }),
      "asks.list": () => ({ asks: [] }),
      "events.page": (args) => this.#page(args),
      ...answers,
    };
  }

  /** As the page's channel: only what a test calls is here. */
  get channel(): Channel {
    return this as unknown as Channel;
  }

  become(state: ConnectionState): void {
    this.state = state;
    for (const listener of this.#listeners) listener(state);
  }

  /** Writes rows to the journal; who follows is told. */
  write(rows: readonly Row[]): void {
    this.journal.push(...rows);
    for (const row of rows) for (const tell of this.#followers) tell(row);
  }

  onState(listener: (state: ConnectionState) => void): () => void {
    this.#listeners.add(listener);
    listener(this.state);
    return () => this.#listeners.delete(listener);
  }

  async start(): Promise<void> {
    this.become({ kind: "live" });
  }

  async forget(): Promise<boolean> {
    const ended = this.state.kind === "live";
    this.become({ kind: "unpaired" });
    return ended;
  }

  async request(op: Op, args: Record<string, unknown>): Promise<unknown> {
    this.asked.push([op, args]);
    const answer = this.#answers[op];
    if (answer === undefined) throw new Error(`no answer to ${op}`);
    return answer(args);
  }

  send(message: { content: string }, options?: { clientKey?: string }): Promise<unknown> {
    this.sent.push({ content: message.content, key: options?.clientKey });
    return this.sending(message.content);
  }

  async *follow(
    from: { after: number | null },
    options: { signal: AbortSignal },
  ): AsyncGenerator<FollowItem> {
    const queue: Row[] = this.journal.filter(({ seq }) => seq > (from.after ?? Infinity));
    let wake = (): void => undefined;
    const tell = (row: Row): void => {
      queue.push(row);
      wake();
    };
    this.#followers.add(tell);
    options.signal.addEventListener("abort", () => wake());
    for (const row of queue.splice(0)) yield { row: row as JournalRow };
    yield { caughtUp: 0 };
    while (!options.signal.aborted) {
      for (const row of queue.splice(0)) yield { row: row as JournalRow };
      await new Promise<void>((resolve) => (wake = resolve));
    }
  }

  #page({ session, before, limit }: Record<string, unknown>): { events: Row[] } {
    const rows = this.journal.filter(
      (row) => row.session === session && (before === undefined || row.seq < Number(before)),
    );
    return { events: rows.slice(-Number(limit)) };
  }
}
