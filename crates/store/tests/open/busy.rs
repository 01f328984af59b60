//! The doctor beside a hub at work: what it meets half done is no damage, what is damaged still is.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use promethean_event::Millis;
use promethean_store::EventLog;
use promethean_store::log::disk::{Disk, File, Mode, Real};
use promethean_store::log::{Log, OpenError, Options, doctor};
use promethean_store::suite::{append, event, topic};

use super::{directory, filled, find, flip, options};

/// A disk on which something happens while it is read.
struct Meanwhile<F>(Arc<F>);

impl<F> std::fmt::Debug for Meanwhile<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

/// What is about to happen to a path; bytes that were read may be changed.
enum Call<'a> {
    List,
    Open,
    /// Everything before the place was read, nothing after it was.
    Half,
    Read(&'a mut [u8]),
}

/// Where the reading of a journal file pauses.
const HALF: usize = 4096 + 400;

impl<F: Fn(&Path, Call<'_>) + Send + Sync + 'static> Disk for Meanwhile<F> {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        self.0(path, Call::Open);
        Ok(Arc::new(Watched { file: Real.open(path, mode)?, path: path.to_owned(), call: self.0.clone() }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0(dir, Call::List);
        Real.list(dir)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        Real.len(path)
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn std::any::Any + Send + Sync>>> {
        panic!("a check locks nobody out")
    }
}

struct Watched<F> {
    file: Arc<dyn File>,
    path: std::path::PathBuf,
    call: Arc<F>,
}

impl<F> std::fmt::Debug for Watched<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

impl<F: Fn(&Path, Call<'_>) + Send + Sync> File for Watched<F> {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset == 0 && out.len() > HALF && self.path.extension().is_some_and(|end| end == "wal") {
            self.file.read_at(0, &mut out[..HALF])?;
            (self.call)(&self.path, Call::Half);
            return self.file.read_at(HALF as u64, &mut out[HALF..]);
        }
        self.file.read_at(offset, out)?;
        (self.call)(&self.path, Call::Read(out));
        Ok(())
    }
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        panic!("a check changes nothing")
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn sync(&self) -> io::Result<()> {
        panic!("a check changes nothing")
    }
}

/// Does something with the hub, in the middle of what the doctor does.
fn now(work: impl Future<Output = ()> + Send) {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work);
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("the hub goes on"));
}

/// The hub flushes, so that the journal file is used again.
async fn flush(log: &Log) {
    append(log, &[event("plain"), event("keyed").key("4")]).await;
    log.maintain(Millis(2_000)).await.expect("flushed");
}

fn is_journal(path: &Path) -> bool {
    path.ends_with("journal")
}

#[tokio::test]
async fn a_journal_file_that_is_flushed_meanwhile_is_not_missing() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let log = Arc::new(Log::open(options(&dir)).expect("opens"));
    for times in 1..=3 {
        let left = AtomicUsize::new(times);
        let hub = log.clone();
        let call = move |path: &Path, call: Call<'_>| {
            let now_is = matches!(call, Call::List) && is_journal(path);
            if now_is && left.try_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok() {
                now(flush(&hub));
            }
        };
        let report = doctor::check_on(&Meanwhile(Arc::new(call)), &dir).expect("checked");
        assert!(report.is_sound() && report.events > 160, "{report}");
    }
}

#[tokio::test]
async fn a_segment_that_retention_takes_meanwhile_is_not_missing() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let log = Arc::new(Log::open(options(&dir)).expect("opens"));
    let (first, hub) = (AtomicUsize::new(0), log.clone());
    let call = move |path: &Path, call: Call<'_>| {
        let segment = path.extension().is_some_and(|end| end == "seg");
        if matches!(call, Call::Open) && segment && first.fetch_add(1, Ordering::AcqRel) == 0 {
            now(async {
                hub.trim(&topic("plain"), 80).await.expect("trimmed");
                hub.trim(&topic("keyed"), 80).await.expect("trimmed");
                hub.maintain(Millis(2_000)).await.expect("maintained");
            });
        }
    };
    let report = doctor::check_on(&Meanwhile(Arc::new(call)), &dir).expect("checked");
    assert!(report.is_sound(), "{report}");
}

#[tokio::test]
async fn a_hub_that_never_holds_still_is_to_be_stopped_and_is_not_called_damaged() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let hub = Arc::new(Log::open(options(&dir)).expect("opens"));
    let call = move |path: &Path, call: Call<'_>| {
        if matches!(call, Call::List) && is_journal(path) {
            now(flush(&hub));
        }
    };
    let error = doctor::check_on(&Meanwhile(Arc::new(call)), &dir).expect_err("nothing can be said");
    assert!(matches!(error, OpenError::Busy { .. }) && error.to_string().contains("stop it to check"), "{error}");
}

#[tokio::test]
async fn frames_that_come_while_the_journal_file_is_read_are_not_lost_ones() {
    let (_place, dir) = directory();
    let log = Arc::new(Log::open(Options { journal_bytes: 1 << 20, ..options(&dir) }).expect("opens"));
    let (reads, hub) = (Arc::new(AtomicUsize::new(0)), log.clone());
    let seen = reads.clone();
    let call = move |_: &Path, call: Call<'_>| {
        if matches!(call, Call::Half) && seen.fetch_add(1, Ordering::AcqRel) == 0 {
            // The first one begins before the place, and the doctor has read zeros there.
            now(async {
                for _ in 0..3 {
                    append(&*hub, &[event("a").payload(format!("\"{}\"", "x".repeat(600)))]).await;
                }
            });
        }
    };
    let report = doctor::check_on(&Meanwhile(Arc::new(call)), &dir).expect("checked");
    assert!(report.is_sound() && report.events == 3, "{report}");
    assert_eq!(reads.load(Ordering::Acquire), 2, "it looked again");
}

#[tokio::test]
async fn an_index_that_is_written_while_it_is_read_is_not_damaged_and_one_that_stays_damaged_is() {
    let (_place, dir) = directory();
    filled(&dir).await;
    for (changes, sound) in [(true, true), (false, false)] {
        let reads = AtomicUsize::new(0);
        let call = move |path: &Path, call: Call<'_>| {
            if let (Call::Read(bytes), true) = (call, path.ends_with("index.redb")) {
                // Each time another half of a write, until there is none.
                let read = reads.fetch_add(1, Ordering::AcqRel);
                match (changes, read) {
                    (true, 3..) => {}
                    (true, read) => bytes[100 * read..4096].fill(0x55),
                    (false, _) => bytes[100..4096].fill(0x55),
                }
            }
        };
        let report = doctor::check_on(&Meanwhile(Arc::new(call)), &dir).expect("checked");
        assert_eq!(report.is_sound(), sound, "{report}");
    }
}

#[tokio::test]
async fn what_is_damaged_is_named_beside_a_hub_at_work_too() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let victim = find(&dir, "topics/1/000000000000000001.seg");
    flip(&victim, 100, 1);
    let (first, log) = (AtomicUsize::new(0), Arc::new(Log::open(options(&dir)).expect("opens")));
    let hub = log.clone();
    let call = move |path: &Path, call: Call<'_>| {
        if matches!(call, Call::List) && is_journal(path) && first.fetch_add(1, Ordering::AcqRel) == 0 {
            now(flush(&hub));
        }
    };
    let report = doctor::check_on(&Meanwhile(Arc::new(call)), &dir).expect("checked");
    assert!(!report.is_sound() && report.damage.iter().all(|finding| finding.file == victim), "{report}");
    drop(log);
    assert!(fs::exists(&victim).expect("looked at"), "a check changes nothing");
}
