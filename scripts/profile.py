#!/usr/bin/env python3
"""Where the hub's CPU time goes: the tables of docs/performance.md, "Where the time goes".

    scripts/profile.py             one topic and 1,000 topics, published, and end to end by one pattern
    DETAIL=1 scripts/profile.py    the same, with the functions

The load is that of `make bench-compare ARGS="growth topics"`, which has to have run once: it builds what is needed here.
Needs `perf`. Samples are counted where they fell (the innermost function): those of the engine's own threads by the thread,
the rest by what the function is for.
"""
import os, pathlib, re, shutil, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HUB = ROOT / "target/release/promethean"
COMPARE = ROOT / "target/compare/build/release/promethean-compare"
SECONDS = 5
# What the load generator has said when each part begins.
PARTS = [("one topic, published", None), ("one topic, end to end", "1 topics: published"), ("1,000 topics, published", "1 topics: end to end"), ("1,000 topics, end to end by one pattern", "1000 topics: published")]
KERNEL = [
    ("kernel: network", r"tcp|sock|_iter$|skb|inet|ip_|net_|loopback|sk_|__ip|dev_|napi|epoll|nf_|csum|copy_from_iter|copy_to_iter|unix_"),
    ("kernel: files", r"ext4|jbd2|blk|bio|submit|iomap|writeback|folio|filemap|xas|virtio|vfs|fsync|page_cache|copy_page|fault_in|generic_perform"),
    ("kernel: memory", r"fault|clear_page|zap|mmap|madvise|alloc_pages|free_page|rmqueue|pte|pmd|vma|lru|charge|memcg"),
    ("kernel: scheduling and calls", r""),
]
USER = [
    ("copies", r"mem(cpy|move|set|cmp)|copy_nonoverlapping"),
    ("memory", r"\bmi_|mimalloc|malloc|free|realloc|drop_in_place|::grow_|RawVec|Bytes.*(clone|drop)|arc.*drop"),
    ("frames and their JSON", r"promethean_gateway::ws|promethean_event::frame|serde_json|core::str|utf8|memchr|simd|unmask|promethean_event::raw|promethean_event::json"),
    ("the event: id, partition, body", r"promethean_event|uuid|siphash|foldhash|getrandom|rand"),
    ("the group: deliveries, leases, acks", r"promethean_bus"),
    ("the journal: numbering, checksum, making visible", r"promethean_store|crc32|lz4|redb"),
    ("tasks and hand-overs", r"tokio|futures|parking_lot|std::sync|std::thread|waker|mio|crossbeam|park"),
    ("the rest", r""),
]
THREADS = [("flushing", r"-flus"), ("the journal's threads", r"-(jour|writ|sync)")]


def kind(thread, symbol, kernel):
    """What a sample is for."""
    for name, pattern in THREADS:
        if re.search(pattern, thread):
            return f"{name}: {'kernel' if kernel else 'user'}"
    return next(name for name, pattern in (KERNEL if kernel else USER) if re.search(pattern, symbol))


def hub_below(parent):
    """The hub that a process has started."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(stat[1]) == parent and b"serve" in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
        except (OSError, IndexError, ValueError):
            pass
    return None


def ticks(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def record(pid, data):
    before = ticks(pid)
    subprocess.run(["perf", "record", "-F", "1999", "-p", str(pid), "-o", data, "--", "sleep", str(SECONDS)], check=True, capture_output=True)
    return ticks(pid) - before


def report(data, cpu):
    lines = subprocess.run(["perf", "report", "-i", data, "--stdio", "--no-children", "-F", "overhead,comm,sym"], check=True, capture_output=True, text=True).stdout
    shares, detail = {}, {}
    for line in lines.splitlines():
        found = re.match(r"\s*([\d.]+)%\s+(.+?)\s+\[([.k])\]\s+(.*)", line)
        if found:
            share, thread, where, symbol = float(found[1]), found[2], found[3], found[4].strip()
            name = kind(thread, symbol, where == "k")
            shares[name] = shares.get(name, 0) + share
            detail.setdefault(name, []).append((share, symbol[:90]))
    print(f"{cpu:.2f} s of CPU in {SECONDS} s")
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"{share:6.1f} %  {name}")
        if os.environ.get("DETAIL"):
            for part, symbol in sorted(detail[name], reverse=True)[:8]:
                print(f"            {part:5.2f}  {symbol}")


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    place = tempfile.mkdtemp(prefix="promethean-profile-")
    data = f"{place}/perf.data"
    os.mkdir(f"{place}/hub")
    command = [COMPARE, "growth", "topics", "--rounds", "1", "--seconds", str(SECONDS + 5), "--dir", f"{place}/hub", "--promethean", HUB]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for name, said in PARTS:
            for line in iter(load.stderr.readline if said else lambda: "", ""):
                print(line, end="")
                if line.startswith(said):
                    break
            time.sleep(2.5)
            cpu = record(hub_below(load.pid), data)
            print(f"\n{name}: ", end="")
            report(data, cpu)
        print(load.stderr.read(), end="")
    finally:
        load.wait()
        shutil.rmtree(place, ignore_errors=True)


main()
