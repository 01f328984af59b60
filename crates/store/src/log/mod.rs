//! The embedded engine: a journal, a memtable for each topic, segments. `docs/log-format.md` describes the bytes.
//!
//! ```text
//!  append ─► queue ─► writer: one frame, one sync ─► memtable, watchers, answers
//!                        │ file full
//!                        ▼
//!                     flush: segments, id table, index, manifest ─► journal file free
//! ```
//!
//! The folders follow an event's life: `commit` (queue, writer, journal) → `memtable` → `flush` (segments, ids, index,
//! manifest) → `query` → `upkeep` (retention, compaction). `open` recovers a directory and rebuilds its caches, [`doctor`]
//! checks and salvages one, [`disk`] is the file seam under all of them.

mod commit;
pub mod disk;
pub mod doctor;
mod flush;
mod memtable;
mod open;
mod options;
mod query;
mod shared;
mod stats;
mod store;
mod tiers;
#[cfg(feature = "suite")]
pub mod torture;
mod upkeep;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

pub use open::restore::{RestoreError, restore};
pub use options::{OpenError, Options, Sync};
pub use stats::Stats;

use crate::{Error, Pending, Result};
use commit::writer::Writer;
use open::recovery;
use shared::Shared;

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
    /// Opens a data directory, or makes one, and replays what is not flushed.
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
            let flush = start("flush", Box::new(flush::run))?;
            let maintain = start("maintain", Box::new(upkeep::maintain_at_intervals))?;
            let mut background = vec![flush, maintain];
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
    shared.files.end();
    shared.queue.close();
    for thread in running.writing {
        let _ = thread.join();
    }
    running.writer.end();
    shared.flushing.lock().stop = true;
    shared.flushing_changed.notify_all();
    for thread in running.background {
        let _ = thread.join();
    }
    shared.close_index();
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
