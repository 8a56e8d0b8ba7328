#!/usr/bin/env python3
"""An agent without any SDK: what the protocol takes, in plain Python.

It says back what it is told and counts it. A frame is a little-endian u32
length and that many bytes of JSON; see crates/agent/src/proto/mod.rs.
"""

import json
import os
import socket
import struct

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["QUINTET_IPC_SOCKET"])
stream = connection.makefile("rwb")


def send(message):
    payload = json.dumps(message).encode()
    stream.write(struct.pack("<I", len(payload)) + payload)
    stream.flush()


def receive():
    header = stream.read(4)
    if len(header) < 4:
        raise SystemExit("the coordinator closed the connection")
    (length,) = struct.unpack("<I", header)
    return json.loads(stream.read(length))


count = 0
while True:
    message = receive()
    if message["type"] == "init":
        count = (message["state"] or {"count": 0})["count"]
    elif message["type"] == "message":
        count += 1
        send({"type": "state_delta", "deltas": [{"op": "add", "path": "", "value": {"count": count}}]})
        text = f"{count}: {message['data']['text']}"
        for word in text.split(" "):
            element = {"type": "text_delta", "text": word + " "}
            send({"type": "stream_update", "message_id": f"out_{count}", "element": element})
        send({"type": "stream_update", "message_id": f"out_{count}", "element": {"type": "text_final", "text": text}})
        send({"type": "complete", "message_id": f"out_{count}", "finish_reason": "end_turn"})
    elif message["type"] == "shutdown":
        break
