/** Conversations and lists on the shelf of this browser, for reading without the daemon. */

import { asRow, isObject, type Row } from "../model/rows";
import { asSession, type Session } from "../model/sessions";
import type { Vault } from "./vault";

/** Conversations that are kept; the ones read longest ago go first. */
const MAX_CONVERSATIONS = 60;
/** Rows of one conversation that are kept: the newest. */
export const MAX_ROWS = 3000;

export interface Unsent {
  key: string;
  session: number;
  content: string;
  mode: "queue" | "steer";
}

export class Shelf {
  #vault: Vault | null;
  /** Counts the times that everything was removed: what began before that is not gone on with. */
  #cleared = 0;

  constructor(vault: Vault | null) {
    this.#vault = vault;
  }

  get keeps(): boolean {
    return this.#vault !== null;
  }

  async sessions(): Promise<Session[]> {
    const value = await this.#vault?.get("sessions");
    return Array.isArray(value)
      ? (value as Session[]).filter((session) => asSession(session) !== null)
      : [];
  }

  async keepSessions(sessions: readonly Session[]): Promise<void> {
    await this.#put("sessions", sessions);
  }

  async rows(session: number): Promise<Row[]> {
    const value = await this.#vault?.get(`rows/${session}`);
    return Array.isArray(value) ? value.map(asRow).filter((row) => row !== null) : [];
  }

  async keepRows(session: number, rows: readonly Row[]): Promise<void> {
    if (this.#vault === null || rows.length === 0) return;
    const cleared = this.#cleared;
    await this.#put(`rows/${session}`, rows.slice(-MAX_ROWS));
    const kept = (await this.#recent()).filter((id) => id !== session);
    if (cleared !== this.#cleared) return;
    kept.unshift(session);
    for (const old of kept.splice(MAX_CONVERSATIONS)) await this.#vault.delete(`rows/${old}`);
    await this.#put("recent", kept);
  }

  async unsent(): Promise<Unsent[]> {
    const value = await this.#vault?.get("unsent");
    return Array.isArray(value) ? value.filter((item): item is Unsent => isObject(item)) : [];
  }

  async keepUnsent(unsent: readonly Unsent[]): Promise<void> {
    await this.#put("unsent", unsent);
  }

  async clear(): Promise<void> {
    this.#cleared += 1;
    await this.#vault?.clear();
  }

  async #recent(): Promise<number[]> {
    const value = await this.#vault?.get("recent");
    return Array.isArray(value) ? value.filter((id) => typeof id === "number") : [];
  }

  /** A full disk must not disturb the conversation: it is then only not kept. */
  async #put(name: string, value: unknown): Promise<void> {
    try {
      await this.#vault?.put(name, value);
    } catch {
      await this.#vault?.delete(name).catch(() => undefined);
    }
  }
}
