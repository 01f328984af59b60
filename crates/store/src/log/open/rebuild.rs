//! The caches beside the segments (the redb index, the id tables): opened, or made anew from the segments.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem::take;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use promethean_event::{EventId, Seq};

use crate::Error;
use crate::log::commit::codec::Held;
use crate::log::disk::Mode;
use crate::log::flush::ids::{self, At, Table, TableMeta};
use crate::log::flush::index::{self, Additions, Index, Latest};
use crate::log::flush::manifest::Manifest;
use crate::log::flush::segment::{Meta, Segment};
use crate::log::open::recovery::io_error;
use crate::log::options::{OpenError, Options};

/// Entries that are collected before they are written.
const BATCH: usize = 500_000;

/// What is opened beside the segments.
pub(in crate::log) type Caches = (Index, Vec<Arc<Table>>, Manifest);

/// What to do about a block that is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::log) enum Damage {
    /// Nothing is changed then, and the block is named.
    Refused,
    /// The rest is enough to go on with: said in the log, and the index remembers that it does not know all.
    PassedOver,
}

/// Opens the index and the id tables; what is missing, unreadable or too old is made anew.
pub(in crate::log) fn open_index(options: &Options, manifest: Manifest) -> Result<Caches, OpenError> {
    let dir = &options.dir;
    let flushed_any = manifest.topics.values().any(|topic| !topic.segments.is_empty());
    let index = match check_index(options, &manifest, flushed_any) {
        Ok(index) => Some(index),
        Err(error) => {
            if flushed_any {
                tracing::warn!(%error, "the index is made anew from the segments");
            }
            None
        }
    };
    let open = |meta: &TableMeta| Table::open(&options.disk, dir, meta.clone()).map(Arc::new);
    let tables: io::Result<Vec<_>> = manifest.tables.iter().map(open).collect();
    let tables = tables.map_err(|error| tracing::warn!(%error, "the id tables are made anew from the segments")).ok();
    match (index, tables) {
        (Some(index), Some(tables)) => Ok((index, tables, manifest)),
        (index, tables) => rebuild(options, manifest, index, tables.is_some(), Damage::PassedOver),
    }
}

/// The index, if it is whole and knows everything that is flushed.
fn check_index(options: &Options, manifest: &Manifest, flushed_any: bool) -> Result<Index, Error> {
    let (disk, dir) = (&options.disk, &options.dir);
    let path = dir.join(index::NAME);
    // redb looks at checksums only when it is asked to: a flipped bit could make it say that something is not there.
    if disk.len(&path).is_ok_and(|len| len <= options.index_check_bytes) {
        let file = disk.open(&path, Mode::Read).map_err(|error| Error::Damaged(error.to_string()))?;
        Index::check(&file)?;
    }
    let index = Index::open(disk, dir, options.index_cache_bytes)?;
    match index.flushed()? {
        None if flushed_any => Err(Error::Damaged("there is nothing in it".to_owned())),
        flushed if flushed.unwrap_or(0) < manifest.flushed => Err(Error::Damaged(format!(
            "it ends at journal file {}, the manifest at {}",
            flushed.unwrap_or(0),
            manifest.flushed
        ))),
        _ => Ok(index),
    }
}

/// Makes the index (where none is given) and the id tables (unless they are sound) from the segments, beside the old
/// ones: where it fails, those are as they were.
pub(in crate::log) fn rebuild(
    options: &Options,
    mut manifest: Manifest,
    index: Option<Index>,
    tables_sound: bool,
    damage: Damage,
) -> Result<Caches, OpenError> {
    let (disk, dir) = (&*options.disk, &options.dir);
    let failed = |error: Error| OpenError::Io {
        doing: "the index could not be made".to_owned(),
        error: io::Error::other(error),
    };
    let fresh_index = index.is_none();
    let index = index.map_or_else(|| Index::create(&options.disk, dir, options.index_cache_bytes), Ok);
    let mut index = index.map_err(failed)?;
    manifest.generation += 1;
    let base = manifest.generation << 40;
    let mut build =
        Build { options, index: &index, fresh_index, tables: !tables_sound, base, ..Build::empty(options, &index) };
    let built = build.all(&manifest, damage);
    let (written, holes) = (take(&mut build.written), take(&mut build.holes));
    let built = built.and_then(|()| index.set_holes(holes));
    if let Err(error) = built {
        if fresh_index {
            drop(index);
            let _ = disk.remove(&dir.join(index::FRESH));
        }
        for meta in written {
            let _ = disk.remove(&ids::path(dir, meta.number));
        }
        return Err(failed(error));
    }
    if fresh_index {
        index.take_place(dir).map_err(io_error("the new index could not take the old one's place"))?;
    }
    if !tables_sound {
        let old = std::mem::replace(&mut manifest.tables, written);
        disk.create_dir(&dir.join("ids")).map_err(io_error("the directory of the id tables could not be made"))?;
        manifest.write(disk, dir).map_err(io_error("the manifest could not be written"))?;
        for meta in old {
            // Where it is missing, that is why the tables were made anew.
            let _ = disk.remove(&ids::path(dir, meta.number));
        }
    }
    let open = |meta: &TableMeta| Table::open(&options.disk, dir, meta.clone()).map(Arc::new);
    let tables: io::Result<Vec<_>> = manifest.tables.iter().map(open).collect();
    Ok((index, tables.map_err(io_error("an id table could not be opened"))?, manifest))
}

struct Build<'a> {
    options: &'a Options,
    index: &'a Index,
    fresh_index: bool,
    tables: bool,
    /// The number of the first table: no journal file has it.
    base: u64,
    keys: HashMap<Bytes, Latest, RandomState>,
    additions: Additions,
    ids: Vec<(EventId, At)>,
    written: Vec<TableMeta>,
    /// Topics with a block that was passed over.
    holes: BTreeSet<u32>,
}

impl<'a> Build<'a> {
    fn empty(options: &'a Options, index: &'a Index) -> Self {
        Self {
            options,
            index,
            fresh_index: false,
            tables: false,
            base: 0,
            keys: HashMap::default(),
            additions: Additions::default(),
            ids: Vec::new(),
            written: Vec::new(),
            holes: BTreeSet::new(),
        }
    }

    /// Reads all segments.
    fn all(&mut self, manifest: &Manifest, damage: Damage) -> crate::Result<()> {
        for (number, topic) in &manifest.topics {
            for meta in topic.segments.iter().filter(|meta| meta.last_seq >= topic.first_seq) {
                self.segment(*number, meta, topic.first_seq, damage)?;
            }
            self.flush_keys(*number)?;
        }
        self.flush(Some(manifest.flushed))?;
        self.flush_ids()
    }

    /// `first`: what is before it is trimmed, and must not come back: its id may have been used again since.
    fn segment(&mut self, topic: u32, meta: &Meta, first: Seq, damage: Damage) -> crate::Result<()> {
        let path = meta.path(&self.options.dir, topic);
        let passed_over = |build: &mut Self, error: Error| {
            if damage == Damage::Refused {
                return Err(error);
            }
            tracing::error!(%error, "the index is made without a part of a segment that is damaged");
            build.holes.insert(topic);
            Ok(())
        };
        let open = match Segment::open(&*self.options.disk, path, meta.len) {
            Ok(open) => open,
            Err(error) => return passed_over(self, error),
        };
        let mut last = first.saturating_sub(1);
        loop {
            let mut trouble = Ok(());
            let scanned = open.scan(last + 1, 1 << 20, |seq, held| {
                last = seq;
                trouble = self.add((topic, seq), &held);
                trouble.is_ok()
            });
            trouble?;
            let Err(error) = scanned else { return Ok(()) };
            passed_over(self, error)?;
            // Behind the block that has the next event.
            let Some(bad) = open.blocks.iter().find(|block| block.last_seq > last) else { return Ok(()) };
            last = bad.last_seq;
        }
    }

    fn add(&mut self, at: At, held: &Held) -> crate::Result<()> {
        if self.fresh_index {
            if let Some(key) = held.key() {
                // A copy: a slice would keep the whole block.
                let latest = Latest { seq: at.1, tombstone: held.is_tombstone() };
                self.keys.insert(Bytes::copy_from_slice(&key), latest);
            }
            if held.client {
                self.additions.clients.push((held.id, at));
            }
            if self.keys.len() + self.additions.clients.len() >= BATCH {
                self.flush_keys(at.0)?;
                self.flush(None)?;
            }
        }
        if self.tables && !held.client {
            self.ids.push((held.id, at));
            if self.ids.len() >= BATCH {
                self.flush_ids()?;
            }
        }
        Ok(())
    }

    fn flush_keys(&mut self, topic: u32) -> crate::Result<()> {
        let keys = take(&mut self.keys).into_iter().map(|(key, latest)| (index::key(topic, &key), latest));
        self.additions.keys.extend(keys);
        if self.additions.keys.len() >= BATCH { self.flush(None) } else { Ok(()) }
    }

    fn flush(&mut self, flushed: Option<u64>) -> crate::Result<()> {
        if !self.fresh_index {
            return Ok(());
        }
        let mut additions = take(&mut self.additions);
        additions.keys.sort_unstable_by(|(one, _), (two, _)| one.cmp(two));
        additions.clients.sort_unstable_by_key(|(id, _)| *id);
        self.index.add(&additions, flushed)
    }

    fn flush_ids(&mut self) -> crate::Result<()> {
        let mut ids = take(&mut self.ids);
        ids.sort_unstable_by_key(|(id, _)| *id);
        let number = self.base + self.written.len() as u64;
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let table =
            disk.create_dir(&dir.join("ids")).and_then(|()| Table::write(disk, dir, number, ids.iter().copied()));
        self.written.extend(table.map_err(|error| Error::Damaged(error.to_string()))?);
        Ok(())
    }
}
