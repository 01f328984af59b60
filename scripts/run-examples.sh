#!/usr/bin/env bash
# Runs every example of the workspace that is meant to be run to its end. A failing one fails the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
passed=0
for example in embed heartbeat; do
  echo "example $example"
  cargo run --quiet -p promethean-bus --example "$example" >/dev/null
  passed=$((passed + 1))
done
echo "example process_state"
cargo run --quiet -p promethean-projection --features bus --example process_state >/dev/null
passed=$((passed + 1))
# Each is killed in the middle, comes back, and checks that nothing is missing or there twice.
for example in orders_sqlite orders_mongo; do
  echo "example $example"
  cargo run --quiet -p promethean-outbox --example "$example" >/dev/null
  passed=$((passed + 1))
done
echo "$passed passed, 0 failed"
