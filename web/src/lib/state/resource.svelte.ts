/** Something that is asked for and shown, with its error where it could not be had. */

export class Resource<T> {
  data = $state.raw<T | null>(null);
  error = $state("");
  /** The daemon can't serve this at all, which its message explains. */
  unavailable = $state(false);
  loading = $state(false);

  #ask: () => Promise<T>;
  #latest = 0;

  constructor(ask: () => Promise<T>) {
    this.#ask = ask;
  }

  /** Asks again; of several at once the last counts. */
  async load(): Promise<void> {
    this.#latest += 1;
    const turn = this.#latest;
    this.loading = true;
    try {
      const data = await this.#ask();
      if (turn !== this.#latest) return;
      this.data = data;
      this.error = "";
      this.unavailable = false;
    } catch (error) {
      if (turn !== this.#latest) return;
      this.error = error instanceof Error ? error.message : String(error);
      this.unavailable = (error as { code?: unknown }).code === "not_available";
    } finally {
      if (turn === this.#latest) this.loading = false;
    }
  }
}
