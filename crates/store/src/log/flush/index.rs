//! The index in redb: key → latest seq, and the ids that clients made. A cache of the segments: rebuilt if lost.
//!
//! Invariant: it covers at least the journal files that the manifest calls flushed (its own `flushed` says how
//! far), in few large transactions that no request waits for. It may be ahead of the manifest, never behind; what
//! it says is checked against the log before it is served.
//!
//! redb panics over bytes that are not its own. Every call is guarded: damage is an error, never "not there", and the
//! file loses its name at once, so that the next start makes it anew.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use promethean_event::{EventId, Seq};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use crate::log::disk::{Disk, File, Mode};
use crate::log::flush::ids::At;
use crate::log::flush::overlay::Overlay;
use crate::log::shared::is_full;
use crate::{Error, Result};

pub(in crate::log) const NAME: &str = "index.redb";
/// One that is being made.
pub(in crate::log) const FRESH: &str = "index.redb.new";
/// topic (big-endian) · key → seq × 2 + tombstone.
const KEYS: TableDefinition<'static, &[u8], u64> = TableDefinition::new("keys");
const IDS: TableDefinition<'static, u128, (u32, u64)> = TableDefinition::new("ids");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
const FLUSHED: &str = "settled";
/// Bytes of an index that are in memory while it is checked.
const CHECK_CACHE: usize = 8 << 20;
/// In `meta`, with a topic's number after it: the index was made without some of the topic's events.
const HOLE: &str = "hole.";

/// The latest event of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::log) struct Latest {
    pub(in crate::log) seq: Seq,
    pub(in crate::log) tombstone: bool,
}

/// What one flush adds, sorted.
#[derive(Debug, Default)]
pub(in crate::log) struct Additions {
    pub(in crate::log) keys: Vec<(Vec<u8>, Latest)>,
    pub(in crate::log) clients: Vec<(EventId, At)>,
}

/// What a drop or a compaction takes away.
#[derive(Debug, Default)]
pub(in crate::log) struct Removals {
    /// Goes where the key's latest is still this one.
    pub(in crate::log) keys: Vec<(Vec<u8>, Seq)>,
    pub(in crate::log) clients: Vec<(EventId, At)>,
}

#[derive(Debug)]
pub(in crate::log) struct Index {
    db: Database,
    /// Topics of which it does not know all.
    holes: Arc<BTreeSet<u32>>,
    file: Arc<Named>,
}

/// The index's file, which loses its name when it is found to be damaged.
#[derive(Debug)]
struct Named {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    damaged: AtomicBool,
}

impl Named {
    fn new(disk: &Arc<dyn Disk>, path: PathBuf) -> Arc<Self> {
        Arc::new(Self { disk: disk.clone(), path, damaged: AtomicBool::new(false) })
    }

    /// Does something with redb.
    fn guarded<T>(&self, work: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(done) => done.map_err(|error| self.failed(&error)),
            Err(_) => Err(self.is_damaged("redb has panicked over it")),
        }
    }

    fn failed(&self, error: &redb::Error) -> Error {
        match error {
            redb::Error::Io(error) if is_full(error) => Error::Refused(error.to_string()),
            redb::Error::Io(io) if io.kind() != io::ErrorKind::UnexpectedEof => failed(error),
            redb::Error::PreviousIo => failed(error),
            damaged => self.is_damaged(&damaged.to_string()),
        }
    }

    fn is_damaged(&self, what: &str) -> Error {
        if !self.damaged.swap(true, Ordering::AcqRel) {
            // What has it open goes on with it as far as it can; the next start does not find it.
            let _ = self.disk.remove(&self.path);
            tracing::error!(file = %self.path.display(), what, "the index is damaged; the next start makes it anew");
        }
        Error::Damaged(format!(
            "{} is damaged ({what}); the next start makes it anew, or `promethean doctor --rebuild-index`",
            self.path.display()
        ))
    }
}

#[derive(Debug)]
struct Backend(Arc<dyn File>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}

/// The bytes of a key in the index.
pub(in crate::log) fn key(topic: u32, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + key.len());
    bytes.extend_from_slice(&topic.to_be_bytes());
    bytes.extend_from_slice(key);
    bytes
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Damaged(format!("the index failed: {error}; `promethean doctor --rebuild-index` makes it anew"))
}

impl Index {
    /// Opens the index file of `dir`.
    pub(in crate::log) fn open(disk: &Arc<dyn Disk>, dir: &Path, cache: usize) -> Result<Self> {
        let path = dir.join(NAME);
        let file = disk.open(&path, Mode::Write).map_err(failed)?;
        let mut index = Self::over(Named::new(disk, path), file, cache)?;
        index.holes = Arc::new(index.read_holes()?);
        Ok(index)
    }

    /// Makes an empty one beside the index of `dir`, which [`Self::take_place`] puts in its place.
    pub(in crate::log) fn create(disk: &Arc<dyn Disk>, dir: &Path, cache: usize) -> Result<Self> {
        let path = dir.join(FRESH);
        let file = disk.open(&path, Mode::Create).map_err(|error| match is_full(&error) {
            true => Error::Refused(error.to_string()),
            false => failed(error),
        })?;
        Self::over(Named::new(disk, path), file, cache)
    }

    fn over(named: Arc<Named>, file: Arc<dyn File>, cache: usize) -> Result<Self> {
        let open = || Ok(Database::builder().set_cache_size(cache).create_with_backend(Backend(file))?);
        Ok(Self { db: named.guarded(open)?, holes: Arc::default(), file: named })
    }

    /// A new one is complete, but for these topics: from now on it is the index.
    pub(in crate::log) fn take_place(&mut self, dir: &Path) -> io::Result<()> {
        let (disk, path) = (self.file.disk.clone(), dir.join(NAME));
        disk.rename(&self.file.path, &path)?;
        disk.sync_dir(dir)?;
        self.file = Named::new(&disk, path);
        Ok(())
    }

    /// Checks an index file without a change to it. Returns the journal file up to which it is complete.
    pub(in crate::log) fn check(file: &Arc<dyn File>) -> Result<Option<u64>> {
        let checked = catch_unwind(AssertUnwindSafe(|| {
            let backend = Overlay::new(file.clone())?;
            let mut db = Database::builder().set_cache_size(CHECK_CACHE).create_with_backend(backend)?;
            if !db.check_integrity()? {
                return Ok(None);
            }
            flushed(&db).map(Some)
        }));
        match checked {
            Ok(Ok(Some(flushed))) => Ok(flushed),
            Ok(Ok(None)) => Err(Error::Damaged("its checksums are wrong".to_owned())),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(Error::Damaged("it is not an index".to_owned())),
        }
    }

    /// The journal file up to which the index is complete; none: nothing was ever put into it.
    pub(in crate::log) fn flushed(&self) -> Result<Option<u64>> {
        self.file.guarded(|| flushed(&self.db))
    }

    fn read_holes(&self) -> Result<BTreeSet<u32>> {
        self.file.guarded(|| {
            let mut holes = BTreeSet::new();
            let Some(meta) = there(self.db.begin_read()?.open_table(META))? else { return Ok(holes) };
            for entry in meta.range(HOLE..)? {
                let (key, _) = entry?;
                holes.extend(key.value().strip_prefix(HOLE).and_then(|number| number.parse::<u32>().ok()));
            }
            Ok(holes)
        })
    }

    /// Remembers that it was made without some events of these topics.
    pub(in crate::log) fn set_holes(&mut self, holes: BTreeSet<u32>) -> Result<()> {
        if holes == *self.holes {
            return Ok(());
        }
        self.file.guarded(|| {
            let write = self.db.begin_write()?;
            {
                let mut meta = write.open_table(META)?;
                for number in &*self.holes {
                    meta.remove(&*format!("{HOLE}{number}"))?;
                }
                for number in &holes {
                    meta.insert(&*format!("{HOLE}{number}"), 1)?;
                }
            }
            Ok(write.commit()?)
        })?;
        self.holes = Arc::new(holes);
        Ok(())
    }

    /// True if it was made without some events of this topic.
    pub(in crate::log) fn has_hole(&self, topic: u32) -> bool {
        self.holes.contains(&topic)
    }

    /// Adds what a flush brings, and says that it is complete up to `flushed`.
    pub(in crate::log) fn add(&self, additions: &Additions, flushed: Option<u64>) -> Result<()> {
        self.file.guarded(|| {
            let mut write = self.db.begin_write()?;
            // Opening after a crash must not cost a walk over all keys.
            write.set_quick_repair(true);
            {
                let mut keys = write.open_table(KEYS)?;
                for (key, latest) in &additions.keys {
                    keys.insert(key.as_slice(), (latest.seq << 1) | u64::from(latest.tombstone))?;
                }
                let mut ids = write.open_table(IDS)?;
                for (id, at) in &additions.clients {
                    ids.insert(u128::from_be_bytes(*id.as_bytes()), *at)?;
                }
                let mut meta = write.open_table(META)?;
                if let Some(flushed) = flushed {
                    meta.insert(FLUSHED, flushed)?;
                }
            }
            Ok(write.commit()?)
        })
    }

    /// Takes away what is gone.
    pub(in crate::log) fn remove(&self, removals: &Removals) -> Result<()> {
        if removals.keys.is_empty() && removals.clients.is_empty() {
            return Ok(());
        }
        self.file.guarded(|| {
            let mut write = self.db.begin_write()?;
            write.set_quick_repair(true);
            {
                let mut keys = write.open_table(KEYS)?;
                for (key, seq) in &removals.keys {
                    let same = keys.get(key.as_slice())?.is_some_and(|latest| latest.value() >> 1 == *seq);
                    if same {
                        keys.remove(key.as_slice())?;
                    }
                }
                let mut ids = write.open_table(IDS)?;
                for (id, at) in &removals.clients {
                    let id = u128::from_be_bytes(*id.as_bytes());
                    let same = ids.get(id)?.is_some_and(|there| there.value() == *at);
                    if same {
                        ids.remove(id)?;
                    }
                }
            }
            Ok(write.commit()?)
        })
    }

    /// Ends it: redb writes to its file once more. Over one that is damaged it would panic, or abort: that one is left
    /// as it is, with its memory, until the process ends, which is soon.
    pub(in crate::log) fn close(self) {
        if self.file.damaged.load(Ordering::Acquire) {
            std::mem::forget(self.db);
        } else {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(self.db)));
        }
    }

    /// A view of this moment.
    pub(in crate::log) fn view(&self) -> Result<View> {
        let (tables, last_client_id) = self.file.guarded(|| {
            let read = self.db.begin_read()?;
            let (Some(keys), Some(ids)) = (there(read.open_table(KEYS))?, there(read.open_table(IDS))?) else {
                return Ok((None, None));
            };
            let last = ids.last()?.map(|(id, _)| EventId::from_bytes(id.value().to_be_bytes()));
            Ok((Some((keys, ids)), last))
        })?;
        Ok(View { tables, last_client_id, holes: self.holes.clone(), file: self.file.clone() })
    }
}

fn flushed(db: &Database) -> std::result::Result<Option<u64>, redb::Error> {
    let Some(meta) = there(db.begin_read()?.open_table(META))? else { return Ok(None) };
    Ok(meta.get(FLUSHED)?.map(|value| value.value()))
}

/// A table, where it is there.
fn there<T>(table: std::result::Result<T, redb::TableError>) -> std::result::Result<Option<T>, redb::Error> {
    match table {
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        table => Ok(Some(table?)),
    }
}

type Keys = redb::ReadOnlyTable<&'static [u8], u64>;
type Ids = redb::ReadOnlyTable<u128, (u32, u64)>;

/// The index as of one moment.
pub(in crate::log) struct View {
    /// None while nothing was ever flushed.
    tables: Option<(Keys, Ids)>,
    /// The largest id that a client made.
    pub(in crate::log) last_client_id: Option<EventId>,
    holes: Arc<BTreeSet<u32>>,
    file: Arc<Named>,
}

impl View {
    pub(in crate::log) fn latest(&self, topic: u32, name: &[u8]) -> Result<Option<Latest>> {
        self.knows_keys_of(topic)?;
        let Some((keys, _)) = &self.tables else { return Ok(None) };
        self.file.guarded(|| Ok(keys.get(key(topic, name).as_slice())?.map(|value| latest(value.value()))))
    }

    pub(in crate::log) fn client_id(&self, id: EventId) -> Result<Option<At>> {
        let Some((_, ids)) = &self.tables else { return Ok(None) };
        self.file.guarded(|| Ok(ids.get(u128::from_be_bytes(*id.as_bytes()))?.map(|value| value.value())))
    }

    /// At most `limit` keys of a topic after `after`, in order.
    pub(in crate::log) fn keys_after(
        &self,
        topic: u32,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Latest)>> {
        self.knows_keys_of(topic)?;
        let Some((keys, _)) = &self.tables else { return Ok(Vec::new()) };
        let prefix = topic.to_be_bytes();
        let from = after.map_or_else(|| prefix.to_vec(), |after| key(topic, after));
        self.file.guarded(|| {
            let mut found = Vec::new();
            for entry in keys.range(from.as_slice()..)? {
                let (key, value) = entry?;
                let Some(name) = key.value().strip_prefix(&prefix[..]) else { break };
                if after == Some(name) {
                    continue;
                }
                if found.len() == limit {
                    break;
                }
                found.push((Bytes::copy_from_slice(name), latest(value.value())));
            }
            Ok(found)
        })
    }

    fn knows_keys_of(&self, topic: u32) -> Result<()> {
        if self.holes.contains(&topic) { Err(incomplete("keys of this topic")) } else { Ok(()) }
    }

    /// True if an id that is not found is not there.
    pub(in crate::log) fn knows_all_ids(&self) -> Result<()> {
        if self.holes.is_empty() { Ok(()) } else { Err(incomplete("ids that are not found")) }
    }
}

fn incomplete(what: &str) -> Error {
    Error::Damaged(format!(
        "{what} may be in a block that is damaged, without which the index was made; `promethean doctor` has the block"
    ))
}

impl Drop for View {
    fn drop(&mut self) {
        // redb's locks are poisoned after a panic.
        let tables = self.tables.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(tables)));
    }
}

fn latest(value: u64) -> Latest {
    Latest { seq: value >> 1, tombstone: value & 1 == 1 }
}
