/**
 * Write a Quintet agent in TypeScript.
 *
 * An agent is a process that the coordinator starts. It connects to the Unix
 * socket named in `QUINTET_IPC_SOCKET`, gets `init` with its state, then one
 * `message` at a time, and streams elements back until it says `complete`.
 * Start with {@link Agent}; {@link Context} is what a handler talks through.
 *
 * @module
 */

export { Agent, type AgentOptions, type MessageHandler } from "./agent.js";
export { Context, Steers } from "./context.js";
export { AgentError, Cancelled, ConnectionLost, FrameError, ProtocolError, StateError } from "./errors.js";
export { MAX_FRAME, type JsonObject } from "./frames.js";
export { Logger } from "./logs.js";
export type { Approval, ApprovalRequest, AskOutcome, FinishReason, Message, Origin, Question } from "./messages.js";
export { plain } from "./state.js";
