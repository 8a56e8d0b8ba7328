/** What a conversation is made of on the screen. A block that changes is replaced, never mutated. */

import type { Question } from "./rows";

interface Base {
  /** Stable while the rows that made it stay the first of it. */
  id: string;
  /** When its first row was written. */
  at: string;
}

export interface Said extends Base {
  kind: "said";
  message: number;
  sender: string;
  text: string;
  /** Whether the text is only its beginning. */
  cut: boolean;
  state: "waiting" | "heard" | "removed";
}

export interface Steer extends Base {
  kind: "steer";
  text: string;
  by: string;
}

export interface Answer extends Base {
  kind: "answer";
  message: string;
  text: string;
  streaming: boolean;
}

export interface Thinking extends Base {
  kind: "thinking";
  text: string;
  /** Time of the last row of it. */
  until: string;
  streaming: boolean;
}

export type ToolState = "running" | "done" | "failed" | "abandoned";

export interface Tool extends Base {
  kind: "tool";
  callId: string;
  name: string;
  args: Record<string, unknown>;
  state: ToolState;
  /** What it printed while it ran. */
  live: string;
  output: string;
  millis: number | null;
}

export interface Terminal extends Base {
  kind: "terminal";
  text: string;
}

export interface Code extends Base {
  kind: "code";
  language: string;
  code: string;
}

export interface FileChange extends Base {
  kind: "file";
  path: string;
  change: string;
  diff: string;
}

export interface Command extends Base {
  kind: "command";
  worker: string;
  command: string;
  cwd: string;
  state: "done" | "failed";
  exitCode: number | null;
  /** How it ended, where it did not exit by itself. */
  ended: string;
  millis: number | null;
  /** The range of file sequence numbers that it wrote, where it wrote any. */
  range: [number, number] | null;
  paths: string[];
}

export interface Ask extends Base {
  kind: "ask";
  ask: number;
  questions: Question[];
  state: "open" | "answered" | "withdrawn";
  answer: string;
  by: string;
}

export interface Approval extends Base {
  kind: "approval";
  approval: number | null;
  action: string;
  command: string;
  cwd: string;
  worker: string;
  reason: string;
  state: "open" | "approved" | "denied" | "withdrawn";
  scope: string;
  note: string;
  by: string;
}

export interface TurnEnd extends Base {
  kind: "end";
  finish: string;
  error: string;
  retryable: boolean;
  inputTokens: number;
  outputTokens: number;
  cost: string;
  millis: number | null;
  /** Whether no later turn has begun, so that a retry means this one. */
  last: boolean;
}

export interface Compacted extends Base {
  kind: "compacted";
  compaction: number | null;
  summary: string;
  undone: boolean;
}

export interface Note extends Base {
  kind: "note";
  text: string;
  tone: "plain" | "bad";
}

export type Block =
  | Said
  | Steer
  | Answer
  | Thinking
  | Tool
  | Terminal
  | Code
  | FileChange
  | Command
  | Ask
  | Approval
  | TurnEnd
  | Compacted
  | Note;
