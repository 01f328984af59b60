//! `from: "snapshot"` while eight writers write: over the bus, the client and Server-Sent Events, with a group and
//! without, on both engines. A checker knows every event that was written and where: the snapshot has to be the state
//! of one moment, complete, and everything after that moment has to follow, in order, nothing missing, nothing twice.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use promethean_bus::{Bus, BusOptions, Draft, From, Group, SubscribeOptions, Topic};
use promethean_client::Client;
use promethean_event::payload_of;
use promethean_gateway::auth::{AuthConfig, Authenticator};
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub, http, ws};
use promethean_store::log::{Log, Options};
use promethean_store::memory::Memory;
use promethean_store::{EventLog as _, Store};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

const WRITERS: u64 = 8;
const EACH: u64 = 400;
const KEYS: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(60);

/// What was written, by seq: the key, and whether the key lives after it.
type Ledger = BTreeMap<u64, (String, bool)>;

/// What a subscriber was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    seq: u64,
    snapshot: bool,
}

/// Writes `EACH` events to keys that other writers write to as well; one in nine removes its key.
async fn write(bus: Bus, writer: u64, progress: Arc<AtomicU64>) -> Vec<(u64, (String, bool))> {
    let mut written = Vec::new();
    for n in 0..EACH {
        let random = (writer * EACH + n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        let (key, live) = (format!("k{}", random % KEYS), !random.is_multiple_of(9));
        let payload = if live { payload_of(&(writer, n)) } else { payload_of(&()) }.expect("JSON");
        let mut draft = Draft::new(Topic::parse("s").expect("a topic"), Cow::Owned(payload));
        draft.options.key = Some(key.clone().into());
        let published = bus.publish(&draft).await.expect("published");
        written.push((published.seq, (key, live)));
        progress.fetch_add(1, Ordering::AcqRel);
        tokio::task::yield_now().await;
    }
    written
}

fn check(who: &str, seen: &[Seen], ledger: &Ledger) {
    let live: Vec<u64> = seen.iter().filter(|seen| !seen.snapshot).map(|seen| seen.seq).collect();
    let snapshot: Vec<u64> = seen.iter().filter(|seen| seen.snapshot).map(|seen| seen.seq).collect();
    let first = live.first().copied().unwrap_or_else(|| panic!("{who} saw nothing after its snapshot"));
    assert_eq!(live, (first..=WRITERS * EACH).collect::<Vec<_>>(), "{who}: what came after the snapshot");
    assert!(seen[..snapshot.len()].iter().all(|seen| seen.snapshot), "{who}: the snapshot comes first");
    let mut state = BTreeMap::new();
    for (seq, (key, lives)) in ledger.range(..first) {
        match lives {
            true => state.insert(key, *seq),
            false => state.remove(key),
        };
    }
    let mut expected: Vec<u64> = state.into_values().collect();
    let mut got = snapshot;
    expected.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, expected, "{who}: the state at seq {}", first - 1);
}

fn options() -> SubscribeOptions {
    SubscribeOptions { from: From::Snapshot, ..SubscribeOptions::default() }
}

async fn over_the_bus(bus: Bus, group: Option<&str>) -> Vec<Seen> {
    let group = group.map(|group| Group::parse(group).expect("a group"));
    let mut events = bus.subscribe("s", group, options()).await.expect("subscribed");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last: &Seen| last.snapshot || last.seq < WRITERS * EACH) {
        let batch = events.next_batch(50).await.expect("open");
        seen.extend(batch.iter().map(|one| Seen { seq: one.event().seq, snapshot: one.given().snapshot }));
        events.ack_all(&batch).await.expect("acked");
    }
    seen
}

async fn over_the_client(at: SocketAddr, group: Option<&str>) -> Vec<Seen> {
    let client = Client::builder(format!("ws://{at}")).connect().await.expect("connected");
    let mut events = client.subscribe("s", group, options().into()).await.expect("subscribed");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last: &Seen| last.snapshot || last.seq < WRITERS * EACH) {
        let delivery = events.next().await.expect("open").expect("open");
        seen.push(Seen { seq: delivery.event().seq, snapshot: delivery.context().snapshot });
        delivery.ack().await.expect("acked");
    }
    seen
}

async fn over_sse(at: SocketAddr) -> Vec<Seen> {
    let mut stream = TcpStream::connect(at).await.expect("connected");
    let request = format!("GET /events/s?from=snapshot HTTP/1.0\r\nhost: {at}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut lines = BufReader::new(stream).lines();
    let (mut seen, mut id) = (Vec::new(), false);
    while seen.last().is_none_or(|last: &Seen| last.snapshot || last.seq < WRITERS * EACH) {
        let line = lines.next_line().await.expect("readable").expect("open");
        if let Some(data) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(data).expect("JSON");
            // The events of a snapshot have no id line.
            seen.push(Seen { seq: event["seq"].as_u64().expect("a seq"), snapshot: !id });
        }
        id = line.starts_with("id: ");
    }
    seen
}

async fn eight_writers(store: Arc<dyn Store>) {
    let bus = Bus::new(store, BusOptions::default());
    let auth = Authenticator::new(&AuthConfig::default()).expect("a configuration");
    let hub = Arc::new(Hub::new(bus.clone(), auth, Quotas::default(), EdgeConfig::default()));
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let at = listener.local_addr();
    let router = ws::in_front_of(http::router(Arc::clone(&hub)), Arc::clone(&hub));
    tokio::spawn(listener.serve(router, Intake::new(100, None), hub.drain.watch()));

    let progress = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(bus.clone(), writer, Arc::clone(&progress)))).collect();
    let mut readers = tokio::task::JoinSet::new();
    for round in 0..3_u64 {
        // Each round starts at another moment of the writing.
        while progress.load(Ordering::Acquire) < round * WRITERS * EACH / 4 {
            tokio::task::yield_now().await;
        }
        let bus = bus.clone();
        readers.spawn(async move {
            let group = format!("bus-{round}");
            let client_group = format!("client-{round}");
            let (one, two, three, four, five) = tokio::join!(
                over_the_bus(bus.clone(), None),
                over_the_bus(bus, Some(&group)),
                over_the_client(at, None),
                over_the_client(at, Some(&client_group)),
                over_sse(at),
            );
            let names = ["a tail", "a group", "the client's tail", "the client's group", "Server-Sent Events"];
            names
                .into_iter()
                .zip([one, two, three, four, five])
                .map(move |(name, seen)| (format!("{name}, round {round}"), seen))
        });
    }
    let mut ledger = Ledger::new();
    for writer in writers {
        ledger.extend(writer.await.expect("written"));
    }
    assert_eq!(ledger.len() as u64, WRITERS * EACH);
    let mut checked = 0;
    while let Some(read) = tokio::time::timeout(PATIENCE, readers.join_next()).await.expect("in time") {
        for (who, seen) in read.expect("no panic") {
            check(&who, &seen, &ledger);
            checked += 1;
        }
    }
    assert_eq!(checked, 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_start_under_eight_writers_is_complete_and_followed_by_everything_in_memory() {
    eight_writers(Arc::new(Memory::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_start_under_eight_writers_is_complete_and_followed_by_everything_on_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = Options::new(dir.path());
    // Small files: part of the keys is settled, part is not, and that moves while snapshots are read.
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (32 << 10, 64 << 10, 4 << 10);
    let log = Arc::new(Log::open(options).expect("opens"));
    eight_writers(Arc::clone(&log) as Arc<dyn Store>).await;
    assert!(log.info(&Topic::parse("s").expect("a topic")).await.expect("known").is_some());
    log.close().await.expect("closed");
}
