/**
 * The channel to the daemon, encrypted end to end. Start here: `createChannel`.
 *
 * `types.ts` has every shape; nothing else of this folder is meant to be
 * imported from outside it.
 */

export type * from './types'
export { ChannelError } from './error'

import type { Channel } from './types'

/** What `createChannel` takes; all of it has a default for a page that the daemon served. */
export interface ChannelOptions {
  /** The WebSocket address; by default `/ws` of the page's own origin. */
  url?: string
  /** Names the IndexedDB database; by default `quintet`. */
  store?: string
}

/** Makes the page's channel. Nothing happens before `start` or `pair`. */
export type CreateChannel = (options?: ChannelOptions) => Channel
