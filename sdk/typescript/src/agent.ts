/** The agent: handlers, state, configuration and the loop that serves them. */

import { createConnection, type Socket } from "node:net";
import type { Context } from "./context.js";
import { AgentError, ConnectionLost, StateError } from "./errors.js";
import type { JsonObject } from "./frames.js";
import { Logger, LogSink } from "./logs.js";
import type { FinishReason, Init, Message } from "./messages.js";
import { Session, type Host } from "./session.js";
import type { Recorder } from "./state.js";

/** Works on a message; what it returns is the finish reason, by default `end_turn`. */
export type MessageHandler = (ctx: Context, message: Message) => Promise<FinishReason | void>;

/** Options of an {@link Agent}. */
export interface AgentOptions<S extends object> {
  /** The state of an agent that has none yet. */
  initialState?: S;
  /**
   * How long a turn may go on after a shutdown before it is cancelled; the
   * coordinator ends the process 10 seconds after it asked.
   */
  shutdownGraceMs?: number;
}

/** An agent process: set the handlers, then `await agent.run()`. */
export class Agent<S extends object = JsonObject> {
  /** This instance's id; empty until the coordinator has said it. */
  id = "";
  /** The name of the agent in the configuration. */
  type = "";
  /** The folder to work in. */
  workspace = "";
  /** A log that the coordinator keeps. */
  readonly log: Logger;

  readonly #logSink = new LogSink();
  readonly #initialState: JsonObject;
  readonly #shutdownGraceMs: number;
  readonly #onStart: (() => unknown)[] = [];
  readonly #onSteer: ((content: string) => unknown)[] = [];
  readonly #onConfig: ((changes: JsonObject, source: string | undefined) => unknown)[] = [];
  readonly #onShutdown: ((reason: string) => unknown)[] = [];
  #onMessage: MessageHandler | undefined;
  #config: JsonObject = {};
  #recorder: Recorder | undefined;

  constructor(options: AgentOptions<S> = {}) {
    this.log = new Logger(this.#logSink, "agent");
    this.#initialState = (options.initialState ?? {}) as JsonObject;
    this.#shutdownGraceMs = options.shutdownGraceMs ?? 4000;
  }

  /**
   * What this agent remembers over restarts; changes send themselves.
   *
   * All changes between two awaits go out as one patch, which applies as a
   * whole or not at all.
   */
  get state(): S {
    return this.#known().root as S;
  }

  set state(value: S) {
    this.#known().replaceRoot(value);
  }

  /** The configuration, kept up to date. */
  get config(): Readonly<JsonObject> {
    return this.#config;
  }

  /** Sets the function that works on each message. */
  onMessage(handler: MessageHandler): this {
    this.#onMessage = handler;
    return this;
  }

  /** Adds a callback for when the state and the configuration are there. */
  onStart(callback: () => unknown): this {
    this.#onStart.push(callback);
    return this;
  }

  /** Adds a callback for guidance that arrives during a turn. */
  onSteer(callback: (content: string) => unknown): this {
    this.#onSteer.push(callback);
    return this;
  }

  /** Adds a callback for changes of the configuration. */
  onConfig(callback: (changes: JsonObject, source: string | undefined) => unknown): this {
    this.#onConfig.push(callback);
    return this;
  }

  /** Adds a callback for the shutdown. */
  onShutdown(callback: (reason: string) => unknown): this {
    this.#onShutdown.push(callback);
    return this;
  }

  /** Serves until the coordinator says shutdown, or SIGTERM comes. */
  async run(): Promise<void> {
    const session = await this.#connect(undefined);
    const terminated = () => session.stop("sigterm");
    process.once("SIGTERM", terminated);
    try {
      await session.run();
    } finally {
      process.off("SIGTERM", terminated);
    }
  }

  /** Serves on a given socket path, without touching signals. */
  async serve(socketPath?: string): Promise<void> {
    await (await this.#connect(socketPath)).run();
  }

  async #connect(socketPath: string | undefined): Promise<Session> {
    const handle = this.#onMessage;
    if (handle === undefined) throw new AgentError("the agent has no message handler: set one with agent.onMessage");
    const path = socketPath ?? process.env["QUINTET_IPC_SOCKET"];
    if (!path) {
      throw new AgentError("QUINTET_IPC_SOCKET is not set: agents are started by the coordinator (quintet up)");
    }
    this.id = process.env["AGENT_ID"] ?? "";
    this.workspace = process.env["AGENT_WORKSPACE"] ?? "";
    return new Session(this.#host(handle), await dial(path));
  }

  #host(handle: MessageHandler): Host {
    return {
      shutdownGraceMs: this.#shutdownGraceMs,
      initialState: this.#initialState,
      log: this.log,
      logSink: this.#logSink,
      begin: (init, recorder) => this.#begin(init, recorder),
      handle,
      mergeConfig: (changes) => Object.assign(this.#config, changes),
      started: () => this.#onStart,
      steered: (content) => this.#onSteer.map((callback) => () => callback(content)),
      configured: (changes, source) => this.#onConfig.map((callback) => () => callback(changes, source)),
      stopping: (reason) => this.#onShutdown.map((callback) => () => callback(reason)),
    };
  }

  #begin(init: Init, recorder: Recorder): void {
    this.id = init.agentId;
    this.type = init.agentType;
    this.workspace = init.workspace;
    this.#config = { ...init.config };
    this.#recorder = recorder;
  }

  #known(): Recorder {
    if (this.#recorder === undefined) {
      throw new StateError("the state is there from onStart on; the coordinator sends it");
    }
    return this.#recorder;
  }
}

function dial(path: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = createConnection(path);
    const failed = (error: Error) =>
      reject(new ConnectionLost(`cannot connect to the coordinator at ${path}: ${error.message}`));
    socket.once("error", failed);
    socket.once("connect", () => {
      socket.off("error", failed);
      resolve(socket);
    });
  });
}
