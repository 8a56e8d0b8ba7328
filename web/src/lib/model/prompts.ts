/** What waits for the person, over all sessions: questions and approvals. Pure. */

import { asQuestions, isObject, number, text, type Question, type Row } from "./rows";

export interface ApprovalPrompt {
  type: "approval";
  id: number;
  session: number;
  action: string;
  command: string;
  cwd: string;
  worker: string;
  reason: string;
  at: string;
}

export interface AskPrompt {
  type: "ask";
  id: number;
  session: number;
  questions: Question[];
  at: string;
}

export type Prompt = ApprovalPrompt | AskPrompt;

export function promptKey(prompt: Prompt): string {
  return `${prompt.type}-${prompt.id}`;
}

/** What the person turned to, and the session that was in view then (null: none). */
export interface Chosen {
  key: string;
  session: number | null;
}

/**
 * Which of the open prompts the card shows: the one chosen here, else that of the session in view,
 * else the oldest. A choice ends when the person goes elsewhere.
 */
export function shownAt(
  prompts: readonly Prompt[],
  chosen: Chosen | null,
  session: number | null,
): number {
  const kept = chosen?.session === session ? chosen.key : "";
  const picked = prompts.findIndex((prompt) => promptKey(prompt) === kept);
  if (picked !== -1) return picked;
  return Math.max(
    0,
    prompts.findIndex((prompt) => prompt.session === session),
  );
}

/** The open prompts, oldest first. */
export class Prompts {
  #open = new Map<string, Prompt>();
  /** Those that are over: a listing that was on its way must not open them again. */
  #over = new Set<string>();

  get open(): Prompt[] {
    return [...this.#open.values()].toSorted((a, b) => a.at.localeCompare(b.at) || a.id - b.id);
  }

  /** Takes a row in; true when the open prompts changed. */
  apply(row: Row): boolean {
    if (row.session === null) return false;
    switch (row.kind) {
      case "approval_requested": {
        const prompt = approvalOf(
          { ...row.data, id: row.data["approval"], at: row.at },
          row.session,
        );
        return prompt !== null && this.#enter(prompt);
      }
      case "ask_user": {
        const prompt = askOf({ ...row.data, id: row.data["ask"], at: row.at }, row.session);
        return prompt !== null && this.#enter(prompt);
      }
      case "approval_answered":
      case "approval_withdrawn":
        return this.#end(`approval-${number(row.data, "approval") ?? ""}`);
      case "ask_answered":
      case "ask_withdrawn":
        return this.#end(`ask-${number(row.data, "ask") ?? ""}`);
      default:
        return false;
    }
  }

  /** What is open now; {@link replace} wants to know it from before the listings were asked for. */
  mark(): ReadonlySet<string> {
    return new Set(this.#open.keys());
  }

  /**
   * Takes the daemon's listings in: of what was open when they were asked for, what they do not name
   * is over. What a row opened since stays.
   */
  replace(approvals: unknown, asks: unknown, mark: ReadonlySet<string>): void {
    const listed = [
      ...list(approvals).map((item) => approvalOf(item, number(item, "session") ?? 0)),
      ...list(asks).map((item) => askOf(item, number(item, "session") ?? 0)),
    ].filter((prompt) => prompt !== null);
    const named = new Set(listed.map(promptKey));
    for (const key of mark) if (!named.has(key)) this.#end(key);
    for (const prompt of listed) this.#enter(prompt);
  }

  clear(): void {
    this.#open.clear();
    this.#over.clear();
  }

  #enter(prompt: Prompt): boolean {
    const key = promptKey(prompt);
    if (this.#over.has(key) || this.#open.has(key)) return false;
    this.#open.set(key, prompt);
    return true;
  }

  #end(key: string): boolean {
    this.#over.add(key);
    return this.#open.delete(key);
  }
}

function list(value: unknown): Record<string, unknown>[] {
  return Array.isArray(value) ? value.filter(isObject) : [];
}

function approvalOf(data: Record<string, unknown>, session: number): ApprovalPrompt | null {
  const id = number(data, "id");
  if (id === null) return null;
  return {
    type: "approval",
    id,
    session,
    action: text(data, "action"),
    command: text(data, "command"),
    cwd: text(data, "cwd"),
    worker: text(data, "worker"),
    reason: text(data, "reason"),
    at: text(data, "at"),
  };
}

function askOf(data: Record<string, unknown>, session: number): AskPrompt | null {
  const id = number(data, "id");
  if (id === null) return null;
  return {
    type: "ask",
    id,
    session,
    questions: asQuestions(data["questions"]),
    at: text(data, "at"),
  };
}
