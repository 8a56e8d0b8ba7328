/** The files of one session, now or at a version: tree, file, history. */

import { SvelteMap, SvelteSet } from "svelte/reactivity";
import type { Channel, Ops, TreeEntry, WorkspaceLogEntry } from "../channel";
import { Resource } from "../state/resource.svelte";

export type FileText = Ops["workspace.file"]["ok"];

/** Versions that the slider reaches; older ones are reached from the oldest of these. */
const HISTORY = 500;

export class Workspace {
  readonly session: number;
  readonly channel: Channel;
  /** The file or folder that is open, empty for the root. */
  path = $state("");
  /** The version that is looked at, null for now. */
  at = $state<number | null>(null);
  readonly root: Resource<readonly TreeEntry[]>;
  readonly log: Resource<readonly WorkspaceLogEntry[]>;
  readonly file: Resource<FileText>;
  /** Entries of opened folders by their path. */
  folders = new SvelteMap<string, readonly TreeEntry[]>();
  opened = new SvelteSet<string>();

  #soon: ReturnType<typeof setTimeout> | null = null;
  #shown = "";

  constructor(channel: Channel, session: number) {
    this.channel = channel;
    this.session = session;
    this.root = new Resource(() => this.#entries(""));
    this.log = new Resource(async () => {
      const { entries } = await channel.request("workspace.log", { session, limit: HISTORY });
      return [...entries].toSorted((a, b) => b.sequence - a.sequence);
    });
    this.file = new Resource(() =>
      channel.request("workspace.file", { session, path: this.path, ...this.#version() }),
    );
  }

  /** Goes to a path and a version, asking for what is not here. */
  show(path: string, at: number | null): void {
    const key = `${at ?? ""}:${path}`;
    if (this.#shown === key) return;
    const versionChanged = this.#shown === "" || this.at !== at;
    this.#shown = key;
    this.path = path;
    this.at = at;
    if (versionChanged) this.#reloadTree();
    if (this.log.data === null && !this.log.loading) void this.log.load();
    this.file.data = null;
    if (path !== "") void this.file.load();
  }

  refresh(): void {
    this.#reloadTree();
    void this.log.load();
    if (this.path !== "") void this.file.load();
  }

  /** Several things end at once: they are read together. */
  refreshSoon(): void {
    if (this.#soon !== null) return;
    this.#soon = setTimeout(() => {
      this.#soon = null;
      this.refresh();
    }, 500);
  }

  async toggle(path: string): Promise<void> {
    if (this.opened.delete(path)) return;
    this.opened.add(path);
    await this.#loadFolder(path);
  }

  #reloadTree(): void {
    void this.root.load();
    for (const path of this.opened) void this.#loadFolder(path);
  }

  async #loadFolder(path: string): Promise<void> {
    try {
      this.folders.set(path, await this.#entries(path));
    } catch {
      // It is not there in this version.
      this.folders.delete(path);
      this.opened.delete(path);
    }
  }

  async #entries(path: string): Promise<readonly TreeEntry[]> {
    const { session } = this;
    const { entries } = await this.channel.request("workspace.tree", {
      session,
      path,
      ...this.#version(),
    });
    const rank = (entry: TreeEntry): number => (entry.kind === "dir" ? 0 : 1);
    return [...entries].toSorted((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  }

  #version(): { at?: number } {
    return this.at === null ? {} : { at: this.at };
  }
}
