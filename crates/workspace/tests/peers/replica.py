"""A replica written from the protocol's description: python3 replica.py SOCKET

Takes commands, one JSON list a line, and answers each with one JSON value:
["sync"] the tree; ["write", path, text] and ["delete", path] the master's
answer; ["barrier", n] the confirmation.
"""
import json
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(__file__))
from wire import Peer, blake3, fetch  # noqa: E402

stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
peer = Peer(stream)
tree, sequences, last, local_seq = {}, {}, 0, 0


def apply(fields):
    global last
    last = fields["sequence"]
    path = fields["filepath"]
    sequences[path] = last
    if fields["is_deletion"]:
        tree.pop(path, None)
        return
    kind = fields["permissions"] & 0o170000
    content = fields["inline_content"]
    if content is None and kind != 0o040000:
        content = fetch(ask, fields["content_hash"])
    what = {0: "file", 0o040000: "folder", 0o120000: "link"}[kind]
    tree[path] = [what, fields["permissions"] & 0o777, len(content or b""), fields["content_hash"]]


waiting = []


def ask(content_hash):
    peer.send("ContentFetchRequest", content_hash=content_hash)
    return until("ContentFetchResponse")


def until(wanted):
    while True:
        name, fields = peer.receive()
        if name == wanted:
            return fields
        waiting.append((name, fields))


def pump(wanted):
    """Takes messages in order, notifications to the tree, up to the wanted one."""
    global last
    while True:
        name, fields = waiting.pop(0) if waiting else peer.receive()
        if name == "Notification":
            apply(fields)
        elif name == "Heartbeat":
            last = max(last, fields["agent_sequence"])
        if name == wanted:
            peer.send("Ack", up_to_sequence=last)
            return fields


def write_back(path, operation, content):
    global local_seq
    local_seq += 1
    entry = {"local_seq": local_seq, "filepath": path, "operation": (operation, None),
             "content_hash": None if content is None else blake3(content), "content_bytes": content,
             "size": len(content or b""), "permissions": 0o644, "is_deletion": operation == "Delete",
             "master_rowid_seen": sequences.get(path, 0)}
    peer.send("WriteBack", sandbox_id="python", entries=[entry])
    return pump("WriteBackResult")


peer.send("CatchupRequest", sandbox_id="python", since_sequence=0)
pump("Heartbeat")
for line in sys.stdin:
    command, *args = json.loads(line)
    if command == "sync":
        answer = tree
    elif command == "write":
        answer = write_back(args[0], "Write", args[1].encode())
    elif command == "delete":
        answer = write_back(args[0], "Delete", None)
    else:
        peer.send("BarrierRequest", sequence=args[0])
        answer = pump("BarrierConfirmation")
    print(json.dumps(answer), flush=True)
