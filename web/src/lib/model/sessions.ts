/** The list of sessions, kept current by journal rows. Pure. */

import { bool, isObject, number, text, type Row } from "./rows";

export interface Session {
  id: number;
  agent: string;
  title: string;
  createdBy: string;
  messages: number;
  queued: number;
  active: boolean;
  closed: boolean;
  workspace: string;
  worker: string;
  cost: string;
  /** RFC 3339 of the newest thing known of it, empty when unknown. */
  lastAt: string;
}

/** `now` in milliseconds: a listing says how old a session is, not when it was made. */
export function asSession(value: unknown, now = 0): Session | null {
  if (!isObject(value)) return null;
  const id = number(value, "id");
  if (id === null) return null;
  return {
    id,
    agent: text(value, "agent"),
    title: text(value, "title"),
    createdBy: text(value, "created_by"),
    messages: number(value, "messages") ?? 0,
    queued: number(value, "queued") ?? 0,
    active: bool(value, "active"),
    closed: bool(value, "closed"),
    workspace: text(value, "workspace"),
    worker: text(value, "worker"),
    cost: text(value, "cost"),
    lastAt: text(value, "last_at") || born(number(value, "alive_secs"), now),
  };
}

function born(age: number | null, now: number): string {
  return age === null || now === 0 ? "" : new Date(now - age * 1000).toISOString();
}

/** A listing, with what is known better from rows: when a session was last used. */
export function mergeListing(
  listed: readonly unknown[],
  known: readonly Session[],
  now: number,
): Session[] {
  const before = new Map(known.map((session) => [session.id, session.lastAt]));
  return listed
    .map((item) => asSession(item, now))
    .filter((session) => session !== null)
    .map((session) => {
      const seen = before.get(session.id) ?? "";
      return seen > session.lastAt ? { ...session, lastAt: seen } : session;
    });
}

/** Rows that change when a session was last used, as a person sees it. */
const NEWS = new Set([
  "session_created",
  "message",
  "turn_started",
  "turn_ended",
  "ask_user",
  "approval_requested",
]);

/** The sessions after a row; the same array when nothing in them changed. */
export function applyToSessions(sessions: readonly Session[], row: Row): readonly Session[] {
  if (row.session === null) return sessions;
  const index = sessions.findIndex(({ id }) => id === row.session);
  const found = sessions[index];
  if (found === undefined) {
    return row.kind === "session_created" ? [...sessions, created(row, row.session)] : sessions;
  }
  const changed = change(found, row);
  if (changed === found) return sessions;
  return sessions.with(index, changed);
}

function created(row: Row, id: number): Session {
  return {
    id,
    agent: text(row.data, "agent"),
    title: "",
    createdBy: text(row.data, "sender"),
    messages: 0,
    queued: 0,
    active: false,
    closed: false,
    workspace: text(row.data, "workspace"),
    worker: text(row.data, "worker"),
    cost: "",
    lastAt: row.at,
  };
}

function change(session: Session, row: Row): Session {
  const lastAt = NEWS.has(row.kind) && row.at > session.lastAt ? row.at : session.lastAt;
  switch (row.kind) {
    case "session_titled":
      return { ...session, title: text(row.data, "title") };
    case "session_closed":
      return { ...session, closed: true, active: false, queued: 0 };
    case "message":
      if (text(row.data, "purpose") === "compaction") return session;
      return { ...session, messages: session.messages + 1, queued: session.queued + 1, lastAt };
    case "message_removed":
      return { ...session, queued: Math.max(0, session.queued - 1) };
    case "turn_started":
      return { ...session, active: true, queued: Math.max(0, session.queued - 1), lastAt };
    case "turn_ended":
      return { ...session, active: false, lastAt };
    default:
      return lastAt === session.lastAt ? session : { ...session, lastAt };
  }
}

/** Sessions that match every word of a search, newest first. */
export function searchSessions(sessions: readonly Session[], query: string): Session[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return sessions
    .filter((session) => {
      const hay = `${session.title} ${session.agent} ${session.workspace} ${session.worker} #${session.id}`;
      const lower = hay.toLowerCase();
      return words.every((word) => lower.includes(word));
    })
    .toSorted((a, b) => b.lastAt.localeCompare(a.lastAt) || b.id - a.id);
}

export function titleOf(session: Pick<Session, "id" | "title">): string {
  return session.title || `Session ${session.id}`;
}
