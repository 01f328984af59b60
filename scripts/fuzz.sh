#!/bin/sh
# Runs each fuzz target for a while: scripts/fuzz.sh [SECONDS] [TARGET...]
# FUZZ_PROFILE=dev builds for a try, in a minute and a half in place of several.
# Needs a C++ compiler (libFuzzer); neither cargo-fuzz nor a nightly toolchain is needed.
set -eu
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
[ $# -gt 0 ] && shift
targets=${*:-"frame codec pattern jwt"}
profile=${FUZZ_PROFILE:-release}
built=$profile
[ "$profile" = dev ] && built=debug
host=$(rustc -vV | sed -n 's/^host: //p')

# What cargo-fuzz passes: coverage counters for libFuzzer, compares traced. No sanitizer: the code is safe Rust.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
bins=
for target in $targets; do bins="$bins --bin $target"; done
# shellcheck disable=SC2086
cargo build --profile "$profile" --target "$host" $bins

for target in $targets; do
    mkdir -p "corpus/$target" "artifacts/$target"
    seeds=
    [ -d "seeds/$target" ] && seeds="seeds/$target"
    echo "fuzz: $target for $seconds s"
    # shellcheck disable=SC2086
    "${CARGO_TARGET_DIR:-target}/$host/$built/$target" "corpus/$target" $seeds -max_total_time="$seconds" -max_len=4096 \
        -artifact_prefix="artifacts/$target/" -print_final_stats=1 -verbosity=0 -print_funcs=0
done
