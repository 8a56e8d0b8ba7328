#!/usr/bin/env bash
# Builds dist/ (the library, the examples and the tests), installing the compiler where it is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# npm writes this file last: it is older than the lock when an install is due.
if [[ ! node_modules/.package-lock.json -nt package-lock.json ]]; then
    npm ci --no-audit --no-fund
fi
npm run --silent build
