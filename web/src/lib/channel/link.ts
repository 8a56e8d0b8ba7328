/**
 * One connection: the handshake, then requests, streams and items in records.
 * It knows nothing of reconnecting; when it ends, everything in it ends.
 */

import { type Deferred, deferred } from "./deferred";
import { concat, fromUtf8, random, utf8 } from "./bytes";
import { type DhKeys, keysOf } from "./dh";
import { ChannelError } from "./error";
import { Initiator, prologue, type Transport } from "./noise";
import { DevicePairing, type Paired } from "./pair";
import { MAX_PLAINTEXT } from "./record";
import type { ErrorCode, StreamEnd } from "./types";

const SUBPROTOCOL = "quintet.channel.v2";
const RESUME = 0x10;
const RESUMED = 0x11;
const REFUSED = 0x7f;

/** How long a handshake may take. */
const HANDSHAKE_MS = 15_000;

/** Credit is given in steps, not for every byte read. */
const CREDIT_STEP = 64 * 1024;

/** Bytes kept of a stream that nobody asked for yet: its answer is behind them. */
const EARLY_BYTES = 1 << 20;
/** Bytes of a stream in one record. */
const PIECE = 64 * 1024;

const REFUSALS: Record<number, ErrorCode> = {
  1: "pairing_invalid_code",
  2: "pairing_locked_out",
  3: "pairing_code_expired",
  4: "pairing_already_used",
  5: "pairing_failed",
  6: "wrong_daemon",
  7: "internal",
};

/** Who this device is, for a resume. */
export interface Identity {
  keys: DhKeys;
  daemon: Uint8Array;
}

/** Why a connection ended. */
export interface LinkEnd {
  /** The daemon said, where nobody else could have, that this device is revoked. */
  revoked: boolean;
  reason: string;
}

interface Waiting {
  ok(value: unknown): void;
  failed(error: ChannelError): void;
  items: ((items: unknown[]) => void) | null;
  bytes: ((bytes: Uint8Array) => void) | null;
}

interface StreamReader {
  bytes(bytes: Uint8Array): void;
  end(end: StreamEnd): void;
}

/** A WebSocket as a queue of binary frames, for the handshake. */
class Frames {
  readonly socket: WebSocket;
  /** Takes over from the queue once set. */
  onFrame: ((frame: Uint8Array) => void) | null = null;
  onEnd: ((reason: string) => void) | null = null;
  #queue: Uint8Array[] = [];
  #waiting: Deferred<Uint8Array> | null = null;
  #ended: string | null = null;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", ({ data }) => {
      // Text is not of this protocol: an empty frame opens nowhere.
      const frame = data instanceof ArrayBuffer ? new Uint8Array(data) : new Uint8Array(0);
      if (this.onFrame !== null) this.onFrame(frame);
      else if (this.#waiting !== null) {
        this.#waiting.resolve(frame);
        this.#waiting = null;
      } else this.#queue.push(frame);
    });
    socket.addEventListener("close", ({ reason }) => {
      this.#ended = reason;
      this.#waiting?.reject(new ChannelError("connection_lost", reason || "The connection ended."));
      this.#waiting = null;
      this.onEnd?.(reason);
    });
  }

  static async open(url: string): Promise<Frames> {
    const socket = new WebSocket(url, SUBPROTOCOL);
    const frames = new Frames(socket);
    const opened = deferred<void>();
    socket.addEventListener("open", () => opened.resolve());
    socket.addEventListener("error", () =>
      opened.reject(new ChannelError("connection_lost", "The daemon can't be reached.")),
    );
    await opened.promise;
    return frames;
  }

  async next(): Promise<Uint8Array> {
    const frame = this.#queue.shift() ?? (await this.#wait());
    if (frame[0] === REFUSED) {
      const reason = fromUtf8(frame.slice(2));
      throw new ChannelError(REFUSALS[frame[1] ?? 0] ?? "pairing_failed", reason);
    }
    return frame;
  }

  /** Hands over what came before `onFrame` was set. */
  drain(): Uint8Array[] {
    return this.#queue.splice(0);
  }

  get ended(): string | null {
    return this.#ended;
  }

  send(frame: Uint8Array): void {
    this.socket.send(new Uint8Array(frame));
  }

  #wait(): Promise<Uint8Array> {
    if (this.#ended !== null) {
      throw new ChannelError("connection_lost", this.#ended || "The connection ended.");
    }
    this.#waiting = deferred();
    return this.#waiting.promise;
  }
}

export class Link {
  /** Resolves when the connection has ended, for whatever reason. */
  readonly ended: Promise<LinkEnd>;
  #frames: Frames;
  #transport: Transport;
  #nextId = 1;
  #waiting = new Map<number, Waiting>();
  #streams = new Map<number, StreamReader>();
  #early = new Map<number, { pieces: Uint8Array[]; size: number; end: StreamEnd | undefined }>();
  #revoked = false;
  #over = false;
  #finish!: (end: LinkEnd) => void;

  private constructor(frames: Frames, transport: Transport) {
    this.#frames = frames;
    this.#transport = transport;
    this.ended = new Promise((resolve) => (this.#finish = resolve));
    frames.onEnd = (reason) => this.#end(reason);
    frames.onFrame = (frame) => this.#receive(frame);
    for (const frame of frames.drain()) this.#receive(frame);
    if (frames.ended !== null) this.#end(frames.ended);
  }

  /** Comes back as a paired device. */
  static async resume(url: string, identity: Identity): Promise<Link> {
    return withDeadline(url, (frames) => Link.#shake(frames, identity, null));
  }

  /** Pairs with a code, then goes on as the device it has become. */
  static async pair(
    url: string,
    code: string,
    name: string,
    keys: DhKeys,
  ): Promise<{ link: Link; paired: Paired }> {
    return withDeadline(url, async (frames) => {
      const pairing = new DevicePairing(code, keys.publicKey, random(64), random(16));
      frames.send(pairing.start);
      const proving = pairing.prove(await frames.next(), name);
      frames.send(proving.frame);
      const paired = proving.finish(await frames.next());
      const identity = { keys, daemon: paired.daemon };
      return { link: await Link.#shake(frames, identity, paired.pairing), paired };
    });
  }

  static async #shake(
    frames: Frames,
    { keys, daemon }: Identity,
    pairing: Uint8Array | null,
  ): Promise<Link> {
    const ephemeral = keysOf(random(32));
    const initiator = await Initiator.start(prologue(pairing), keys, daemon, ephemeral);
    frames.send(concat(Uint8Array.of(RESUME), initiator.message));
    const frame = await frames.next();
    if (frame[0] !== RESUMED) {
      throw new ChannelError("internal", "The daemon's answer can't be read.");
    }
    try {
      const { transport } = await initiator.finish(frame.slice(1));
      return new Link(frames, transport);
    } catch {
      throw new ChannelError(
        "wrong_daemon",
        "What answers at this address is not the daemon that this browser is paired with.",
      );
    }
  }

  /** Asks; `items` gets what comes before the answer. */
  request(
    op: string,
    args: unknown,
    {
      items = null,
      bytes = null,
      signal,
    }: {
      items?: ((items: unknown[]) => void) | null;
      bytes?: ((bytes: Uint8Array) => void) | null;
      signal?: AbortSignal | undefined;
    } = {},
  ): Promise<unknown> {
    if (signal?.aborted === true) return Promise.reject(cancelled());
    if (this.#over) return Promise.reject(lost());
    const id = this.#nextId++;
    const record = json({ id, op, args });
    if (record.length > MAX_PLAINTEXT) {
      const text = "That is over 1 MiB, more than can be sent at once.";
      return Promise.reject(new ChannelError("over_limit", text));
    }
    const answer = deferred<unknown>();
    const stop = () => {
      if (this.#waiting.delete(id)) {
        this.#sendJson({ cancel: id });
        answer.reject(cancelled());
      }
    };
    signal?.addEventListener("abort", stop, { once: true });
    const settled = () => signal?.removeEventListener("abort", stop);
    this.#waiting.set(id, {
      ok: (value) => (settled(), answer.resolve(value)),
      failed: (error) => (settled(), answer.reject(error)),
      items,
      bytes,
    });
    this.#send(record);
    return answer.promise;
  }

  /** Takes over a stream whose number an answer told. */
  openStream(stream: number, reader: StreamReader): void {
    this.#streams.set(stream, reader);
    const early = this.#early.get(stream);
    this.#early.delete(stream);
    for (const piece of early?.pieces ?? []) reader.bytes(piece);
    if (early?.end !== undefined) this.#endStream(stream, early.end);
  }

  sendBytes(stream: number, bytes: Uint8Array): void {
    const header = new Uint8Array(5);
    header[0] = 1;
    new DataView(header.buffer).setUint32(1, stream);
    // What somebody pastes may be longer than a record.
    for (let at = 0; at < bytes.length; at += PIECE) {
      this.#send(concat(header, bytes.subarray(at, at + PIECE)));
    }
  }

  credit(stream: number, bytes: number): void {
    this.#sendJson({ credit: { stream, bytes } });
  }

  forgetStream(stream: number): void {
    this.#streams.delete(stream);
  }

  close(): void {
    this.#frames.socket.close(1000);
    this.#end("closed by this page");
  }

  #sendJson(value: unknown): void {
    this.#send(json(value));
  }

  #send(plaintext: Uint8Array): void {
    if (this.#frames.socket.readyState !== WebSocket.OPEN) return;
    this.#frames.send(this.#transport.sending.seal(plaintext));
  }

  #receive(record: Uint8Array): void {
    let plaintext: Uint8Array;
    try {
      plaintext = this.#transport.receiving.open(record);
    } catch {
      // Somebody changed, repeated or left out a record: nothing after it can be trusted.
      this.#frames.socket.close(1000);
      this.#end("a record did not open");
      return;
    }
    if (plaintext[0] === 1) {
      const stream = new DataView(plaintext.buffer, plaintext.byteOffset).getUint32(1);
      this.#bytes(stream, plaintext.subarray(5));
      return;
    }
    this.#json(JSON.parse(fromUtf8(plaintext.subarray(1))));
  }

  #bytes(stream: number, bytes: Uint8Array): void {
    const reader = this.#streams.get(stream);
    if (reader !== undefined) return reader.bytes(bytes);
    const download = this.#waiting.get(stream)?.bytes ?? null;
    if (download !== null) return download(bytes);
    const early = this.#early.get(stream) ?? { pieces: [], size: 0, end: undefined };
    early.size += bytes.length;
    if (early.size <= EARLY_BYTES) early.pieces.push(bytes);
    this.#early.set(stream, early);
  }

  #json(message: ServerMessage): void {
    if (message.stream_end !== undefined) {
      const { stream, ...end } = message.stream_end;
      if (this.#streams.has(stream)) this.#endStream(stream, end);
      else this.#early.set(stream, { pieces: [], size: 0, ...this.#early.get(stream), end });
      return;
    }
    if (message.id === undefined) {
      if (message.error?.code === "unauthorized") this.#revoked = true;
      return;
    }
    const waiting = this.#waiting.get(message.id);
    if (waiting === undefined) return;
    if (message.items !== undefined) return waiting.items?.(message.items);
    this.#waiting.delete(message.id);
    if (message.error !== undefined) {
      waiting.failed(new ChannelError(message.error.code, message.error.message));
    } else waiting.ok(message.ok);
  }

  #endStream(stream: number, end: StreamEnd): void {
    const reader = this.#streams.get(stream);
    this.#streams.delete(stream);
    reader?.end(end);
  }

  #end(reason: string): void {
    this.#over = true;
    for (const [id, waiting] of this.#waiting) {
      this.#waiting.delete(id);
      waiting.failed(lost());
    }
    for (const stream of this.#streams.keys()) this.#endStream(stream, { code: null });
    this.#finish({ revoked: this.#revoked, reason });
  }
}

interface ServerMessage {
  id?: number;
  ok?: unknown;
  items?: unknown[];
  error?: { code: string; message: string };
  stream_end?: { stream: number } & StreamEnd;
}

/** The plaintext of a record with JSON. */
function json(value: unknown): Uint8Array {
  return concat(Uint8Array.of(0), utf8(JSON.stringify(value)));
}

function lost(): ChannelError {
  return new ChannelError("connection_lost", "The connection ended before the answer.");
}

function cancelled(): ChannelError {
  return new ChannelError("cancelled", "Cancelled.");
}

/** Opens a socket and closes it again when the handshake fails or takes too long. */
async function withDeadline<T>(url: string, shake: (frames: Frames) => Promise<T>): Promise<T> {
  const frames = await Frames.open(url);
  const timer = setTimeout(() => frames.socket.close(), HANDSHAKE_MS);
  try {
    return await shake(frames);
  } catch (error) {
    frames.socket.close();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** Bytes of a stream as they are read: slow reading slows the sender. */
export class ByteQueue implements AsyncIterable<Uint8Array> {
  #pieces: Uint8Array[] = [];
  #wake: (() => void) | null = null;
  #ended = false;
  #read = 0;
  #onRead: (bytes: number) => void;

  constructor(onRead: (bytes: number) => void) {
    this.#onRead = onRead;
  }

  push(bytes: Uint8Array): void {
    this.#pieces.push(bytes);
    this.#wake?.();
  }

  end(): void {
    this.#ended = true;
    this.#wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncIterator<Uint8Array> {
    for (;;) {
      const piece = this.#pieces.shift();
      if (piece !== undefined) {
        yield piece;
        this.#read += piece.length;
        if (this.#read >= CREDIT_STEP) {
          this.#onRead(this.#read);
          this.#read = 0;
        }
      } else if (this.#ended) return;
      else {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        this.#wake = null;
      }
    }
  }
}
