/** The page's state: one channel, one follow of the journal, and what hangs on them. */

import { createContext } from "svelte";
import { SvelteMap } from "svelte/reactivity";
import type { Approval, Channel, ConnectionState, Device, Hello } from "../channel";
import { Prompts, type Prompt } from "../model/prompts";
import { asRow, type Row } from "../model/rows";
import { applyToSessions, mergeListing, type Session } from "../model/sessions";
import { Conversation } from "./conversation.svelte";
import { OfflinePage } from "./offline.svelte";
import { Outbox } from "./outbox.svelte";
import { Router } from "./router.svelte";
import { Settings } from "./settings.svelte";
import { Shelf } from "./shelf";
import { Toasts } from "./toasts.svelte";

/** Conversations whose rows stay in memory; the one opened longest ago is dropped. */
const MAX_OPEN = 8;

/** Sessions that are looked at to find the end of the journal. */
const NEWEST = 4;

export const [getApp, setApp] = createContext<App>();

/** What a page listens to beside the conversation, such as workers coming and going. */
type Listener = (row: Row) => void;

export class App {
  readonly channel: Channel;
  readonly router = new Router();
  readonly settings = new Settings();
  readonly toasts = new Toasts();
  readonly offline = new OfflinePage();
  readonly outbox: Outbox;
  readonly shelf: Shelf;

  connection = $state.raw<ConnectionState>({ kind: "connecting" });
  device = $state.raw<Device | null>(null);
  hello = $state.raw<Hello | null>(null);
  /** How this browser left, as long as something is left to do for the person. */
  left = $state.raw<{ why: "unpaired" | "words differ"; id: string } | null>(null);
  /** Whether the stored key was looked for: before, it is not known which page to show. */
  started = $state(false);
  sessions = $state.raw<readonly Session[]>([]);
  /** Whether the list is the daemon's and not the one on the shelf. */
  sessionsKnown = $state(false);
  prompts = $state.raw<readonly Prompt[]>([]);
  /** The rules that an approval's "always" would write, by its number. */
  rules = new SvelteMap<number, Pick<Approval, "rules" | "place">>();

  #prompts = new Prompts();
  #open = new Map<number, Conversation>();
  #listeners = new Set<Listener>();
  #following: AbortController | null = null;
  #caughtUp = gate();
  /** Counts the rows that changed the list of sessions. */
  #changes = 0;
  #keeping: ReturnType<typeof setTimeout> | null = null;

  constructor(channel: Channel, shelf: Shelf) {
    this.channel = channel;
    this.shelf = shelf;
    this.outbox = new Outbox(channel, shelf);
    channel.onState((state) => this.#connected(state));
  }

  async start(): Promise<void> {
    this.sessions = await this.shelf.sessions();
    await this.channel.start();
    this.started = true;
  }

  get live(): boolean {
    return this.connection.kind === "live";
  }

  /** The conversation of a session, opened if it was not. */
  conversation(session: number): Conversation {
    let found = this.#open.get(session);
    if (found === undefined) {
      found = new Conversation(session, this.channel, this.shelf);
    } else {
      this.#open.delete(session);
    }
    this.#open.set(session, found);
    if (this.#open.size > MAX_OPEN) {
      const [oldest] = this.#open.keys();
      if (oldest !== undefined) this.#open.delete(oldest);
    }
    const conversation = found;
    void conversation.readShelf().then(async () => {
      await this.#caughtUp.opened;
      await conversation.load();
    });
    return conversation;
  }

  /** Calls back for each live row; returns how to stop. */
  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async refreshSessions(): Promise<void> {
    let sessions;
    // A row that came in meanwhile may be in the listing or not: then the listing is asked for again.
    for (let tries = 0; tries < 3; tries += 1) {
      const before = this.#changes;
      ({ sessions } = await this.channel.request("sessions.list", { include_closed: true }));
      if (before === this.#changes) break;
    }
    this.sessions = mergeListing(sessions ?? [], this.sessions, Date.now());
    this.sessionsKnown = true;
    this.#keepSessions();
  }

  async refreshPrompts(): Promise<void> {
    const mark = this.#prompts.mark();
    const [{ approvals }, { asks }] = await Promise.all([
      this.channel.request("approvals.list", {}),
      this.channel.request("asks.list", {}),
    ]);
    for (const { id, rules, place } of approvals) this.rules.set(id, { rules, place });
    this.#prompts.replace(approvals, asks, mark);
    this.prompts = this.#prompts.open;
  }

  /** Leaves this daemon: it ends this device, and keys and everything that was kept are removed. */
  async leave(why: "unpaired" | "words differ"): Promise<void> {
    const id = this.device?.id ?? "";
    const ended = await this.channel.forget();
    // Whoever has other words may be somebody between, whose word that the device ended is worth nothing.
    this.left = why === "words differ" || !ended ? { why, id } : null;
    await this.#reset();
  }

  /** Says what went wrong, where nothing better can be done with it. */
  report(error: unknown): void {
    this.toasts.tell(error instanceof Error ? error.message : String(error), "bad");
  }

  /** Runs something that may fail and says so if it does. */
  async attempt<T>(act: () => Promise<T>, done?: string): Promise<T | undefined> {
    try {
      const value = await act();
      if (done !== undefined) this.toasts.tell(done);
      return value;
    } catch (error) {
      this.report(error);
      return undefined;
    }
  }

  #connected(state: ConnectionState): void {
    const was = this.connection.kind;
    this.connection = state;
    this.device = this.channel.device;
    this.hello = this.channel.hello;
    if (state.kind === "unpaired") {
      if (state.reason === "revoked") void this.#reset();
      return;
    }
    this.left = null;
    if (state.kind !== "live" || was === "live") return;
    void this.outbox.restore();
    if (this.#following === null) void this.#follow();
    else this.#refresh();
  }

  /** Asks for the lists. The follow must be live, so that no row falls between it and them. */
  #refresh(): void {
    void this.attempt(() => this.refreshSessions());
    void this.attempt(() => this.refreshPrompts());
  }

  /** Reads the journal from now on. The channel takes it up again after a reconnect by itself. */
  async #follow(): Promise<void> {
    const abort = new AbortController();
    this.#following = abort;
    try {
      let live = false;
      const after = await this.#recent();
      for await (const item of this.channel.follow({ after }, { signal: abort.signal })) {
        if ("caughtUp" in item) {
          live = true;
          this.#caughtUp.open();
          this.#refresh();
          continue;
        }
        const row = asRow(item.row);
        if (row === null) continue;
        // The lists hold what history says already.
        if (live) this.#take(row);
        else this.#show(row);
      }
    } catch (error) {
      if (!abort.signal.aborted) this.report(error);
    } finally {
      if (this.#following === abort) this.#following = null;
    }
  }

  /** A number near the end of the journal: the newest row of the newest sessions. */
  async #recent(): Promise<number> {
    const { sessions } = await this.channel.request("sessions.list", { include_closed: true });
    const newest = sessions.toSorted((a, b) => b.id - a.id).slice(0, NEWEST);
    const active = sessions.filter(({ active }) => active);
    const pages = await Promise.all(
      [...newest, ...active].map(({ id }) =>
        this.channel.request("events.page", { session: id, limit: 1 }),
      ),
    );
    return Math.max(0, ...pages.flatMap(({ events }) => events.map(({ seq }) => seq)));
  }

  #take(row: Row): void {
    const sessions = applyToSessions(this.sessions, row);
    if (sessions !== this.sessions) {
      this.sessions = sessions;
      this.#changes += 1;
      this.#keepSessions();
    }
    if (this.#prompts.apply(row)) {
      this.prompts = this.#prompts.open;
      // The listing has what a row has not: the rule that would be written.
      if (row.kind === "approval_requested") void this.refreshPrompts().catch(() => undefined);
    }
    this.#show(row);
    if (row.kind === "message") {
      const id = row.data["id"];
      if (typeof id === "number") this.outbox.arrived(id);
    }
    for (const listener of this.#listeners) listener(row);
  }

  /** Gives a row to its conversation, if that is open. */
  #show(row: Row): void {
    if (row.session !== null) this.#open.get(row.session)?.ingest([row]);
  }

  #keepSessions(): void {
    if (this.#keeping !== null) return;
    this.#keeping = setTimeout(() => {
      this.#keeping = null;
      void this.shelf.keepSessions(this.sessions);
    }, 1000);
  }

  async #reset(): Promise<void> {
    this.#following?.abort();
    this.#following = null;
    this.#caughtUp = gate();
    if (this.#keeping !== null) clearTimeout(this.#keeping);
    this.#keeping = null;
    for (const conversation of this.#open.values()) conversation.leave();
    this.#open.clear();
    this.#prompts.clear();
    this.prompts = [];
    this.sessions = [];
    this.sessionsKnown = false;
    this.outbox.clear();
    this.router.replace({ page: "home" });
    try {
      await this.shelf.clear();
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.report(
        `What this browser kept could not be removed; remove this site's data in its settings. (${why})`,
      );
    }
  }
}

/** Something to wait for, which somebody else opens. */
function gate(): { opened: Promise<void>; open: () => void } {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}
