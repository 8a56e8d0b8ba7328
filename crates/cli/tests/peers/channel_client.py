#!/usr/bin/env python3
"""A client of the channel's original protocol, written from its specification.

Standard library only; the WebSocket, X25519 and ChaCha20-Poly1305 are done by hand. Takes the
address, a pairing code and the command that revokes a device, pairs, talks with the agents `shell`
and `test`, prints one line for each thing that went as the page says, and fails at the first that
did not.
"""

import base64
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
from urllib.parse import urlsplit

# --- X25519 and ChaCha20-Poly1305 (RFC 7748, RFC 8439) -------------------------------------------

P = 2**255 - 19


def x25519(scalar, point):
    k = bytearray(scalar)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    k = int.from_bytes(k, "little")
    x1 = int.from_bytes(point, "little") & (1 << 255) - 1
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % P, b * b % P, d * a % P, c * b % P
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


BASE = bytes([9]) + bytes(31)


def chacha20(key, counter, nonce, data):
    out = bytearray()
    for start in range(0, len(data), 64):
        state = list(struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce))
        work = state[:]

        def quarter(a, b, c, d):
            for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                work[x] = work[x] + work[y] & 0xFFFFFFFF
                mixed = work[z] ^ work[x]
                work[z] = (mixed << bits | mixed >> 32 - bits) & 0xFFFFFFFF

        for _ in range(10):
            for column in range(4):
                quarter(column, column + 4, column + 8, column + 12)
            for diagonal in range(4):
                quarter(diagonal, (diagonal + 1) % 4 + 4, (diagonal + 2) % 4 + 8, (diagonal + 3) % 4 + 12)
        block = struct.pack("<16I", *(w + s & 0xFFFFFFFF for w, s in zip(work, state)))
        out += bytes(a ^ b for a, b in zip(data[start : start + 64], block))
        counter += 1
    return bytes(out)


def tag(key, nonce, ciphertext):
    one_time = chacha20(key, 0, nonce, bytes(64))
    r = int.from_bytes(one_time[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    padded = ciphertext + bytes(-len(ciphertext) % 16) + struct.pack("<QQ", 0, len(ciphertext))
    sum_ = 0
    for start in range(0, len(padded), 16):
        sum_ = (sum_ + int.from_bytes(padded[start : start + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return ((sum_ + int.from_bytes(one_time[16:32], "little")) % 2**128).to_bytes(16, "little")


def seal(key, nonce, plaintext):
    ciphertext = chacha20(key, 1, nonce, plaintext)
    return ciphertext + tag(key, nonce, ciphertext)


def unseal(key, nonce, sealed):
    ciphertext, found = sealed[:-16], sealed[-16:]
    assert found == tag(key, nonce, ciphertext), "the tag is wrong"
    return chacha20(key, 1, nonce, ciphertext)


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def chat_key(secret, public):
    return hashlib.sha256(b"webchannel-e2e-v1" + x25519(secret, public)).digest()


def published_check():
    """The check that the specification gives."""
    client, agent = bytes(range(32)), bytes(range(32, 64))
    client_pub, agent_pub = x25519(client, BASE), x25519(agent, BASE)
    assert encode(client_pub) == "j0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8"
    assert encode(agent_pub) == "NYBy1jZYgNGu6jKa35EhODhR7SGijjt16WXQ0s0WYlQ"
    key = chat_key(client, agent_pub)
    assert encode(key) == "1957xB7BOPMwR6betsLoxSCgwxV0NO7Z0LOHHT89ol4"
    sealed = seal(key, decode("AAECAwQFBgcICQoL"), b'{"content":"hi","sender_id":"ui-1"}')
    assert encode(sealed) == "Fcexj9e-JkFV8rFr4-kIPsQAG1OZ-vgfYOiCfYEGEYcja4SQUIkhDm43g0AoZm2rV6nR"


# --- a WebSocket (RFC 6455) ----------------------------------------------------------------------


class Socket:
    def __init__(self, address):
        parts = urlsplit(address)
        self.socket = socket.create_connection((parts.hostname, parts.port), 20)
        self.stream = self.socket.makefile("rb")
        self.closing = False
        nonce = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n\r\n".encode()
        )
        status = self.stream.readline()
        assert b" 101 " in status, status
        while self.stream.readline() != b"\r\n":
            pass

    def put(self, opcode, data):
        if len(data) < 126:
            head = struct.pack(">BB", 0x80 | opcode, 0x80 | len(data))
        else:
            head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, len(data))
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self.socket.sendall(head + mask + masked)

    def close(self):
        """As a page that is left; returns when the other side has agreed."""
        self.closing = True
        self.put(8, struct.pack(">H", 1001))
        while not isinstance(self.take(), int):
            pass

    def take(self):
        """The next text, or the code that the other side closed with."""
        while True:
            first, length = self.stream.read(2)
            if length == 126:
                (length,) = struct.unpack(">H", self.stream.read(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self.stream.read(8))
            data = self.stream.read(length)
            assert first & 0x80, "the daemon sends whole messages"
            if first & 15 == 1:
                assert len(data) <= 64 * 1024
                return json.loads(data)
            if first & 15 == 8:
                if not self.closing:
                    self.put(8, data[:2])
                return struct.unpack(">H", data[:2])[0]
            if first & 15 == 9:
                self.put(10, data)


# --- the protocol --------------------------------------------------------------------------------


EVENTS = {
    "pairing_request",
    "pairing_result",
    "user_message",
    "assistant_chunk",
    "assistant_final",
    "tool_call",
    "tool_result",
    "approval_request",
    "approval_response",
    "error",
}


class Screen:
    """What a person sees of the events, by the rules of the original UI."""

    def __init__(self):
        self.messages, self.tools, self.approvals, self.error = [], [], {}, None
        self.streaming = False

    def show(self, kind, payload, request, content):
        self.error = None
        if kind == "assistant_chunk" and content:
            if not self.streaming:
                self.messages.append("")
            self.streaming = True
            self.messages[-1] += content
        elif kind == "assistant_final":
            # An empty one leaves what was streamed standing.
            if self.streaming and content:
                self.messages[-1] = content
            elif content:
                self.messages.append(content)
            self.streaming = False
        elif kind == "tool_call":
            assert isinstance(payload["name"], str) and isinstance(payload["arguments"], dict), payload
            self.tools.append({"id": request, "name": payload["name"], "result": None})
        elif kind == "tool_result":
            waiting = [tool for tool in self.tools if tool["result"] is None]
            named = [tool for tool in waiting if tool["id"] == request]
            (named or waiting)[-1]["result"] = (payload["ok"], payload.get("result"), payload.get("error"))
        elif kind == "approval_request":
            # Told again, it is the same card.
            self.approvals[request] = (payload["action"], payload.get("reason"))
        elif kind == "error":
            # It ends no text: only a final opens the input.
            self.error = payload["message"]


class Client:
    def __init__(self, address, session="default", kept=None):
        """With what an earlier page kept, or new."""
        self.socket, self.address, self.session, self.screen = Socket(address), address, session, Screen()
        self.token, self.key, self.id = kept or (None, None, None)

    def reload(self, session=None):
        """A page keeps token and key, and says nothing of them when it connects."""
        self.socket.close()
        return Client(self.address, session or self.session, (self.token, self.key, self.id))

    def send(self, kind, payload, **outer):
        envelope = {"v": 1, "type": kind, "session_id": self.session, **outer, "payload": payload}
        self.socket.put(1, json.dumps(envelope).encode())

    def hear(self, *kinds):
        event = self.socket.take()
        # What is not so is ignored by the original UI, as if it had not been sent.
        assert isinstance(event, dict) and event["v"] == 1 and event["type"] in EVENTS, event
        assert isinstance(event["session_id"], str) and event["session_id"], event
        assert not kinds or event["type"] in kinds, event
        kind, payload = event["type"], event["payload"]
        if kind == "error":
            assert isinstance(payload["message"], str) and payload["message"], event
        content = self.text(event) if kind.startswith("assistant_") else None
        self.screen.show(kind, payload, event.get("request_id"), content)
        return event

    def ask_to_pair(self, code):
        secret = os.urandom(32)
        self.send("pairing_request", {"pairing_code": code, "client_pub": encode(x25519(secret, BASE))})
        return secret

    def pair(self, code):
        secret = self.ask_to_pair(code)
        result = self.hear("pairing_result")["payload"]
        assert result["ok"] is True and result["token_type"] == "Bearer" and result["expires_in"] > 0, result
        assert result["e2e_required"] is True, result
        assert result["e2e"]["alg"] == "x25519-chacha20poly1305-v1", result
        assert isinstance(result["access_token"], str) and result["access_token"], result
        self.token, self.id = result["access_token"], result["client_id"]
        self.key = chat_key(secret, decode(result["e2e"]["agent_pub"]))

    def say(self, text, **outer):
        assert not self.screen.streaming, "the input is closed while an answer streams"
        nonce, inner = os.urandom(12), {"content": text, "sender_id": "ui-1"}
        sealed = seal(self.key, nonce, json.dumps(inner, ensure_ascii=False).encode())
        e2e = {"nonce": encode(nonce), "ciphertext": encode(sealed)}
        self.send("user_message", {"access_token": self.token, "e2e": e2e}, **outer)

    def answer_approval(self, request, approved, **more):
        payload = {"access_token": self.token, "approved": approved, **more}
        self.send("approval_response", payload, request_id=request["request_id"])

    def text(self, event):
        assert "content" not in event["payload"], "chat text is encrypted"
        e2e = event["payload"]["e2e"]
        return json.loads(unseal(self.key, decode(e2e["nonce"]), decode(e2e["ciphertext"])))["content"]

    def answer(self):
        """Waits for the end of a turn; what is then the last message on the screen."""
        while self.hear()["type"] not in ("assistant_final", "error"):
            pass
        assert not self.screen.streaming
        return self.screen.messages[-1]

    def refused(self, code):
        """An error with this code, after which the daemon closes."""
        assert self.hear("error")["payload"]["code"] == code
        assert self.socket.take() == 1000


def done(name):
    print(f"{name}: ok", flush=True)


def main(address, code, revoke):
    published_check()
    done("check")

    stranger = Client(address)
    stranger.ask_to_pair(f"{(int(code) + 1) % 1_000_000:06}")
    stranger.refused("pairing_invalid_code")
    client = Client(address)
    client.pair(f" {code} ")
    late = Client(address)
    late.ask_to_pair(code)
    late.refused("pairing_already_used")
    done("pairing")

    client.say("echo hello from afar", agent_id="shell")
    assert client.answer() == "hello from afar\n", client.screen.messages
    done("chat")

    # As the UI does where it is part of another page.
    client = client.reload("embedded")
    client.say("say one two three", agent_id="test")
    first = client.hear("assistant_chunk")
    assert first["session_id"] == "embedded" and first["agent_id"] == "test", first
    assert client.screen.streaming
    assert client.answer() == "one two three" and client.screen.messages == ["one two three"]
    done("stream")

    client.say("tool")
    call, result = client.hear("tool_call"), client.hear("tool_result")
    assert call["payload"] == {"name": "exec", "arguments": {"command": "ls"}}, call
    assert call["request_id"] == result["request_id"] and result["payload"] == {"ok": True, "result": "a.txt"}
    assert client.answer() == "there is one file"
    assert client.screen.tools == [{"id": "c1", "name": "exec", "result": (True, "a.txt", None)}]
    done("tools")

    for answer, expected in (((True,), "approved"), ((False, "not now"), "denied: not now")):
        client.say("approve make")
        request = client.hear("approval_request")
        assert request["payload"] == {"action": "exec: make", "reason": "a test"}, request
        assert request["session_id"] == "embedded", request
        client = client.reload()
        approved, *reason = answer
        client.answer_approval(request, approved, **({"reason": reason[0]} if reason else {}))
        again = client.hear("approval_request")
        assert again["request_id"] == request["request_id"], again
        assert client.answer() == expected
    assert len(client.screen.approvals) == 1
    done("approvals")

    client.say("ask")
    assert client.answer() == "Which colour?\n- red: like fire\n- blue: like water\n"
    client.say("red")
    assert client.answer() == "you said red"
    done("questions")

    # So long that it does not fit one event: it comes in pieces, and the final is empty.
    long = 'ü"' * 11_950
    client.say(f"say {long}")
    assert client.answer() == long
    done("long answers")

    client.socket.put(1, b"garbage")
    assert client.hear("error")["payload"]["code"] == "invalid_envelope"
    client.send("user_message", {"access_token": client.token, "content": "in the clear"})
    assert client.hear("error")["payload"]["code"] == "e2e_required"
    client.say("crash")
    assert client.answer() == "about to", client.screen.messages
    assert client.hear("error")["payload"]["code"] == "turn_failed"
    assert client.screen.error, "the turn failed"
    client.say("say I am back")
    assert client.answer() == "I am back" and client.screen.error is None
    done("errors")

    subprocess.run([*revoke, client.id], check=True, stdout=subprocess.DEVNULL)
    client.refused("unauthorized")
    again = Client(address, kept=(client.token, client.key, client.id))
    again.say("echo let me in")
    again.refused("unauthorized")
    done("revocation")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
