//! The index in redb: key → latest seq, and the ids that clients made. A cache of the segments: rebuilt if lost.
//!
//! Invariant: it covers at least the journal files that the manifest calls settled (its own `settled` says how
//! far), in few large transactions that no request waits for. It may be ahead of the manifest, never behind; what
//! it says is checked against the log before it is served.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use promethean_event::{EventId, Seq};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use super::disk::{Disk, File, Mode};
use super::ids::At;
use super::shared::is_full;
use crate::{Error, Result};

pub(super) const NAME: &str = "index.redb";
/// topic (big-endian) · key → seq × 2 + tombstone.
const KEYS: TableDefinition<'static, &[u8], u64> = TableDefinition::new("keys");
const IDS: TableDefinition<'static, u128, (u32, u64)> = TableDefinition::new("ids");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
const SETTLED: &str = "settled";

/// The latest event of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Latest {
    pub(super) seq: Seq,
    pub(super) tombstone: bool,
}

/// What one settle adds, sorted.
#[derive(Debug, Default)]
pub(super) struct Additions {
    pub(super) keys: Vec<(Vec<u8>, Latest)>,
    pub(super) clients: Vec<(EventId, At)>,
}

/// What a drop or a compaction takes away.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// Goes where the key's latest is still this one.
    pub(super) keys: Vec<(Vec<u8>, Seq)>,
    pub(super) clients: Vec<(EventId, At)>,
}

#[derive(Debug)]
pub(super) struct Index {
    db: Database,
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
pub(super) fn key(topic: u32, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + key.len());
    bytes.extend_from_slice(&topic.to_be_bytes());
    bytes.extend_from_slice(key);
    bytes
}

fn broken(error: impl Into<redb::Error>) -> Error {
    let error = error.into();
    if let redb::Error::Io(error) = &error
        && is_full(error)
    {
        return Error::Refused(error.to_string());
    }
    Error::Damaged(format!("the index failed: {error}; `promethean doctor --rebuild-index` makes it anew"))
}

impl Index {
    /// Opens the index file, making an empty one where there is none.
    pub(super) fn open(disk: &dyn Disk, dir: &Path, cache: usize) -> Result<Self> {
        let path = dir.join(NAME);
        let file = match disk.open(&path, Mode::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = disk.open(&path, Mode::Create).map_err(broken)?;
                disk.sync_dir(dir).map_err(broken)?;
                file
            }
            other => other.map_err(broken)?,
        };
        // redb may panic on a file whose bytes are not its own.
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Database::builder().set_cache_size(cache).create_with_backend(Backend(file))
        }));
        let opened = opened.map_err(|_| Error::Damaged("the index file is not one".to_owned()))?;
        Ok(Self { db: opened.map_err(broken)? })
    }

    /// Checks the bytes of an index file; the journal file up to which it is complete.
    pub(super) fn check(bytes: Vec<u8>) -> Result<u64> {
        let backend = redb::backends::InMemoryBackend::new();
        backend.set_len(bytes.len() as u64).and_then(|()| backend.write(0, &bytes)).map_err(broken)?;
        drop(bytes);
        let checked = std::panic::catch_unwind(|| {
            let mut db = Database::builder().create_with_backend(backend).map_err(broken)?;
            if !db.check_integrity().map_err(broken)? {
                return Err(Error::Damaged("its checksums are wrong".to_owned()));
            }
            Self { db }.settled()
        });
        checked.unwrap_or_else(|_| Err(Error::Damaged("it is not an index".to_owned())))
    }

    /// The journal file up to which the index is complete.
    pub(super) fn settled(&self) -> Result<u64> {
        let read = self.db.begin_read().map_err(broken)?;
        match read.open_table(META) {
            Ok(table) => Ok(table.get(SETTLED).map_err(broken)?.map_or(0, |value| value.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
            Err(error) => Err(broken(error)),
        }
    }

    /// Adds what a settle brings, and says that it is complete up to `settled`.
    pub(super) fn add(&self, additions: &Additions, settled: Option<u64>) -> Result<()> {
        let mut write = self.db.begin_write().map_err(broken)?;
        // Opening after a crash must not cost a walk over all keys.
        write.set_quick_repair(true);
        {
            let mut keys = write.open_table(KEYS).map_err(broken)?;
            for (key, latest) in &additions.keys {
                keys.insert(key.as_slice(), (latest.seq << 1) | u64::from(latest.tombstone)).map_err(broken)?;
            }
            let mut ids = write.open_table(IDS).map_err(broken)?;
            for (id, at) in &additions.clients {
                ids.insert(u128::from_be_bytes(*id.as_bytes()), *at).map_err(broken)?;
            }
            let mut meta = write.open_table(META).map_err(broken)?;
            if let Some(settled) = settled {
                meta.insert(SETTLED, settled).map_err(broken)?;
            }
        }
        write.commit().map_err(broken)
    }

    /// Takes away what is gone.
    pub(super) fn remove(&self, removals: &Removals) -> Result<()> {
        if removals.keys.is_empty() && removals.clients.is_empty() {
            return Ok(());
        }
        let mut write = self.db.begin_write().map_err(broken)?;
        write.set_quick_repair(true);
        {
            let mut keys = write.open_table(KEYS).map_err(broken)?;
            for (key, seq) in &removals.keys {
                let same = keys.get(key.as_slice()).map_err(broken)?.is_some_and(|latest| latest.value() >> 1 == *seq);
                if same {
                    keys.remove(key.as_slice()).map_err(broken)?;
                }
            }
            let mut ids = write.open_table(IDS).map_err(broken)?;
            for (id, at) in &removals.clients {
                let id = u128::from_be_bytes(*id.as_bytes());
                let same = ids.get(id).map_err(broken)?.is_some_and(|there| there.value() == *at);
                if same {
                    ids.remove(id).map_err(broken)?;
                }
            }
        }
        write.commit().map_err(broken)
    }

    /// A view of this moment.
    pub(super) fn view(&self) -> Result<View> {
        let read = self.db.begin_read().map_err(broken)?;
        match (read.open_table(KEYS), read.open_table(IDS)) {
            (Ok(keys), Ok(ids)) => {
                let last = ids.last().map_err(broken)?.map(|(id, _)| id.value());
                let last_client_id = last.map(|id| EventId::from_bytes(id.to_be_bytes()));
                Ok(View { tables: Some((keys, ids)), last_client_id })
            }
            (Err(redb::TableError::TableDoesNotExist(_)), _) | (_, Err(redb::TableError::TableDoesNotExist(_))) => {
                Ok(View { tables: None, last_client_id: None })
            }
            (Err(error), _) | (_, Err(error)) => Err(broken(error)),
        }
    }
}

type Keys = redb::ReadOnlyTable<&'static [u8], u64>;
type Ids = redb::ReadOnlyTable<u128, (u32, u64)>;

/// The index as of one moment.
pub(super) struct View {
    /// None while nothing was ever settled.
    tables: Option<(Keys, Ids)>,
    /// The largest id that a client made.
    pub(super) last_client_id: Option<EventId>,
}

impl View {
    pub(super) fn latest(&self, topic: u32, name: &[u8]) -> Result<Option<Latest>> {
        let Some((keys, _)) = &self.tables else { return Ok(None) };
        Ok(keys.get(key(topic, name).as_slice()).map_err(broken)?.map(|value| latest(value.value())))
    }

    pub(super) fn client_id(&self, id: EventId) -> Result<Option<At>> {
        let Some((_, ids)) = &self.tables else { return Ok(None) };
        Ok(ids.get(u128::from_be_bytes(*id.as_bytes())).map_err(broken)?.map(|value| value.value()))
    }

    /// At most `limit` keys of a topic after `after`, in order.
    pub(super) fn keys_after(&self, topic: u32, after: Option<&[u8]>, limit: usize) -> Result<Vec<(Bytes, Latest)>> {
        let Some((keys, _)) = &self.tables else { return Ok(Vec::new()) };
        let prefix = topic.to_be_bytes();
        let from = after.map_or_else(|| prefix.to_vec(), |after| key(topic, after));
        let mut found = Vec::new();
        for entry in keys.range(from.as_slice()..).map_err(broken)? {
            let (key, value) = entry.map_err(broken)?;
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
    }
}

fn latest(value: u64) -> Latest {
    Latest { seq: value >> 1, tombstone: value & 1 == 1 }
}
