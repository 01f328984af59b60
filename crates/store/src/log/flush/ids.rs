//! Where ids are: of unflushed events in memory, of flushed ones in sorted tables. A flush adds one, upkeep merges them.
//!
//! Ids that the hub made go up with time, so tables hardly overlap and a lookup touches one or two of them; within a
//! table it is a binary search over pages. Ids that clients made may be anything and are in the redb index instead.
//!
//! A table can be made anew from the segments: one that a look-up finds to be damaged loses its name at once, so that the
//! next start does so.
//!
//! ```text
//!  file   = page · page · … · topics
//!  page   = entry × 146 (id:16 · topic:u32 · seq:u64, ascending by id; the last page is filled with 0xff) · crc:u32 · 0:u32
//!  topics = (topic:u32 · last_seq:u64)… · crc:u32            which events the table has: gone ones free it
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldhash::fast::RandomState;
use promethean_event::{EventId, Seq};

use crate::log::commit::codec::{u32_at, u64_at};
use crate::log::disk::{Disk, File, Mode};
use crate::log::flush::segment::{damaged, failed};
use crate::{Error, Result};

const ENTRY: usize = 28;
pub(in crate::log) const ENTRIES: usize = 146;
const PAGE: usize = 4096;
/// How much of a table is written with one call.
const CHUNK: usize = 128 * PAGE;

/// Topic number and seq.
pub(in crate::log) type At = (u32, Seq);

/// Ids and where they are, ascending by id.
pub(in crate::log) type Sorted = Vec<(EventId, At)>;

/// The ids of events that are not flushed.
#[derive(Debug, Default)]
pub(in crate::log) struct Recent {
    /// One for each journal file that is not flushed, oldest first.
    files: VecDeque<Arc<Run>>,
    /// How many files were flushed: whoever misses an id here finds it in a view of the index that is no older.
    pub(in crate::log) flushes: u64,
}

/// The ids of one journal file. Whoever flushes the file has it without a copy, for nothing is added to it any more.
#[derive(Debug, Clone, Default)]
pub(in crate::log) struct Run {
    journal: u64,
    /// Ids of the hub that came in their order.
    sorted: Vec<(EventId, At)>,
    /// Ids of the hub that came late.
    strays: HashMap<EventId, At, RandomState>,
    clients: HashMap<EventId, At, RandomState>,
}

impl Recent {
    /// Adds an id; `journal` is the file its event is in.
    pub(in crate::log) fn insert(&mut self, journal: u64, id: EventId, at: At, client: bool) {
        if self.files.back().is_none_or(|run| run.journal != journal) {
            // About as many as last time: growing would copy them.
            let capacity = self.files.back().map_or(0, |run| run.sorted.len());
            let run = Run { journal, sorted: Vec::with_capacity(capacity), ..Run::default() };
            self.files.push_back(Arc::new(run));
        }
        let Some(run) = self.files.back_mut().map(Arc::make_mut) else { return };
        if client {
            run.clients.insert(id, at);
        } else if run.sorted.last().is_none_or(|(last, _)| *last < id) {
            run.sorted.push((id, at));
        } else {
            run.strays.insert(id, at);
        }
    }

    pub(in crate::log) fn get(&self, id: EventId) -> Option<At> {
        self.files.iter().rev().find_map(|run| {
            let hub = || {
                // The usual client id is younger than all of the hub's.
                if run.sorted.last().is_none_or(|(last, _)| *last < id) {
                    return None;
                }
                run.sorted.binary_search_by_key(&id, |(this, _)| *this).ok().map(|index| run.sorted[index].1)
            };
            run.clients.get(&id).copied().or_else(hub).or_else(|| run.strays.get(&id).copied())
        })
    }

    /// The ids of a journal file.
    pub(in crate::log) fn of(&self, journal: u64) -> Arc<Run> {
        self.files.iter().find(|run| run.journal == journal).cloned().unwrap_or_default()
    }

    /// Forgets a journal file that is flushed. What is returned takes a while to drop: do it outside of locks.
    pub(in crate::log) fn flushed(&mut self, journal: u64) -> Option<impl Sized + use<>> {
        let index = self.files.iter().position(|run| run.journal == journal)?;
        self.flushes += 1;
        self.files.remove(index)
    }
}

impl Run {
    /// The ids that the hub made, ascending.
    pub(in crate::log) fn hub(&self) -> impl Iterator<Item = (EventId, At)> {
        let (mut sorted, mut strays) =
            (self.sorted.iter().copied().peekable(), in_order(&self.strays).into_iter().peekable());
        std::iter::from_fn(move || match (sorted.peek(), strays.peek()) {
            (Some((one, _)), Some((other, _))) if other < one => strays.next(),
            (Some(_), _) => sorted.next(),
            (None, _) => strays.next(),
        })
    }

    /// The ids that clients made, ascending.
    pub(in crate::log) fn clients(&self) -> Sorted {
        in_order(&self.clients)
    }
}

fn in_order(ids: &HashMap<EventId, At, RandomState>) -> Sorted {
    let mut sorted: Sorted = ids.iter().map(|(id, at)| (*id, *at)).collect();
    sorted.sort_unstable_by_key(|(id, _)| *id);
    sorted
}

/// What the manifest knows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::log) struct TableMeta {
    pub(in crate::log) number: u64,
    pub(in crate::log) pages: u64,
    /// Topics it has events of.
    pub(in crate::log) topics: u64,
    pub(in crate::log) min: EventId,
    pub(in crate::log) max: EventId,
}

/// A table that is open for reading.
#[derive(Debug)]
pub(in crate::log) struct Table {
    pub(in crate::log) meta: TableMeta,
    path: PathBuf,
    file: Arc<dyn File>,
    /// Where it loses its name when it is damaged; none: whoever looks changes nothing.
    disk: Option<Arc<dyn Disk>>,
    damaged: AtomicBool,
}

pub(in crate::log) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join("ids").join(format!("{number:08}.ids"))
}

impl Table {
    /// Writes a table of ids, which ascend, durably; `None` when there are none.
    pub(in crate::log) fn write(
        disk: &dyn Disk,
        dir: &Path,
        number: u64,
        ids: impl Iterator<Item = (EventId, At)>,
    ) -> io::Result<Option<TableMeta>> {
        let mut ids = ids.peekable();
        let Some((min, _)) = ids.peek().copied() else { return Ok(None) };
        let file = disk.open(&path(dir, number), Mode::Create)?;
        let (mut max, mut pages, mut written) = (min, 0, 0);
        let mut last: HashMap<u32, Seq, RandomState> = HashMap::default();
        // A part at a time: a whole table would be megabytes of new memory for each flush.
        let mut out = Vec::with_capacity(CHUNK);
        while ids.peek().is_some() {
            let start = out.len();
            for (id, (topic, seq)) in ids.by_ref().take(ENTRIES) {
                out.extend_from_slice(id.as_bytes());
                out.extend_from_slice(&topic.to_le_bytes());
                out.extend_from_slice(&seq.to_le_bytes());
                let known = last.entry(topic).or_default();
                *known = (*known).max(seq);
                max = id;
            }
            out.resize(start + ENTRIES * ENTRY, 0xff);
            out.extend_from_slice(&crc32fast::hash(&out[start..]).to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            pages += 1;
            if out.len() == CHUNK {
                file.write_at(written, &out)?;
                written += CHUNK as u64;
                out.clear();
            }
        }
        let start = out.len();
        for (topic, seq) in &last {
            out.extend_from_slice(&topic.to_le_bytes());
            out.extend_from_slice(&seq.to_le_bytes());
        }
        out.extend_from_slice(&crc32fast::hash(&out[start..]).to_le_bytes());
        file.write_at(written, &out)?;
        file.sync()?;
        disk.sync_dir(&dir.join("ids"))?;
        Ok(Some(TableMeta { number, pages, topics: last.len() as u64, min, max }))
    }

    pub(in crate::log) fn open(disk: &Arc<dyn Disk>, dir: &Path, meta: TableMeta) -> io::Result<Self> {
        Ok(Self { disk: Some(Arc::clone(disk)), ..Self::open_to_check(&**disk, dir, meta)? })
    }

    /// As [`Self::open`], for one who changes nothing.
    pub(in crate::log) fn open_to_check(disk: &dyn Disk, dir: &Path, meta: TableMeta) -> io::Result<Self> {
        let path = path(dir, meta.number);
        let file = disk.open(&path, Mode::Read)?;
        if file.len()? < meta.pages * PAGE as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { meta, path, file, disk: None, damaged: AtomicBool::new(false) })
    }

    pub(in crate::log) fn remove(&self, disk: &dyn Disk) -> io::Result<()> {
        match disk.remove(&self.path) {
            // It was damaged and has lost its name before.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// True if it was found to be damaged.
    pub(in crate::log) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, out).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.found(offset, "it ends too early"),
            _ => failed(&self.path, offset, &error),
        })
    }

    /// Damage was found.
    fn found(&self, offset: u64, what: &str) -> Error {
        let first = !self.damaged.swap(true, Ordering::AcqRel);
        let Some(disk) = &self.disk else { return damaged(&self.path, offset, what) };
        if first {
            // What has it open goes on with the rest of it; the next start does not find it.
            let _ = disk.remove(&self.path);
            tracing::error!(
                file = %self.path.display(), offset, what,
                "an id table is damaged; the next start makes the id tables anew"
            );
        }
        Error::Damaged(format!(
            "{} is damaged at offset {offset}: {what}; the next start makes it anew, or `promethean doctor --rebuild-index`",
            self.path.display()
        ))
    }

    /// Checks and returns a page.
    fn page(&self, index: u64) -> Result<[u8; PAGE]> {
        let mut page = [0; PAGE];
        let offset = index * PAGE as u64;
        self.read(offset, &mut page)?;
        if crc32fast::hash(&page[..ENTRIES * ENTRY]) != u32_at(&page, ENTRIES * ENTRY) {
            return Err(self.found(offset, "a page of ids does not have its checksum"));
        }
        Ok(page)
    }

    /// The ids of a page, ascending.
    pub(in crate::log) fn page_of_ids(&self, index: u64) -> Result<Sorted> {
        let page = self.page(index)?;
        let entries = page[..ENTRIES * ENTRY].as_chunks::<ENTRY>().0.iter();
        let used = entries.take_while(|entry| u32_at(*entry, 16) != u32::MAX);
        let id = |entry: &[u8; ENTRY]| EventId::from_bytes(std::array::from_fn(|at| entry[at]));
        Ok(used.map(|entry| (id(entry), (u32_at(entry, 16), u64_at(entry, 20)))).collect())
    }

    pub(in crate::log) fn get(&self, id: EventId) -> Result<Option<At>> {
        if id < self.meta.min || id > self.meta.max {
            return Ok(None);
        }
        let (mut low, mut high) = (0, self.meta.pages);
        while low < high {
            let middle = (low + high) / 2;
            let page = self.page(middle)?;
            let entries = page[..ENTRIES * ENTRY].as_chunks::<ENTRY>().0;
            let at = entries.partition_point(|entry| entry[..16] < id.as_bytes()[..]);
            match entries.get(at) {
                Some(entry) if entry[..16] == id.as_bytes()[..] && u32_at(entry, 16) != u32::MAX => {
                    return Ok(Some((u32_at(entry, 16), u64_at(entry, 20))));
                }
                Some(_) if at == 0 => high = middle,
                Some(_) => return Ok(None),
                None => low = middle + 1,
            }
        }
        Ok(None)
    }

    /// Reads every page and the topics; what is wrong is an error.
    pub(in crate::log) fn check(&self) -> Result<()> {
        for index in 0..self.meta.pages {
            self.page(index)?;
        }
        self.topics().map(drop)
    }

    /// The last seq of each topic in the table.
    pub(in crate::log) fn topics(&self) -> Result<Vec<At>> {
        let offset = self.meta.pages * PAGE as u64;
        let len = usize::try_from(self.meta.topics).unwrap_or(usize::MAX).saturating_mul(12);
        let mut bytes = vec![0; len.saturating_add(4)];
        self.read(offset, &mut bytes)?;
        if crc32fast::hash(&bytes[..len]) != u32_at(&bytes, len) {
            return Err(self.found(offset, "the list of topics does not have its checksum"));
        }
        Ok(bytes[..len].as_chunks::<12>().0.iter().map(|entry| (u32_at(entry, 0), u64_at(entry, 4))).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::log::disk::Real;

    fn id(n: u64) -> EventId {
        EventId::from_bytes((u128::from(n) << 40).to_be_bytes())
    }

    #[test]
    fn a_table_finds_every_id_and_no_other() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::create_dir(dir.path().join("ids")).expect("directory");
        let disk: Arc<dyn Disk> = Arc::new(Real);
        // Parts of a page, whole ones, and more than is written with one call.
        let call = (CHUNK / PAGE * ENTRIES) as u64;
        for count in [1_u64, 145, 146, 147, 1000, call, call + 1, 3 * call] {
            let ids: Vec<_> = (1..=count).map(|n| (id(n * 2), (7, n))).collect();
            let meta =
                Table::write(&Real, dir.path(), count, ids.iter().copied()).expect("written").expect("not empty");
            let table = Table::open(&disk, dir.path(), meta).expect("opens");
            for (id, at) in &ids {
                assert_eq!(table.get(*id).expect("sound"), Some(*at));
            }
            for n in 0..=count {
                assert_eq!(table.get(id(n * 2 + 1)).expect("sound"), None);
            }
            assert_eq!(table.topics().expect("sound"), vec![(7, count)]);
        }
    }

    /// Counts what is said in the log.
    #[derive(Default, Clone)]
    struct Log(Arc<AtomicUsize>);

    impl tracing::Subscriber for Log {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            self.0.fetch_add(usize::from(*event.metadata().level() == tracing::Level::ERROR), Ordering::AcqRel);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn a_damaged_table_loses_its_name_and_is_logged_once_and_a_check_leaves_it() {
        let disk: Arc<dyn Disk> = Arc::new(Real);
        // A page, the list of topics, the end of the file.
        for (spoil, offset) in [(Some(2000), 0), (Some(PAGE + 3), PAGE), (None, PAGE)] {
            let dir = tempfile::tempdir().expect("directory");
            std::fs::create_dir(dir.path().join("ids")).expect("directory");
            let ids = (1..=100).map(|n| (id(n), (7, n)));
            let meta = Table::write(&Real, dir.path(), 1, ids).expect("written").expect("not empty");
            let file = path(dir.path(), 1);
            let mut bytes = std::fs::read(&file).expect("read");
            match spoil {
                Some(at) => bytes[at] ^= 0x55,
                None => bytes.truncate(PAGE + 5),
            }
            std::fs::write(&file, bytes).expect("written");
            let log = Log::default();
            tracing::subscriber::with_default(log.clone(), || {
                Table::open_to_check(&Real, dir.path(), meta.clone()).expect("opens").check().expect_err("damaged");
                assert!(file.exists() && log.0.load(Ordering::Acquire) == 0, "a check changes nothing");
                let table = Table::open(&disk, dir.path(), meta.clone()).expect("opens");
                for _ in 0..3 {
                    let told = if offset == 0 { table.get(id(5)).map(drop) } else { table.topics().map(drop) };
                    let Err(Error::Damaged(text)) = told else { panic!("{told:?}") };
                    assert!(text.contains(&format!("offset {offset}")) && text.contains("the next start"), "{text}");
                }
                assert!(!file.exists() && table.is_damaged(), "the next start must not find it");
                table.remove(&Real).expect("what is gone already need not be removed");
            });
            assert_eq!(log.0.load(Ordering::Acquire), 1, "it is said once");
        }
    }

    #[test]
    fn recent_ids_are_found_whoever_made_them_and_in_whatever_order_they_came() {
        let mut recent = Recent::default();
        for (n, client) in [(5, false), (9, false), (7, false), (1, true), (12, false)] {
            recent.insert(3, id(n), (1, n), client);
        }
        for n in 0..20 {
            assert_eq!(recent.get(id(n)).is_some(), [5, 9, 7, 1, 12].contains(&n), "{n}");
        }
        let run = recent.of(3);
        assert_eq!(run.hub().map(|(_, (_, n))| n).collect::<Vec<_>>(), [5, 7, 9, 12]);
        assert_eq!(run.clients(), [(id(1), (1, 1))]);
        drop(recent.flushed(3));
        assert_eq!(recent.get(id(5)), None);
    }
}
