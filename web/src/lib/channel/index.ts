/**
 * The channel to the daemon, encrypted end to end. Start here: `createChannel`.
 *
 * `types.ts` has every shape; nothing else of this folder is meant to be
 * imported from outside it.
 */

import { ChannelClient } from "./client";
import type { Channel } from "./types";

export { ChannelError } from "./error";
export type * from "./types";

/** What `createChannel` takes; all of it has a default for a page that the daemon served. */
export interface ChannelOptions {
  /** The WebSocket address; by default `/ws` of the page's own origin. */
  url?: string;
  /** Names the IndexedDB database; by default `quintet`. */
  store?: string;
}

/** Makes the page's channel. Nothing happens before `start` or `pair`. */
export function createChannel({ url = ownUrl(), store = "quintet" }: ChannelOptions = {}): Channel {
  return new ChannelClient(url, store);
}

function ownUrl(): string {
  const { protocol, host } = globalThis.location;
  return `${protocol === "https:" ? "wss" : "ws"}://${host}/ws`;
}
