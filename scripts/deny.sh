#!/bin/sh
# cargo-deny over what deny.toml says of licences, bans and sources, for each lock file. Builds it into target/deny where
# it is missing (a minute). Known vulnerabilities are not asked for: their list comes over a network that CI does not have.
set -eu
cd "$(dirname "$0")/.."
version=0.20.2
deny="$PWD/target/deny/bin/cargo-deny"
if [ "$("$deny" --version 2>/dev/null)" != "cargo-deny $version" ]; then
    echo "building cargo-deny $version for the tests" >&2
    # Not optimized: building it so takes a third of the time, and it has seconds of work.
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$PWD/target/deny/build" \
        cargo install --quiet --locked --debug --root "$PWD/target/deny" "cargo-deny@$version"
    rm -rf target/deny/build
fi
check() { "$deny" --log-level error --locked --manifest-path "$1" --config "$2" check licenses bans sources; }
for manifest in Cargo.toml bench/compare/Cargo.toml fuzz/Cargo.toml; do
    echo "deny: $manifest"
    check "$manifest" deny.toml
done
# A check that cannot fail is none: without one of its licences it has to.
grep -v '"BSL-1.0"' deny.toml >target/deny/strict.toml
if check Cargo.toml target/deny/strict.toml >/dev/null 2>&1; then
    echo "deny: BSL-1.0 is not allowed in target/deny/strict.toml, and cargo-deny does not say so" >&2
    exit 1
fi
