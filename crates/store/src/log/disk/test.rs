//! The test disk: files in memory that know exactly what would survive a loss of power at each single call.
//!
//! Every call that changes something is recorded. [`Crashes`] walks along the record and makes, for any point of it,
//! the disk that a crash there leaves behind: what was synced is there; of the rest any part may be, as [`Survival`]
//! says. A [`Fault`] makes one call fail instead.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, File, Mode};

mod content;
mod crashes;

use content::Content;
pub use crashes::{Crashes, Survival};

/// Something that changed the disk.
#[derive(Debug, Clone)]
enum Op {
    Write { inode: usize, offset: u64, data: Arc<[u8]> },
    SetLen { inode: usize, len: u64 },
    Sync { inode: usize },
    SyncWrite { inode: usize, offset: u64 },
    Create { path: PathBuf, inode: usize },
    Rename { from: PathBuf, to: PathBuf },
    Remove { path: PathBuf },
    MakeDir { path: PathBuf },
    SyncDir { path: PathBuf },
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with an I/O error, and changes nothing.
    Eio,
    /// A write puts down half of its bytes and fails; other calls fail as with [`Fault::Eio`].
    Short,
    /// The call and this many after it that need space fail for lack of it.
    Full(u64),
}

/// Files in memory. Cheap to clone: clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct TestDisk {
    state: Arc<Mutex<State>>,
    open: Arc<Mutex<Open>>,
}

/// Files that are open.
#[derive(Debug, Default)]
struct Open {
    now: usize,
    /// Most at one time.
    most: usize,
    limit: Option<usize>,
}

#[derive(Debug, Clone, Default)]
struct State {
    inodes: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    /// Places that cannot be read.
    bad: BTreeSet<(usize, u64)>,
    locked: bool,
    /// The state when recording began, and what happened since.
    record: Option<Box<(State, Vec<Op>)>>,
    /// Calls so far that change something.
    calls: u64,
    fault: Option<(u64, Fault)>,
    /// A fault has happened.
    faulted: bool,
    /// Nothing works any more.
    off: bool,
    /// Bytes of all files together, at most.
    room: Option<u64>,
}

fn error(kind: io::ErrorKind) -> io::Error {
    io::Error::new(kind, "the test disk was told to fail")
}

impl TestDisk {
    /// An empty disk.
    pub fn new() -> Self {
        let disk = Self::default();
        disk.state.lock().dirs.insert(PathBuf::from("/"));
        disk
    }

    /// Records from now on.
    pub fn record(&self) {
        let mut state = self.state.lock();
        let mut base = state.clone();
        (base.record, base.locked) = (None, false);
        state.record = Some(Box::new((base, Vec::new())));
        state.calls = 0;
    }

    /// How many calls that change something there were since recording began.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Makes the call with this number (from 0) fail.
    pub fn fail_at(&self, call: u64, fault: Fault) {
        let mut state = self.state.lock();
        state.fault = Some((call, fault));
    }

    /// Makes every call from now on fail: nothing is written any more.
    pub fn power_off(&self) {
        self.state.lock().off = true;
    }

    /// Makes the disk so large from now on; `None`: without end.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.state.lock().room = bytes;
    }

    /// Refuses to open a file while so many are open; `None`: never.
    pub fn set_open_limit(&self, limit: Option<usize>) {
        self.open.lock().limit = limit;
    }

    /// Files that are open, and the most that were open at one time.
    pub fn open_files(&self) -> (usize, usize) {
        let open = self.open.lock();
        (open.now, open.most)
    }

    /// Opens one more file, until the caller drops it.
    fn descriptor(&self) -> io::Result<Descriptor> {
        let mut open = self.open.lock();
        if open.limit.is_some_and(|limit| open.now >= limit) {
            return Err(rustix::io::Errno::MFILE.into());
        }
        open.now += 1;
        open.most = open.most.max(open.now);
        Ok(Descriptor(self.open.clone()))
    }

    /// Bytes of all files together.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// True if the fault has happened.
    pub fn has_failed(&self) -> bool {
        self.state.lock().faulted
    }

    /// What a crash at each recorded call would leave behind.
    pub fn crashes(&self) -> Crashes {
        let state = self.state.lock();
        let (base, ops) = state.record.as_deref().cloned().unwrap_or_default();
        Crashes::new(base, ops)
    }

    /// The names and lengths of all files.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state.lock();
        state.names.iter().map(|(path, inode)| (path.clone(), state.inodes[*inode].len())).collect()
    }

    /// Flips one bit of a file.
    pub fn flip(&self, path: &Path, offset: u64, bit: u8) {
        let mut state = self.state.lock();
        if let Some(&inode) = state.names.get(path) {
            let mut byte = [0];
            state.inodes[inode].read(offset, &mut byte);
            state.inodes[inode].write(offset, &[byte[0] ^ (1 << (bit % 8))]);
        }
    }

    /// Makes the 4 KiB of a file that have this offset unreadable.
    pub fn spoil_sector(&self, path: &Path, offset: u64) {
        let mut state = self.state.lock();
        if let Some(&inode) = state.names.get(path) {
            state.bad.insert((inode, offset / 4096));
        }
    }

    /// A disk of its own with the same files.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.state.lock().clone();
        (state.record, state.locked, state.fault, state.faulted) = (None, false, None, false);
        Self { state: Arc::new(Mutex::new(state)), open: Arc::default() }
    }
}

impl State {
    /// Counts a call and says whether it fails. `space`: it needs some.
    fn call(&mut self, space: bool) -> io::Result<Option<Fault>> {
        if self.off {
            return Err(error(io::ErrorKind::Other));
        }
        let number = self.calls;
        self.calls += 1;
        let Some((at, fault)) = self.fault else { return Ok(None) };
        match fault {
            Fault::Eio if number == at => {
                self.faulted = true;
                Err(error(io::ErrorKind::Other))
            }
            Fault::Short if number == at => {
                self.faulted = true;
                if space { Ok(Some(Fault::Short)) } else { Err(error(io::ErrorKind::Other)) }
            }
            Fault::Full(calls) if space && number >= at && number - at <= calls => {
                self.faulted = true;
                Err(error(io::ErrorKind::StorageFull))
            }
            _ => Ok(None),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[*inode].len()).sum()
    }

    /// True if a file may grow to `len`.
    fn has_room(&self, inode: usize, len: u64) -> io::Result<()> {
        let more = len.saturating_sub(self.inodes[inode].len());
        match self.room {
            Some(room) if more > 0 && self.used() + more > room => Err(error(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        }
    }

    fn did(&mut self, op: impl FnOnce() -> Op) {
        if let Some(record) = &mut self.record {
            record.1.push(op());
        }
    }

    fn inode(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for TestDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let descriptor = self.descriptor()?;
        let mut state = self.state.lock();
        let inode = match mode {
            Mode::Read | Mode::Write => state.inode(path)?,
            Mode::Create => {
                if !path.parent().is_some_and(|dir| state.dirs.contains(dir)) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                if let Ok(inode) = state.inode(path) {
                    state.call(false)?;
                    state.inodes[inode].set_len(0);
                    state.did(|| Op::SetLen { inode, len: 0 });
                    inode
                } else {
                    state.call(true)?;
                    let inode = state.inodes.len();
                    state.inodes.push(Content::default());
                    state.names.insert(path.to_owned(), inode);
                    state.did(|| Op::Create { path: path.to_owned(), inode });
                    inode
                }
            }
        };
        Ok(Arc::new(TestFile { disk: self.clone(), inode, _descriptor: descriptor }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let inode = state.inode(from)?;
        state.call(false)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), inode);
        state.did(|| Op::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.inode(path)?;
        state.call(false)?;
        state.names.remove(path);
        state.did(|| Op::Remove { path: path.to_owned() });
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let missing: Vec<_> = path.ancestors().filter(|dir| !state.dirs.contains(*dir)).map(Path::to_owned).collect();
        for dir in missing.into_iter().rev() {
            state.call(true)?;
            state.dirs.insert(dir.clone());
            state.did(|| Op::MakeDir { path: dir });
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let _descriptor = self.descriptor()?;
        let state = self.state.lock();
        if !state.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = state.names.keys().chain(&state.dirs).filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect())
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        let state = self.state.lock();
        Ok(state.inodes[state.inode(path)?].len())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let _descriptor = self.descriptor()?;
        let mut state = self.state.lock();
        state.call(false)?;
        state.did(|| Op::SyncDir { path: dir.to_owned() });
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.locked, true) {
            return Ok(None);
        }
        drop(state);
        Ok(Some(Box::new(Held(self.clone()))))
    }
}

/// The lock, as long as it is held.
struct Held(TestDisk);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state.lock().locked = false;
    }
}

#[derive(Debug)]
struct TestFile {
    disk: TestDisk,
    inode: usize,
    _descriptor: Descriptor,
}

/// An open file, as the system counts them.
#[derive(Debug)]
struct Descriptor(Arc<Mutex<Open>>);

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.lock().now -= 1;
    }
}

impl TestFile {
    fn synced(&self, op: Op) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.call(false)?;
        state.did(|| op);
        Ok(())
    }
}

impl File for TestFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.state.lock();
        if offset + out.len() as u64 > state.inodes[self.inode].len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let sectors = offset / 4096..(offset + out.len() as u64).div_ceil(4096);
        if state.bad.range((self.inode, sectors.start)..(self.inode, sectors.end)).next().is_some() {
            return Err(error(io::ErrorKind::Other));
        }
        state.inodes[self.inode].read(offset, out);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        // Only growing needs space: the journal relies on it.
        let grows = offset + data.len() as u64 > state.inodes[self.inode].len();
        let short = matches!(state.fault, Some((_, Fault::Short)));
        let fault = state.call(grows || short)?;
        state.has_room(self.inode, offset + data.len() as u64)?;
        let kept = if fault.is_some() { &data[..data.len() / 2] } else { data };
        state.inodes[self.inode].write(offset, kept);
        state.did(|| Op::Write { inode: self.inode, offset, data: kept.into() });
        if fault.is_some() { Err(error(io::ErrorKind::Other)) } else { Ok(()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let grows = len > state.inodes[self.inode].len();
        if let Some(Fault::Short) = state.call(grows)? {
            return Err(error(io::ErrorKind::Other));
        }
        state.has_room(self.inode, len)?;
        state.inodes[self.inode].set_len(len);
        state.did(|| Op::SetLen { inode: self.inode, len });
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().inodes[self.inode].len())
    }

    fn sync(&self) -> io::Result<()> {
        self.synced(Op::Sync { inode: self.inode })
    }

    /// Two calls in the record: the power may go, and the disk fail, between writing and being durable.
    fn write_durably(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data)?;
        self.synced(Op::SyncWrite { inode: self.inode, offset })
    }
}
