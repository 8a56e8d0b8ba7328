/**
 * Records: ChaCha20-Poly1305 with a counter for a nonce, one key each way. The
 * counter is not sent: a record that is repeated, left out or moved does not
 * open. Every 2^16 records the key is replaced by Noise's REKEY.
 */

import { chacha20poly1305 } from "@noble/ciphers/chacha.js";

export const REKEY_EVERY = 1 << 16;
export const MAX_PLAINTEXT = 1 << 20;

/** The nonce of a counter: four zeros, then 64 bits little-endian. */
export function nonce(counter: bigint): Uint8Array {
  const bytes = new Uint8Array(12);
  new DataView(bytes.buffer).setBigUint64(4, counter, true);
  return bytes;
}

export class RecordKey {
  #key: Uint8Array;
  #counter = 0;

  constructor(key: Uint8Array) {
    this.#key = key;
  }

  seal(plaintext: Uint8Array): Uint8Array {
    if (plaintext.length > MAX_PLAINTEXT) throw new Error("a record over 1 MiB");
    const record = chacha20poly1305(this.#key, this.#nonce()).encrypt(plaintext);
    this.#step();
    return record;
  }

  /** Throws when the record is not the next one of the other side. */
  open(record: Uint8Array): Uint8Array {
    const plaintext = chacha20poly1305(this.#key, this.#nonce()).decrypt(record);
    this.#step();
    return plaintext;
  }

  #nonce(): Uint8Array {
    return nonce(BigInt(this.#counter));
  }

  #step(): void {
    // A page that sends a record each millisecond reaches 2^53 in 285,000 years.
    this.#counter += 1;
    if (this.#counter % REKEY_EVERY === 0) {
      const last = nonce(0xffffffffffffffffn);
      const next = chacha20poly1305(this.#key, last).encrypt(new Uint8Array(32));
      this.#key = next.slice(0, 32);
    }
  }
}
