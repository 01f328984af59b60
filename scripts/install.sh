#!/bin/sh
# Installs the Debian packages of these programs that are missing: scripts/install.sh jq redis-server systemctl
set -eu
missing=
for name in "$@"; do
    command -v "$name" >/dev/null && continue
    case "$name" in systemctl) name=systemd ;; esac
    missing="$missing $name"
done
[ -n "$missing" ] || exit 0
echo "installing$missing" >&2
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
# The package starts one of its own; it would share the machine with what is tested and measured.
case "$missing" in *redis-server*) $sudo service redis-server stop >/dev/null 2>&1 || true ;; esac
