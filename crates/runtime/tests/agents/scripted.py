"""An agent written from the protocol alone: it does what the message says, one JSON command a line.

A message that is not JSON is echoed. Commands:
  {"say": TEXT}  {"think": TEXT}  {"final": TEXT}  {"element": {...}}
  {"repeat": N, "say": TEXT}      N deltas, as fast as the socket takes them
  {"state": KEY, "value": V}      a patch
  {"ask": QUESTION}               waits for the answer and says it
  {"approve": COMMAND}            waits for the decision and says it
  {"await": "steer" | "cancel"}   waits for that message
  {"usage": COST}                 what the turn cost
  {"spend": COST}                 says what the turn has cost so far
  {"show": "state" | "config" | "origin" | "process"}    says it as JSON
  {"log": TEXT}                   logs it
  {"garbage": TEXT}               sends it in place of a message
  {"model": {...}}                asks the model through the gateway and says its text or error
  {"crash": CODE}                 ends the process
"""

import json
import os
import resource
import socket
import struct
import sys
import urllib.error
import urllib.request

sock = socket.socket(socket.AF_UNIX)
sock.connect(os.environ["QUINTET_IPC_SOCKET"])
reader = sock.makefile("rb")


def receive():
    head = reader.read(4)
    if len(head) < 4:
        sys.exit(0)
    return json.loads(reader.read(struct.unpack("<I", head)[0]))


def send(*messages):
    out = b""
    for message in messages:
        body = json.dumps(message).encode()
        out += struct.pack("<I", len(body)) + body
    sock.sendall(out)


state, config, backlog = {}, {}, []


def wait_for(kind):
    for i, message in enumerate(backlog):
        if message["type"] == kind:
            return backlog.pop(i)
    while True:
        message = receive()
        if message["type"] == kind:
            return message
        note(message)


def note(message):
    if message["type"] == "config_update":
        config.update(message["changes"])
    elif message["type"] == "shutdown":
        sys.exit(0)
    else:
        backlog.append(message)


def ask_model(body):
    request = urllib.request.Request(
        config["ensemble_url"] + "/v1/messages", json.dumps(body).encode(),
        {"x-api-key": config["ensemble_api_key"], "content-type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request) as answer:
            return "".join(block.get("text", "") for block in json.load(answer)["content"])
    except urllib.error.HTTPError as error:
        return f"{error.code}: " + json.load(error)["error"]["message"]


def work(message, output):
    global state
    finish, usage = "end_turn", None

    def element(**fields):
        send({"type": "stream_update", "message_id": output, "element": fields})

    def say(text):
        element(type="text_delta", text=text)

    text = message["data"]["text"]
    try:
        # A summary that a message carries comes before it.
        told = text.rpartition("\n\n[The message]\n")[2]
        commands = [json.loads(line) for line in told.splitlines()]
        if not all(isinstance(command, dict) for command in commands):
            raise ValueError
    except ValueError:
        commands = [{"say": text}]
    for command in commands:
        if "repeat" in command:
            frame = {"type": "stream_update", "message_id": output,
                     "element": {"type": "text_delta", "text": command["say"]}}
            left = command["repeat"]
            while left > 0:
                send(*[frame] * min(left, 100))
                left -= 100
        elif "say" in command:
            say(command["say"])
        elif "think" in command:
            element(type="thinking", text=command["think"])
        elif "final" in command:
            element(type="text_final", text=command["final"])
        elif "element" in command:
            element(**command["element"])
        elif "state" in command:
            state[command["state"]] = command["value"]
            send({"type": "state_delta", "deltas": [
                {"op": "add", "path": "/" + command["state"], "value": command["value"]}]})
        elif "ask" in command:
            send({"type": "ask_user", "ask_id": "q1", "questions": [
                {"question": command["ask"], "header": "h", "options": [
                    {"label": "yes", "description": ""}], "multi_select": False}]})
            say(json.dumps(wait_for("ask_result")["outcome"]))
        elif "approve" in command:
            send({"type": "approval_request", "request_id": "a1", "action": "run",
                  "command": command["approve"], "cwd": "/w", "reason": "because"})
            result = wait_for("approval_result")
            say("approved" if result["approved"] else "denied: " + result.get("reason", ""))
        elif "await" in command:
            got = wait_for(command["await"])
            if got["type"] == "cancel":
                finish = "cancelled"
            else:
                say("steered: " + got["content"])
        elif "usage" in command:
            usage = {"input_tokens": 10, "output_tokens": 5, "cost": command["usage"]}
        elif "spend" in command:
            usage = {"input_tokens": 10, "output_tokens": 5, "cost": command["spend"]}
            send({"type": "usage", "token_usage": usage})
        elif "show" in command:
            shown = {"state": state, "config": config, "origin": message["origin"]}
            if command["show"] == "process":
                names = ["RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_DATA"]
                shown["process"] = {"cwd": os.getcwd(), "env": dict(os.environ), "limits": {
                    name: resource.getrlimit(getattr(resource, name))[0] for name in names}}
            say(json.dumps(shown[command["show"]], sort_keys=True))
        elif "log" in command:
            send({"type": "log", "level": "warn", "message": command["log"],
                  "module": "", "timestamp": ""})
        elif "garbage" in command:
            body = command["garbage"].encode()
            sock.sendall(struct.pack("<I", len(body)) + body)
            receive()
        elif "model" in command:
            say(ask_model(command["model"]))
        elif "crash" in command:
            sock.close()
            os._exit(command["crash"])
    done = {"type": "complete", "message_id": output, "finish_reason": finish}
    if usage:
        done["token_usage"] = usage
    send(done)


init = receive()
assert init["type"] == "init", init
state = init["state"] or {}
config = init["config"]
count = 0
while True:
    message = backlog.pop(0) if backlog else receive()
    if message["type"] == "message":
        count += 1
        work(message, f"out_{count}")
    elif message["type"] in ("config_update", "shutdown"):
        note(message)
