//! The caches beside the segments (the redb index, the id tables): opened, or made anew from the segments.

use std::collections::HashMap;
use std::io;
use std::mem::take;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use promethean_event::EventId;

use super::codec::Held;
use super::ids::{self, At, Table, TableMeta};
use super::index::{self, Additions, Index, Latest};
use super::manifest::Manifest;
use super::options::{OpenError, Options};
use super::recovery::io_error;
use super::segment::Segment;
use crate::Error;

/// Entries that are collected before they are written.
const BATCH: usize = 500_000;

/// What is opened beside the segments.
pub(super) type Caches = (Index, Vec<Arc<Table>>, Manifest);

/// Opens the index and the id tables; what is missing, unreadable or too old is made anew.
pub(super) fn open_index(options: &Options, manifest: Manifest) -> Result<Caches, OpenError> {
    let (disk, dir) = (&*options.disk, &options.dir);
    let index = Index::open(disk, dir, options.index_cache_bytes)
        .and_then(|index| {
            let settled = index.settled()?;
            if settled >= manifest.settled {
                return Ok(index);
            }
            Err(Error::Damaged(format!("it ends at journal file {settled}, the manifest at {}", manifest.settled)))
        })
        .map_err(|error| tracing::warn!(%error, "the index is made anew from the segments"))
        .ok();
    let open = |meta: &TableMeta| Table::open(disk, dir, meta.clone()).map(Arc::new);
    let tables: io::Result<Vec<_>> = manifest.tables.iter().map(open).collect();
    let tables = tables.map_err(|error| tracing::warn!(%error, "the id tables are made anew from the segments")).ok();
    match (index, tables) {
        (Some(index), Some(tables)) => Ok((index, tables, manifest)),
        (index, tables) => rebuild(options, manifest, index, tables.is_some()),
    }
}

/// Makes the index (where none is given) and the id tables (unless they are sound) from the segments.
pub(super) fn rebuild(
    options: &Options,
    mut manifest: Manifest,
    index: Option<Index>,
    tables_sound: bool,
) -> Result<Caches, OpenError> {
    let (disk, dir) = (&*options.disk, &options.dir);
    let failed = |error: Error| OpenError::Io {
        doing: "the index could not be made".to_owned(),
        error: io::Error::other(error),
    };
    let fresh_index = index.is_none();
    let index = match index {
        Some(index) => index,
        None => {
            match disk.remove(&dir.join(index::NAME)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("the old index could not be removed")(error));
                }
                _ => {}
            }
            Index::open(disk, dir, options.index_cache_bytes).map_err(failed)?
        }
    };
    manifest.generation += 1;
    let base = manifest.generation << 40;
    let mut build =
        Build { options, index: &index, fresh_index, tables: !tables_sound, base, ..Build::empty(options, &index) };
    for (number, topic) in &manifest.topics {
        for meta in &topic.segments {
            let open = Segment::open(disk, meta.path(dir, *number), meta.len).map_err(failed)?;
            let mut trouble = Ok(());
            open.scan(0, 1 << 20, |seq, held| {
                trouble = build.add((*number, seq), &held);
                trouble.is_ok()
            })
            .map_err(failed)?;
            trouble.map_err(failed)?;
        }
        build.flush_keys(*number).map_err(failed)?;
    }
    build.flush(Some(manifest.settled)).map_err(failed)?;
    build.flush_ids().map_err(failed)?;
    let written = build.written;
    if !tables_sound {
        let old = std::mem::replace(&mut manifest.tables, written);
        disk.create_dir(&dir.join("ids")).map_err(io_error("the directory of the id tables could not be made"))?;
        manifest.write(disk, dir).map_err(io_error("the manifest could not be written"))?;
        for meta in old {
            // Where it is missing, that is why the tables were made anew.
            let _ = disk.remove(&ids::path(dir, meta.number));
        }
    }
    let open = |meta: &TableMeta| Table::open(disk, dir, meta.clone()).map(Arc::new);
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

    fn flush(&mut self, settled: Option<u64>) -> crate::Result<()> {
        if !self.fresh_index {
            return Ok(());
        }
        let mut additions = take(&mut self.additions);
        additions.keys.sort_unstable_by(|(one, _), (two, _)| one.cmp(two));
        additions.clients.sort_unstable_by_key(|(id, _)| *id);
        self.index.add(&additions, settled)
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
