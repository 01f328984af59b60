//! Retention and key compaction: in the background, never in the way of a publisher.
//!
//! Both change the list of a topic's segments: new files are durable before the manifest names them, old ones are
//! removed after it does not any more. One of them runs at a time.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use promethean_event::{Millis, Seq};

use crate::log::commit::codec::Held;
use crate::log::flush::Trouble;
use crate::log::flush::index::{self, Removals, View};
use crate::log::flush::segment::{Meta, Writer, topic_dir};
use crate::log::memtable::TopicState;
use crate::log::shared::Shared;
use crate::log::upkeep::pace::Pace;
use crate::{Compaction, Error, Result, TopicSettings};

/// What is unflushed is much when it is this part of a journal file. Smaller runs would make segments slow to open.
const MUCH: u64 = 8;

impl Shared {
    /// Applies retention and compaction to all topics. `force`: also where there is little to gain.
    pub(in crate::log) fn maintain(&self, now: Millis, force: bool) -> std::result::Result<(), Trouble> {
        let mut compacted = self.maintenance.lock();
        if !self.swept.swap(true, Ordering::AcqRel) {
            self.sweep()?;
        }
        let topics = self.topics.read().by_number.clone();
        let mut dropped = false;
        for topic in &topics {
            dropped |= self.retain(topic, now)?;
            let settings = topic.inner.lock().settings.clone();
            let Some(compaction) = settings.compaction else { continue };
            let (flushed, events, tombstone) = {
                let inner = topic.inner.lock();
                let last = inner.segments.last().map_or(0, |last| last.last_seq);
                (last, inner.segments.iter().map(|meta| meta.events).sum::<u64>(), inner.tombstone)
            };
            let since = flushed.saturating_sub(compacted.get(&topic.number).copied().unwrap_or(0));
            let much = since > 0 && since >= events / 4;
            if force || much || tombstone.is_some_and(|oldest| is_overdue(oldest, compaction, now)) {
                match self.compact(topic, compaction, now) {
                    Err(Trouble::Damaged(reason)) => {
                        tracing::error!(topic = %topic.name, reason, "a topic cannot be compacted");
                    }
                    done => done?,
                }
                compacted.insert(topic.number, flushed);
            }
        }
        if dropped {
            self.drop_tables()?;
        }
        Ok(())
    }

    /// Whether the journal is to be flushed before it is full. Retention and compaction go by segments, so what they
    /// wait for in memory is flushed first; and what is much is flushed although nothing follows it: an idle hub is small.
    /// Not while another file is being flushed: the next one would have to wait for it, and publishers too.
    pub(in crate::log) fn waits_to_be_flushed(&self) -> bool {
        if !self.flushing.lock().sealed.is_empty() {
            return false;
        }
        let much = self.options.journal_bytes / MUCH;
        let topics = self.topics.read().by_number.clone();
        let mut unflushed = 0;
        topics.iter().any(|topic| {
            let inner = topic.inner.lock();
            unflushed += inner.tail_size().1;
            unflushed >= much || (inner.has_tail() && inner.settings != TopicSettings::default())
        })
    }

    /// Removes files that a crash left behind: those that the manifest does not name, and nobody is writing.
    fn sweep(&self) -> std::result::Result<(), Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        // Flushing holds this lock as long as it has files that are not named yet; compaction is not running.
        let manifest = self.manifest.lock();
        let mut named: HashSet<PathBuf> =
            manifest.tables.iter().map(|table| crate::log::flush::ids::path(dir, table.number)).collect();
        let mut dirs = vec![dir.join("ids")];
        for (number, topic) in &manifest.topics {
            named.extend(topic.segments.iter().map(|meta| meta.path(dir, *number)));
            dirs.push(topic_dir(dir, *number));
        }
        for dir in dirs {
            // A topic that has nothing flushed has no directory.
            for name in disk.list(&dir).unwrap_or_default() {
                let path = dir.join(&name);
                if (name.ends_with(".seg") || name.ends_with(".ids")) && !named.contains(&path) {
                    tracing::info!(file = %path.display(), "removed a file that a crash had left behind");
                    disk.remove(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Drops the segments that retention or a trim has done with; whether there were any.
    fn retain(&self, topic: &TopicState, now: Millis) -> std::result::Result<bool, Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let (mark, retention, tail) = {
            let inner = topic.inner.lock();
            (inner.first_seq, inner.settings.retention, inner.tail_size())
        };
        let mut manifest = self.manifest.lock();
        let Some(entry) = manifest.topics.get(&topic.number) else { return Ok(false) };
        let mut events = tail.0 + entry.segments.iter().map(|meta| meta.events).sum::<u64>();
        let mut bytes = tail.1 + entry.segments.iter().map(|meta| meta.bytes).sum::<u64>();
        let goes = |meta: &&Meta| {
            events -= meta.events;
            bytes -= meta.bytes;
            meta.last_seq < mark
                || retention.max_age.is_some_and(|age| now.since(Millis(meta.max_appended)) > age)
                || retention.max_events.is_some_and(|most| events >= most)
                || retention.max_bytes.is_some_and(|most| bytes >= most)
        };
        let gone: Vec<Meta> = entry.segments.iter().take_while(goes).cloned().collect();
        let Some(last) = gone.last() else { return Ok(false) };
        let first_seq = mark.max(last.last_seq + 1);
        let mut next = manifest.clone();
        let mut list = Vec::new();
        if let Some(entry) = next.topics.get_mut(&topic.number) {
            entry.segments.drain(..gone.len());
            entry.first_seq = first_seq;
            list.clone_from(&entry.segments);
        }
        next.write(disk, dir)?;
        *manifest = next;
        {
            let mut inner = topic.inner.lock();
            inner.segments = Arc::new(list);
            inner.first_seq = inner.first_seq.max(first_seq);
        }
        drop(manifest);
        // What the index has of them goes with them. The files are read before they are removed.
        let removals = self.entries_of(topic, &gone).unwrap_or_else(|error| {
            // Its entries in the index lead nowhere then, which whoever follows them finds out.
            tracing::error!(topic = %topic.name, %error, "a damaged segment was dropped by retention");
            Vec::new()
        });
        self.remove_files(topic, &gone)?;
        for removals in removals {
            self.remove_entries(&removals)?;
        }
        Ok(true)
    }

    /// The index's entries of these segments.
    fn entries_of(&self, topic: &TopicState, segments: &[Meta]) -> Result<Vec<Removals>> {
        let mut all = Vec::new();
        for meta in segments.iter().filter(|meta| meta.indexed) {
            let mut removals = Removals::default();
            self.segment(topic.number, meta)?.scan(0, 1 << 20, |seq, held| {
                removals.add(topic.number, seq, &held);
                true
            })?;
            all.push(removals);
        }
        Ok(all)
    }

    fn remove_entries(&self, removals: &Removals) -> Result<()> {
        let removed = self.index()?.remove(removals);
        if let Err(Error::Refused(_)) = removed {
            self.reopen_index()?;
        }
        removed
    }

    fn remove_files(&self, topic: &TopicState, gone: &[Meta]) -> io::Result<()> {
        if gone.is_empty() {
            return Ok(());
        }
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let mut pace = self.pace();
        for meta in gone {
            self.close_segment(topic.number, meta);
            disk.remove(&meta.path(dir, topic.number))?;
            self.give_way(&mut pace);
        }
        disk.sync_dir(&topic_dir(dir, topic.number))
    }

    /// Drops the id tables that have no event left.
    fn drop_tables(&self) -> std::result::Result<(), Trouble> {
        let first = |number| self.topics.read().number(number).map_or(Seq::MAX, |topic| topic.inner.lock().first_seq);
        let tables = self.tables.read().clone();
        let mut gone = Vec::new();
        for table in tables.iter() {
            match table.topics() {
                Ok(topics) => {
                    gone.extend(topics.into_iter().all(|(number, last)| last < first(number)).then(|| table.clone()))
                }
                // Said in the log; the next start makes it anew, with what is there then.
                Err(_) if table.is_damaged() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        let is_gone = |number| gone.iter().any(|table| table.meta.number == number);
        let mut manifest = self.manifest.lock();
        manifest.tables.retain(|meta| !is_gone(meta.number));
        manifest.write(&*self.options.disk, &self.options.dir)?;
        let mut tables = self.tables.write();
        *tables = Arc::new(tables.iter().filter(|table| !is_gone(table.meta.number)).cloned().collect());
        drop(tables);
        drop(manifest);
        for table in gone {
            table.remove(&*self.options.disk)?;
        }
        Ok(())
    }

    /// Rewrites a topic's segments without events that a later one with their key has replaced, and without tombstones
    /// whose grace is over.
    fn compact(&self, topic: &TopicState, compaction: Compaction, now: Millis) -> std::result::Result<(), Trouble> {
        let (segments, generation, tombstone) = {
            let mut manifest = self.manifest.lock();
            manifest.generation += 1;
            let segments = manifest.topics.get(&topic.number).map(|entry| entry.segments.clone());
            // Until it is done, flushing begins a new segment instead of adding to one of these.
            self.frozen.store(topic.number, Ordering::Release);
            // Under this lock: what is flushed from now on is none of these segments' and is remembered anew.
            let tombstone = topic.inner.lock().tombstone.take();
            (segments.unwrap_or_default(), manifest.generation, tombstone)
        };
        let swapped = self.compact_segments(topic, compaction, now, &segments, generation);
        self.frozen.store(0, Ordering::Release);
        let left = swapped.as_ref().map_or(tombstone, |(_, _, oldest)| *oldest);
        topic.inner.lock().tombstones_since(left);
        let (gone, removals, _) = swapped?;
        self.remove_files(topic, &gone)?;
        self.remove_entries(&removals)?;
        Ok(())
    }

    fn compact_segments(
        &self,
        topic: &TopicState,
        compaction: Compaction,
        now: Millis,
        segments: &[Meta],
        generation: u64,
    ) -> std::result::Result<(Vec<Meta>, Removals, Option<Millis>), Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let form = (self.options.block_bytes, self.options.compress);
        if self.index()?.has_hole(topic.number) {
            return Err(Trouble::Damaged("the index was made without a damaged part of its segments".to_owned()));
        }
        let damaged = |error: Error| Trouble::Damaged(error.to_string());
        let view = self.view()?;
        let mark = topic.inner.lock().first_seq;
        let rule = Rule { view: &view, topic: topic.number, mark, grace: compaction, now };
        let (mut kept, mut gone, mut removals) = (Vec::new(), Vec::new(), Removals::default());
        let mut writer: Option<Writer> = None;
        let mut written = 0;
        let mut pace = self.pace();
        let mut tombstone: Option<Millis> = None;
        for meta in segments {
            let open = self.segment(topic.number, meta).map_err(damaged)?;
            // Event by event, so that each is looked up once.
            let (mut fates, mut trouble) = (Vec::new(), Ok(()));
            open.scan(0, 1 << 20, |seq, held| {
                self.give_way(&mut pace);
                trouble = rule.fate(seq, &held).map(|fate| {
                    if fate == Fate::Kept && held.is_tombstone() && held.key().is_some() {
                        tombstone = tombstone.into_iter().chain([held.appended]).min();
                    }
                    fates.push(fate);
                });
                trouble.is_ok()
            })
            .map_err(damaged)?;
            trouble?;
            if fates.iter().all(|fate| *fate == Fate::Kept) {
                end(writer.take(), &mut kept)?;
                kept.push(meta.clone());
                continue;
            }
            gone.push(meta.clone());
            let mut fates = fates.into_iter();
            let mut one = |seq, held: &Held| {
                self.give_way(&mut pace);
                match fates.next() {
                    Some(Fate::Replaced) => {
                        removals.add_id(topic.number, seq, held);
                        return Ok(());
                    }
                    Some(Fate::Gone) => {
                        removals.add(topic.number, seq, held);
                        return Ok(());
                    }
                    Some(Fate::Kept) | None => {}
                }
                if writer.as_ref().is_some_and(|writer| writer.size() >= self.options.segment_bytes) {
                    end(writer.take(), &mut kept)?;
                }
                let target = match &mut writer {
                    Some(writer) => writer,
                    none => {
                        written += 1;
                        let topic = (topic.number, &topic.name);
                        none.insert(Writer::create(disk, dir, topic, seq, generation, form)?)
                    }
                };
                Ok(target.push(seq, held)?)
            };
            let mut trouble: std::result::Result<(), Trouble> = Ok(());
            open.scan(0, 1 << 20, |seq, held| {
                trouble = one(seq, &held);
                trouble.is_ok()
            })
            .map_err(damaged)?;
            trouble?;
        }
        end(writer, &mut kept)?;
        if gone.is_empty() {
            return Ok((gone, removals, tombstone));
        }
        if written > 0 {
            disk.sync_dir(&topic_dir(dir, topic.number))?;
        }
        let mut manifest = self.manifest.lock();
        let mut next = manifest.clone();
        let mut list = Vec::new();
        if let Some(entry) = next.topics.get_mut(&topic.number) {
            entry.segments.splice(..segments.len(), kept);
            list.clone_from(&entry.segments);
        }
        next.write(disk, dir)?;
        *manifest = next;
        topic.inner.lock().segments = Arc::new(list);
        Ok((gone, removals, tombstone))
    }

    fn pace(&self) -> Pace {
        Pace::new(Instant::now(), self.appended())
    }

    /// Lets publishers go first for a while, now and then.
    fn give_way(&self, pace: &mut Pace) {
        if let Some(pause) = pace.pause(Instant::now(), self.appended()) {
            std::thread::sleep(pause);
        }
    }

    fn appended(&self) -> u64 {
        self.counters.events.load(Ordering::Relaxed)
    }
}

/// Whether a tombstone has waited long enough to compact for its sake. Not at the very end of its grace: where keys go all
/// the time, each would have the topic compacted by itself.
fn is_overdue(oldest: Millis, compaction: Compaction, now: Millis) -> bool {
    let grace = compaction.tombstone_grace;
    now.since(oldest) > grace.saturating_add(grace / 4)
}

/// Ends a rewritten segment, durably.
fn end(writer: Option<Writer>, kept: &mut Vec<Meta>) -> io::Result<()> {
    let Some(writer) = writer else { return Ok(()) };
    let (file, meta, _) = writer.finish()?;
    file.sync()?;
    kept.push(meta);
    Ok(())
}

/// What compaction keeps.
struct Rule<'a> {
    view: &'a View,
    topic: u32,
    mark: Seq,
    grace: Compaction,
    now: Millis,
}

/// What becomes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    /// The index knows a later event of its key.
    Replaced,
    /// The last that the index knows of its key, perhaps.
    Gone,
}

impl Rule<'_> {
    fn fate(&self, seq: Seq, held: &Held) -> Result<Fate> {
        if seq < self.mark {
            return Ok(Fate::Gone);
        }
        let Some(key) = held.key() else { return Ok(Fate::Kept) };
        let latest = self.view.latest(self.topic, &key)?;
        if latest.is_some_and(|latest| latest.seq > seq) {
            return Ok(Fate::Replaced);
        }
        let expired = held.is_tombstone() && self.now.since(held.appended) > self.grace.tombstone_grace;
        Ok(if expired { Fate::Gone } else { Fate::Kept })
    }
}

impl Removals {
    fn add(&mut self, topic: u32, seq: Seq, held: &Held) {
        if let Some(key) = held.key() {
            self.keys.push((index::key(topic, &key), seq));
        }
        self.add_id(topic, seq, held);
    }

    /// Of an event whose key has a later one.
    fn add_id(&mut self, topic: u32, seq: Seq, held: &Held) {
        if held.client {
            self.clients.push((held.id, (topic, seq)));
        }
    }
}
