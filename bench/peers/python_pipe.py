"""Python's multiprocessing pipe: `python3 python_pipe.py flood|echo COUNT` prints a rate a second."""

import multiprocessing
import sys
import time

TEXT = "x" * 200
DELTA = {"type": "stream_update", "message_id": "out", "element": {"type": "text_delta", "text": TEXT}}


def flood(pipe, total):
    pipe.recv()
    for _ in range(total):
        pipe.send(DELTA)


def echo(pipe, total):
    for _ in range(total):
        message = pipe.recv()
        pipe.send({"type": "complete", "message_id": message["id"]})


def main():
    mode, total = sys.argv[1], int(sys.argv[2])
    near, far = multiprocessing.Pipe()
    work = {"flood": flood, "echo": echo}[mode]
    child = multiprocessing.get_context("fork").Process(target=work, args=(far, total))
    child.start()
    message = {"type": "message", "id": "m", "data": {"text": "hi", "role": "user"}}
    started = time.perf_counter()
    if mode == "flood":
        near.send(message)
        for _ in range(total):
            assert len(near.recv()["element"]["text"]) == 200
    else:
        for _ in range(total):
            near.send(message)
            near.recv()
    print(total / (time.perf_counter() - started))
    child.join()


if __name__ == "__main__":
    main()
