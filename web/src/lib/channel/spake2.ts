/** SPAKE2 over edwards25519, side A, as python-spake2 and Rust's `spake2` compute it. */

import { ed25519 } from "@noble/curves/ed25519.js";
import { hkdf } from "@noble/hashes/hkdf.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { concat, utf8 } from "./bytes";

const { Point } = ed25519;
const ORDER = Point.Fn.ORDER;
const M = Point.fromHex("15cfd18e385952982b6a8f8c7854963b58e34388c8e6dae891db756481a02312");
const N = Point.fromHex("f04f2e7eb734b2a8f8b472eaf9c3c632576ac64aea650b496a8a20ff00e583c3");

function bigEndian(bytes: Uint8Array): bigint {
  return bytes.reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
}

export function passwordScalar(password: Uint8Array): bigint {
  return bigEndian(hkdf(sha256, password, new Uint8Array(0), utf8("SPAKE2 pw"), 48)) % ORDER;
}

/** A scalar from 64 random bytes, little-endian: what is uneven can't be seen. */
export function wideScalar(random: Uint8Array): bigint {
  return bigEndian(random.toReversed()) % ORDER;
}

export class Spake2A {
  /** X, 32 bytes. */
  readonly message: Uint8Array;
  #password: Uint8Array;
  #passwordScalar: bigint;
  #scalar: bigint;
  #idA: Uint8Array;
  #idB: Uint8Array;

  constructor(password: Uint8Array, idA: Uint8Array, idB: Uint8Array, scalar: bigint) {
    this.#password = password;
    this.#passwordScalar = passwordScalar(password);
    this.#scalar = scalar;
    this.#idA = idA;
    this.#idB = idB;
    this.message = Point.BASE.multiply(scalar).add(M.multiply(this.#passwordScalar)).toBytes();
  }

  /** The key, from Y. Throws when Y is no point. */
  finish(theirs: Uint8Array): Uint8Array {
    const unblinded = Point.fromBytes(theirs, true).add(N.multiply(ORDER - this.#passwordScalar));
    const shared = unblinded.multiply(this.#scalar).toBytes();
    return sha256(
      concat(
        sha256(this.#password),
        sha256(this.#idA),
        sha256(this.#idB),
        this.message,
        theirs,
        shared,
      ),
    );
  }
}
