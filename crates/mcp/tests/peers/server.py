#!/usr/bin/env python3
"""A tool server over standard input and output, with nothing but the standard library.

    echo {text}     says the text
    variable {name} says what the variable holds
    crash {}        writes a line to stderr and ends in the middle of the call
    never {}        never answers
    children {}     starts a process in a session of its own and says its number
    picture {}      answers with something that is no text
"""

import json
import os
import subprocess
import sys

# Memory that the kernel takes a while to free: killed is not yet gone.
HEAVY = [sys.executable, "-c", "import time; held = b'x' * (1 << 28); print(flush=True); time.sleep(600)"]

TOOLS = {
    "echo": {"text": {"type": "string"}},
    "variable": {"name": {"type": "string"}},
    "crash": {},
    "never": {},
    "children": {},
    "picture": {},
}


def answer(request, result):
    line = {"jsonrpc": "2.0", "id": request["id"], "result": result}
    print(json.dumps(line), flush=True)


def text(request, said, failed=False):
    answer(request, {"content": [{"type": "text", "text": said}], "isError": failed})


def call(request):
    name, arguments = request["params"]["name"], request["params"].get("arguments", {})
    if name == "echo":
        text(request, arguments["text"])
    elif name == "variable":
        text(request, os.environ.get(arguments["name"], "not set"))
    elif name == "crash":
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(7)
    elif name == "children":
        child = subprocess.Popen(HEAVY, start_new_session=True, stdout=subprocess.PIPE)
        child.stdout.readline()
        text(request, str(child.pid))
    elif name == "picture":
        answer(request, {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]})
    elif name != "never":
        error = {"code": -32602, "message": f"there is no tool {name}"}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)


for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": "peer", "version": "1"}
        answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        tools = [
            {
                "name": name,
                "description": f"{name} of the peer",
                "inputSchema": {"type": "object", "properties": properties},
                "annotations": {"openWorldHint": name == "picture"},
            }
            for name, properties in TOOLS.items()
        ]
        answer(request, {"tools": tools})
    elif method == "tools/call":
        call(request)
    elif "id" in request:
        answer(request, {})
