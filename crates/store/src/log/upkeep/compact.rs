//! Key compaction: a topic's segments are rewritten without events that a later one with their key has replaced.
//!
//! Segments are rewritten in groups. Each group is durable before the manifest names it, and its old segments go before
//! the next group begins, so neither memory nor disk space depends on how much a pass removes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use promethean_event::{Millis, Seq};

use crate::log::commit::codec::Held;
use crate::log::flush::Trouble;
use crate::log::flush::index::{Removals, View};
use crate::log::flush::segment::{Meta, Writer, topic_dir};
use crate::log::memtable::TopicState;
use crate::log::shared::Shared;
use crate::log::upkeep::pace::Pace;
use crate::log::upkeep::retain::BATCH;
use crate::pins::keeps;
use crate::{Compaction, Error, Ranges, Result};

/// The events that a pass removes.
#[derive(Debug, Clone, Copy)]
enum What<'a> {
    /// Those that key compaction does not keep.
    Superseded(Compaction),
    /// Those at these seqs, whether a reader has pinned the topic or not.
    Seqs(&'a Ranges<()>),
}

/// One pass over one topic.
struct Pass<'a> {
    topic: &'a TopicState,
    what: What<'a>,
    now: Millis,
    generation: u64,
    /// Segments at the front of the topic's list that are done with.
    settled: usize,
    /// When the oldest tombstone came, among those that stay.
    tombstone: Option<Millis>,
    pace: Pace,
    /// A pin kept events that were to go.
    pinned: bool,
}

/// Segments that are replaced together.
#[derive(Default)]
struct Group {
    /// Segments of the topic's list that it takes the place of.
    replaces: usize,
    kept: Vec<Meta>,
    gone: Vec<Meta>,
    removals: Removals,
    writer: Option<Writer>,
    written: bool,
    /// Where readers had pinned the topic, and the last pin there was, when the group was begun.
    pins: (Vec<Seq>, u64),
    /// Tombstones go with it whose grace is over.
    expired: bool,
}

impl Shared {
    /// Rewrites a topic's segments without events that a later one with their key has replaced, and without tombstones
    /// whose grace is over. Returns whether a pin kept some of them.
    pub(super) fn compact(
        &self,
        topic: &TopicState,
        compaction: Compaction,
        now: Millis,
    ) -> std::result::Result<bool, Trouble> {
        self.rewrite_topic(topic, What::Superseded(compaction), now)
    }

    /// Rewrites a topic's segments without the events at these seqs.
    pub(in crate::log) fn remove_seqs(&self, topic: &TopicState, seqs: &Ranges<()>) -> Result<()> {
        let _turn = self.maintenance.lock();
        match self.rewrite_topic(topic, What::Seqs(seqs), Millis(0)) {
            Ok(_) => Ok(()),
            Err(Trouble::NoRoom(reason)) => Err(Error::Refused(reason)),
            Err(Trouble::Damaged(reason)) => Err(Error::Damaged(reason)),
            Err(Trouble::Fatal(reason)) => {
                self.fail(format!("removing events failed: {reason}"));
                Err(Error::Closed(reason))
            }
        }
    }

    fn rewrite_topic(&self, topic: &TopicState, what: What<'_>, now: Millis) -> std::result::Result<bool, Trouble> {
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
        let mut pass =
            Pass { topic, what, now, generation, settled: 0, tombstone: None, pace: self.pace(), pinned: false };
        let compacted = self.compact_segments(&mut pass, &segments);
        self.frozen.store(0, Ordering::Release);
        let looked = compacted.is_ok() && matches!(what, What::Superseded(_));
        let left = if looked { pass.tombstone } else { tombstone };
        topic.inner.lock().tombstones_since(left);
        if compacted.is_err() {
            // What it has written is named by nothing.
            self.sweep_again();
        }
        compacted.map(|()| pass.pinned)
    }

    fn compact_segments(&self, pass: &mut Pass<'_>, segments: &[Meta]) -> std::result::Result<(), Trouble> {
        if self.index()?.has_hole(pass.topic.number) {
            return Err(Trouble::Damaged("the index was made without a damaged part of its segments".to_owned()));
        }
        let mut rest = segments;
        while !rest.is_empty() {
            // A view for each group: one that is held for longer keeps what the index frees from being used again.
            let view = self.view()?;
            let last = self.pins.last();
            let pins = (self.pins.of(&pass.topic.name, 0), last);
            let mut group = Group { pins, ..Group::default() };
            while let [meta, others @ ..] = rest
                && group.removals.len() < BATCH
            {
                self.rewrite(pass, &view, meta, &mut group)?;
                rest = others;
            }
            drop(view);
            self.replace_group(pass, group)?;
        }
        Ok(())
    }

    /// Puts what stays of a segment into the group.
    fn rewrite(
        &self,
        pass: &mut Pass<'_>,
        view: &View,
        meta: &Meta,
        group: &mut Group,
    ) -> std::result::Result<(), Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let form = (self.options.block_bytes, self.options.compress);
        let damaged = |error: Error| Trouble::Damaged(error.to_string());
        let topic = pass.topic;
        let mark = topic.inner.lock().first_seq;
        let pins = &group.pins.0;
        let (what, now, pinned) = (pass.what, pass.now, pass.pinned || !pins.is_empty());
        let rule = Rule { view, topic: topic.number, mark, what, now, pins, pinned };
        group.replaces += 1;
        if let What::Seqs(seqs) = what
            && seqs.iter().all(|(first, last, ())| last < meta.first_seq || first > meta.last_seq)
        {
            end(group.writer.take(), &mut group.kept)?;
            group.kept.push(meta.clone());
            return Ok(());
        }
        let open = self.segment(topic.number, meta).map_err(damaged)?;
        // Event by event, so that each is looked up once.
        let (mut fates, mut trouble) = (Vec::new(), Ok(()));
        open.scan(0, 1 << 20, |seq, held| {
            self.give_way(&mut pass.pace);
            trouble = rule.fate(seq, &held).map(|fate| {
                pass.pinned |= fate == Fate::Pinned;
                group.expired |= fate == Fate::Gone && seq >= mark && matches!(what, What::Superseded(_));
                let fate = if fate == Fate::Pinned { Fate::Kept } else { fate };
                if fate == Fate::Kept && held.is_tombstone() && held.key().is_some() {
                    pass.tombstone = pass.tombstone.into_iter().chain([held.appended]).min();
                }
                fates.push(fate);
            });
            trouble.is_ok()
        })
        .map_err(damaged)?;
        trouble?;
        if fates.iter().all(|fate| *fate == Fate::Kept) {
            end(group.writer.take(), &mut group.kept)?;
            group.kept.push(meta.clone());
            return Ok(());
        }
        group.gone.push(meta.clone());
        let mut fates = fates.into_iter();
        let mut one = |seq, held: &Held| {
            self.give_way(&mut pass.pace);
            match fates.next() {
                Some(Fate::Replaced) => {
                    group.removals.add_id(topic.number, seq, held);
                    return Ok(());
                }
                Some(Fate::Gone) => {
                    group.removals.add(topic.number, seq, held);
                    return Ok(());
                }
                Some(Fate::Kept | Fate::Pinned) | None => {}
            }
            if group.writer.as_ref().is_some_and(|writer| writer.size() >= self.options.segment_bytes) {
                end(group.writer.take(), &mut group.kept)?;
            }
            let target = match &mut group.writer {
                Some(writer) => writer,
                none => {
                    group.written = true;
                    let topic = (topic.number, &topic.name);
                    none.insert(Writer::create(disk, dir, topic, seq, pass.generation, form)?)
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
        trouble
    }

    /// Names a group's new segments in place of its old ones, which go then.
    fn replace_group(&self, pass: &mut Pass<'_>, mut group: Group) -> std::result::Result<(), Trouble> {
        let (disk, dir, topic) = (&*self.options.disk, &self.options.dir, pass.topic);
        end(group.writer.take(), &mut group.kept)?;
        let (first, replaced) = (pass.settled, pass.settled + group.replaces);
        pass.settled += group.kept.len();
        if group.gone.is_empty() {
            return Ok(());
        }
        if group.written {
            disk.sync_dir(&topic_dir(dir, topic.number))?;
        }
        {
            let mut manifest = self.manifest.lock();
            // A reader that came since may have read what these tombstones end: they go the next time.
            if group.expired && !self.pins.of(&topic.name, group.pins.1).is_empty() {
                pass.settled = replaced;
                pass.pinned = true;
                self.sweep_again();
                return Ok(());
            }
            let mut next = manifest.clone();
            let mut list = Vec::new();
            if let Some(entry) = next.topics.get_mut(&topic.number) {
                entry.segments.splice(first..replaced, group.kept);
                list.clone_from(&entry.segments);
            }
            next.write(disk, dir)?;
            *manifest = next;
            topic.inner.lock().segments = Arc::new(list);
        }
        for meta in &group.gone {
            self.close_segment(topic.number, meta);
            disk.remove(&meta.path(dir, topic.number))?;
            self.give_way(&mut pass.pace);
        }
        disk.sync_dir(&topic_dir(dir, topic.number))?;
        self.remove_entries(&group.removals)?;
        Ok(())
    }
}

/// Ends a rewritten segment, durably.
fn end(writer: Option<Writer>, kept: &mut Vec<Meta>) -> io::Result<()> {
    let Some(writer) = writer else { return Ok(()) };
    let (file, meta, _) = writer.finish()?;
    file.sync()?;
    kept.push(meta);
    Ok(())
}

/// Decides what compaction keeps.
struct Rule<'a> {
    view: &'a View,
    topic: u32,
    mark: Seq,
    what: What<'a>,
    now: Millis,
    /// Where readers have pinned the topic, ascending.
    pins: &'a [Seq],
    /// A pin has kept something in this pass.
    pinned: bool,
}

/// What becomes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    /// Kept for a reader that has pinned the topic.
    Pinned,
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
        let compaction = match self.what {
            What::Seqs(seqs) if seqs.contains(seq) => return Ok(Fate::Gone),
            What::Seqs(_) => return Ok(Fate::Kept),
            What::Superseded(compaction) => compaction,
        };
        let Some(key) = held.key() else { return Ok(Fate::Kept) };
        let latest = self.view.latest(self.topic, &key)?;
        if let Some(latest) = latest.filter(|latest| latest.seq > seq) {
            return Ok(if keeps(self.pins, seq, latest.seq) { Fate::Pinned } else { Fate::Replaced });
        }
        let expired = held.is_tombstone() && self.now.since(held.appended) > compaction.tombstone_grace;
        Ok(match expired {
            // Readers may have seen an earlier event of its key, or still keep one.
            true if self.pinned => Fate::Pinned,
            true => Fate::Gone,
            false => Fate::Kept,
        })
    }
}
