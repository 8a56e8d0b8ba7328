/**
 * What the coordinator sends, as types, and the parts of what an agent sends.
 *
 * Unknown fields are ignored. A known field of a wrong type is a
 * {@link ProtocolError} that names it.
 */

import { ProtocolError } from "./errors.js";
import type { JsonObject } from "./frames.js";

/** Why a turn ended. */
export type FinishReason = "end_turn" | "max_tokens" | "cancelled" | "error" | "budget";

export const FINISH_REASONS: readonly string[] = ["end_turn", "max_tokens", "cancelled", "error", "budget"];

/** The first message: who this agent is and what it knew. */
export interface Init {
  agentId: string;
  agentType: string;
  workspace: string;
  config: JsonObject;
  state: JsonObject | null;
}

/** Where a message came from. */
export interface Origin {
  tenantId: string | undefined;
  role: string | undefined;
  channel: string | undefined;
}

/** One message to be worked on. */
export interface Message {
  id: string;
  text: string;
  role: string;
  attachments: unknown[];
  origin: Origin;
  /** The whole `data` object, with fields that this package does not know. */
  data: JsonObject;
}

/** Something to ask the person; without options the answer is free text. */
export interface Question {
  question: string;
  header?: string;
  options?: { label: string; description?: string }[];
  multiSelect?: boolean;
}

/** What came of a question: for each one the chosen labels, or the text. */
export type AskOutcome = { status: "answered"; answers: string[][] } | { status: "withdrawn"; reason: string };

/** What is asked leave for. */
export interface ApprovalRequest {
  action: string;
  command?: string;
  cwd?: string;
  reason?: string;
}

/** The answer to an approval request. */
export interface Approval {
  approved: boolean;
  reason: string | undefined;
  by: string | undefined;
  /** How far it reaches: `once`, `session`, .. */
  scope: string | undefined;
}

export function parseInit(raw: JsonObject): Init {
  const state = raw["state"] ?? null;
  if (typeof state !== "object" || Array.isArray(state)) {
    throw new ProtocolError(`init.state is ${kindOf(state)}; an agent of this package keeps an object`);
  }
  return {
    agentId: text(raw, "agent_id", "init"),
    agentType: text(raw, "agent_type", "init"),
    workspace: text(raw, "workspace", "init"),
    config: optionalObject(raw, "config", "init") ?? {},
    state: state as JsonObject | null,
  };
}

export function parseMessage(raw: JsonObject): Message {
  const data = object(raw, "data", "message");
  const origin = optionalObject(raw, "origin", "message") ?? {};
  const attachments = data["attachments"] ?? [];
  if (!Array.isArray(attachments)) throw wrong("message.data", "attachments", attachments, "an array");
  return {
    id: text(raw, "id", "message"),
    text: text(data, "text", "message.data"),
    role: optionalText(data, "role", "message.data") ?? "user",
    attachments,
    origin: {
      tenantId: optionalText(origin, "tenant_id", "message.origin"),
      role: optionalText(origin, "role", "message.origin"),
      channel: optionalText(origin, "channel", "message.origin"),
    },
    data,
  };
}

export function parseSteer(raw: JsonObject): string {
  return text(raw, "content", "steer");
}

export function parseConfigUpdate(raw: JsonObject): { changes: JsonObject; source: string | undefined } {
  return {
    changes: object(raw, "changes", "config_update"),
    source: optionalText(raw, "source", "config_update"),
  };
}

export function parseShutdown(raw: JsonObject): string {
  return text(raw, "reason", "shutdown");
}

export function parseCancel(raw: JsonObject): string {
  return text(raw, "message_id", "cancel");
}

export function parseAskResult(raw: JsonObject): { id: string; outcome: AskOutcome } {
  const id = text(raw, "ask_id", "ask_result");
  const outcome = object(raw, "outcome", "ask_result");
  const status = text(outcome, "status", "ask_result.outcome");
  switch (status) {
    case "answered": {
      const answers = outcome["answers"];
      if (!isAnswers(answers)) throw wrong("ask_result.outcome", "answers", answers, "an array of arrays of strings");
      return { id, outcome: { status, answers } };
    }
    case "withdrawn":
      return { id, outcome: { status, reason: text(outcome, "reason", "ask_result.outcome") } };
    default:
      throw new ProtocolError(`ask_result.outcome.status is "${status}", neither "answered" nor "withdrawn"`);
  }
}

export function parseApprovalResult(raw: JsonObject): { id: string; outcome: Approval } {
  const where = "approval_result";
  const approved = raw["approved"];
  if (typeof approved !== "boolean") throw wrong(where, "approved", approved, "a boolean");
  return {
    id: text(raw, "request_id", where),
    outcome: {
      approved,
      reason: optionalText(raw, "reason", where),
      by: optionalText(raw, "by", where),
      scope: optionalText(raw, "scope", where),
    },
  };
}

function isAnswers(value: unknown): value is string[][] {
  return (
    Array.isArray(value) && value.every((each) => Array.isArray(each) && each.every((item) => typeof item === "string"))
  );
}

function text(raw: JsonObject, key: string, where: string): string {
  const value = raw[key];
  if (typeof value !== "string") throw wrong(where, key, value, "a string");
  return value;
}

function optionalText(raw: JsonObject, key: string, where: string): string | undefined {
  return raw[key] === undefined || raw[key] === null ? undefined : text(raw, key, where);
}

function object(raw: JsonObject, key: string, where: string): JsonObject {
  const value = raw[key];
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw wrong(where, key, value, "an object");
  return value as JsonObject;
}

function optionalObject(raw: JsonObject, key: string, where: string): JsonObject | undefined {
  return raw[key] === undefined || raw[key] === null ? undefined : object(raw, key, where);
}

function wrong(where: string, key: string, value: unknown, want: string): ProtocolError {
  return new ProtocolError(`${where}.${key} is ${kindOf(value)}, not ${want}`);
}

function kindOf(value: unknown): string {
  if (value === undefined) return "missing";
  if (value === null) return "null";
  return Array.isArray(value) ? "an array" : typeof value;
}
