#!/usr/bin/env bash
# Runs every example of the workspace that is meant to be run to its end. A failing one fails the tests.
# They are those that `cargo build --workspace --examples` made: built one by one they would choose other features and
# compile half of the dependencies again.
set -euo pipefail
cd "$(dirname "$0")/.."
passed=0
# The orders are killed in the middle, come back, and check that nothing is missing or there twice.
for example in embed heartbeat process_state orders_sqlite orders_mongo; do
  echo "example $example"
  "${CARGO_TARGET_DIR:-target}/debug/examples/$example" >/dev/null
  passed=$((passed + 1))
done
echo "$passed passed, 0 failed"
