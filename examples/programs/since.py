#!/usr/bin/env python3
"""Says what happened since it was last run: a client that misses nothing and holds one number.

    since.py FILE    the number of the last event that was said is kept in FILE
"""

import json
import pathlib
import subprocess
import sys

cursor = pathlib.Path(sys.argv[1])
after = cursor.read_text() if cursor.exists() else "0"
events = subprocess.run(
    ["quintet", "events", "--json", "--after", after],
    stdout=subprocess.PIPE,
    check=True,
    text=True,
)
for line in events.stdout.splitlines():
    event = json.loads(line)
    # Out before its number is kept: what was not said is said again, never lost.
    print(event["seq"], event["kind"], event["data"].get("title", ""), flush=True)
    cursor.write_text(str(event["seq"]))
