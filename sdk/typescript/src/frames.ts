/**
 * Frames: a little-endian u32 length, then that many bytes of UTF-8 JSON.
 *
 * The JSON is an object with a `type`. A frame holds at most 16 MiB; both
 * sides check the length before they take memory for it.
 */

import { FrameError } from "./errors.js";

/** The largest payload of a frame, in bytes. */
export const MAX_FRAME = 16 * 1024 * 1024;

const HEADER = 4;

/** A JSON object. */
export type JsonObject = { [key: string]: unknown };

/**
 * Returns the message as one frame.
 *
 * A lone surrogate, which is no Unicode text and which a strict peer refuses,
 * becomes U+FFFD.
 */
export function encodeFrame(message: JsonObject): Buffer {
  let text: string;
  try {
    text = JSON.stringify(message);
    // JSON.stringify escapes a surrogate only when it is alone.
    if (/\\ud[89a-f]/.test(text)) {
      text = JSON.stringify(message, wellFormed);
    }
  } catch (error) {
    throw new FrameError(`a ${String(message["type"])} message is not JSON: ${String(error)}`);
  }
  const length = Buffer.byteLength(text);
  if (length > MAX_FRAME) {
    throw new FrameError(
      `a ${String(message["type"])} message of ${length} bytes is over the limit of ${MAX_FRAME}: send it in parts`,
    );
  }
  const frame = Buffer.allocUnsafe(HEADER + length);
  frame.writeUInt32LE(length, 0);
  frame.write(text, HEADER);
  return frame;
}

/** Turns bytes, in whatever pieces they come, into messages. */
export class FrameDecoder {
  #chunks: Buffer[] = [];
  #bytes = 0;
  #utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

  /** Takes the next bytes. */
  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
  }

  /** Returns the next message, or undefined when more bytes are needed. */
  next(): JsonObject | undefined {
    if (this.#bytes < HEADER) return undefined;
    const length = this.#peek(HEADER).readUInt32LE(0);
    if (length > MAX_FRAME) {
      throw new FrameError(`a frame of ${length} bytes is over the limit of ${MAX_FRAME}`);
    }
    if (this.#bytes < HEADER + length) return undefined;
    const whole = this.#peek(HEADER + length);
    this.#chunks[0] = whole.subarray(HEADER + length);
    this.#bytes -= HEADER + length;
    return this.#decode(whole.subarray(HEADER, HEADER + length));
  }

  /** Checks that the bytes did not end inside a frame. */
  finish(): void {
    if (this.#bytes > 0) {
      throw new FrameError(`the connection ended inside a frame (${this.#bytes} bytes of it came)`);
    }
  }

  /** Joins chunks until the first holds `count` bytes, and returns it. */
  #peek(count: number): Buffer {
    const first = this.#chunks[0] as Buffer;
    if (first.length >= count) return first;
    const joined = Buffer.concat(this.#chunks);
    this.#chunks = [joined];
    return joined;
  }

  #decode(payload: Buffer): JsonObject {
    let message: unknown;
    try {
      message = JSON.parse(this.#utf8.decode(payload));
    } catch (error) {
      throw new FrameError(`a frame is not UTF-8 JSON: ${String(error)}`);
    }
    if (typeof message !== "object" || message === null || Array.isArray(message)) {
      throw new FrameError("a frame holds something other than an object");
    }
    return message as JsonObject;
  }
}

function wellFormed(_key: string, value: unknown): unknown {
  if (typeof value === "string") return value.toWellFormed();
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key.toWellFormed(), item]));
}
