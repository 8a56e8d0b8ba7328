#!/usr/bin/env python3
"""An agent for the browser tests: it does what it is told, without a model and without a clock.

A message's first word says what: see the functions below. What has to last until a test has looked at
it lasts until somebody steers or stops it.
"""

import json
import os
import socket
import struct

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["QUINTET_IPC_SOCKET"])
stream = connection.makefile("rwb")
workspace = "."
output = ""


def send(message):
    payload = json.dumps(message).encode()
    stream.write(struct.pack("<I", len(payload)) + payload)
    stream.flush()


def receive():
    header = stream.read(4)
    if len(header) < 4:
        raise SystemExit("the coordinator closed the connection")
    (length,) = struct.unpack("<I", header)
    return json.loads(stream.read(length))


def element(kind, **fields):
    send({"type": "stream_update", "message_id": output, "element": {"type": kind, **fields}})


def say(text):
    element("text_delta", text=text)


def complete(reason="end_turn", **more):
    send({"type": "complete", "message_id": output, "finish_reason": reason, **more})


def until(*kinds):
    """Waits for one of these messages."""
    while True:
        message = receive()
        if message["type"] == "shutdown":
            raise SystemExit(0)
        if message["type"] in kinds:
            return message


def do_wait(_):
    say("I wait.")
    message = until("steer", "cancel")
    if message["type"] == "cancel":
        return complete("cancelled")
    say(f" You steered me: {message['content']}")
    complete()


def do_count(rest):
    say(f"That was {len(rest) + len('count ')} letters.")
    complete()


def do_think(_):
    element("thinking", text="First I think")
    element("thinking", text=" about it.")
    say("Thought through.")
    complete()


def do_tool(_):
    element("tool_call", call_id="call_1", name="exec", arguments={"command": "make all"})
    element("terminal_output", stream="stdout", data="\u001b[32mcompiling\u001b[0m one\n")
    message = until("steer", "cancel")
    if message["type"] == "cancel":
        return complete("cancelled")
    element("terminal_output", stream="stdout", data="compiling two\n")
    element("tool_result", call_id="call_1", output="built everything", is_error=False, duration_ms=1234)
    element("tool_call", call_id="call_2", name="read_file", arguments={"path": "missing.txt"})
    element("tool_result", call_id="call_2", output="no such file", is_error=True, duration_ms=3)
    say("Built.")
    complete()


def do_diff(_):
    diff = "--- a/hello.rs\n+++ b/hello.rs\n@@ -1,3 +1,3 @@\n fn main() {\n-    old();\n+    new();\n }\n"
    element("file_change", path="hello.rs", change="modified", diff=diff)
    say("Changed one file.")
    complete()


def do_write(rest):
    path, _, text = rest.partition(" ")
    with open(os.path.join(workspace, path), "w", encoding="utf-8") as file:
        file.write(text.replace("\\n", "\n"))
    say(f"Wrote {path}.")
    complete()


def do_ask(_):
    options = [{"label": "main", "description": "Straight in"}, {"label": "next", "description": "Later"}]
    question = {"question": "Which branch?", "header": "Branch", "options": options, "multi_select": False}
    send({"type": "ask_user", "ask_id": output, "questions": [question]})
    message = until("ask_result", "cancel")
    if message["type"] == "cancel":
        return complete("cancelled")
    say(f"You chose {message['outcome'].get('answers')}")
    complete()


def do_approve(rest):
    request = {"request_id": output, "action": "Run a command", "command": rest, "cwd": workspace}
    send({"type": "approval_request", **request, "reason": "It was asked for."})
    message = until("approval_result", "cancel")
    if message["type"] == "cancel":
        return complete("cancelled")
    say("I may." if message["approved"] else f"I may not: {message.get('reason')}")
    complete()


def do_fail(_):
    """Ends badly the first time, well the second."""
    marker = os.path.join(workspace, ".failed-once")
    if not os.path.exists(marker):
        open(marker, "w", encoding="utf-8").close()
        os._exit(3)
    say("Now it works.")
    complete()


def do_spend(_):
    say("Spent.")
    complete(token_usage={"input_tokens": 1200, "output_tokens": 34, "cost": "0.25"})


MARKDOWN = """# A title

Some **bold** words, `code`, and a [link](https://example.com).

```python
def answer():
    return 42
```

| a | b |
|---|---|
| 1 | 2 |

<img src="x" onerror="window.pwned = 1"><script>window.pwned = 1</script>[bad](javascript:alert(1))

The end.
"""


def do_markdown(_):
    for start in range(0, len(MARKDOWN), 7):
        say(MARKDOWN[start : start + 7])
    element("text_final", text=MARKDOWN)
    complete()


def do_stream(_):
    """Stops in the middle of a code block."""
    say("# Half a ti")
    say("tle\n\n```python\nprint(1)")
    message = until("steer", "cancel")
    if message["type"] == "cancel":
        return complete("cancelled")
    say("Some **bold** words.")
    complete()


def do_many(rest):
    for number in range(int(rest)):
        element("tool_call", call_id=f"c{number}", name="step", arguments={"path": f"file-{number}"})
        element("tool_result", call_id=f"c{number}", output="ok", is_error=False, duration_ms=1)
        say(f"Step {number} is done.\n\n")
    complete()


DEMO = """The watcher task **returns on the first write error**, so a full disk ends it for good. Three things follow:

1. Keep the task alive and mark the replica *degraded*.
2. Retry with a bounded back-off, at most every 30 s.
3. Say so once in the journal, so that every client sees it.

```rust
match self.journal.append(&batch).await {
    Ok(sequence) => self.settle(sequence),
    // A full disk passes; a task that ended does not come back.
    Err(error) if error.is_storage_full() => self.degrade(Reason::DiskFull),
    Err(error) => return Err(error.into()),
}
```

| disk | before | now |
|---|---|---|
| full | the task ends | degraded, retries |
| free again | nothing happens | catches up |
"""

DEMO_DIFF = """--- a/src/watch.rs
+++ b/src/watch.rs
@@ -114,6 +114,7 @@ impl Watcher {
         let batch = self.debounced.take();
         match self.journal.append(&batch).await {
             Ok(sequence) => self.settle(sequence),
-            Err(error) => return Err(error.into()),
+            Err(error) if error.is_storage_full() => self.degrade(Reason::DiskFull),
+            Err(error) => return Err(error.into()),
         }
"""


def do_make(_):
    """A conversation to look at: the screenshots are of it."""
    element("thinking", text="Where is the error of a write passed on?")
    element("tool_call", call_id="d1", name="search", arguments={"pattern": "StorageFull", "path": "src"})
    found = "src/watch.rs:118: Err(error) => return Err(error.into()),"
    element("tool_result", call_id="d1", output=found, is_error=False, duration_ms=42)
    element("tool_call", call_id="d2", name="exec", arguments={"command": "cargo nextest run watcher"})
    failed = "FAIL watcher::survives_full_disk"
    element("tool_result", call_id="d2", output=failed, is_error=True, duration_ms=8420)
    say(DEMO)
    element("file_change", path="src/watch.rs", change="modified", diff=DEMO_DIFF)
    complete(token_usage={"input_tokens": 48211, "output_tokens": 1932, "cost": "0.2131"})


def do_now(_):
    say("Running the suite now.")
    element("tool_call", call_id="n1", name="exec", arguments={"command": "./test --only nextest"})
    element("terminal_output", stream="stdout", data="   Compiling workspace v0.1.0\n    Running 412 tests\n")
    element("terminal_output", stream="stdout", data="       PASS watcher::survives_full_disk\n")
    message = until("steer", "cancel")
    complete("cancelled" if message["type"] == "cancel" else "end_turn")


ACTIONS = {name[3:]: action for name, action in list(globals().items()) if name.startswith("do_")}
count = 0
while True:
    message = receive()
    if message["type"] == "init":
        workspace = message["workspace"]
    elif message["type"] == "message":
        count += 1
        output = f"out_{os.getpid()}_{count}"
        text = message["data"]["text"]
        word, _, rest = text.partition(" ")
        if text.startswith("Summarise this conversation"):
            say("A summary of what was said.")
            complete()
        elif word in ACTIONS:
            ACTIONS[word](rest)
        else:
            say(f"You said: {text}")
            complete()
    elif message["type"] == "shutdown":
        break
