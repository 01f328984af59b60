//! Flushing: the events of a complete journal file go to their topics' segments, then the file is free.
//!
//! The order makes a crash harmless at every point: segments durable → id table durable → index durable → manifest
//! replaced → visible in memory → journal file retired. Until the manifest names it, everything written is only
//! bytes that the next try writes over; the journal file has it all.

pub(super) mod ids;
pub(super) mod index;
pub(super) mod manifest;
mod overlay;
pub(super) mod segment;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use promethean_event::Millis;

use crate::log::commit::codec::Held;
use crate::log::commit::journal;
use crate::log::commit::writer::step;
use crate::log::disk::File;
use crate::log::flush::ids::Table;
use crate::log::flush::index::{Additions, Latest};
use crate::log::flush::manifest::TopicEntry;
use crate::log::flush::segment::{Writer, topic_dir};
use crate::log::memtable::{TopicState, Unflushed};
use crate::log::options::Options;
use crate::log::shared::{Sealed, Shared, is_full};
use crate::log::stats::Counters;
use crate::{Error, TopicSettings};

/// Pause before the next try without room on the disk.
const RETRY: Duration = Duration::from_millis(200);

/// Files that are synced together at most.
const TOGETHER: usize = 256;
/// Bytes of a segment at least, whatever the bounds of its topic: events beyond them are hidden meanwhile.
const LEAST: u64 = 64 << 10;

/// Why something in the background did not happen.
#[derive(Debug)]
pub(in crate::log) enum Trouble {
    /// The disk is full: try again later.
    NoRoom(String),
    /// Segments of one topic are damaged: the others go on.
    Damaged(String),
    /// Nothing can be promised any more.
    Fatal(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        if is_full(&error) { Self::NoRoom(error.to_string()) } else { Self::Fatal(error.to_string()) }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(reason) => Self::NoRoom(reason),
            other => Self::Fatal(other.to_string()),
        }
    }
}

/// Flushes what is sealed until it is told to stop.
pub(in crate::log) fn run(shared: &Shared) {
    loop {
        let sealed = {
            let mut flushing = shared.flushing.lock();
            loop {
                if flushing.stop || shared.failed().is_some() {
                    return;
                }
                if let Some(sealed) = flushing.sealed.front() {
                    break sealed.clone();
                }
                shared.flushing_changed.wait(&mut flushing);
            }
        };
        match shared.flush(&sealed) {
            Ok(()) => {
                let mut flushing = shared.flushing.lock();
                flushing.sealed.pop_front();
                flushing.no_room = None;
                shared.flushing_changed.notify_all();
                drop(flushing);
                shared.restore_room();
            }
            // Without a free descriptor at the end: the journal has it all.
            Err(_) if shared.files.has_ended() => return,
            Err(Trouble::Fatal(reason) | Trouble::Damaged(reason)) => {
                shared.fail(format!("flushing failed: {reason}; check the disk, then start again"));
            }
            // The reserve is there for this.
            Err(Trouble::NoRoom(_)) if shared.give_room(false) => {}
            Err(Trouble::NoRoom(reason)) => {
                let dir = shared.options.dir.display();
                let reason = format!("no space left in {dir} ({reason}); free some, the hub goes on by itself");
                // Once, not at every try.
                if shared.flushing.lock().no_room.is_none() {
                    tracing::warn!(reason, "flushing waits");
                }
                let mut flushing = shared.flushing.lock();
                flushing.no_room = Some(reason);
                shared.flushing_changed.notify_all();
                if !flushing.stop {
                    shared.flushing_changed.wait_for(&mut flushing, RETRY);
                }
            }
        }
    }
}

/// Files and directories that have to be durable before the manifest.
#[derive(Default)]
struct Unsynced {
    files: Vec<Arc<dyn File>>,
    dirs: Vec<PathBuf>,
    /// What one segment's writer collected its bytes in, for the next: memory that is new costs more than the copy.
    memory: Vec<u8>,
}

/// What became of a topic's part of a journal file.
#[derive(Default)]
struct Done {
    /// Of its events in the wire form.
    bytes: u64,
    /// When the oldest tombstone came, of the keys that end with one.
    tombstone: Option<Millis>,
}

impl Shared {
    /// Flushes one journal file.
    pub(in crate::log) fn flush(&self, sealed: &Sealed) -> Result<(), Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let mut manifest = self.manifest.lock();
        let mut next = manifest.clone();
        let (mut unsynced, mut additions, mut bytes) = (Unsynced::default(), Additions::default(), 0);
        let mut tombstones = HashMap::new();
        for (number, entry) in &sealed.topics {
            let segments = next.topics.remove(number).map(|old| old.segments).unwrap_or_default();
            let mut entry = TopicEntry { segments, ..entry.clone() };
            let state = self.topics.read().number(*number).cloned();
            if let Some(state) = state {
                // Retention may have dropped events since the file was sealed.
                entry.first_seq = entry.first_seq.max(manifest.topics.get(number).map_or(1, |old| old.first_seq));
                let done = self.flush_topic(&state, sealed.journal, &mut entry, &mut unsynced, &mut additions)?;
                bytes += done.bytes;
                tombstones.extend(done.tombstone.map(|oldest| (*number, oldest)));
            }
            next.topics.insert(*number, entry);
        }
        self.sync_all(unsynced)?;
        let ids = self.recent.lock().of(sealed.journal);
        let table = Table::write(disk, dir, sealed.journal, ids.hub())?;
        next.tables.retain(|known| known.number != sealed.journal);
        next.tables.extend(table.clone());
        additions.clients = ids.clients();
        drop(ids);
        additions.keys.sort_unstable_by(|(one, _), (two, _)| one.cmp(two));
        let index = self.index()?;
        if let Err(error) = index.add(&additions, Some(sealed.journal)) {
            drop(index);
            if let Error::Refused(_) = error {
                self.reopen_index()?;
            }
            return Err(error.into());
        }
        let table = table.map(|meta| Table::open(&self.options.disk, dir, meta)).transpose()?;
        next.flushed = sealed.journal;
        next.version = next.version.max(sealed.version);
        next.write(disk, dir)?;
        *manifest = next;
        // From here on the events are served from their segments; ids go last, so that they are never in neither. And
        // from here on nothing may ask for the flush to be done again: its ids leave the memory.
        if let Some(table) = table.map(Arc::new) {
            let mut tables = self.tables.write();
            let mut list = Vec::clone(&tables);
            list.push(table);
            *tables = Arc::new(list);
        }
        for (number, _) in &sealed.topics {
            let segments = manifest.topics.get(number).map(|entry| entry.segments.clone()).unwrap_or_default();
            let state = self.topics.read().number(*number).cloned();
            let gone = state.map(|state| {
                let mut inner = state.inner.lock();
                inner.tombstones_since(tombstones.get(number).copied());
                inner.flushed(sealed.journal, segments)
            });
            drop(gone);
        }
        let gone = self.recent.lock().flushed(sealed.journal);
        drop(gone);
        drop(manifest);
        self.retire(sealed.journal)?;
        Counters::add(&self.counters.flushed_bytes, bytes);
        self.counters.flushes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Puts flushed journal files away. Where even that needs room, they wait for the next time, or the next start.
    fn retire(&self, flushed: u64) -> Result<(), Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir.join("journal"));
        let keep = match self.room.is_low() {
            true => 0,
            false => journal::FIRST + self.options.journal_bytes + 2 * step(self.options.journal_bytes),
        };
        let retired = journal::files(disk, dir).and_then(|files| {
            let mut done = files.into_iter().filter(|(number, _)| *number <= flushed);
            done.try_for_each(|(number, _)| journal::retire(disk, dir, number, keep))
        });
        match retired {
            Err(error) if is_full(&error) => {
                tracing::warn!(%error, "a flushed journal file could not be put away; it is tried again later");
                Ok(())
            }
            retired => Ok(retired?),
        }
    }

    /// Writes a topic's part of a journal file to its segments.
    fn flush_topic(
        &self,
        state: &TopicState,
        journal: u64,
        entry: &mut TopicEntry,
        unsynced: &mut Unsynced,
        additions: &mut Additions,
    ) -> Result<Done, Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let form = (self.options.block_bytes, self.options.compress);
        let target = self.segment_target(&entry.settings);
        let (mut writer, mut done): (Option<Writer>, Done) = (None, Done::default());
        if let Some(Unflushed { first, events, gone, keys }) = state.sealed(journal) {
            for (seq, event) in (first..).zip(events.iter()).skip(gone) {
                let open = match writer.take() {
                    Some(open) if target.takes(open.size(), open.meta.events) => open,
                    full => {
                        let again = match full {
                            Some(full) => {
                                self.end_run(full, entry, unsynced)?;
                                None
                            }
                            None => entry.segments.last().filter(|last| {
                                let old = target.age.is_some_and(|age| event.appended.0 > last.first_appended + age);
                                let frozen = self.frozen.load(Ordering::Acquire) == state.number;
                                target.takes(last.len, last.events) && !old && !frozen
                            }),
                        };
                        let open = match again.cloned() {
                            Some(meta) => {
                                entry.segments.pop();
                                Writer::extend(disk, dir, state.number, meta, form)?
                            }
                            None => {
                                let topic_dir = topic_dir(dir, state.number);
                                if entry.segments.is_empty() {
                                    disk.create_dir(&topic_dir)?;
                                    unsynced.dirs.push(dir.join("topics"));
                                }
                                unsynced.dirs.push(topic_dir);
                                Writer::create(disk, dir, (state.number, &state.name), seq, 0, form)?
                            }
                        };
                        open.reuse(std::mem::take(&mut unsynced.memory))
                    }
                };
                let open = writer.insert(open);
                open.push(seq, event)?;
                done.bytes += event.wire_len();
            }
            let there = keys.into_iter().filter(|(_, seq)| *seq >= first + gone as u64);
            additions.keys.extend(there.map(|(key, seq)| {
                let latest = usize::try_from(seq - first).ok().and_then(|index| events.get(index));
                let tombstone = latest.is_none_or(Held::is_tombstone);
                if tombstone {
                    done.tombstone = done.tombstone.into_iter().chain(latest.map(|event| event.appended)).min();
                }
                (index::key(state.number, &key), Latest { seq, tombstone })
            }));
        }
        if let Some(open) = writer {
            self.end_run(open, entry, unsynced)?;
        }
        Ok(done)
    }

    /// Decides when segments are full. Retention drops whole segments, so they must be small against what it keeps.
    fn segment_target(&self, settings: &TopicSettings) -> Target {
        let retention = settings.retention;
        let least = LEAST.min(self.options.segment_bytes);
        let bytes = retention.max_bytes.map_or(u64::MAX, |max| max / 4).clamp(least, self.options.segment_bytes);
        let events = retention.max_events.map_or(u64::MAX, |max| max / 4).max(1);
        let age = retention.max_age.map(|age| u64::try_from(age.as_millis() / 4).unwrap_or(u64::MAX));
        Target { least, bytes, events, age }
    }

    /// Makes files, then directories, durable, many at a time: syncs of different files share the disk's flush.
    fn sync_all(&self, mut unsynced: Unsynced) -> io::Result<()> {
        let disk = &self.options.disk;
        unsynced.dirs.sort();
        unsynced.dirs.dedup();
        self.sync_files(&mut unsynced)?;
        parallel(disk.parallel(), &unsynced.dirs, |dir| disk.sync_dir(dir))
    }

    /// Makes the files durable and closes them.
    fn sync_files(&self, unsynced: &mut Unsynced) -> io::Result<()> {
        parallel(self.options.disk.parallel(), &std::mem::take(&mut unsynced.files), |file| file.sync())
    }

    /// Ends a run. Files wait to be synced together, but not more of them than may be open.
    fn end_run(&self, writer: Writer, entry: &mut TopicEntry, unsynced: &mut Unsynced) -> io::Result<()> {
        let (file, meta, memory) = writer.finish()?;
        unsynced.files.push(file);
        unsynced.memory = memory;
        entry.segments.push(meta);
        let most = (self.options.open_files.max(Options::MIN_OPEN_FILES) / 4).min(TOGETHER);
        if unsynced.files.len() >= most { self.sync_files(unsynced) } else { Ok(()) }
    }
}

/// When a segment is full.
struct Target {
    /// A smaller one is never full: each is a file.
    least: u64,
    bytes: u64,
    events: u64,
    /// Age of its first event in milliseconds.
    age: Option<u64>,
}

impl Target {
    /// True if a segment with so many bytes and events takes one more event.
    fn takes(&self, bytes: u64, events: u64) -> bool {
        bytes < self.bytes && (events < self.events || bytes < self.least)
    }
}

/// Runs `work` on every item, in `threads` threads where there are enough items.
fn parallel<T: Sync>(threads: usize, items: &[T], work: impl Fn(&T) -> io::Result<()> + Sync) -> io::Result<()> {
    if threads < 2 || items.len() < 4 {
        return items.iter().try_for_each(work);
    }
    std::thread::scope(|scope| {
        let chunk = items.len().div_ceil(threads);
        let running: Vec<_> = items.chunks(chunk).map(|part| scope.spawn(|| part.iter().try_for_each(&work))).collect();
        let panicked = |_| Err(io::Error::other("a thread that syncs has panicked"));
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })
}
