/**
 * The known rows of one session and the transcript that they make.
 *
 * Rows may come twice, late, or out of order: after a reconnect the follow starts at a cursor while a
 * page of history is still on its way. A row is taken once; whatever order they came in, the
 * transcript is that of the rows sorted by number.
 */

import { millis, type Row } from "./rows";
import { Transcript } from "./transcript";

export class Timeline {
  readonly session: number;
  transcript = new Transcript();
  /** Whether the first row of the session is here. */
  complete = false;

  #rows: Row[] = [];
  #seen = new Set<number>();

  constructor(session: number) {
    this.session = session;
  }

  get rows(): readonly Row[] {
    return this.#rows;
  }

  get firstSeq(): number | null {
    return this.#rows[0]?.seq ?? null;
  }

  get lastSeq(): number | null {
    return this.#rows.at(-1)?.seq ?? null;
  }

  /** Takes rows in; true when one of them was new. */
  insert(rows: readonly Row[]): boolean {
    const unseen = rows.filter((row) => {
      if (row.session !== this.session || this.#seen.has(row.seq)) return false;
      this.#seen.add(row.seq);
      return true;
    });
    if (unseen.length === 0) return false;
    const fresh = unseen.toSorted((a, b) => a.seq - b.seq);
    const last = this.lastSeq;
    if (last === null || (fresh[0]?.seq ?? 0) > last) {
      this.#rows = this.#rows.concat(fresh);
      for (const row of fresh) this.transcript.apply(row);
    } else {
      this.#rows = merge(this.#rows, fresh);
      this.#rebuild();
    }
    if (this.#rows[0]?.kind === "session_created") this.complete = true;
    return true;
  }

  /**
   * Forgets rows that may have a hole behind them: everything up to `before`.
   *
   * A device that was away longer than one page covers would otherwise show two parts of a
   * conversation as if nothing lay between.
   */
  forgetBefore(before: number): void {
    this.#rows = this.#rows.filter((row) => row.seq >= before);
    this.#seen = new Set(this.#rows.map((row) => row.seq));
    this.complete = this.#rows[0]?.kind === "session_created";
    this.#rebuild();
  }

  /** When something last happened. */
  get lastAt(): number {
    const last = this.#rows.at(-1);
    return last === undefined ? 0 : millis(last.at);
  }

  #rebuild(): void {
    this.transcript = new Transcript();
    for (const row of this.#rows) this.transcript.apply(row);
  }
}

function merge(left: readonly Row[], right: readonly Row[]): Row[] {
  const merged: Row[] = [];
  let i = 0;
  let j = 0;
  while (i < left.length || j < right.length) {
    const a = left[i];
    const b = right[j];
    if (b === undefined || (a !== undefined && a.seq < b.seq)) {
      if (a !== undefined) merged.push(a);
      i += 1;
    } else {
      merged.push(b);
      j += 1;
    }
  }
  return merged;
}
