/** Short messages that go away by themselves; what matters stays until it is closed. */

export interface Toast {
  id: number;
  text: string;
  tone: "plain" | "bad";
}

export class Toasts {
  items = $state<Toast[]>([]);
  #next = 1;

  tell(text: string, tone: Toast["tone"] = "plain"): void {
    const id = this.#next;
    this.#next += 1;
    this.items = [...this.items.slice(-3), { id, text, tone }];
    if (tone === "plain") setTimeout(() => this.close(id), 4000);
  }

  close(id: number): void {
    this.items = this.items.filter((toast) => toast.id !== id);
  }
}
