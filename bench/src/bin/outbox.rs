//! How fast an outbox in SQLite is drained into a local hub: the release binary on the embedded store with
//! `sync = always`, over WebSocket, and the same into a bus in the same process. Three runs each, the middle one counts.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use promethean_bench::{Bar, begin, end, median, report, sized};
use promethean_bus::Bus;
use promethean_client::Client;
use promethean_e2e::Setup;
use promethean_outbox::{BusPublisher, ClientPublisher, NewRow, Publisher, Settings, SqliteOutbox, drain};
use promethean_store::log::{Log, Options};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    let rows = sized(100_000, 1_000);
    begin(&format!("{rows} rows of 256 bytes in SQLite (WAL), 1,000 keys, default settings, hub with sync = always"));
    let mut ok = true;

    let hub = Setup::log(&dir.path().join("hub")).start();
    let runs: Vec<f64> = (0..3)
        .map(|run| {
            let path = dir.path().join(format!("client-{run}.db"));
            runtime.block_on(async {
                let client = Client::builder(format!("ws://{}", hub.ws)).connect().await.expect("connected");
                measure(&path, rows, Arc::new(ClientPublisher::new(client))).await
            })
        })
        .collect();
    ok &= report("outbox in SQLite → hub over WebSocket", median(runs), "rows/s", Bar::AtLeast(20_000.0));
    drop(hub);

    let runs: Vec<f64> = (0..3)
        .map(|run| {
            let path = dir.path().join(format!("bus-{run}.db"));
            let log = Log::open(Options::new(dir.path().join(format!("log-{run}")))).expect("opened");
            runtime.block_on(async {
                let bus = Bus::new(Arc::new(log), Default::default());
                measure(&path, rows, Arc::new(BusPublisher::new(bus))).await
            })
        })
        .collect();
    ok &= report("outbox in SQLite → bus in the same process", median(runs), "rows/s", Bar::AtLeast(20_000.0));
    drop((runtime, dir));
    end(ok);
}

/// Fills an outbox and drains it: rows a second.
async fn measure(path: &Path, rows: usize, publisher: Arc<dyn Publisher>) -> f64 {
    let mut service = rusqlite::Connection::open(path).expect("opened");
    service.pragma_update(None, "journal_mode", "WAL").expect("WAL");
    let outbox = SqliteOutbox::open(path).expect("opened");
    let payload = serde_json::json!({"text": "x".repeat(245)});
    for chunk in 0..rows / 1_000 {
        let tx = service.transaction().expect("begun");
        for n in 0..1_000 {
            let key = ((chunk * 1_000 + n) % 1_000).to_string();
            outbox.add(&tx, &NewRow::new("bench.outbox", &payload).expect("a row").key(key)).expect("added");
        }
        tx.commit().expect("committed");
    }
    let started = Instant::now();
    let mut drainer = drain(Arc::new(outbox), publisher, Settings { until_empty: true, ..Settings::default() });
    assert_eq!(drainer.ended().await, None);
    assert_eq!(drainer.snapshot().sent, rows as u64);
    rows as f64 / started.elapsed().as_secs_f64()
}
