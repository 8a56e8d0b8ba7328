#!/usr/bin/env python3
"""An agent for the channel's measurements.

    flood N         N elements as fast as they go
    pace HZ N       N elements, HZ a second, each with the time it was sent at
"""

import json
import os
import socket
import struct
import time

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["QUINTET_IPC_SOCKET"])
stream = connection.makefile("rwb")
turns = 0


def send(message):
    payload = json.dumps(message).encode()
    stream.write(struct.pack("<I", len(payload)) + payload)


def receive():
    header = stream.read(4)
    if len(header) < 4:
        raise SystemExit(0)
    (length,) = struct.unpack("<I", header)
    message = json.loads(stream.read(length))
    if message["type"] == "shutdown":
        raise SystemExit(0)
    return message


def element(text):
    # A code block is one row; deltas that arrive together would be joined.
    fields = {"type": "code_block", "language": "text", "code": text}
    send({"type": "stream_update", "message_id": f"out_{turns}", "element": fields})


while True:
    message = receive()
    if message["type"] != "message":
        continue
    turns += 1
    command, *numbers = message["data"]["text"].split()
    if command == "flood":
        for index in range(int(numbers[0])):
            element(f"{index:08d}" + "x" * 100)
        stream.flush()
    else:
        rate, count = float(numbers[0]), int(numbers[1])
        begin = time.monotonic()
        for index in range(count):
            time.sleep(max(0.0, begin + index / rate - time.monotonic()))
            element(str(time.time_ns()))
            stream.flush()
    send({"type": "complete", "message_id": f"out_{turns}", "finish_reason": "end_turn"})
    stream.flush()
