#!/usr/bin/env bash
# Installs the released command line of the control plane's original protocol (crabtalk 0.0.15, the
# version whose messages the seed lists) into .cache/ at the root of the repository. Does nothing
# when it is there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
client="$root/.cache/crabtalk"
mkdir -p "$root/.cache"

# Two runs at once would write into one folder.
exec 9>"$root/.cache/crabtalk.lock"
flock 9

if [ ! -x "$client/bin/crabtalk" ]; then
    # Unoptimised: it waits for a person. Its own target folder: CARGO_TARGET_DIR of the caller
    # would hold that lock for minutes.
    (cd "$root/.cache" && env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=0 \
        cargo install --quiet --locked --debug crabtalk --version 0.0.15 --root "$client")
fi
