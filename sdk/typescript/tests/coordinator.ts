// A coordinator for tests: a real Unix socket, raw frames.
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Agent } from "../src/index.js";

export type Frame = { [key: string]: any };

export const INIT: Frame = {
  type: "init",
  agent_id: "agent_abc123",
  agent_type: "claude-agent",
  workspace: "/instances/agent_abc123/chronicle/mount",
  config: { model: "claude-sonnet-4-20250514" },
  state: null,
};

/** Returns the frame of a message, built from the specification alone. */
export function frame(message: unknown): Buffer {
  const payload = Buffer.from(JSON.stringify(message));
  const header = Buffer.alloc(4);
  header.writeUInt32LE(payload.length);
  return Buffer.concat([header, payload]);
}

export function message(text = "hello", id = "msg_123"): Frame {
  return {
    type: "message",
    id,
    data: { text, role: "user", attachments: [] },
    origin: { tenant_id: "tenant_abc", role: "admin", channel: "web" },
  };
}

/** The other end of an agent's connection. */
export class Coordinator {
  readonly socket: Socket;
  #buffer = Buffer.alloc(0);
  #ended = false;
  #changed: () => void = () => undefined;

  constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (chunk: Buffer) => {
      this.#buffer = Buffer.concat([this.#buffer, chunk]);
      this.#changed();
    });
    const ended = () => {
      this.#ended = true;
      this.#changed();
    };
    socket.on("end", ended).on("close", ended).on("error", ended);
  }

  send(...messages: Frame[]): void {
    this.socket.write(Buffer.concat(messages.map(frame)));
  }

  /** Returns the next message of the agent, or null at the end. */
  async next(): Promise<Frame | null> {
    for (;;) {
      if (this.#buffer.length >= 4) {
        const end = 4 + this.#buffer.readUInt32LE(0);
        if (this.#buffer.length >= end) {
          const decoded = JSON.parse(this.#buffer.subarray(4, end).toString()) as Frame;
          this.#buffer = this.#buffer.subarray(end);
          return decoded;
        }
      }
      if (this.#ended) {
        assert.equal(this.#buffer.length, 0);
        return null;
      }
      await new Promise<void>((resolve) => (this.#changed = resolve));
    }
  }

  /** Returns the agent's messages up to the first of a type. */
  async until(type: string): Promise<Frame[]> {
    const seen: Frame[] = [];
    for (;;) {
      const received = await this.next();
      assert.ok(received, `the agent closed after ${JSON.stringify(seen)}`);
      seen.push(received);
      if (received["type"] === type) return seen;
    }
  }

  turn(): Promise<Frame[]> {
    return this.until("complete");
  }

  /** Returns what the agent says until it closes. */
  async rest(): Promise<Frame[]> {
    const seen: Frame[] = [];
    for (let next = await this.next(); next !== null; next = await this.next()) seen.push(next);
    return seen;
  }
}

/** Listens on a real Unix socket and gives the first connection to `use`. */
export async function listening(
  start: (path: string) => Promise<unknown>,
  use: (coordinator: Coordinator, started: Promise<unknown>) => Promise<void>,
): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "quintet-"));
  const path = join(folder, "ipc.sock");
  const server = createServer({ allowHalfOpen: true });
  const connected = new Promise<Coordinator>((resolve) =>
    server.once("connection", (socket) => resolve(new Coordinator(socket))),
  );
  await new Promise<void>((resolve) => server.listen(path, resolve));
  const started = start(path);
  started.catch(() => undefined);
  const coordinator = await connected;
  try {
    await use(coordinator, started);
  } finally {
    coordinator.socket.destroy();
    server.close();
    await Promise.allSettled([started]);
    await rm(folder, { recursive: true });
  }
}

/** Runs the agent against a coordinator and sends it `init`. */
export function serving<S extends object>(
  agent: Agent<S>,
  use: (coordinator: Coordinator, served: Promise<unknown>) => Promise<void>,
  init: Frame | null = INIT,
): Promise<void> {
  return listening(
    (path) => agent.serve(path),
    async (coordinator, served) => {
      if (init !== null) coordinator.send(init);
      await use(coordinator, served);
    },
  );
}

export function elements(frames: Frame[]): Frame[] {
  return frames.filter((each) => each["type"] === "stream_update").map((each) => each["element"] as Frame);
}

export function texts(frames: Frame[]): string {
  return elements(frames)
    .filter((each) => each["type"] === "text_delta")
    .map((each) => each["text"] as string)
    .join("");
}

export function deltas(frames: Frame[]): Frame[][] {
  return frames.filter((each) => each["type"] === "state_delta").map((each) => each["deltas"] as Frame[]);
}
