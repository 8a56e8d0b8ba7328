#!/usr/bin/env python3
"""An agent that does what its message says, for the stories.

    say TEXT          streams TEXT word by word
    ask               asks which colour, then says the answer
    approve COMMAND   asks for leave, then says what became of it
    wait              works until it is steered or cancelled
    wait twice        the same until it is steered again
    crash             ends in the middle of its answer
    tool              calls a tool and thinks
    log TEXT          logs TEXT

Anything else, such as a request for a summary, is answered with "summary of N messages".
"""

import json
import os
import socket
import struct

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["QUINTET_IPC_SOCKET"])
stream = connection.makefile("rwb")
turns = 0


def send(message):
    payload = json.dumps(message).encode()
    stream.write(struct.pack("<I", len(payload)) + payload)
    stream.flush()


def receive():
    header = stream.read(4)
    if len(header) < 4:
        raise SystemExit(0)
    (length,) = struct.unpack("<I", header)
    message = json.loads(stream.read(length))
    if message["type"] == "shutdown":
        raise SystemExit(0)
    return message


def element(**fields):
    send({"type": "stream_update", "message_id": f"out_{turns}", "element": fields})


def say(text):
    for index, word in enumerate(text.split(" ")):
        element(type="text_delta", text=word if index == 0 else " " + word)


def wait_for(*types):
    while True:
        message = receive()
        if message["type"] in types:
            return message


def answer(text):
    """Does what the text says and returns the finish reason."""
    command, _, rest = text.partition(" ")
    if command == "say":
        say(rest)
    elif command == "ask":
        options = [{"label": "red", "description": "like fire"}, {"label": "blue", "description": "like water"}]
        question = {"question": "Which colour?", "header": "Colour", "options": options, "multi_select": False}
        send({"type": "ask_user", "ask_id": f"ask_{turns}", "questions": [question]})
        outcome = wait_for("ask_result")["outcome"]
        say(f"you said {outcome['answers'][0][0]}")
    elif command == "approve":
        request = {"request_id": f"request_{turns}", "action": "exec", "command": rest, "reason": "a test"}
        send({"type": "approval_request", **request})
        result = wait_for("approval_result")
        say("approved" if result["approved"] else f"denied: {result.get('reason')}")
    elif command == "wait":
        say("waiting")
        for _ in range(2 if rest == "twice" else 1):
            message = wait_for("steer", "cancel")
            if message["type"] == "cancel":
                return "cancelled"
            say(f", steered by {message['content']}")
    elif command == "crash":
        say("about to")
        os._exit(3)
    elif command == "tool":
        element(type="thinking", text="I shall look.")
        element(type="tool_call", call_id="c1", name="exec", arguments={"command": "ls"})
        element(type="tool_result", call_id="c1", output="a.txt", is_error=False, duration_ms=12)
        say("there is one file")
    elif command == "log":
        entry = {"level": "info", "message": rest, "module": "test", "timestamp": "2026-01-02T03:04:05Z"}
        send({"type": "log", **entry})
        say("logged")
    else:
        say(f"summary of {turns} messages")
    return "end_turn"


while True:
    message = receive()
    if message["type"] == "message":
        turns += 1
        reason = answer(message["data"]["text"])
        usage = {"input_tokens": 10, "output_tokens": 5, "model": "test", "cost": "0.01"}
        send({"type": "complete", "message_id": f"out_{turns}", "finish_reason": reason, "token_usage": usage})
