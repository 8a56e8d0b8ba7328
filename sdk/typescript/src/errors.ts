/** The base of every error of this package. */
export class AgentError extends Error {
  override name = "AgentError";
}

/** Bytes that are not a frame, or a message too large to be one. */
export class FrameError extends AgentError {
  override name = "FrameError";
}

/** A known message with a wrong shape, or one that cannot come now. */
export class ProtocolError extends AgentError {
  override name = "ProtocolError";
}

/** The coordinator closed the connection without a `shutdown`. */
export class ConnectionLost extends AgentError {
  override name = "ConnectionLost";
}

/** A use of the state that cannot become a patch. */
export class StateError extends AgentError {
  override name = "StateError";
}

/** The turn was cancelled; thrown by the context's methods from then on. */
export class Cancelled extends AgentError {
  override name = "Cancelled";

  constructor() {
    super("the turn was cancelled");
  }
}

/** Returns an error in one line, for a person. */
export function brief(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error);
}
