/** What a message handler talks through. */

import { randomUUID } from "node:crypto";
import { addAmounts, checkAmount } from "./decimal.js";
import { brief, Cancelled } from "./errors.js";
import type { JsonObject } from "./frames.js";
import type { Approval, ApprovalRequest, AskOutcome, Message, Question } from "./messages.js";

/** Steers kept for a handler that does not read them; the oldest goes first. */
export const STEER_LIMIT = 256;

/** What a context needs of its connection. */
export interface Wire {
  send(message: JsonObject): Promise<void>;
  request(id: string, message: JsonObject, signal: AbortSignal): Promise<unknown>;
  flushState(): void;
  drain(): Promise<void>;
}

/**
 * One turn: the message that is worked on and the ways to answer it.
 *
 * Each method that sends may wait: when the coordinator reads slowly, the
 * handler is slowed down instead of filling memory. After a cancel they throw
 * {@link Cancelled}.
 */
export class Context {
  /** The message that is worked on. */
  readonly message: Message;
  /** The id under which this turn's output goes out. */
  readonly messageId = mint("msg_out");
  /** Guidance that arrives during the turn: `for await (const text of ctx.steered)`. */
  readonly steered = new Steers();
  /** Aborted when the turn is cancelled; pass it to what the handler waits for. */
  readonly signal: AbortSignal;

  readonly #wire: Wire;
  #usage: { input_tokens: number; output_tokens: number; cost: string } | undefined;

  constructor(wire: Wire, message: Message, signal: AbortSignal) {
    this.#wire = wire;
    this.message = message;
    this.signal = signal;
  }

  /** Streams the next piece of the answer. */
  text(delta: string): Promise<void> {
    return this.element("text_delta", { text: delta });
  }

  /** States the whole text of the answer. */
  final(text: string): Promise<void> {
    return this.element("text_final", { text });
  }

  /** Streams a piece of reasoning. */
  thinking(text: string): Promise<void> {
    return this.element("thinking", { text });
  }

  /** Shows a block of code. */
  code(language: string, code: string): Promise<void> {
    return this.element("code_block", { language, code });
  }

  /** Reports a file that the agent changed. */
  fileChange(path: string, change: "created" | "modified" | "deleted", diff?: string): Promise<void> {
    return this.element("file_change", { path, change, ...(diff !== undefined && { diff }) });
  }

  /** Streams the output of a command. */
  terminal(data: string, stream: "stdout" | "stderr" = "stdout"): Promise<void> {
    return this.element("terminal_output", { stream, data });
  }

  /**
   * Reports a tool call around a function, with its duration and its error.
   *
   * What the function returns is the tool's output; what it throws is thrown on.
   */
  async tool<T>(name: string, args: JsonObject, run: () => T | Promise<T>): Promise<T> {
    const call_id = mint("call");
    await this.element("tool_call", { call_id, name, arguments: args });
    const started = performance.now();
    const result = (output: unknown, is_error: boolean) =>
      // Also after a cancel: a call that was begun has an end.
      this.#update("tool_result", {
        call_id,
        output: output ?? "",
        is_error,
        duration_ms: Math.trunc(performance.now() - started),
      });
    let output: T;
    try {
      output = await run();
    } catch (error) {
      await result(this.signal.aborted ? "cancelled" : brief(error), true);
      throw error;
    }
    await result(output, false);
    return output;
  }

  /** Streams an element of any type, also one that this package does not know. */
  async element(type: string, fields: JsonObject): Promise<void> {
    if (this.signal.aborted) throw new Cancelled();
    await this.#update(type, fields);
  }

  /**
   * Adds to what this turn has used and reports it, so that a budget can end the turn here.
   *
   * Call it after each model call; the sum is also sent when the turn completes.
   *
   * The cost is a decimal in a string, never a number.
   */
  async usage(inputTokens: number, outputTokens: number, cost = "0"): Promise<void> {
    const before = this.#usage ?? { input_tokens: 0, output_tokens: 0, cost: "0" };
    this.#usage = {
      input_tokens: before.input_tokens + inputTokens,
      output_tokens: before.output_tokens + outputTokens,
      cost: addAmounts(before.cost, checkAmount(cost)),
    };
    await this.#wire.send({ type: "usage", token_usage: this.#usage });
  }

  /** Asks the person and waits for the answer, however long it takes. */
  async askUser(questions: (Question | string)[]): Promise<AskOutcome> {
    if (questions.length === 0) throw new TypeError("askUser needs a question");
    const ask_id = mint("ask");
    const wire = { type: "ask_user", ask_id, questions: questions.map(toWire) };
    return (await this.#request(ask_id, wire)) as AskOutcome;
  }

  /** Asks whether an action may be done and waits for the answer. */
  async approve(request: ApprovalRequest): Promise<Approval> {
    const { action, command, cwd, reason } = request;
    const request_id = mint("apr");
    const wire = {
      type: "approval_request",
      request_id,
      action,
      ...(command !== undefined && { command }),
      ...(cwd !== undefined && { cwd }),
      ...(reason !== undefined && { reason }),
    };
    return (await this.#request(request_id, wire)) as Approval;
  }

  /** Sends the state's changes now and waits until they are written. */
  async save(): Promise<void> {
    this.#wire.flushState();
    await this.#wire.drain();
  }

  /** What `complete` says of this turn; for the session. */
  tokenUsage(): JsonObject | undefined {
    return this.#usage;
  }

  #update(type: string, fields: JsonObject): Promise<void> {
    return this.#wire.send({ type: "stream_update", message_id: this.messageId, element: { type, ...fields } });
  }

  async #request(id: string, wire: JsonObject): Promise<unknown> {
    if (this.signal.aborted) throw new Cancelled();
    return this.#wire.request(id, wire, this.signal);
  }
}

/** Steers in the order of their arrival; iteration ends with the turn. */
export class Steers implements AsyncIterableIterator<string> {
  #waiting: string[] = [];
  #readers: ((result: IteratorResult<string>) => void)[] = [];
  #ended = false;

  /** Returns what has arrived so far, without waiting. */
  take(): string[] {
    return this.#waiting.splice(0);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<string>> {
    const value = this.#waiting.shift();
    if (value !== undefined) return Promise.resolve({ done: false, value });
    if (this.#ended) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve) => this.#readers.push(resolve));
  }

  /** Adds a steer; for the session. */
  put(value: string): void {
    const reader = this.#readers.shift();
    if (reader !== undefined) {
      reader({ done: false, value });
      return;
    }
    this.#waiting.push(value);
    if (this.#waiting.length > STEER_LIMIT) this.#waiting.shift();
  }

  /** Ends the iteration; for the session. */
  end(): void {
    this.#ended = true;
    for (const reader of this.#readers.splice(0)) reader({ done: true, value: undefined });
  }
}

function toWire(question: Question | string): JsonObject {
  const { question: text, header = "", options = [], multiSelect = false } =
    typeof question === "string" ? { question } : question;
  return {
    question: text,
    header,
    options: options.map(({ label, description = "" }) => ({ label, description })),
    multi_select: multiSelect,
  };
}

function mint(kind: string): string {
  return `${kind}_${randomUUID().replaceAll("-", "")}`;
}
