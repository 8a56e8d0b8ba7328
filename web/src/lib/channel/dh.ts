/** X25519, in WebCrypto with keys that no script can read, or in @noble where WebCrypto is missing. */

import { x25519 } from "@noble/curves/ed25519.js";
import { random } from "./bytes";

/** A key pair that can agree on a secret with somebody else's public key. */
export interface DhKeys {
  readonly publicKey: Uint8Array;
  /** Throws when the result would be all zeros. */
  agree(other: Uint8Array): Promise<Uint8Array>;
}

/** What is kept in IndexedDB: structured clone stores a `CryptoKey` without showing it. */
export type StoredKeys =
  | { kind: "webcrypto"; privateKey: CryptoKey; publicKey: Uint8Array }
  | { kind: "noble"; secret: Uint8Array };

class NobleKeys implements DhKeys {
  readonly publicKey: Uint8Array;
  #secret: Uint8Array;

  constructor(secret: Uint8Array) {
    this.#secret = secret;
    this.publicKey = x25519.getPublicKey(secret);
  }

  agree(other: Uint8Array): Promise<Uint8Array> {
    return Promise.resolve(x25519.getSharedSecret(this.#secret, other));
  }
}

class WebCryptoKeys implements DhKeys {
  readonly publicKey: Uint8Array;
  #privateKey: CryptoKey;

  constructor(privateKey: CryptoKey, publicKey: Uint8Array) {
    this.#privateKey = privateKey;
    this.publicKey = publicKey;
  }

  async agree(other: Uint8Array): Promise<Uint8Array> {
    const raw = new Uint8Array(other);
    const key = await crypto.subtle.importKey("raw", raw, "X25519", true, []);
    const bits = await crypto.subtle.deriveBits(
      { name: "X25519", public: key },
      this.#privateKey,
      256,
    );
    const secret = new Uint8Array(bits);
    // The specification has browsers refuse this; older ones did not.
    if (secret.every((byte) => byte === 0)) throw new Error("a public key of small order");
    return secret;
  }
}

export function loadKeys(stored: StoredKeys): DhKeys {
  return stored.kind === "webcrypto"
    ? new WebCryptoKeys(stored.privateKey, stored.publicKey)
    : new NobleKeys(stored.secret);
}

/** Keys of given bytes: ephemeral ones, and those of tests. */
export function keysOf(secret: Uint8Array): DhKeys {
  return new NobleKeys(secret);
}

/** A new device key, non-extractable where the platform can. */
export async function generateKeys(): Promise<StoredKeys> {
  // Missing altogether over plain http; X25519 is missing in older browsers.
  if (globalThis.crypto.subtle !== undefined) {
    try {
      const pair = await crypto.subtle.generateKey("X25519", false, ["deriveBits"]);
      if ("privateKey" in pair) {
        const publicKey = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
        return { kind: "webcrypto", privateKey: pair.privateKey, publicKey };
      }
    } catch {
      // Falls through to bytes of our own.
    }
  }
  return { kind: "noble", secret: random(32) };
}
