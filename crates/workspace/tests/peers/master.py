"""A master written from the protocol's description: python3 master.py SOCKET

Serves one replica after another from a tree in memory. Takes commands, one JSON
list a line: ["put", path, text, times] and ["delete", path] change the tree;
["tree"] answers with it.
"""
import json
import os
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(__file__))
from wire import Peer, blake3, fetch  # noqa: E402

lock = threading.RLock()
tree, contents, sequence = {}, {}, 0
peer = None


def record(path, permissions, content):
    global sequence
    with lock:
        sequence += 1
        if content is None:
            tree[path] = (sequence, None, None)
        else:
            contents[blake3(content)] = content
            tree[path] = (sequence, permissions, blake3(content))
        if peer is not None:
            announce(path)
        return sequence


def announce(path):
    number, permissions, content_hash = tree[path]
    content = contents.get(content_hash, b"")
    peer.send("Notification", sequence=number, filepath=path, content_hash=content_hash or "",
              size=len(content), permissions=permissions or 0, is_deletion=content_hash is None,
              inline_content=content if content_hash and len(content) < 4096 else None)


def chunked(content):
    chunks, at = [], 0
    while at < len(content):
        part = content[at:at + 20_000]
        contents[blake3(part)] = part
        chunks.append({"hash": blake3(part), "offset": at, "size": len(part)})
        at += len(part)
    return json.dumps({"total_size": len(content), "chunk_size": 20_000, "chunks": chunks})


def serve(connection):
    global peer
    waiting = []

    def ask(content_hash):
        connection.send("ContentFetchRequest", content_hash=content_hash)
        while True:
            message = connection.receive()
            if message[0] == "ContentFetchResponse":
                return message[1]
            waiting.append(message)

    while True:
        name, fields = waiting.pop(0) if waiting else connection.receive()
        with lock:
            if name == "CatchupRequest":
                peer = connection
                since = fields["since_sequence"]
                for number, path in sorted((row[0], path) for path, row in tree.items()):
                    if number > since and (since or tree[path][2]):
                        announce(path)
                connection.send("Heartbeat", agent_sequence=sequence, agent_iteration=sequence)
            elif name == "ContentFetchRequest":
                wanted = fields["content_hash"]
                content = contents.get(wanted)
                if content is None:
                    connection.send("ContentNotFound", content_hash=wanted)
                elif len(content) > 50_000:
                    connection.send("ContentFetchResponse", content_hash=wanted, content=b"", size=len(content),
                                    chunk_manifest=chunked(content))
                else:
                    connection.send("ContentFetchResponse", content_hash=wanted, content=content,
                                    size=len(content), chunk_manifest=None)
            elif name == "WriteBack":
                accepted = []
                for entry in fields["entries"]:
                    path, (operation, new_path) = entry["filepath"], entry["operation"]
                    content = entry["content_bytes"]
                    if operation == "Write":
                        if content is None and entry["size"]:
                            content = fetch(ask, entry["content_hash"])
                        number = record(path, entry["permissions"], content or b"")
                    elif operation == "Delete":
                        number = record(path, None, None)
                    elif operation == "Rename":
                        _, permissions, content_hash = tree[path]
                        record(new_path, permissions, contents[content_hash])
                        number = record(path, None, None)
                    else:
                        number = record(path, entry["permissions"], contents[tree[path][2]])
                    accepted.append((entry["local_seq"], number))
                connection.send("WriteBackResult", accepted=accepted, rejected=[])
            elif name == "BarrierRequest":
                connection.send("BarrierConfirmation", satisfied=sequence >= fields["sequence"],
                                current_sequence=sequence)


def listen():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print('"ready"', flush=True)
    while True:
        stream, _ = listener.accept()
        try:
            serve(Peer(stream))
        except (EOFError, OSError):
            pass


threading.Thread(target=listen, daemon=True).start()
for line in sys.stdin:
    command, *args = json.loads(line)
    if command == "put":
        answer = record(args[0], 0o644, args[1].encode() * args[2])
    elif command == "delete":
        answer = record(args[0], None, None)
    else:
        with lock:
            answer = {path: [permissions, content_hash] for path, (_, permissions, content_hash) in tree.items()
                      if content_hash is not None}
    print(json.dumps(answer), flush=True)
