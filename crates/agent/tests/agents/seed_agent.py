"""An agent written from the protocol's seed alone: no SDK, nothing but the standard library.

What the text of a message says is what it does; see `handle`.
"""
import json
import os
import socket
import struct
import sys
import time

sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.connect(os.environ["QUINTET_IPC_SOCKET"])
stream = sock.makefile("rb")


def send(message):
    payload = json.dumps(message).encode()
    sock.sendall(struct.pack("<I", len(payload)) + payload)


def receive():
    header = stream.read(4)
    if len(header) < 4:
        sys.exit(0)
    (length,) = struct.unpack("<I", header)
    return json.loads(stream.read(length))


def element(out, **fields):
    send({"type": "stream_update", "message_id": out, "element": fields})


def text(out, value):
    element(out, type="text_delta", text=value)


def complete(out, reason="end_turn", cost="0.055"):
    send({
        "type": "complete",
        "message_id": out,
        "finish_reason": reason,
        "token_usage": {"input_tokens": 1250, "output_tokens": 3400, "cost": cost},
    })


init = receive()
assert init["type"] == "init", init
state = init["state"] if init["state"] is not None else {}
config = init["config"]
turn = 0


def handle(message):
    global turn
    turn += 1
    out = f"out_{os.getpid()}_{turn}"
    words = message["data"]["text"].split()
    command = words[0] if words else ""
    if command == "count":
        # Each step is reported before the next one.
        for _ in range(int(words[1])):
            had = "count" in state
            state["count"] = state.get("count", 0) + 1
            op = "replace" if had else "add"
            send({"type": "state_delta", "deltas": [{"op": op, "path": "/count", "value": state["count"]}]})
            text(out, str(state["count"]))
        complete(out)
    elif command == "env":
        text(out, json.dumps(dict(os.environ), sort_keys=True))
        complete(out)
    elif command == "fds":
        text(out, json.dumps(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))))
        complete(out)
    elif command == "config":
        text(out, json.dumps(config, sort_keys=True))
        complete(out)
    elif command == "log":
        send({"type": "log", "level": "info", "message": "Starting code analysis",
              "module": "agent.analyzer", "timestamp": "2025-01-15T10:30:00Z"})
        print("on stdout", flush=True)
        print("on stderr", file=sys.stderr, flush=True)
        complete(out)
    elif command == "steered":
        text(out, "waiting")
        while True:
            guidance = receive()
            if guidance["type"] == "steer":
                text(out, guidance["content"])
                break
            if guidance["type"] == "config_update":
                config.update(guidance["changes"])
        complete(out)
    elif command == "elements":
        element(out, type="thinking", text="hm")
        element(out, type="tool_call", call_id="c1", name="exec", arguments={"command": "ls"})
        element(out, type="tool_result", call_id="c1", output="a.txt", is_error=False, duration_ms=3)
        element(out, type="code_block", language="python", code="print()")
        element(out, type="file_change", path="a.txt", change="modified", diff="+a")
        element(out, type="terminal_output", stream="stdout", data="a.txt\n")
        element(out, type="plan", entries=[{"content": "x"}])
        element(out, type="text_final", text="done")
        complete(out)
    elif command == "hang":
        text(out, "hanging")
        time.sleep(3600)
    else:
        text(out, "echo: " + message["data"]["text"])
        complete(out)


while True:
    incoming = receive()
    if incoming["type"] == "message":
        handle(incoming)
    elif incoming["type"] == "config_update":
        config.update(incoming["changes"])
    elif incoming["type"] == "shutdown":
        sys.exit(0)
