/** The agent's log, which the coordinator keeps. */

import type { JsonObject } from "./frames.js";

/** Entries kept until the connection is there; the oldest goes first. */
const EARLY_LIMIT = 256;

type Sink = (entry: JsonObject) => void;

/** Where log entries go: kept until there is a connection, then sent. */
export class LogSink {
  #send: Sink | undefined;
  #early: JsonObject[] = [];

  connect(send: Sink | undefined): void {
    this.#send = send;
    if (send !== undefined) this.#early.splice(0).forEach(send);
  }

  put(entry: JsonObject): void {
    if (this.#send !== undefined) {
      this.#send(entry);
      return;
    }
    this.#early.push(entry);
    if (this.#early.length > EARLY_LIMIT) this.#early.shift();
  }
}

/** Writes log entries for one module of the agent. */
export class Logger {
  readonly #sink: LogSink;
  readonly #module: string;

  constructor(sink: LogSink, module: string) {
    this.#sink = sink;
    this.#module = module;
  }

  /** Returns a logger for a part of this module. */
  child(name: string): Logger {
    return new Logger(this.#sink, `${this.#module}.${name}`);
  }

  debug(message: string): void {
    this.#put("debug", message);
  }

  info(message: string): void {
    this.#put("info", message);
  }

  warn(message: string): void {
    this.#put("warn", message);
  }

  error(message: string): void {
    this.#put("error", message);
  }

  #put(level: string, message: string): void {
    this.#sink.put({ type: "log", level, message, module: this.#module, timestamp: new Date().toISOString() });
  }
}
