//! When flushing falls behind, publishers wait: what is neither flushed nor refused stays within two journal files.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::disk::{Disk, File, Mode};
use promethean_store::log::{Log, Options};
use promethean_store::suite::{append, event, seqs, topic};
use promethean_store::{EventLog as _, ReadMax, Store as _};

const JOURNAL: u64 = 64 << 10;
const EVENTS: u64 = 1_000;
const PAYLOAD: usize = 1 << 10;

/// A disk on which no segment can be written until the gate is opened.
#[derive(Debug, Clone)]
struct Gated {
    disk: TestDisk,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Gated {
    fn open_gate(&self) {
        *self.gate.0.lock() = true;
        self.gate.1.notify_all();
    }
}

impl Disk for Gated {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        if mode != Mode::Read && path.extension().is_some_and(|end| end == "seg") {
            let mut open = self.gate.0.lock();
            while !*open {
                self.gate.1.wait(&mut open);
            }
        }
        self.disk.open(path, mode)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        self.disk.len(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.disk.lock(path)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_wait_for_flushing_and_go_on_when_it_does() {
    let disk = Gated { disk: TestDisk::new(), gate: Arc::default() };
    let mut options = Options::new("/data");
    options.disk = Arc::new(disk.clone());
    options.journal_bytes = JOURNAL;
    options.maintenance = None;
    let log = Arc::new(Log::open(options).expect("opens"));

    let answered = Arc::new(AtomicU64::new(0));
    let publishing = {
        let (log, answered) = (Arc::clone(&log), Arc::clone(&answered));
        tokio::spawn(async move {
            for _ in 0..EVENTS {
                append(&*log, &[event("t").payload(format!("\"{}\"", "x".repeat(PAYLOAD)))]).await;
                answered.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let patience = Duration::from_secs(60);
    let blocked = async {
        while log.stats().waits == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(patience, blocked).await.expect("the writer has to wait for the flushing");
    let held_up = answered.load(Ordering::SeqCst);
    assert!(held_up * PAYLOAD as u64 <= 2 * JOURNAL, "{held_up} events were taken in while nothing was flushed");
    assert!(held_up > 0 && !publishing.is_finished());

    // What was answered can be read meanwhile.
    let read = log.read(&topic("t"), 1, ReadMax { events: 2_000, bytes: usize::MAX }).await.expect("readable");
    assert!(read.len() as u64 >= held_up);

    disk.open_gate();
    tokio::time::timeout(patience, publishing).await.expect("publishers go on").expect("all were taken in");
    assert_eq!(seqs(&*log, "t").await, (1..=EVENTS).collect::<Vec<_>>());
    log.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_replayed_is_flushed_although_nobody_publishes() {
    let mut options = Options::new("/data");
    options.disk = Arc::new(TestDisk::new());
    options.journal_bytes = JOURNAL;
    options.maintenance = None;
    let log = Log::open(options.clone()).expect("opens");
    let few = JOURNAL / 16 / PAYLOAD as u64;
    let much = JOURNAL / 2 / PAYLOAD as u64;
    let add = async |log: &Log, count| {
        for _ in 0..count {
            append(log, &[event("t").payload(format!("\"{}\"", "x".repeat(PAYLOAD)))]).await;
        }
    };
    add(&log, few).await;
    log.close().await.expect("closed");

    options.maintenance = Some(Duration::from_secs(3600));
    let log = Log::open(options.clone()).expect("opens");
    add(&log, much).await;
    assert_eq!(log.stats().flushes, 0, "little is left where it is, and nothing is full");
    log.close().await.expect("closed");

    let log = Log::open(options).expect("opens");
    let flushed = async {
        while log.stats().flushes == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), flushed).await.expect("what was replayed is flushed");
    assert_eq!(seqs(&log, "t").await, (1..=few + much).collect::<Vec<_>>());
    log.close().await.expect("closed");
}
