/** Cuts a conversation into chunks, which are put on the page or taken off it as a whole. Pure. */

import type { Block } from "./blocks";

/** One block in so many begins a chunk, by its name; a chunk has at most this many. */
const ONE_IN = 20;
const MOST = 60;

export interface Chunk {
  /** Stable while its first block is. */
  key: string;
  blocks: readonly Block[];
}

/**
 * Whether a block begins a chunk depends on the block and not on where the list begins: when older
 * blocks are put in front, the boundaries fall where they were, and those chunks are not made anew.
 */
export function chunked(blocks: readonly Block[]): Chunk[] {
  const chunks: Chunk[] = [];
  let from = 0;
  for (let i = 1; i <= blocks.length; i += 1) {
    const next = blocks[i];
    const ends = next === undefined || i - from >= MOST || begins(next.id);
    const first = blocks[from];
    if (!ends || first === undefined) continue;
    chunks.push({ key: first.id, blocks: blocks.slice(from, i) });
    from = i;
  }
  return chunks;
}

/** FNV-1a: spreads names that count up. */
function begins(id: string): boolean {
  let hash = 0x811c9dc5;
  for (let i = 0; i < id.length; i += 1) hash = Math.imul(hash ^ id.charCodeAt(i), 0x01000193);
  return (hash >>> 8) % ONE_IN === 0;
}
