/**
 * One connection to the coordinator, from `init` to the end.
 *
 * What arrives is dispatched at once and never waits for a handler, so that a
 * `cancel` is always read. Turns run one after the other; callbacks run in the
 * order of their messages.
 */

import type { Socket } from "node:net";
import { Context, STEER_LIMIT, type Wire } from "./context.js";
import { Deferred } from "./deferred.js";
import { AgentError, brief, Cancelled, ConnectionLost, FrameError, ProtocolError } from "./errors.js";
import { encodeFrame, FrameDecoder, type JsonObject } from "./frames.js";
import type { Logger, LogSink } from "./logs.js";
import {
  FINISH_REASONS,
  parseApprovalResult,
  parseAskResult,
  parseCancel,
  parseConfigUpdate,
  parseInit,
  parseMessage,
  parseShutdown,
  parseSteer,
  type FinishReason,
  type Init,
  type Message,
} from "./messages.js";
import { Outbox } from "./outbox.js";
import { Recorder } from "./state.js";

/** The coordinator sends one message at a time; more than this waiting is a fault. */
const MESSAGE_LIMIT = 64;
/** Callbacks waiting for a slow one; beyond it the socket is not read. */
const CALLBACK_LIMIT = 256;
/** Unknown types named in the log, each once; beyond it they go unnamed. */
const UNKNOWN_LIMIT = 64;
/** Bytes on their way out beyond which log entries are dropped and counted. */
const LOG_BACKLOG = 1024 * 1024;
/** How long a handler may take to notice that it was cancelled. */
const ABANDON_MS = 1000;

/** What an agent is, as a session sees it. */
export interface Host {
  readonly shutdownGraceMs: number;
  readonly initialState: JsonObject;
  readonly log: Logger;
  readonly logSink: LogSink;
  begin(init: Init, recorder: Recorder): void;
  handle(context: Context, message: Message): Promise<FinishReason | void>;
  mergeConfig(changes: JsonObject): void;
  started(): Iterable<() => unknown>;
  steered(content: string): Iterable<() => unknown>;
  configured(changes: JsonObject, source: string | undefined): Iterable<() => unknown>;
  stopping(reason: string): Iterable<() => unknown>;
}

interface Turn {
  context: Context;
  abort: AbortController;
  over: Promise<void>;
}

export class Session implements Wire {
  readonly #host: Host;
  readonly #socket: Socket;
  readonly #outbox: Outbox;
  readonly #decoder = new FrameDecoder();
  readonly #stop = new Deferred<string>();
  readonly #waiting = new Map<string, (outcome: unknown) => void>();
  readonly #unknown = new Set<string>();
  #recorder: Recorder | undefined;
  #messages: Message[] = [];
  #turn: Turn | undefined;
  #lateSteers: string[] = [];
  #callbacks: (() => unknown)[] = [];
  #callingBack = false;
  #stopped = false;
  #fatal: AgentError | undefined;
  #droppedLogs = 0;

  constructor(host: Host, socket: Socket) {
    this.#host = host;
    this.#socket = socket;
    this.#outbox = new Outbox(socket);
  }

  /** Serves until a shutdown; throws when the connection fails first. */
  async run(): Promise<void> {
    this.#socket.on("data", (chunk: Buffer) => {
      this.#decoder.push(chunk);
      this.#guard(() => this.#readAll());
    });
    this.#socket.on("end", () =>
      this.#guard(() => {
        this.#decoder.finish();
        throw new ConnectionLost("the coordinator closed the connection without a shutdown");
      }),
    );
    this.#socket.on("error", (error) =>
      this.#fail(new ConnectionLost(`the connection to the coordinator failed: ${error.message}`)),
    );
    try {
      await this.#shutDown(await this.#stop.promise);
    } finally {
      this.#host.logSink.connect(undefined);
      await this.#outbox.close();
    }
    if (this.#fatal !== undefined) throw this.#fatal;
  }

  /** Begins the shutdown, once. */
  stop(reason: string): void {
    this.#stopped = true;
    this.#stop.resolve(reason);
  }

  // What a context uses.

  async send(message: JsonObject): Promise<void> {
    this.flushState();
    this.#outbox.push(encodeFrame(message));
    await this.#outbox.ready();
  }

  async request(id: string, message: JsonObject, signal: AbortSignal): Promise<unknown> {
    const answer = new Deferred<unknown>();
    const cancelled = () => answer.reject(new Cancelled());
    // The rejection may come while the request is still being sent.
    answer.promise.catch(() => undefined);
    this.#waiting.set(id, answer.resolve);
    signal.addEventListener("abort", cancelled);
    try {
      await this.send(message);
      return await answer.promise;
    } finally {
      signal.removeEventListener("abort", cancelled);
      this.#waiting.delete(id);
    }
  }

  drain(): Promise<void> {
    return this.#outbox.drain();
  }

  flushState(): void {
    const ops = this.#recorder?.take() ?? [];
    if (ops.length === 0) return;
    try {
      this.#outbox.push(encodeFrame({ type: "state_delta", deltas: ops }));
    } catch (error) {
      // The coordinator's copy can no longer follow this one: only a restart
      // from its copy makes them equal again.
      this.#fail(error as FrameError);
      throw error;
    }
  }

  // Reading.

  #readAll(): void {
    for (let raw = this.#decoder.next(); raw !== undefined; raw = this.#decoder.next()) this.#dispatch(raw);
  }

  #dispatch(raw: JsonObject): void {
    const kind = raw["type"];
    if (typeof kind !== "string") throw new ProtocolError("a message has no type");
    if (kind === "init") {
      this.#start(parseInit(raw));
      return;
    }
    if (kind === "shutdown") {
      this.stop(parseShutdown(raw));
      return;
    }
    const receive = this.#receivers[kind];
    if (receive === undefined) this.#ignore(kind);
    else if (this.#recorder === undefined) throw new ProtocolError(`a ${kind} came before init`);
    else receive(raw);
  }

  readonly #receivers: { [kind: string]: ((raw: JsonObject) => void) | undefined } = {
    __proto__: null as never,
    message: (raw) => {
      if (this.#messages.length >= MESSAGE_LIMIT) {
        throw new ProtocolError(`more than ${MESSAGE_LIMIT} messages are waiting`);
      }
      this.#messages.push(parseMessage(raw));
      this.#nextTurn();
    },
    steer: (raw) => this.#steer(parseSteer(raw)),
    config_update: (raw) => {
      const { changes, source } = parseConfigUpdate(raw);
      this.#host.mergeConfig(changes);
      this.#notify(this.#host.configured(changes, source));
    },
    cancel: (raw) => this.#cancel(parseCancel(raw)),
    ask_result: (raw) => this.#answer(parseAskResult(raw)),
    approval_result: (raw) => this.#answer(parseApprovalResult(raw)),
  };

  #start(init: Init): void {
    if (this.#recorder !== undefined) throw new ProtocolError("init came twice");
    this.#recorder = new Recorder(init.state, this.#host.initialState, () =>
      queueMicrotask(() => this.#guard(() => this.flushState())),
    );
    this.#host.begin(init, this.#recorder);
    this.#host.logSink.connect((entry) => this.#sendLog(entry));
    this.#notify(this.#host.started());
  }

  #steer(content: string): void {
    const callbacks = [...this.#host.steered(content)];
    if (this.#turn !== undefined) {
      this.#turn.context.steered.put(content);
    } else if (callbacks.length > 0) {
      // A steer may cross with the complete of its turn: it was seen, and the next turn gets it too.
      this.#lateSteers.push(content);
      if (this.#lateSteers.length > STEER_LIMIT) this.#lateSteers.shift();
    } else {
      void this.#giveBack([content]);
    }
    this.#notify(callbacks);
  }

  /** Guidance that nobody looked at becomes the session's next message. */
  async #giveBack(steers: string[]): Promise<void> {
    for (const content of steers) await this.send({ type: "steer_unread", content });
  }

  #cancel(messageId: string): void {
    // A cancel for a turn that is already over is no fault: it crossed with complete.
    const context = this.#turn?.context;
    if (context?.message.id === messageId || context?.messageId === messageId) this.#turn?.abort.abort(new Cancelled());
    else this.#messages = this.#messages.filter((message) => message.id !== messageId);
  }

  #answer({ id, outcome }: { id: string; outcome: unknown }): void {
    this.#waiting.get(id)?.(outcome);
  }

  #ignore(kind: string): void {
    if (this.#unknown.has(kind) || this.#unknown.size >= UNKNOWN_LIMIT) return;
    this.#unknown.add(kind);
    this.#host.log.warn(`ignored a message of unknown type ${JSON.stringify(kind)}`);
  }

  // Turns.

  #nextTurn(): void {
    if (this.#turn !== undefined || this.#stopped) return;
    const message = this.#messages.shift();
    if (message === undefined) return;
    const abort = new AbortController();
    const context = new Context(this, message, abort.signal);
    for (const content of this.#lateSteers.splice(0)) context.steered.put(content);
    abort.signal.addEventListener("abort", () => context.steered.end());
    const over = this.#runTurn(context, message, abort.signal).catch((error: unknown) => {
      this.#fail(error instanceof AgentError ? error : new AgentError(`the turn could not be ended: ${String(error)}`));
    });
    this.#turn = { context, abort, over };
  }

  async #runTurn(context: Context, message: Message, signal: AbortSignal): Promise<void> {
    const finish_reason = await this.#finishReason(context, message, signal);
    context.steered.end();
    this.#turn = undefined;
    const token_usage = context.tokenUsage();
    if (this.#fatal === undefined) {
      // Who cancels does not want what was asked for before either; callbacks have seen it.
      const seen = finish_reason === "cancelled" || [...this.#host.steered("")].length > 0;
      if (!seen) await this.#giveBack(context.steered.take());
      await this.send({
        type: "complete",
        message_id: context.messageId,
        finish_reason,
        ...(token_usage !== undefined && { token_usage }),
      });
    }
    this.#nextTurn();
  }

  async #finishReason(context: Context, message: Message, signal: AbortSignal): Promise<string> {
    const abandoned = abandonment(signal);
    try {
      const result = await Promise.race([this.#host.handle(context, message), abandoned.promise]);
      if (signal.aborted) return "cancelled";
      if (result === undefined || FINISH_REASONS.includes(result)) return result ?? "end_turn";
      throw new AgentError(`the message handler returned ${JSON.stringify(result)}, which is no finish reason`);
    } catch (error) {
      if (signal.aborted) return "cancelled";
      this.#host.log.error(`the message handler failed: ${explain(error)}`);
      // A turn that ends with an error has said which.
      if (this.#fatal === undefined) await context.text(brief(error));
      return "error";
    } finally {
      abandoned.forget();
    }
  }

  // Callbacks and logs.

  #notify(callbacks: Iterable<() => unknown>): void {
    this.#callbacks.push(...callbacks);
    if (this.#callbacks.length > CALLBACK_LIMIT) this.#socket.pause();
    if (!this.#callingBack) void this.#callBack();
  }

  async #callBack(): Promise<void> {
    this.#callingBack = true;
    for (let next = this.#callbacks.shift(); next !== undefined; next = this.#callbacks.shift()) {
      await this.#runCallback(next);
      if (this.#callbacks.length <= CALLBACK_LIMIT) this.#socket.resume();
    }
    this.#callingBack = false;
  }

  async #runCallback(callback: () => unknown): Promise<void> {
    try {
      await callback();
    } catch (error) {
      this.#host.log.error(`a callback failed: ${explain(error)}`);
    }
  }

  #sendLog(entry: JsonObject): void {
    if (this.#outbox.backlog > LOG_BACKLOG) {
      this.#droppedLogs += 1;
      return;
    }
    const dropped = this.#droppedLogs === 0 ? "" : `(${this.#droppedLogs} log entries were dropped) `;
    this.#droppedLogs = 0;
    try {
      this.#outbox.push(encodeFrame({ ...entry, message: `${dropped}${String(entry["message"])}` }));
    } catch {
      this.#droppedLogs += 1;
    }
  }

  // The end.

  /** Runs what may find the peer at fault, which ends the session. */
  #guard(run: () => void): void {
    try {
      run();
    } catch (error) {
      this.#fail(error instanceof AgentError ? error : new AgentError(explain(error)));
    }
  }

  #fail(error: AgentError): void {
    if (!this.#stopped) this.#fatal ??= error;
    this.#turn?.abort.abort(new Cancelled());
    this.stop("failed");
  }

  async #shutDown(reason: string): Promise<void> {
    this.#messages = [];
    const grace = this.#host.shutdownGraceMs;
    const farewell = (async () => {
      for (const callback of this.#host.stopping(reason)) await this.#runCallback(callback);
    })();
    const turn = this.#turn;
    if (turn !== undefined) {
      await within(this.#fatal === undefined ? grace : 0, turn.over);
      turn.abort.abort(new Cancelled());
    }
    await within(grace, Promise.all([farewell, turn?.over]));
    if (this.#fatal === undefined) this.#guard(() => this.flushState());
  }
}

/** Waits for a promise, at most so long. */
async function within(ms: number, promise: Promise<unknown>): Promise<void> {
  const late = new Deferred<void>();
  const timer = setTimeout(() => late.resolve(), ms);
  await Promise.race([promise, late.promise]);
  clearTimeout(timer);
}

/** Settles some time after a cancel, for a handler that does not look at its signal. */
function abandonment(signal: AbortSignal): { promise: Promise<undefined>; forget: () => void } {
  const late = new Deferred<undefined>();
  let timer: NodeJS.Timeout | undefined;
  const start = () => {
    timer = setTimeout(() => late.resolve(undefined), ABANDON_MS);
  };
  signal.addEventListener("abort", start);
  return {
    promise: late.promise,
    forget: () => {
      signal.removeEventListener("abort", start);
      clearTimeout(timer);
    },
  };
}

function explain(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
