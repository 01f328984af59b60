#!/usr/bin/env bash
# A real systemd for the tests: process 1 of a machine of its own, made of namespaces, as root.
#
#   scripts/systemd.sh run DIR          starts it, says `running` and goes on until the standard input ends: whoever holds
#                                       the other end of that pipe may die in any way, and nothing of the machine is left
#   scripts/systemd.sh in DIR COMMAND…  runs a command there
#
# The machine has this one's programs, read-only, and the folders DIR/etc, DIR/var and DIR/usr/local/bin. Processes,
# network (loopback alone), devices, host name and control groups are its own. Of systemd's units it has only those that
# leave the kernel as it is: the usual ones would set this machine's sysctls. Where the system does not allow this, it fails.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"

# What the machine starts: enough for a service that wants the network, and the journal for what it says.
units=(basic local-fs multi-user network network-online paths shutdown slices sockets swap sysinit timers umount)
journal=(systemd-journald.service systemd-journald.socket)
path=/usr/local/bin:/usr/sbin:/usr/bin

# What every machine has; an id, so that systemd does not take the start for the first one and enable what it finds.
furnish() {
  mkdir -p "$1"/{etc,var,usr/local/bin}
  echo root:x:0:0:root:/root:/bin/sh >"$1/etc/passwd"
  echo root:x:0: >"$1/etc/group"
  touch "$1"/etc/{shadow,gshadow}
  echo 70726f6d657468656120746573747321 >"$1/etc/machine-id"
}

# Only in the namespaces: the root is put together, then systemd takes the place of this process.
boot() {
  local dir="$1" root="$1/root" name pid
  # The old /proc still says what this process is called outside. Who reads that finds the new root.
  read -r pid _ </proc/self/stat
  exec 3>"$dir/init.pid"
  mkdir -p "$root"
  mount -t tmpfs -o mode=755 machine "$root"
  cd "$root"
  mkdir -p usr etc var run tmp proc sys dev root old
  ln -s usr/bin usr/sbin usr/lib usr/lib64 .
  chmod 1777 tmp
  mount --bind /usr usr
  mount -o remount,bind,ro usr
  mount --bind "$dir/usr/local/bin" usr/local/bin
  mount --bind "$dir/etc" etc
  mount --bind "$dir/var" var
  mount -t tmpfs -o mode=755 run run
  mount -t proc proc proc
  mount --bind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys
  mount -t sysfs -o ro sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=755 dev dev
  for name in null zero full random urandom tty; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
  done
  mkdir dev/pts dev/shm
  mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
  ln -s pts/ptmx dev/ptmx
  mount -t tmpfs -o mode=1777 shm dev/shm
  mount -t tmpfs -o mode=755 units usr/lib/systemd/system
  mount -t tmpfs -o ro generators usr/lib/systemd/system-generators
  for name in "${units[@]/%/.target}" "${journal[@]}"; do
    cp "/usr/lib/systemd/system/$name" usr/lib/systemd/system/
  done
  mkdir usr/lib/systemd/system/sysinit.target.wants
  ln -s ../systemd-journald.service usr/lib/systemd/system/sysinit.target.wants/
  pivot_root . old
  umount -l old
  rmdir old
  echo "$pid" >&3
  exec 3>&-
  exec env -i container=promethean "PATH=$path" \
    /usr/lib/systemd/systemd --system --unit=multi-user.target
}

# In a mount namespace of its own, so that the control groups can be mounted wherever this machine has them.
main() {
  local dir="$1" groups="$1/groups" group="$1/groups/promethean-$$" machine status=0
  furnish "$dir"
  mkdir -p "$groups"
  mount -t cgroup2 cgroup2 "$groups"
  mkdir "$group"
  bash -c 'echo $$ >"$1" && shift && exec "$@"' bash "$group/cgroup.procs" setpriv --pdeathsig KILL \
    unshare --fork --kill-child --mount --pid --net --uts --ipc --cgroup "$0" boot "$dir" </dev/null >"$dir/console" 2>&1 &
  machine=$!
  trap '' INT HUP TERM PIPE
  if up "$dir" "$machine"; then
    echo running || true
    read -r || true
  else
    status=1
  fi
  kill -9 "$machine" 2>/dev/null || true
  wait "$machine" 2>/dev/null || true
  # The groups of what was just killed are busy for a moment.
  for _ in {1..100}; do
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
    sleep 0.05
  done
  return "$status"
}

inside() {
  local dir="$1"
  shift
  nsenter --all --target "$(cat "$dir/init.pid")" env "PATH=$path" "$@"
}

# Whether systemd has started what it is to start.
up() {
  local state
  for _ in {1..300}; do
    kill -0 "$2" 2>/dev/null || break
    state="$(inside "$1" systemctl is-system-running 2>&1 || true)"
    [ "$state" = running ] && return
    sleep 0.1
  done
  echo "systemd does not run: ${state:-}; $(cat "$1/console")" >&2
  return 1
}

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

[ $# -ge 2 ] || usage
[ "$(id -u)" = 0 ] || exec /usr/bin/sudo "$0" "$@"
case "$1" in
  run) exec unshare --mount "$0" main "$2" ;;
  in) shift && inside "$@" ;;
  main | boot) "$@" ;; # how the script calls itself
  *) usage ;;
esac
