/** One open conversation: its rows, what they show, and the way to older ones. */

import type { Channel } from "../channel";
import type { Block, Said } from "../model/blocks";
import { asRow, type Row } from "../model/rows";
import { Timeline } from "../model/timeline";
import type { Shelf } from "./shelf";

const PAGE = 400;
/** Pages read to close the hole between what is on the shelf and now; beyond, the old part is dropped. */
const MAX_CATCH_UP = 5;

export class Conversation {
  readonly session: number;
  blocks = $state.raw<readonly Block[]>([]);
  queue = $state.raw<readonly Said[]>([]);
  busySince = $state.raw<string | null>(null);
  usage = $state.raw({ input: 0, output: 0 });
  closed = $state(false);
  /** Whether the beginning of the session is here. */
  complete = $state(false);
  loading = $state(false);
  loadingOlder = $state(false);
  error = $state("");
  /** What is typed and not sent. */
  draft = $state("");
  /** Counts what the person sent: each time the end is brought into view. */
  sent = $state(0);

  #channel: Channel;
  #shelf: Shelf;
  #timeline: Timeline;
  #published = false;
  #loaded = false;
  #keeping: ReturnType<typeof setTimeout> | null = null;
  #left = false;

  constructor(session: number, channel: Channel, shelf: Shelf) {
    this.session = session;
    this.#channel = channel;
    this.#shelf = shelf;
    this.#timeline = new Timeline(session);
  }

  /** Takes rows of the journal in. What changes is shown with the next frame. */
  ingest(rows: readonly Row[]): void {
    if (!this.#timeline.insert(rows)) return;
    this.#publishSoon();
    this.#keepSoon();
  }

  /** Shows what is on the shelf, if nothing else is shown yet. */
  async readShelf(): Promise<void> {
    if (this.#timeline.rows.length > 0) return;
    const rows = await this.#shelf.rows(this.session);
    if (rows.length > 0 && this.#timeline.insert(rows)) this.#publish();
  }

  /** Reads the newest rows. The follow must be running, so that nothing falls between. */
  async load(): Promise<void> {
    if (this.#loaded || this.loading) return;
    this.loading = true;
    this.error = "";
    const known = this.#timeline.lastSeq;
    try {
      let before: number | undefined;
      for (let page = 0; ; page += 1) {
        const rows = await this.#page(before);
        this.#timeline.insert(rows);
        const first = rows[0]?.seq;
        if (first === undefined) this.#timeline.complete = true;
        if (first === undefined || known === null || first <= known) break;
        if (page + 1 >= MAX_CATCH_UP) {
          this.#timeline.forgetBefore(first);
          break;
        }
        before = first;
      }
      this.#loaded = true;
      this.#publish();
      this.#keepSoon();
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    } finally {
      this.loading = false;
    }
  }

  /** Reads one page upwards. */
  async loadOlder(): Promise<void> {
    const first = this.#timeline.firstSeq;
    if (this.loadingOlder || this.complete || first === null || !this.#loaded) return;
    this.loadingOlder = true;
    try {
      const rows = await this.#page(first);
      this.#timeline.insert(rows);
      // A page may be short because its rows are long: only an empty one is the beginning.
      if (rows.length === 0) this.#timeline.complete = true;
      this.#publish();
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    } finally {
      this.loadingOlder = false;
    }
  }

  /** From now on nothing of it is put on the shelf: that is being emptied. */
  leave(): void {
    this.#left = true;
    if (this.#keeping !== null) clearTimeout(this.#keeping);
  }

  async #page(before?: number): Promise<Row[]> {
    const args = {
      session: this.session,
      limit: PAGE,
      ...(before === undefined ? {} : { before }),
    };
    const { events } = await this.#channel.request("events.page", args);
    return events.map(asRow).filter((row) => row !== null);
  }

  #publishSoon(): void {
    if (this.#published) return;
    this.#published = true;
    // A hidden page gets no frames; it is brought up to date when it is shown.
    const later = document.hidden
      ? (act: () => void) => setTimeout(act, 250)
      : requestAnimationFrame;
    later(() => this.#publish());
  }

  #publish(): void {
    this.#published = false;
    const { transcript } = this.#timeline;
    this.blocks = [...transcript.blocks];
    this.queue = transcript.queue;
    this.busySince = transcript.turnSince;
    this.usage = { input: transcript.inputTokens, output: transcript.outputTokens };
    this.closed = transcript.closed;
    this.complete = this.#timeline.complete;
  }

  #keepSoon(): void {
    if (!this.#shelf.keeps || this.#left || this.#keeping !== null) return;
    this.#keeping = setTimeout(() => {
      this.#keeping = null;
      void this.#shelf.keepRows(this.session, this.#timeline.rows);
    }, 1000);
  }
}
