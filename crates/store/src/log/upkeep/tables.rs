//! Id tables in proportion to the events that are kept: a flush adds one, a round of maintenance merges those of about one
//! size, and leaves out the ids of events that are gone.
//!
//! ```text
//!  flushes: 1 1 1 1 → 4     rounds: 4 · 4 · 4 · 4 → 16 …     half too many: all → one, without what is gone
//! ```
//!
//! The merged table is durable before the manifest names it, the old ones are removed after it does not any more.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use promethean_event::{EventId, Seq};

use crate::Result;
use crate::log::flush::Trouble;
use crate::log::flush::ids::{self, At, ENTRIES, Sorted, Table, TableMeta};
use crate::log::flush::segment::{Meta, Seqs};
use crate::log::memtable::TopicState;
use crate::log::shared::Shared;
use crate::log::tiers::first_alike;
use crate::log::upkeep::pace::Pace;

/// Tables that are merged at once at most, and most that stay.
const TOGETHER: usize = 64;
/// Pages that are not worth a merge.
const FEW: u64 = 32;
/// Topics whose place is remembered while tables are merged.
const TOPICS: usize = 1_024;
/// Ids between two looks at the clock.
const STEP: usize = 1_024;

impl Shared {
    /// Drops the tables that have no event left where segments were `dropped`, and merges what should be one table.
    pub(super) fn tend_tables(&self, dropped: bool) -> std::result::Result<(), Trouble> {
        if dropped {
            self.drop_tables()?;
        }
        let tables = self.named_tables();
        // A damaged one has the tables rebuilt at the next start. A full disk has no room for a copy.
        if tables.iter().any(|table| table.is_damaged()) || self.room.is_low() {
            return Ok(());
        }
        let mut pace = self.pace();
        if self.has_many_gone(&tables) && !self.merge_chunks(&tables, &mut pace)? {
            return Ok(());
        }
        loop {
            let tables = self.named_tables();
            let pages: Vec<_> = tables.iter().map(|table| table.meta.pages).collect();
            let merged = if tables.len() > TOGETHER {
                self.merge_chunks(&tables, &mut pace)?
            } else if let Some(first) = first_alike(&pages) {
                self.merge(&tables[first..], &mut pace)?
            } else {
                false
            };
            if !merged {
                return Ok(());
            }
        }
    }

    /// The tables, oldest first; everything in them is in segments. (A flush holds the manifest's lock until both are.)
    fn named_tables(&self) -> Arc<Vec<Arc<Table>>> {
        let _named = self.manifest.lock();
        self.tables.read().clone()
    }

    /// True if the tables have half as many ids again as there are events.
    fn has_many_gone(&self, tables: &[Arc<Table>]) -> bool {
        let topics = self.topics.read().by_number.clone();
        let events = |topic: &TopicState| topic.inner.lock().segments.iter().map(|meta| meta.events).sum::<u64>();
        let kept = topics.iter().map(|topic| events(topic)).sum::<u64>().div_ceil(ENTRIES as u64);
        let pages: u64 = tables.iter().map(|table| table.meta.pages).sum();
        pages > kept + kept / 2 + tables.len() as u64 + FEW
    }

    /// Merges neighbours, [`TOGETHER`] at a time. Returns `false` if one of them is damaged.
    fn merge_chunks(&self, tables: &[Arc<Table>], pace: &mut Pace) -> std::result::Result<bool, Trouble> {
        for chunk in tables.chunks(TOGETHER) {
            if !self.merge(chunk, pace)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts one table in the place of these neighbours. Returns `false` if one of them is damaged.
    fn merge(&self, old: &[Arc<Table>], pace: &mut Pace) -> std::result::Result<bool, Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let number = {
            let mut manifest = self.manifest.lock();
            manifest.generation += 1;
            // No journal file has it.
            manifest.generation << 40
        };
        let mut kept = Kept { shared: self, topics: HashMap::default() };
        let mut merged = Merged::new(old);
        let (mut last, mut count) = (None, 0);
        let ids = merged.by_ref().filter(|(id, at)| {
            count += 1;
            if count % STEP == 0 {
                self.give_way(pace);
            }
            // Of an id that was used again, the younger event counts, which comes first.
            let stays = last != Some(*id) && kept.has(*at);
            if stays {
                last = Some(*id);
            }
            stays
        });
        let written = Table::write(disk, dir, number, ids).map_err(Trouble::from);
        let written = match (merged.trouble, written) {
            (None, Ok(written)) => written,
            (trouble, written) => {
                let _ = disk.remove(&ids::path(dir, number));
                // What was damaged is in the log already.
                return match trouble {
                    Some(_) if old.iter().any(|table| table.is_damaged()) => Ok(false),
                    Some(error) => Err(error.into()),
                    None => written.map(|_| false),
                };
            }
        };
        self.replace_tables(old, written)?;
        Ok(true)
    }

    /// Drops the id tables that have no event left.
    fn drop_tables(&self) -> std::result::Result<(), Trouble> {
        let first = |number| self.topics.read().number(number).map_or(Seq::MAX, |topic| topic.inner.lock().first_seq);
        let mut gone = Vec::new();
        for table in self.tables.read().clone().iter() {
            match table.topics() {
                Ok(topics) => {
                    gone.extend(topics.into_iter().all(|(number, last)| last < first(number)).then(|| table.clone()))
                }
                // Said in the log; the next start makes it anew, with what is there then.
                Err(_) if table.is_damaged() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if gone.is_empty() { Ok(()) } else { self.replace_tables(&gone, None) }
    }

    /// Names `new` in the place of the first of the `old` tables, which are removed.
    fn replace_tables(&self, old: &[Arc<Table>], new: Option<TableMeta>) -> std::result::Result<(), Trouble> {
        let (disk, dir) = (&self.options.disk, &self.options.dir);
        let is_old = |number| old.iter().any(|table| table.meta.number == number);
        let opened = new.clone().map(|meta| Table::open(disk, dir, meta)).transpose()?.map(Arc::new);
        let mut manifest = self.manifest.lock();
        let mut next = manifest.clone();
        let at = next.tables.iter().position(|meta| is_old(meta.number)).unwrap_or(0);
        next.tables.retain(|meta| !is_old(meta.number));
        next.tables.splice(at..at, new);
        next.write(&**disk, dir)?;
        *manifest = next;
        let mut tables = self.tables.write();
        let mut list = Vec::clone(&tables);
        let at = list.iter().position(|table| is_old(table.meta.number)).unwrap_or(0);
        list.retain(|table| !is_old(table.meta.number));
        list.splice(at..at, opened);
        *tables = Arc::new(list);
        drop(tables);
        drop(manifest);
        Ok(old.iter().try_for_each(|table| table.remove(&**disk))?)
    }
}

/// The ids of several tables in one order; of equal ids, that of the youngest table first.
struct Merged<'a> {
    tables: Vec<Cursor<'a>>,
    /// The next id of each table, with the table's place.
    heads: BinaryHeap<Reverse<(EventId, Reverse<usize>)>>,
    /// Why it ended early.
    trouble: Option<crate::Error>,
}

struct Cursor<'a> {
    table: &'a Table,
    page: u64,
    /// What is left of the page, last first.
    ids: Sorted,
}

impl<'a> Merged<'a> {
    fn new(tables: &'a [Arc<Table>]) -> Self {
        let cursor = |table: &'a Arc<Table>| Cursor { table, page: 0, ids: Vec::new() };
        let tables: Vec<_> = tables.iter().map(cursor).collect();
        let mut merged = Self { tables, heads: BinaryHeap::new(), trouble: None };
        for table in 0..merged.tables.len() {
            merged.advance(table);
        }
        merged
    }

    /// Makes the next id of a table one of the heads.
    fn advance(&mut self, table: usize) {
        match self.tables[table].head() {
            Ok(head) => self.heads.extend(head.map(|id| Reverse((id, Reverse(table))))),
            Err(error) => self.trouble = Some(error),
        }
    }
}

impl Iterator for Merged<'_> {
    type Item = (EventId, At);

    fn next(&mut self) -> Option<Self::Item> {
        if self.trouble.is_some() {
            return None;
        }
        let Reverse((_, Reverse(table))) = self.heads.pop()?;
        let next = self.tables[table].ids.pop();
        self.advance(table);
        next
    }
}

impl Cursor<'_> {
    /// The next id.
    fn head(&mut self) -> Result<Option<EventId>> {
        if self.ids.is_empty() && self.page < self.table.meta.pages {
            self.ids = self.table.page_of_ids(self.page)?;
            self.ids.reverse();
            self.page += 1;
        }
        Ok(self.ids.last().map(|(id, _)| *id))
    }
}

/// Knows which events are still in segments. Ids go up with time and seqs with them, so one block of each topic is
/// remembered.
struct Kept<'a> {
    shared: &'a Shared,
    topics: HashMap<u32, Option<Place>, RandomState>,
}

struct Place {
    first_seq: Seq,
    segments: Arc<Vec<Meta>>,
    block: Seqs,
}

impl Kept<'_> {
    /// True if the event is there. One in a damaged block may be.
    fn has(&mut self, (number, seq): At) -> bool {
        if self.topics.len() >= TOPICS && !self.topics.contains_key(&number) {
            self.topics.clear();
        }
        let shared = self.shared;
        let place = self.topics.entry(number).or_insert_with(|| {
            let topic = shared.topics.read().number(number).cloned()?;
            let inner = topic.inner.lock();
            Some(Place { first_seq: inner.first_seq, segments: inner.segments.clone(), block: Seqs::default() })
        });
        let Some(place) = place else { return false };
        let meta = place.segments.get(place.segments.partition_point(|meta| meta.last_seq < seq));
        let Some(meta) = meta.filter(|meta| seq >= place.first_seq && meta.first_seq <= seq) else { return false };
        if meta.last_seq - meta.first_seq + 1 == meta.events {
            return true;
        }
        if !place.block.covers(seq) {
            match shared.segment(number, meta).and_then(|open| open.seqs_about(seq)) {
                Ok(block) => place.block = block,
                Err(_) => return true,
            }
        }
        place.block.has(seq)
    }
}
