/** Builds rows of a journal, as the daemon writes them. */

import type { Row } from "../../src/lib/model/rows";

export class Journal {
  readonly rows: Row[] = [];
  readonly #session: number;
  #seq: number;
  #time = Date.parse("2026-01-02T03:04:05Z");

  constructor(session = 1, firstSeq = 1) {
    this.#session = session;
    this.#seq = firstSeq;
  }

  /** Appends a row a second after the one before. */
  add(kind: string, data: Record<string, unknown> = {}, turn: number | null = null): this {
    this.rows.push({
      seq: this.#seq,
      at: new Date(this.#time).toISOString(),
      session: this.#session,
      turn,
      kind,
      data,
    });
    // Rows of other sessions lie between.
    this.#seq += 2;
    this.#time += 1000;
    return this;
  }

  message(id: number, text: string): this {
    return this.add("message", { id, text, sender: "user", purpose: "message" }, id);
  }

  start(turn: number | null = null): this {
    return this.add("turn_started", { agent: "a", sender: "user" }, turn);
  }

  text(text: string, message = "m"): this {
    return this.add("text_delta", { message_id: message, text });
  }

  end(more: Record<string, unknown> = {}): this {
    return this.add("turn_ended", {
      finish_reason: "end_turn",
      error: "",
      retryable: false,
      usage: { input_tokens: 0, output_tokens: 0, cost: "0" },
      ...more,
    });
  }
}
