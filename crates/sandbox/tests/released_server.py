"""Drives our workers through the released `sandd` server. Arguments: port, root of worker w1."""

import os
import sys
import threading
import time

from sandd import Server

port, root = int(sys.argv[1]), sys.argv[2]
server = Server(host="127.0.0.1", port=port, verbose=False)


def eventually(what, check, patience=20.0):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        result = check()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"waited in vain: {what}")


eventually("both workers register", lambda: server.daemon_count() == 2)

# Commands: environment, folder, both streams, exit codes.
result = server.exec("w1", "echo $FOO; pwd; echo bad >&2; exit 3", env={"FOO": "bar"}, cwd="/tmp")
assert (result.stdout, result.stderr, result.exit_code) == ("bar\n/tmp\n", "bad\n", 3), result
assert server.exec("w1", "pwd").stdout.strip() == os.path.realpath(root)
assert server.exec("w1", "nosuchprogram").exit_code == 127
killed = server.exec("w1", "kill -9 $$")
assert killed.exit_code == -1 and "SIGKILL" in killed.stderr, killed.stderr
assert len(server.exec("w1", "head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3000000
try:
    server.exec("w1", "true", cwd="/nonexistent")
    raise AssertionError("a bad folder was accepted")
except RuntimeError as error:
    assert "/nonexistent" in str(error), error

# A timeout: the server gives up at the same moment as the worker, so either may say it first.
try:
    server.exec("w1", "sleep 30; touch late", timeout=1)
    raise AssertionError("no timeout")
except (TimeoutError, RuntimeError) as error:
    assert "timed out" in str(error), error
eventually("the tree is dead", lambda: server.exec("w1", "pgrep -fx 'sleep 30' || true").stdout == "")

# Commands at once.
started = time.monotonic()
outputs = {}


def run(number):
    outputs[number] = server.exec("w1", f"sleep 1; echo {number}").stdout


threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert outputs == {number: f"{number}\n" for number in range(8)}, outputs
assert time.monotonic() - started < 5, "commands waited for each other"


# Sessions.
class Typist:
    def __init__(self, session):
        self.session, self.seen = session, ""

    def until(self, text):
        def check():
            data = self.session.read(timeout=0.1)
            if data:
                self.seen += data.decode(errors="replace")
            return text in self.seen

        eventually(f"{text!r} after {self.seen!r}", check)


first = Typist(server.new_session("w1", rows=24, cols=80))
second = Typist(server.new_session("w1", rows=30, cols=90))
first.session.write(b"stty size; echo $TERM\n")
first.until("24 80")
first.until("xterm-256color")
second.session.write(b"stty size\n")
second.until("30 90")
first.session.resize(40, 100)
first.session.write(b"stty size\n")
first.until("40 100")
second.session.write(b"echo still-$((40+2))\n")
second.until("still-42")
first.session.close()
second.session.write(b"exit 7\n")

# Files: absolute and relative names, an upload that really arrives.
data = bytes(range(256)) * 1000
server.upload_file("w1", os.path.join(os.path.realpath(root), "up", "data.bin"), data)


def arrived():
    path = os.path.join(root, "up", "data.bin")
    return os.path.exists(path) and open(path, "rb").read() == data


eventually("the upload", arrived)
server.upload_file("w1", "empty.bin", b"")
eventually("the empty upload", lambda: os.path.exists(os.path.join(root, "empty.bin")))
assert bytes(server.download_file("w1", "up/data.bin")) == data
server.upload_file("w1", "/etc/quintet-must-not-exist", b"evil")
assert server.exec("w1", "ls /etc/quintet-must-not-exist").exit_code != 0

# Labels.
assert sorted(daemon.id for daemon in server.list_daemons()) == ["w1", "w2"]
assert [daemon.id for daemon in server.list_daemons(labels={"role": "test"})] == ["w2"]
answers = server.broadcast({"team": "a"}, "echo all")
assert {name: answer.stdout for name, answer in answers.items()} == {"w1": "all\n", "w2": "all\n"}

# Snapshots are answered, not met with silence.
for ask in (
    lambda: server.create_snapshot("w1", root, "m", ["t"]),
    lambda: server.list_snapshots("w1"),
    lambda: server.find_snapshot_by_tag("w1", "t"),
    lambda: server.get_snapshot("w1", "x"),
    lambda: server.restore_snapshot("w1", "x", root),
    lambda: server.delete_snapshot("w1", "x"),
):
    began = time.monotonic()
    try:
        ask()
        raise AssertionError("a snapshot without a history")
    except RuntimeError as error:
        assert "history" in str(error), error
    assert time.monotonic() - began < 5

print("ok")
