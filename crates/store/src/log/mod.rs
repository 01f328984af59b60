//! The embedded engine: a journal, a memory tail, settled segments. The bytes are in `docs/log-format.md`.
//!
//! ```text
//!  append ─► queue ─► writer: one frame, one sync ─► memory tail, watchers, answers
//!                        │ file full
//!                        ▼
//!                     settle: segments, id table, index, manifest ─► journal file free
//! ```
//!
//! In the order of an event's life: `queue` → `writer` → `journal` (`entry`, `codec`) → `topic` (the tail) → `settle` →
//! `segment`, `ids`, `index`, `manifest` → `read`, `keys` → `maintain`. `recovery` is how all of it comes back,
//! `rebuild` how the caches do; [`disk`] is the seam under it, [`doctor`] looks after it.

mod codec;
pub mod disk;
pub mod doctor;
mod entry;
mod ids;
mod index;
mod journal;
mod keys;
mod maintain;
mod manifest;
mod options;
mod pace;
mod queue;
mod read;
mod rebuild;
mod recovery;
mod restore;
mod segment;
mod settle;
mod shared;
mod stats;
mod store;
mod topic;
#[cfg(feature = "suite")]
pub mod torture;
mod writer;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use promethean_event::Millis;
use tokio::sync::oneshot::{self, error::TryRecvError};

pub use options::{OpenError, Options, Sync};
pub use restore::{RestoreError, restore};
pub use stats::Stats;

use crate::{Error, Pending, Result};
use queue::Request;
use settle::Trouble;
use shared::Shared;
use writer::Writer;

/// How long maintenance waits for the journal to be settled.
const SETTLES: Duration = Duration::from_secs(10);

/// The embedded engine. One process at a time has a directory open.
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    writer: Arc<Writer>,
    running: Arc<Mutex<Option<Running>>>,
}

/// What ends when the engine is closed.
struct Running {
    writer: Arc<Writer>,
    writing: Vec<JoinHandle<()>>,
    background: Vec<JoinHandle<()>>,
    _lock: Box<dyn Any + Send + std::marker::Sync>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl Log {
    /// Opens a data directory, or makes one, and replays what is not settled.
    ///
    /// # Errors
    /// Why it cannot be opened, with the remedy. Nothing is changed then.
    pub fn open(options: Options) -> std::result::Result<Self, OpenError> {
        let (shared, writer, lock) = recovery::open(options)?;
        let writer = Arc::new(writer);
        let failed = recovery::io_error("a thread could not be started");
        let start = |name: &str, work: Box<dyn FnOnce(&Shared) + Send>| {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("promethean-{name}"));
            thread.spawn(move || _ = guarded(&shared, || work(&shared)))
        };
        let with_writer = |work: fn(&Writer)| -> Box<dyn FnOnce(&Shared) + Send> {
            let writer = writer.clone();
            Box::new(move |_| work(&writer))
        };
        let threads = || {
            let settle = start("settle", Box::new(settle::run))?;
            let maintain = start("maintain", Box::new(maintain_at_intervals))?;
            let mut background = vec![settle, maintain];
            if let Sync::Interval(_) = shared.options.sync {
                background.push(start("sync", with_writer(Writer::sync_late))?);
            }
            let writing = (0..writer.threads()).map(|_| start("writer", with_writer(Writer::run)));
            let writing = writing.collect::<std::io::Result<_>>()?;
            std::io::Result::Ok(Running { writer: writer.clone(), writing, background, _lock: lock })
        };
        let running = threads().map_err(failed)?;
        Ok(Self { shared, writer, running: Arc::new(Mutex::new(Some(running))) })
    }

    /// What the engine has done since it was opened.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    fn is_open(&self) -> Result<()> {
        if let Some(error) = self.shared.failed() {
            return Err(error);
        }
        if self.running.lock().is_none() {
            return Err(closed());
        }
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let running = self.running.lock().take();
        stop(&self.shared, running);
    }
}

/// What is said after the end.
fn closed() -> Error {
    Error::Closed("the hub is shutting down".to_owned())
}

/// Works for the store: nothing is right any more after a panic.
fn guarded<T>(shared: &Shared, work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if done.is_err() {
        shared.fail("a thread of the store has panicked; see the log".to_owned());
    }
    done.ok()
}

/// Ends the threads: the writer after what it has accepted, the background at once. Then the lock is free.
fn stop(shared: &Shared, running: Option<Running>) {
    let Some(running) = running else { return };
    shared.queue.close();
    for thread in running.writing {
        let _ = thread.join();
    }
    running.writer.end();
    shared.settling.lock().stop = true;
    shared.settling_changed.notify_all();
    for thread in running.background {
        let _ = thread.join();
    }
    shared.close_index();
}

/// Looks after what is settled at intervals, and first of all once what was found at open is settled: what a hub has
/// replayed it need not keep in memory until it is busy again.
fn maintain_at_intervals(shared: &Shared) {
    let Some(interval) = shared.options.maintenance else { return };
    let mut next = Instant::now() + interval;
    let mut replayed = true;
    loop {
        let mut settling = shared.settling.lock();
        while !settling.stop
            && Instant::now() < next
            && !(replayed && settling.sealed.is_empty())
            && shared.failed().is_none()
        {
            shared.settling_changed.wait_until(&mut settling, next);
        }
        if settling.stop || shared.failed().is_some() {
            return;
        }
        drop(settling);
        if std::mem::take(&mut replayed) {
            begin_to_settle(shared);
            continue;
        }
        match settle_and_maintain(shared) {
            Ok(()) => {}
            Err(Trouble::NoRoom(reason)) => tracing::warn!(reason, "retention and compaction wait for room"),
            Err(Trouble::Fatal(reason) | Trouble::Damaged(reason)) => {
                shared.fail(format!("maintenance failed: {reason}"))
            }
        }
        next = Instant::now() + interval;
    }
}

/// Asks for the journal to be settled where something waits for that; the answer comes when the file is sealed.
fn begin_to_settle(shared: &Shared) -> Option<oneshot::Receiver<Result<()>>> {
    shared.waits_to_be_settled().then(|| {
        let (reply, sealed) = oneshot::channel();
        shared.queue.push_now(Request::Rotate { reply });
        sealed
    })
}

/// Retention and compaction see only what is settled: what waits for that is settled first, or it would be there for an
/// interval more. It is waited for [`SETTLES`] at most; then what is settled by then has its turn.
fn settle_and_maintain(shared: &Shared) -> std::result::Result<(), Trouble> {
    if let Some(mut sealed) = begin_to_settle(shared) {
        let until = Instant::now() + SETTLES;
        let mut settling = shared.settling.lock();
        let waits = |sealed: &mut oneshot::Receiver<_>| matches!(sealed.try_recv(), Err(TryRecvError::Empty));
        while (waits(&mut sealed) || !settling.sealed.is_empty())
            && !settling.stop
            && settling.no_room.is_none()
            && shared.failed().is_none()
            && Instant::now() < until
        {
            shared.settling_changed.wait_for(&mut settling, Duration::from_millis(20));
        }
        if settling.stop || shared.failed().is_some() {
            return Ok(());
        }
    }
    shared.maintain(Millis::now(), false)
}

/// Runs `work`, which may read from the disk, where it holds nobody up.
fn blocking<'a, T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Arc<Shared>) -> Result<T> + Send + 'static,
) -> Pending<'a, T> {
    let shared = shared.clone();
    Box::pin(async move {
        if tokio::runtime::Handle::try_current().is_err() {
            return work(&shared);
        }
        let done = tokio::task::spawn_blocking(move || work(&shared)).await;
        done.unwrap_or_else(|error| Err(Error::Damaged(format!("reading failed: {error}"))))
    })
}

#[cfg(all(test, feature = "suite"))]
mod tests {
    use super::*;
    use crate::suite::{append, event, topic};
    use crate::{EventLog as _, Retention, TopicSettings};

    #[tokio::test]
    async fn one_round_of_maintenance_reaches_what_is_still_in_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { maintenance: None, ..Options::new(dir.path().join("data")) };
        let log = Log::open(options).expect("opens");
        let retention = Retention { max_events: Some(10), ..Retention::default() };
        let settings = TopicSettings { retention, ..TopicSettings::default() };
        log.set_settings(&topic("t"), settings).await.expect("set");
        append(&log, &vec![event("t"); 100]).await;
        let shared = log.shared.clone();
        let round = tokio::task::spawn_blocking(move || settle_and_maintain(&shared));
        round.await.expect("no panic").expect("maintained");
        let info = log.info(&topic("t")).await.expect("known").expect("exists");
        assert!((10..20).contains(&info.events), "{} events are there", info.events);
    }
}
