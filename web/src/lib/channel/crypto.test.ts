import { describe, expect, it } from "vitest";
import { concat, utf8 } from "./bytes";
import { generateKeys, keysOf, loadKeys } from "./dh";
import { Initiator, prologue } from "./noise";
import { DevicePairing, password } from "./pair";
import published from "./published.json";
import { nonce, RecordKey } from "./record";
import { passwordScalar, Spake2A } from "./spake2";
import vectors from "./vectors.json";
import words from "./words.json";
import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { sha256 } from "@noble/hashes/sha2.js";

const unhex = (text: string) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const hex = (bytes: Uint8Array) =>
  [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const flipped = (text: string, at: number) => {
  const bytes = unhex(text);
  bytes[at]! ^= 1;
  return bytes;
};

describe("published vectors", () => {
  it("Noise_IK_25519_ChaChaPoly_SHA256 of cacophony", async () => {
    const vector = published.noise;
    const message = (at: number) => {
      const { payload, ciphertext } = vector.messages[at]!;
      return { payload: unhex(payload), ciphertext };
    };
    const initiator = await Initiator.start(
      unhex(vector.init_prologue),
      keysOf(unhex(vector.init_static)),
      unhex(vector.init_remote_static),
      keysOf(unhex(vector.init_ephemeral)),
      message(0).payload,
    );
    expect(hex(initiator.message)).toBe(message(0).ciphertext);
    const { payload, transport } = await initiator.finish(unhex(message(1).ciphertext));
    expect(payload).toEqual(message(1).payload);
    expect(hex(transport.transcript)).toBe(vector.handshake_hash);
    for (let at = 2; at < vector.messages.length; at += 2) {
      expect(hex(transport.sending.seal(message(at).payload))).toBe(message(at).ciphertext);
      const opened = transport.receiving.open(unhex(message(at + 1).ciphertext));
      expect(opened).toEqual(message(at + 1).payload);
    }
  });

  it("SPAKE2 of python-spake2", () => {
    const vector = published.spake2;
    expect(passwordScalar(utf8(vector.password))).toBe(BigInt(vector.password_scalar));
    const side = new Spake2A(
      utf8(vector.password),
      utf8(vector.id_a),
      utf8(vector.id_b),
      BigInt(vector.scalar_a),
    );
    expect("41" + hex(side.message)).toBe(vector.message_a);
    expect(hex(side.finish(unhex(vector.message_b.slice(2))))).toBe(vector.key);
  });
});

describe("golden bytes, the same as the daemon's", () => {
  const { pairing, resume } = vectors;
  const begin = () =>
    new DevicePairing(
      pairing.code,
      unhex(pairing.device_key),
      unhex(pairing.device_scalar),
      unhex(pairing.device_nonce),
    );

  it("pairs", () => {
    expect(hex(password(` ${pairing.code} `))).toBe(pairing.password);
    const device = begin();
    expect(hex(device.start)).toBe(pairing.start);
    const proving = device.prove(unhex(pairing.reply), pairing.name);
    expect(hex(proving.frame)).toBe(pairing.prove);
    const paired = proving.finish(unhex(pairing.done));
    expect(paired.deviceId).toBe(pairing.device_id);
    expect(hex(paired.daemon)).toBe(pairing.daemon_key);
    expect(paired.checkWords).toEqual(pairing.check_words);
    expect(hex(paired.pairing)).toBe(pairing.pairing);
  });

  it("notices a flipped bit in every byte of the daemon's frames", () => {
    for (let at = 0; at < 65; at++) {
      const proving = begin().prove(unhex(pairing.reply), pairing.name);
      expect(() => proving.finish(flipped(pairing.done, at))).toThrow();
    }
    for (let at = 0; at < 81; at++) {
      const finished = () =>
        begin().prove(flipped(pairing.reply, at), pairing.name).finish(unhex(pairing.done));
      expect(finished).toThrow();
    }
  });

  it("resumes", async () => {
    expect(hex(prologue(unhex(pairing.pairing)))).toBe(resume.prologue);
    const initiator = await Initiator.start(
      unhex(resume.prologue),
      keysOf(unhex(pairing.device_secret)),
      unhex(pairing.daemon_key),
      keysOf(unhex(resume.device_ephemeral)),
    );
    expect(hex(initiator.message)).toBe(resume.message);
    const { transport } = await initiator.finish(unhex(resume.reply));
    expect(hex(transport.transcript)).toBe(resume.transcript);
    const request = concat(Uint8Array.of(0), utf8('{"id":1,"op":"hello","args":{}}'));
    expect(hex(transport.sending.seal(request))).toBe(resume.first_request);
    const answer = transport.receiving.open(unhex(resume.first_answer));
    expect(answer).toEqual(concat(Uint8Array.of(0), utf8('{"id":1,"ok":{}}')));
  });

  it("refuses an answer with a flipped bit in any byte", async () => {
    for (let at = 0; at < 48; at++) {
      const initiator = await Initiator.start(
        unhex(resume.prologue),
        keysOf(unhex(pairing.device_secret)),
        unhex(pairing.daemon_key),
        keysOf(unhex(resume.device_ephemeral)),
      );
      const reply = unhex(resume.reply);
      reply[at]! ^= 1;
      await expect(initiator.finish(reply)).rejects.toThrow();
    }
  });

  it("changes keys after 65536 records", () => {
    const key = new RecordKey(unhex(vectors.rekey.key));
    for (let at = 0; at < vectors.rekey.records_before; at++) key.seal(new Uint8Array(0));
    expect(hex(key.seal(utf8(vectors.rekey.plaintext)))).toBe(vectors.rekey.record);
  });

  it("has the same words", () => {
    expect(words).toEqual(vectors.words);
  });
});

describe("records", () => {
  it("do not open repeated, reordered or with a flipped bit", () => {
    const bytes = new Uint8Array(32).fill(3);
    const sender = new RecordKey(bytes);
    const [first, second] = [sender.seal(utf8("one")), sender.seal(utf8("two"))];
    const receiver = new RecordKey(bytes);
    expect(() => receiver.open(second)).toThrow();
    expect(receiver.open(first)).toEqual(utf8("one"));
    expect(() => receiver.open(first)).toThrow();
    for (let at = 0; at < second.length; at++) {
      const changed = second.slice();
      changed[at]! ^= 1;
      expect(() => receiver.open(changed)).toThrow();
    }
    expect(receiver.open(second)).toEqual(utf8("two"));
  });

  it("have a nonce of four zeros and a little-endian counter", () => {
    expect(hex(nonce(258n))).toBe("000000000201000000000000");
  });
});

describe("WebCrypto and @noble", () => {
  it("agree both ways, with a key that can't be exported", async () => {
    const stored = await generateKeys();
    if (stored.kind !== "webcrypto") throw new Error("WebCrypto has X25519 here");
    expect(stored.privateKey.extractable).toBe(false);
    const device = loadKeys(stored);
    const daemon = keysOf(new Uint8Array(32).fill(7));
    expect(await device.agree(daemon.publicKey)).toEqual(await daemon.agree(device.publicKey));
  });

  it("refuse a public key of zeros", async () => {
    const zero = new Uint8Array(32);
    const noble = keysOf(new Uint8Array(32).fill(7));
    await expect((async () => noble.agree(zero))()).rejects.toThrow();
    await expect(loadKeys(await generateKeys()).agree(zero)).rejects.toThrow();
  });

  it("compute the check values of the original protocol", async () => {
    const device = keysOf(unhex(vectors.pairing.device_secret));
    const shared = await device.agree(unhex(vectors.pairing.daemon_key));
    const key = sha256(concat(utf8("webchannel-e2e-v1"), shared));
    expect(hex(key)).toBe(vectors.v1.key);
    const sealed = chacha20poly1305(key, unhex(vectors.v1.nonce)).encrypt(
      utf8(vectors.v1.plaintext),
    );
    expect(hex(sealed)).toBe(vectors.v1.ciphertext);
  });
});
