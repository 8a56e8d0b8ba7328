#!/usr/bin/env bash
# Installs the released programs that the sandbox plane is tested against:
# the `sandd` server (PyPI, 0.2.1) and the `sandd` daemon (cargo registry, 0.0.1),
# into .cache/ at the root of the repository. Does nothing when both are there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
server="$root/.cache/sandd-py"
daemon="$root/.cache/sandd-daemon"
mkdir -p "$root/.cache"

# Two runs at once would write into one folder.
exec 9>"$root/.cache/sandd.lock"
flock 9

if ! "$server/bin/python" -c 'import importlib.metadata as m, sandd; assert m.version("sandd") == "0.2.1"' 2>/dev/null; then
    rm -rf "$server"
    python3 -m venv "$server"
    "$server/bin/pip" install --quiet --disable-pip-version-check sandd==0.2.1
fi

if [ ! -x "$daemon/bin/sandd" ]; then
    # Its own target folder: CARGO_TARGET_DIR of the caller would hold that lock for minutes.
    (cd "$root/.cache" && env -u CARGO_TARGET_DIR cargo install --quiet --locked sandd --version 0.0.1 --root "$daemon")
fi
