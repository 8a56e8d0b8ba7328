/**
 * The device's side of a pairing: SPAKE2 from the code, proof of it by both,
 * then each other's keys. crates/channel/src/proto/v2/pair.rs says what every
 * byte is for.
 */

import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { hkdf } from "@noble/hashes/hkdf.js";
import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { base64url, concat, equal, utf8 } from "./bytes";
import { ChannelError } from "./error";
import { Spake2A, wideScalar } from "./spake2";
import words from "./words.json";

const NO_NONCE = new Uint8Array(12);
const MAX_NAME = 256;

/** What a pairing gives. */
export interface Paired {
  deviceId: string;
  daemon: Uint8Array;
  checkWords: string[];
  /** For the prologue of the resume that follows. */
  pairing: Uint8Array;
}

/** The password of the exchange: the hash of the six digits. */
export function password(code: string): Uint8Array {
  return sha256(concat(utf8("quintet pairing code"), utf8(code.trim())));
}

function malformed(): ChannelError {
  return new ChannelError("pairing_failed", "The daemon's answer can't be read.");
}

function shortName(name: string): Uint8Array {
  let bytes = utf8(name);
  for (let length = name.length; bytes.length > MAX_NAME; length--) {
    bytes = utf8(name.slice(0, length));
  }
  return bytes;
}

export class DevicePairing {
  /** Frame 01. */
  readonly start: Uint8Array;
  #spake: Spake2A;
  #nonce: Uint8Array;
  #publicKey: Uint8Array;

  /** `scalar` is 64 and `nonce` 16 random bytes. */
  constructor(code: string, publicKey: Uint8Array, scalar: Uint8Array, nonce: Uint8Array) {
    this.#nonce = nonce;
    this.#publicKey = publicKey;
    this.#spake = new Spake2A(
      password(code),
      utf8("quintet.channel.v2 device"),
      utf8("quintet.channel.v2 daemon"),
      wideScalar(scalar),
    );
    const commitment = sha256(concat(utf8("quintet.channel.v2 commitment"), nonce, publicKey));
    this.start = concat(Uint8Array.of(0x01), this.#spake.message, commitment);
  }

  /** Reads frame 02; returns frame 03 and how to read frame 04. */
  prove(reply: Uint8Array, name: string): { frame: Uint8Array; finish(done: Uint8Array): Paired } {
    if (reply.length !== 81 || reply[0] !== 0x02) throw malformed();
    const daemonNonce = reply.slice(33, 49);
    const daemon = reply.slice(49);
    const shared = this.#spake.finish(reply.slice(1, 33));
    const first = sha256(concat(utf8("quintet.channel.v2 pairing"), this.start, reply));
    const key = (info: string) => hkdf(sha256, shared, first, utf8(info), 32);
    const box = chacha20poly1305(key("device box"), NO_NONCE, first);
    const frame = concat(
      Uint8Array.of(0x03),
      hmac(sha256, key("device confirms"), first),
      box.encrypt(concat(this.#nonce, this.#publicKey, shortName(name))),
    );
    const second = sha256(concat(first, frame));
    const finish = (done: Uint8Array): Paired => {
      if (done.length !== 65 || done[0] !== 0x04) throw malformed();
      const confirmation = hmac(sha256, key("daemon confirms"), second);
      if (!equal(confirmation, done.slice(1, 33))) {
        throw new ChannelError(
          "pairing_failed",
          "The other side does not know the code: somebody may be between you and the daemon.",
        );
      }
      const id = chacha20poly1305(key("daemon box"), NO_NONCE, second).decrypt(done.slice(33));
      const shown = sha256(
        concat(
          utf8("quintet.channel.v2 words"),
          this.#nonce,
          daemonNonce,
          this.#publicKey,
          daemon,
        ),
      );
      return {
        deviceId: base64url(id),
        daemon,
        checkWords: Array.from(shown.slice(0, 4), (byte) => words[byte] ?? ""),
        pairing: sha256(concat(second, done)),
      };
    };
    return { frame, finish };
  }
}
