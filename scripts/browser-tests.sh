#!/usr/bin/env bash
# The SDK against the real hub on Node, its Sibilant sugar, and everything in e2e/browser in a real Chromium.
# Needs the page and the SDK built (make web); builds the hub with the page inside. Screenshots stay in
# e2e/browser/screenshots. The page under 2,000 events/s stays open for SOAK_SECONDS (40 here, five minutes by `make soak`).
set -euo pipefail
cd "$(dirname "$0")/.."
install() {
  [ "$1/node_modules" -nt "$1/package-lock.json" ] && return
  (cd "$1" && npm ci --no-audit --no-fund --loglevel=error && touch node_modules)
}
# The same build that the Rust tests use, asked for in the same words: without the examples cargo takes other features of
# the dependencies and builds half of them anew. A release build would take minutes more and test the same code.
cargo build --workspace --bins --examples
PROMETHEAN_BIN="${PROMETHEAN_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/debug/promethean}"
CHROMIUM="${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}"
export PROMETHEAN_BIN CHROMIUM
install sdk/typescript
(cd sdk/typescript && npx vitest run test/scenarios.test.ts test/chaos.test.ts)
install sdk/sibilant
(cd sdk/sibilant && npm test --silent)
install e2e/browser
(cd e2e/browser && npm test --silent)
(cd e2e/browser && SOAK_SECONDS="${SOAK_SECONDS:-40}" npm run --silent soak)
