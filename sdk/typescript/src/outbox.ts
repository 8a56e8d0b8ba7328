/**
 * The write side of the connection.
 *
 * Frames pushed in one iteration of the event loop leave in one write. A
 * sender that awaits `ready` is held back while the coordinator does not read,
 * and lets the loop turn every so often even when it does: a handler that only
 * streams would otherwise never see its own `cancel`.
 */

import type { Socket } from "node:net";
import { ConnectionLost } from "./errors.js";

const BATCH_BYTES = 64 * 1024;
const BATCH_FRAMES = 64;
const CLOSE_MS = 2000;

export class Outbox {
  readonly #socket: Socket;
  #frames: Buffer[] = [];
  #bytes = 0;
  #scheduled = false;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  /** Bytes that the kernel has not taken yet. */
  get backlog(): number {
    return this.#bytes + this.#socket.writableLength;
  }

  /** Queues a frame; it is written when this loop iteration ends. */
  push(frame: Buffer): void {
    this.#frames.push(frame);
    this.#bytes += frame.length;
    if (!this.#scheduled) {
      this.#scheduled = true;
      setImmediate(() => this.#write());
    }
  }

  /** Waits until more may be pushed. */
  async ready(): Promise<void> {
    if (this.#bytes >= BATCH_BYTES || this.#frames.length >= BATCH_FRAMES) {
      await this.drain();
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  /** Writes what is queued and waits until the coordinator keeps up. */
  async drain(): Promise<void> {
    this.#write();
    if (this.#socket.destroyed) throw new ConnectionLost("the connection to the coordinator is closed");
    if (!this.#socket.writableNeedDrain) return;
    await new Promise<void>((resolve, reject) => {
      const settle = (error?: Error) => {
        this.#socket.off("drain", drained).off("close", closed);
        if (error) reject(error);
        else resolve();
      };
      const drained = () => settle();
      const closed = () => settle(new ConnectionLost("the connection to the coordinator is closed"));
      this.#socket.on("drain", drained).on("close", closed);
    });
  }

  /** Writes what is queued, then closes; a coordinator that does not read is given up on. */
  async close(): Promise<void> {
    this.#write();
    if (this.#socket.destroyed) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(() => this.#socket.destroy(), CLOSE_MS);
      this.#socket.once("close", () => {
        clearTimeout(timer);
        resolve();
      });
      this.#socket.end(() => this.#socket.destroy());
    });
  }

  #write(): void {
    this.#scheduled = false;
    if (this.#frames.length > 0 && this.#socket.writable) {
      this.#socket.write(Buffer.concat(this.#frames, this.#bytes));
    }
    this.#frames = [];
    this.#bytes = 0;
  }
}
