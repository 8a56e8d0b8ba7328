"""The released sandd server, measured from inside. Arguments: port, the line that a shell runs.

Reads `exec N`, `parallel K N` and `echo N` from stdin; answers each with a JSON list of seconds.
"""

import json
import sys
import threading
import time

from sandd import Server

server = Server(host="127.0.0.1", port=int(sys.argv[1]), verbose=False)
line = sys.argv[2]


def execs(count):
    samples = []
    for _ in range(count):
        started = time.perf_counter()
        result = server.exec("d", "true")
        samples.append(time.perf_counter() - started)
        assert result.exit_code == 0
    return samples


def parallel(at_once, each):
    threads = [threading.Thread(target=execs, args=(each,)) for _ in range(at_once)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [time.perf_counter() - started]


# One shell for all rounds: a daemon with as many shells as cores stands still.
session = None


def echoes(count):
    global session
    if session is None:
        session = server.new_session("d", rows=24, cols=80)
        session.write(f"exec sh -c '{line}'\n".encode())
        seen = b""
        while not seen.endswith(b"ready"):
            seen += session.read(timeout=1.0) or b""
    samples = []
    for number in range(count):
        key = bytes([ord("a") + number % 26])
        started = time.perf_counter()
        session.write(key)
        data = session.read(timeout=5.0)
        samples.append(time.perf_counter() - started)
        assert data is not None and bytes(data) == key, data
    return samples


def answer(seconds):
    print(json.dumps(seconds), flush=True)


deadline = time.monotonic() + 30
while server.daemon_count() == 0:
    assert time.monotonic() < deadline, "the daemon did not come"
    time.sleep(0.02)
answer([])
for request in sys.stdin:
    what, *numbers = request.split()
    numbers = [int(number) for number in numbers]
    answer({"exec": execs, "parallel": parallel, "echo": echoes}[what](*numbers))
