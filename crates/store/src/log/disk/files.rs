//! A bounded cache of the files that are open for reading, over any disk.
//!
//! A file that is opened with [`Mode::Read`] is a [`Handle`]: it may be closed when it has not been read for longest, and
//! is opened again by its next read. A file that loses its name while it is in use stays open until the last handle goes,
//! so that its readers can finish. Without a free descriptor, calls wait instead of failing.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{Disk, File, Mode};

/// Pause before the next try without a free descriptor.
const RETRY: Duration = Duration::from_millis(50);
/// The log has at most one line about it in this time.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// A disk that keeps at most so many files open for reading. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::log) struct Files(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    disk: Arc<dyn Disk>,
    most: usize,
    /// Counts reads, to know which file was read longest ago.
    clock: AtomicU64,
    /// After the end of the engine nothing waits.
    ended: AtomicBool,
    known: Mutex<Known>,
    /// When the log last said that there is no free descriptor.
    said: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Known {
    by_path: HashMap<PathBuf, Weak<Handle>, RandomState>,
    open: Vec<Weak<Handle>>,
    /// Dropped handles are looked for once there are so many.
    sweep_at: usize,
}

/// A file that is open for reading, or was and will be.
#[derive(Debug)]
struct Handle {
    path: PathBuf,
    used: AtomicU64,
    state: Mutex<State>,
    files: Files,
}

#[derive(Debug, Default)]
struct State {
    file: Option<Arc<dyn File>>,
    /// Its name is gone: it could not be opened again.
    nameless: bool,
}

impl Files {
    /// Keeps at most `most` files of `disk` open for reading.
    pub(in crate::log) fn over(disk: Arc<dyn Disk>, most: usize) -> Self {
        Self(Arc::new(Inner {
            disk,
            most: most.max(1),
            clock: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            known: Mutex::default(),
            said: Mutex::default(),
        }))
    }

    /// Lets calls fail for which there is no free descriptor.
    pub(in crate::log) fn end(&self) {
        self.0.ended.store(true, Ordering::Release);
    }

    pub(in crate::log) fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    /// Makes a call that needs a descriptor; waits while there is none.
    fn patiently<T>(&self, call: impl Fn(&dyn Disk) -> io::Result<T>) -> io::Result<T> {
        loop {
            match call(&*self.0.disk) {
                Err(error) if is_out_of_files(&error) && !self.has_ended() => {
                    self.close_down_to(0);
                    self.say(&error);
                    std::thread::sleep(RETRY);
                }
                done => return done,
            }
        }
    }

    fn say(&self, error: &io::Error) {
        let mut said = self.0.said.lock();
        if said.is_none_or(|at| at.elapsed() > SAY_AGAIN) {
            *said = Some(Instant::now());
            drop(said);
            tracing::warn!(%error, "the store waits for a free file descriptor; raise the limit (LimitNOFILE, ulimit -n)");
        }
    }

    /// Closes the files that were not read for longest until `most` are open.
    fn close_down_to(&self, most: usize) {
        let mut known = self.0.known.lock();
        known.open.retain(|handle| handle.strong_count() > 0);
        if known.open.len() <= most {
            return;
        }
        let mut open: Vec<_> = known.open.drain(..).filter_map(|handle| handle.upgrade()).collect();
        open.sort_unstable_by_key(|handle| std::cmp::Reverse(handle.used.load(Ordering::Relaxed)));
        // One that is being opened right now stays.
        let stays =
            |(at, handle): (usize, Arc<Handle>)| (at < most || !handle.close()).then(|| Arc::downgrade(&handle));
        known.open = open.into_iter().enumerate().filter_map(stays).collect();
    }

    /// Keeps a file open whose name is about to go, where it is in use.
    fn loses_name(&self, path: &Path) {
        let handle = self.0.known.lock().by_path.remove(path);
        let Some(handle) = handle.and_then(|handle| handle.upgrade()) else { return };
        // If it cannot be opened, its readers find that out.
        let _ = handle.file();
        handle.state.lock().nameless = true;
    }
}

impl Disk for Files {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        if mode != Mode::Read {
            return self.patiently(|disk| disk.open(path, mode));
        }
        let known = self.0.known.lock().by_path.get(path).and_then(Weak::upgrade);
        if let Some(handle) = known {
            handle.file()?;
            return Ok(Arc::new(Reading(handle)));
        }
        let (used, state) = (AtomicU64::new(0), Mutex::default());
        let handle = Arc::new(Handle { path: path.to_owned(), used, state, files: self.clone() });
        handle.file()?;
        let mut known = self.0.known.lock();
        if known.by_path.len() >= known.sweep_at {
            known.by_path.retain(|_, handle| handle.strong_count() > 0);
            known.sweep_at = 2 * known.by_path.len() + 64;
        }
        known.by_path.insert(path.to_owned(), Arc::downgrade(&handle));
        Ok(Arc::new(Reading(handle)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.loses_name(from);
        self.loses_name(to);
        self.0.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.loses_name(path);
        self.0.disk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.disk.create_dir(path)
    }

    fn make_private(&self, dir: &Path) -> io::Result<()> {
        self.0.disk.make_private(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.patiently(|disk| disk.list(dir))
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        self.0.disk.len(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.patiently(|disk| disk.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.patiently(|disk| disk.lock(path))
    }

    fn lock_to_read(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.patiently(|disk| disk.lock_to_read(path))
    }

    fn parallel(&self) -> usize {
        self.0.disk.parallel()
    }
}

impl Handle {
    /// Returns the file, opened again where it was closed.
    fn file(self: &Arc<Self>) -> io::Result<Arc<dyn File>> {
        let files = &self.files.0;
        self.used.store(files.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let mut state = self.state.lock();
        if let Some(file) = &state.file {
            return Ok(file.clone());
        }
        self.files.close_down_to(files.most - 1);
        let file = self.files.patiently(|disk| disk.open(&self.path, Mode::Read))?;
        state.file = Some(file.clone());
        drop(state);
        files.known.lock().open.push(Arc::downgrade(self));
        Ok(file)
    }

    /// Closes it, unless it is being opened; one without a name stays open and is not counted.
    fn close(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        if !state.nameless {
            state.file = None;
        }
        true
    }
}

/// A reader's part in a handle.
#[derive(Debug)]
struct Reading(Arc<Handle>);

impl File for Reading {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.file()?.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.file()?.write_at(offset, data)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.file()?.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.file()?.len()
    }

    fn sync(&self) -> io::Result<()> {
        self.0.file()?.sync()
    }
}

/// True if the process or the system has no free descriptor.
fn is_out_of_files(error: &io::Error) -> bool {
    let kinds = [Errno::MFILE.raw_os_error(), Errno::NFILE.raw_os_error()];
    error.raw_os_error().is_some_and(|code| kinds.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::disk::Real;

    fn written(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, name).expect("written");
        path
    }

    fn text(file: &Arc<dyn File>) -> String {
        let mut bytes = vec![0; usize::try_from(file.len().expect("open")).expect("small")];
        file.read_at(0, &mut bytes).expect("read");
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn files_beyond_the_bound_are_closed_and_open_again_when_they_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = Files::over(Arc::new(Real), 3);
        let paths: Vec<_> = (0..10).map(|n| written(dir.path(), &format!("file {n}"))).collect();
        let open: Vec<_> = paths.iter().map(|path| files.open(path, Mode::Read).expect("opens")).collect();
        for _ in 0..2 {
            for (n, file) in open.iter().enumerate() {
                assert_eq!(text(file), format!("file {n}"));
                assert!(files.0.known.lock().open.len() <= 3);
            }
        }
        drop(open);
        files.close_down_to(3);
        assert!(files.0.known.lock().open.is_empty(), "a file that nothing reads is closed");
    }

    #[test]
    fn a_reader_keeps_a_file_that_was_removed_or_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = Files::over(Arc::new(Real), 1);
        let [one, two, new] = ["one", "two", "new"].map(|name| written(dir.path(), name));
        let [first, second] = [&one, &two].map(|path| files.open(path, Mode::Read).expect("opens"));
        files.remove(&one).expect("removed");
        files.rename(&new, &two).expect("renamed");
        let third = files.open(&two, Mode::Read).expect("opens");
        assert_eq!([&first, &second, &third].map(text), ["one", "two", "new"]);
        assert_eq!(files.open(&one, Mode::Read).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}
