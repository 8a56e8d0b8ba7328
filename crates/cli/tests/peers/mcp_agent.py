#!/usr/bin/env python3
"""An agent that uses the daemon's tools as its message says, for the stories.

    call NAME JSON     calls the tool and says its text; "failed: " before it when it failed
    data NAME JSON     the same, with the result's data
    tools              says the names of all tools
    late NAME JSON     the same as call, and tells of the call some time after it was made
    race JSON          calls every [name, arguments] of the list at once, says the order of their ends
    token              says mcp_url and mcp_token
    config KEY         says what `init` has under that key
    keep PATH          writes all that `init` has to a file
"""

import json
import os
import socket
import struct
import threading
import urllib.request

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["QUINTET_IPC_SOCKET"])
stream = connection.makefile("rwb")
config = {}
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


def request(method, params=None):
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    headers = {
        "Authorization": "Bearer " + config["mcp_token"],
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    sent = urllib.request.Request(config["mcp_url"], json.dumps(message).encode(), headers)
    with urllib.request.urlopen(sent) as answer:
        for line in answer:
            if line.startswith(b"data:") and line[5:].strip():
                return json.loads(line[5:])["result"]


def call(name, arguments, call_id=None):
    params = {"name": name, "arguments": arguments}
    if call_id:
        params["_meta"] = {"quintet/call_id": call_id}
    result = request("tools/call", params)
    text = "\n".join(block.get("text", "") for block in result["content"])
    return ("failed: " if result.get("isError") else "") + text, result.get("structuredContent")


def late(name, arguments):
    element = {"type": "tool_call", "call_id": "c1", "name": name, "arguments": arguments}
    message = {"type": "stream_update", "message_id": f"out_{turns}", "element": element}
    threading.Timer(0.3, send, [message]).start()
    return call(name, arguments, "c1")


def race(calls):
    ended, lock = [], threading.Lock()

    def run(name, arguments):
        call(name, arguments)
        with lock:
            ended.append(arguments.get("command", name))

    threads = [threading.Thread(target=run, args=each) for each in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return json.dumps(ended)


def answer(text):
    command, _, rest = text.partition(" ")
    if command in ("call", "data"):
        name, _, arguments = rest.partition(" ")
        said, data = call(name, json.loads(arguments or "{}"))
        return said if command == "call" else json.dumps(data)
    if command == "late":
        name, _, arguments = rest.partition(" ")
        return late(name, json.loads(arguments))[0]
    if command == "tools":
        return " ".join(tool["name"] for tool in request("tools/list")["tools"])
    if command == "race":
        return race(json.loads(rest))
    if command == "config":
        return json.dumps(config.get(rest))
    if command == "keep":
        with open(rest, "w") as file:
            json.dump(config, file)
        return "kept"
    if command == "token":
        return json.dumps([config["mcp_url"], config["mcp_token"]])
    return "what?"


while True:
    message = receive()
    if message["type"] == "init":
        config = message["config"]
    elif message["type"] == "message":
        turns += 1
        said = answer(message["data"]["text"])
        update = {"type": "text_delta", "text": said}
        send({"type": "stream_update", "message_id": f"out_{turns}", "element": update})
        send({"type": "complete", "message_id": f"out_{turns}", "finish_reason": "end_turn"})
