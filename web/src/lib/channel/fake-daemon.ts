/** For tests: the daemon's side of a resume and of the records, behind a stand-in for `WebSocket`. */

import { concat, fromUtf8, utf8 } from "./bytes";
import { keysOf } from "./dh";
import { prologue, Symmetric } from "./noise";
import type { RecordKey } from "./record";

export const daemonKeys = keysOf(new Uint8Array(32).fill(7));

interface Request {
  id: number;
  op: string;
  args: Record<string, unknown>;
  cancel?: number;
}

/** One connection, from the daemon's end. */
export class FakeConnection {
  readonly requests: Request[] = [];
  /** Bytes of streams, a record each. */
  readonly written: Uint8Array[] = [];
  #socket: FakeSocket;
  #sending: RecordKey | null = null;
  #receiving: RecordKey | null = null;
  #onRequest: (request: Request, connection: FakeConnection) => void;

  constructor(
    socket: FakeSocket,
    onRequest: (request: Request, connection: FakeConnection) => void,
  ) {
    this.#socket = socket;
    this.#onRequest = onRequest;
  }

  async receive(frame: Uint8Array): Promise<void> {
    if (this.#receiving === null) return this.#shake(frame.slice(1));
    const plaintext = this.#receiving.open(frame);
    if (plaintext[0] === 1) {
      this.written.push(plaintext.slice(5));
      return;
    }
    const request = JSON.parse(fromUtf8(plaintext.slice(1))) as Request;
    this.requests.push(request);
    this.#onRequest(request, this);
  }

  say(value: unknown): void {
    this.raw(concat(Uint8Array.of(0), utf8(JSON.stringify(value))));
  }

  bytes(stream: number, bytes: Uint8Array): void {
    const header = Uint8Array.of(1, 0, 0, 0, stream);
    this.raw(concat(header, bytes));
  }

  raw(plaintext: Uint8Array): void {
    if (this.#sending !== null) this.#socket.deliver(this.#sending.seal(plaintext));
  }

  /** Bytes that are nobody's record. */
  garbage(): void {
    this.#socket.deliver(new Uint8Array(40));
  }

  close(): void {
    this.#socket.end();
  }

  async #shake(message: Uint8Array): Promise<void> {
    const state = new Symmetric();
    state.mixHash(prologue(null));
    state.mixHash(daemonKeys.publicKey);
    const theirs = message.slice(0, 32);
    state.mixHash(theirs);
    state.mixKey(await daemonKeys.agree(theirs));
    const device = state.decrypt(message.slice(32, 80));
    state.mixKey(await daemonKeys.agree(device));
    state.decrypt(message.slice(80));
    const ephemeral = keysOf(crypto.getRandomValues(new Uint8Array(32)));
    state.mixHash(ephemeral.publicKey);
    state.mixKey(await ephemeral.agree(theirs));
    state.mixKey(await ephemeral.agree(device));
    const payload = state.encrypt(new Uint8Array(0));
    const transcriptKeys = state.split();
    [this.#receiving, this.#sending] = transcriptKeys;
    this.#socket.deliver(concat(Uint8Array.of(0x11), ephemeral.publicKey, payload));
  }
}

export class FakeSocket extends EventTarget {
  static readonly OPEN = 1;
  binaryType = "";
  readyState = 0;
  #connection: FakeConnection;
  #work = Promise.resolve();

  constructor(
    accept: (connection: FakeConnection) => boolean,
    onRequest: (request: Request, connection: FakeConnection) => void,
  ) {
    super();
    this.#connection = new FakeConnection(this, onRequest);
    const accepted = accept(this.#connection);
    queueMicrotask(() => {
      this.readyState = accepted ? 1 : 3;
      this.dispatchEvent(new Event(accepted ? "open" : "error"));
      if (!accepted) this.end();
    });
  }

  send(frame: Uint8Array): void {
    this.#work = this.#work.then(() => this.#connection.receive(frame));
  }

  close(): void {
    this.end();
  }

  deliver(frame: Uint8Array): void {
    if (this.readyState !== 1) return;
    const data = frame.slice().buffer;
    this.dispatchEvent(new MessageEvent("message", { data }));
  }

  end(): void {
    if (this.readyState === 3) return;
    this.readyState = 3;
    const closed = Object.assign(new Event("close"), { reason: "", code: 1006 });
    this.dispatchEvent(closed);
  }
}
