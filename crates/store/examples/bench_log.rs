//! The bars of the embedded engine, each with its number, beside a bare file append + fdatasync on the same disk.
//!
//! `MIMALLOC_PURGE_DELAY=4000 cargo run --release -p promethean-store --features suite --example bench_log -- [EVENTS] [DIR]`
//! (the allocator's option is the one that a hub sets for itself)
//!
//! `PROMETHEAN_BENCH_SHORT=1`: a run that shows that all of this works, as the tests do it; its numbers mean nothing.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use promethean_event::{EventId, IdMaker, IdOrigin, Millis, NewEvent, Topic};
use promethean_store::log::{Log, Options};
use promethean_store::suite::{event, topic};
use promethean_store::{EventLog, ReadMax, Seek, Store};

/// The hub's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCH: usize = 500;
const WIRE: usize = 300;

/// Makes events of 300 bytes in the wire form, with one of 10,000 keys.
struct Maker {
    ids: IdMaker,
    bodies: Vec<NewEvent>,
    next: usize,
}

impl Maker {
    fn new() -> Self {
        let of = |n: usize| {
            let key = format!("device:{n:06}");
            let made = |fill: usize| event("bench").key(&key).payload(format!("\"{}\"", "x".repeat(fill))).new_event();
            let bare = made(0).at(1_000_000).wire_len();
            made(WIRE - bare)
        };
        Self { ids: IdMaker::new(), bodies: (0..10_000).map(of).collect(), next: 0 }
    }

    fn batch(&mut self, topics: &[Topic]) -> Vec<NewEvent> {
        let now = Millis::now();
        let mut batch = Vec::with_capacity(BATCH);
        self.ids.batch(now, BATCH, |id| {
            self.next += 1;
            let body = &self.bodies[self.next % self.bodies.len()];
            let topic = topics[self.next % topics.len()].clone();
            batch.push(NewEvent { id, topic, ts: now, appended: now, origin: IdOrigin::Hub, ..body.clone() });
        });
        batch
    }
}

fn bare(dir: &Path, events: usize) -> f64 {
    let mut file = File::create(dir.join("bare")).expect("a file");
    let data = vec![b'x'; BATCH * WIRE];
    let start = Instant::now();
    for _ in 0..events / BATCH {
        file.write_all(&data).expect("written");
        file.sync_data().expect("synced");
    }
    let rate = events as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(dir.join("bare")).expect("removed");
    rate
}

/// Appends through `publishers` at once, each waiting for its answer; events a second. The events are there before the
/// clock starts, as the bare append's bytes are.
async fn publish(log: &Arc<Log>, topics: &[Topic], events: usize, publishers: usize) -> f64 {
    let mut maker = Maker::new();
    let mut ready = vec![Vec::new(); publishers];
    for n in 0..events / BATCH {
        ready[n % publishers].push(maker.batch(topics));
    }
    let start = Instant::now();
    let mut running = Vec::new();
    for batches in ready {
        let log = log.clone();
        running.push(tokio::spawn(async move {
            for batch in batches {
                log.append(batch).await.expect("appended");
            }
        }));
    }
    for one in running {
        one.await.expect("no panic");
    }
    events as f64 / start.elapsed().as_secs_f64()
}

/// Appends so many that they must not all be there before.
async fn fill(log: &Arc<Log>, topics: &[Topic], events: usize) {
    const PART: usize = 100_000;
    for part in (0..events).step_by(PART) {
        publish(log, topics, PART.min(events - part), 2).await;
    }
}

/// How many batches are under way at once.
const AT_ONCE: [usize; 3] = [1, 2, 4];

/// How much is done.
#[derive(Clone, Copy)]
struct Plan {
    events: usize,
    /// The middle one counts: the disk of a shared machine is not the same from one second to the next.
    rounds: usize,
    /// Events that give the journal files their size.
    warm: usize,
    quiet: Duration,
}

const FULL: Plan = Plan { events: 5_000_000, rounds: 5, warm: 700_000, quiet: Duration::from_millis(700) };
const SHORT: Plan = Plan { events: 20_000, rounds: 1, warm: 2_000, quiet: Duration::ZERO };

/// An engine whose journal files have got their size: the first two grow while they are written, all later ones are
/// used again.
async fn warm(dir: &Path, topics: &[Topic], events: usize) -> Arc<Log> {
    let log = Arc::new(Log::open(Options::new(dir)).expect("opens"));
    fill(&log, topics, events).await;
    log
}

/// Until the one before has flushed what it left behind: nobody pays for another's work in the background.
async fn quiet(plan: Plan) {
    tokio::time::sleep(plan.quiet).await;
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One topic against the bare append, 1,000 topics against one: each beside the other in every round.
async fn against_the_bare_append(dir: &Path, plan: Plan) {
    let events = plan.events / 10;
    let (one, many) = ([topic("bench")], (0..1_000).map(|n| topic(&format!("bench.t{n}"))).collect::<Vec<_>>());
    let one_log = warm(&dir.join("one"), &one, plan.warm).await;
    let many_log = warm(&dir.join("many"), &many, plan.warm).await;
    for at_once in AT_ONCE {
        let (mut limits, mut ones, mut against, mut between) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            quiet(plan).await;
            let limit = bare(dir, events);
            quiet(plan).await;
            let rate = publish(&one_log, &one, events, at_once).await;
            quiet(plan).await;
            let of_many = publish(&many_log, &many, events, at_once).await;
            limits.push(limit);
            ones.push(rate);
            against.push(rate / limit);
            between.push(of_many / rate);
        }
        let (limit, rate) = (median(limits), median(ones));
        let (against, between) = (median(against), median(between));
        line(
            &format!("one topic, batches from {at_once} at once, against bare"),
            format!("{rate:.0} of {limit:.0}/s = {:.0} %", 100.0 * against),
            ">= 70 %",
            against >= 0.7,
        );
        line(
            &format!("1,000 topics against one, {at_once} at once"),
            format!("{:.0} %", 100.0 * between),
            ">= 80 %",
            between >= 0.8,
        );
    }
    for (log, name) in [(one_log, "one"), (many_log, "many")] {
        log.close().await.expect("closed");
        drop(log);
        std::fs::remove_dir_all(dir.join(name)).expect("removed");
    }
}

/// Throws the files out of the page cache, so that reading them begins at the disk.
fn make_cold(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry")) {
        if entry.metadata().expect("metadata").is_dir() {
            make_cold(&entry.path());
            continue;
        }
        let file = File::open(entry.path()).expect("opens");
        file.sync_all().expect("synced");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
    }
}

fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn size(dir: &Path) -> u64 {
    let of = |entry: std::fs::DirEntry| {
        let meta = entry.metadata().expect("metadata");
        if meta.is_dir() { size(&entry.path()) } else { meta.len() }
    };
    std::fs::read_dir(dir).expect("listed").map(|entry| of(entry.expect("an entry"))).sum()
}

fn line(what: &str, value: String, bar: &str, good: bool) {
    println!("{} {what:<54} {value:>34}   bar {bar}", if good { "ok  " } else { "MISS" });
}

async fn timed<T>(times: u32, mut work: impl AsyncFnMut(u32) -> T) -> Duration {
    let start = Instant::now();
    for n in 0..times {
        std::hint::black_box(work(n).await);
    }
    start.elapsed() / times
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let short = std::env::var_os("PROMETHEAN_BENCH_SHORT").is_some_and(|value| !value.is_empty());
    let mut plan = if short { SHORT } else { FULL };
    plan.events = args.next().and_then(|events| events.parse().ok()).unwrap_or(plan.events);
    let events = plan.events;
    let place = match args.next() {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let place = place.expect("a directory");
    let dir = place.path();
    let some = events / 5;

    if short {
        println!("a short run: it shows that this benchmark works, its numbers mean nothing");
    }
    let rounds = plan.rounds;
    println!("     bare: append + fdatasync of 500 x 300 bytes; medians of {rounds} rounds, one beside the other");
    against_the_bare_append(dir, plan).await;

    let name = [topic("bench")];
    let data = dir.join("data");
    let log = Arc::new(Log::open(Options::new(&data)).expect("opens"));
    fill(&log, &name, some).await;
    let early = rss();
    fill(&log, &name, events - some).await;
    let late = rss();
    line(
        &format!("RSS after {events} events"),
        format!("{late} MiB ({early} at {some})"),
        "< 400 MiB, flat",
        late < 400 && late < early + early / 3,
    );
    println!("     {:?}", log.stats());
    log.maintain(Millis::now()).await.expect("flushed");
    let used = size(&data) as f64 / (events * WIRE) as f64;
    line("disk used against the events' bytes", format!("{used:.3}"), "<= 1.15", used <= 1.15);
    log.close().await.expect("closed");
    drop(log);

    let start = Instant::now();
    let log = Log::open(Options::new(&data)).expect("opens");
    let opened = start.elapsed();
    line("open", format!("{opened:?}"), "< 300 ms", opened < Duration::from_millis(300));

    make_cold(&data);
    let (start, mut from, mut read) = (Instant::now(), 1, 0);
    let mut ids: Vec<EventId> = Vec::new();
    loop {
        let part = log.read(&name[0], from, ReadMax { events: 10_000, bytes: 4 << 20 }).await.expect("read");
        let Some(last) = part.last() else { break };
        (from, read) = (last.seq + 1, read + part.len());
        ids.push(last.id);
    }
    let rate = read as f64 / start.elapsed().as_secs_f64();
    assert_eq!(read, events / BATCH * BATCH);
    line("catch-up read, page cache emptied before", format!("{rate:.0}/s"), ">= 1,000,000/s", rate >= 1_000_000.0);

    let pick = |n: u32| ids[(n as usize * 7919) % ids.len()];
    let by_id = timed(300, async |n| log.seek(&name[0], Seek::AfterId(pick(n))).await.expect("found")).await;
    line("seek after an id", format!("{by_id:?}"), "< 1 ms", by_id < Duration::from_millis(1));
    let ends = log.read(&name[0], 1, ReadMax::events(1)).await.expect("read")[0].ts.0;
    let now = Millis::now().0;
    let time = |n: u32| Seek::Ts(Millis(ends + (now - ends) * u64::from(n) / 300));
    let by_ts = timed(300, async |n| log.seek(&name[0], time(n)).await.expect("found")).await;
    line("seek by time", format!("{by_ts:?}"), "< 1 ms", by_ts < Duration::from_millis(1));
    let by_key = timed(300, async |n| {
        let found = log.latest_by_key(&name[0], &[format!("device:{:06}", n * 33)]).await.expect("found");
        assert!(found[0].is_some());
    })
    .await;
    line("latest by key", format!("{by_key:?}"), "< 1 ms", by_key < Duration::from_millis(1));
    let absent = timed(300, async |n| log.locate(&[EventId::from_bytes(u128::from(n).to_be_bytes())]).await).await;
    println!("     an id that is not there: {absent:?}");
    log.close().await.expect("closed");
}
