"""An agent that misbehaves on request: the text of a message says how."""
import json
import os
import signal
import socket
import struct
import sys
import time

if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
STUBBORN = "--stubborn" in sys.argv
SOCKET = os.environ["QUINTET_IPC_SOCKET"]

sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.connect(SOCKET)
stream = sock.makefile("rb")


def frame(payload):
    sock.sendall(struct.pack("<I", len(payload)) + payload)


def send(message):
    frame(json.dumps(message).encode())


def receive():
    header = stream.read(4)
    if len(header) < 4:
        sys.exit(0)
    (length,) = struct.unpack("<I", header)
    return json.loads(stream.read(length))


def text(out, value):
    send({"type": "stream_update", "message_id": out, "element": {"type": "text_delta", "text": value}})


def complete(out, reason="end_turn"):
    send({"type": "complete", "message_id": out, "finish_reason": reason})


def delta(*deltas):
    send({"type": "state_delta", "deltas": list(deltas)})


def daemonise(keep_environment):
    """A grandchild in a session of its own that nobody waits for; returns its pid."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            sock.close()
            os.chdir("/")
            os.write(writer, str(os.getpid()).encode())
            environment = dict(os.environ) if keep_environment else {}
            for fd in range(0, 64):
                try:
                    os.close(fd)
                except OSError:
                    pass
            os.execve("/bin/sleep", ["sleep", "3600"], environment)
        os._exit(0)
    os.wait()
    return int(os.read(reader, 32))


init = receive()
turn = 0
if "--stray" in sys.argv:
    text("early", "nobody asked")
    complete("early")
if "--long-state" in sys.argv:
    delta({"op": "add", "path": "/long", "value": "x" * 1000})


def handle(words):
    global turn
    turn += 1
    out = f"out_{turn}"
    command = words[0]
    if command == "oversize":
        text(out, "before")
        sock.sendall(struct.pack("<I", 16 * 1024 * 1024 + 1) + b"{")
        receive()
    elif command == "largest":
        empty = json.dumps({"type": "stream_update", "message_id": out,
                            "element": {"type": "text_delta", "text": ""}})
        text(out, "x" * (16 * 1024 * 1024 - len(empty)))
        complete(out)
    elif command == "garbage":
        frame(b"\x00\x01 not json")
        receive()
    elif command == "http":
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        receive()
    elif command == "array":
        frame(b"[]")
        receive()
    elif command == "wrongfield":
        send({"type": "stream_update", "message_id": out, "element": {"type": "text_delta", "text": 5}})
        receive()
    elif command == "badpatch":
        delta({"op": "add", "path": "/good", "value": 1})
        delta({"op": "add", "path": "/half", "value": 1}, {"op": "remove", "path": "/none"})
        delta({"op": "add", "path": "/late", "value": 1})
        text(out, "after")
        complete(out)
    elif command == "state":
        text(out, json.dumps(init["state"], sort_keys=True))
        complete(out)
    elif command == "twice":
        complete(out)
        complete(out)
        text(out, "too late")
    elif command == "state-only":
        delta({"op": "add", "path": "/turn", "value": turn})
        complete(words[1] if len(words) > 1 else out)
    elif command == "silent":
        complete("out")
    elif command == "silent-twice":
        complete(out)
        complete(out)
    elif command == "never":
        text(out, "begun")
    elif command == "hang":
        text(out, "hanging")
        time.sleep(3600)
    elif command == "cancellable":
        text(out, "begun")
        while receive()["type"] != "cancel":
            pass
        complete(out, "cancelled")
    elif command == "unknown":
        for _ in range(3):
            send({"type": "metrics", "cpu": 1})
            send({"type": "stream_update", "message_id": out, "later": True,
                  "element": {"type": "text_delta", "text": "t"}})
        complete(out)
    elif command == "connect":
        answers = []
        for _ in range(3):
            second = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            second.connect(SOCKET)
            answers.append(second.recv(10).decode())
        text(out, json.dumps(answers))
        complete(out)
    elif command == "close":
        stream.close()
        sock.shutdown(socket.SHUT_RDWR)
        time.sleep(3600)
    elif command == "exit":
        print("going down", file=sys.stderr, flush=True)
        sys.exit(int(words[1]))
    elif command == "complete-and-exit":
        text(out, "last words")
        complete(out)
        sys.exit(0)
    elif command == "daemonise":
        text(out, json.dumps([daemonise(True), daemonise(False)]))
        if len(words) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        complete(out)
    elif command == "waits-for-tool":
        send({"type": "stream_update", "message_id": out, "element": {
            "type": "tool_call", "call_id": "c1", "name": "exec", "arguments": {}}})
    elif command == "limits":
        import resource
        names = ["RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_FSIZE"]
        text(out, json.dumps({name: resource.getrlimit(getattr(resource, name)) for name in names}))
        complete(out)
    elif command == "allocate":
        try:
            block = bytearray(int(words[1]))
            text(out, "allocated")
        except MemoryError:
            text(out, "MemoryError")
        complete(out)
    else:
        text(out, "echo: " + " ".join(words))
        complete(out)


while True:
    incoming = receive()
    if incoming["type"] == "message":
        handle(incoming["data"]["text"].split())
    elif incoming["type"] == "shutdown" and not STUBBORN:
        sys.exit(0)
