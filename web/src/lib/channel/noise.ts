/** The device's side of `Noise_IK_25519_ChaChaPoly_SHA256`: how a paired device comes back. */

import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { concat, utf8 } from "./bytes";
import type { DhKeys } from "./dh";
import { nonce, RecordKey } from "./record";

const NAME = utf8("Noise_IK_25519_ChaChaPoly_SHA256");
const NOTHING = new Uint8Array(0);

/** Both directions of a connection, and the hash of its handshake. */
export interface Transport {
  sending: RecordKey;
  receiving: RecordKey;
  transcript: Uint8Array;
}

/** The prologue of a resume, which a pairing on the same connection is part of. */
export function prologue(pairing: Uint8Array | null): Uint8Array {
  return concat(utf8("quintet.channel.v2"), pairing ?? NOTHING);
}

function hkdf(chaining: Uint8Array, input: Uint8Array): [Uint8Array, Uint8Array] {
  const temporary = hmac(sha256, chaining, input);
  const first = hmac(sha256, temporary, Uint8Array.of(1));
  const second = hmac(sha256, temporary, concat(first, Uint8Array.of(2)));
  return [first, second];
}

/** Noise's symmetric state; the other side is only in tests. */
export class Symmetric {
  hash: Uint8Array = NAME;
  #chaining: Uint8Array = NAME;
  #key: Uint8Array = NOTHING;
  #counter = 0n;

  mixHash(data: Uint8Array): void {
    this.hash = sha256(concat(this.hash, data));
  }

  mixKey(input: Uint8Array): void {
    [this.#chaining, this.#key] = hkdf(this.#chaining, input);
    this.#counter = 0n;
  }

  encrypt(plaintext: Uint8Array): Uint8Array {
    const sealed = this.#cipher().encrypt(plaintext);
    this.mixHash(sealed);
    return sealed;
  }

  decrypt(sealed: Uint8Array): Uint8Array {
    const plaintext = this.#cipher().decrypt(sealed);
    this.mixHash(sealed);
    return plaintext;
  }

  split(): [RecordKey, RecordKey] {
    const [first, second] = hkdf(this.#chaining, NOTHING);
    return [new RecordKey(first), new RecordKey(second)];
  }

  #cipher() {
    return chacha20poly1305(this.#key, nonce(this.#counter++), this.hash);
  }
}

export class Initiator {
  readonly message: Uint8Array;
  #state: Symmetric;
  #ephemeral: DhKeys;
  #ours: DhKeys;

  private constructor(message: Uint8Array, state: Symmetric, ephemeral: DhKeys, ours: DhKeys) {
    this.message = message;
    this.#state = state;
    this.#ephemeral = ephemeral;
    this.#ours = ours;
  }

  /** Makes message 1. `ephemeral` must be new. */
  static async start(
    before: Uint8Array,
    ours: DhKeys,
    daemon: Uint8Array,
    ephemeral: DhKeys,
    payload: Uint8Array = NOTHING,
  ): Promise<Initiator> {
    const state = new Symmetric();
    state.mixHash(before);
    state.mixHash(daemon);
    state.mixHash(ephemeral.publicKey);
    state.mixKey(await ephemeral.agree(daemon));
    const key = state.encrypt(ours.publicKey);
    state.mixKey(await ours.agree(daemon));
    const message = concat(ephemeral.publicKey, key, state.encrypt(payload));
    return new Initiator(message, state, ephemeral, ours);
  }

  /** Reads message 2; throws when it is not the daemon's. */
  async finish(message: Uint8Array): Promise<{ payload: Uint8Array; transport: Transport }> {
    const theirs = message.slice(0, 32);
    this.#state.mixHash(theirs);
    this.#state.mixKey(await this.#ephemeral.agree(theirs));
    this.#state.mixKey(await this.#ours.agree(theirs));
    const payload = this.#state.decrypt(message.slice(32));
    const [sending, receiving] = this.#state.split();
    return { payload, transport: { sending, receiving, transcript: this.#state.hash } };
  }
}
