#!/bin/sh
# Installs MongoDB's shell for the tests into target/mongosh, unless there is one. Its versions are in scripts/mongosh.
set -eu
command -v mongosh >/dev/null && exit 0
cd "$(dirname "$0")/.."
there=target/mongosh
cmp -s scripts/mongosh/package-lock.json "$there/installed" && exit 0
echo "installing mongosh for the tests" >&2
rm -rf "$there"
mkdir -p "$there"
cp scripts/mongosh/package.json scripts/mongosh/package-lock.json scripts/mongosh/.npmrc "$there"
npm ci --prefix "$there" --omit=optional --ignore-scripts --loglevel=error >/dev/null
cp scripts/mongosh/package-lock.json "$there/installed"
