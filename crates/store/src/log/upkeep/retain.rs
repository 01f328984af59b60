//! Retention: the oldest events of a topic go when they are beyond its bounds.
//!
//! Sizes are taken under the manifest's lock, because only there no event moves from memory to a segment. Whole segments
//! go first; what is still far beyond a bound is hidden by the topic's `first_seq` until its segment can go. One manifest
//! names the result for all topics of a round, then segments go one by one: memory does not depend on how much goes.

use std::sync::Arc;

use promethean_event::{Millis, Seq};

use crate::log::commit::codec::Held;
use crate::log::flush::Trouble;
use crate::log::flush::index::{self, Removals};
use crate::log::flush::manifest::Manifest;
use crate::log::flush::segment::{Meta, Segment, topic_dir};
use crate::log::memtable::{Hidden, Inner, TopicState};
use crate::log::shared::{Shared, is_full};
use crate::log::upkeep::pace::Pace;
use crate::{Error, Result, Retention};

/// Entries that are removed from the index with one transaction.
pub(super) const BATCH: usize = 20_000;
/// What is beyond a bound by more than this part of it is hidden. Segments that were made for the bound stay within it.
const PART: u64 = 4;

/// What retention takes from one topic.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// Segments at the front that go.
    gone: Vec<Meta>,
    /// Events before this one go.
    first_seq: Seq,
}

impl Shared {
    /// Applies retention to these topics; whether segments went. A topic that fails holds up no other: what went wrong
    /// with the first of them is returned beside.
    pub(super) fn retain(&self, topics: &[Arc<TopicState>], now: Millis) -> (bool, std::result::Result<(), Trouble>) {
        let plans = match self.name_what_stays(topics, now) {
            Ok(plans) => plans,
            Err(trouble) => return (false, Err(trouble)),
        };
        let (mut pace, mut trouble, mut dropped) = (self.pace(), Ok(()), false);
        for (topic, gone) in plans {
            for meta in &gone {
                dropped = true;
                trouble = trouble.and(self.drop_segment(topic, meta, &mut pace));
            }
            let dir = topic_dir(&self.options.dir, topic.number);
            trouble = trouble.and(self.options.disk.sync_dir(&dir).map_err(Trouble::from));
        }
        (dropped, trouble)
    }

    /// Applies retention alone, before anything is flushed: events that are hidden need no room then.
    pub(in crate::log) fn retain_now(&self, now: Millis) -> std::result::Result<(), Trouble> {
        let _turn = self.maintenance.lock();
        let topics = self.topics.read().by_number.clone();
        self.retain(&topics, now).1
    }

    /// Decides what goes, and makes that durable and visible. Returns the segments that are not named any more.
    fn name_what_stays<'a>(
        &self,
        topics: &'a [Arc<TopicState>],
        now: Millis,
    ) -> std::result::Result<Vec<(&'a TopicState, Vec<Meta>)>, Trouble> {
        let mut manifest = self.manifest.lock();
        let (mut next, mut plans) = (None, Vec::new());
        for topic in topics {
            let segments = manifest.topics.get(&topic.number).map(|entry| &entry.segments[..]).unwrap_or_default();
            let Some(plan) = self.plan(topic, segments, now) else { continue };
            // A mark beyond what is flushed is not named: with a lazy sync the journal may end before it after a crash.
            let flushed = segments.last().map_or(0, |last| last.last_seq + 1);
            let named = manifest
                .topics
                .get(&topic.number)
                .is_some_and(|entry| !plan.gone.is_empty() || entry.first_seq < plan.first_seq.min(flushed));
            if named {
                let next: &mut Manifest = next.get_or_insert_with(|| manifest.clone());
                if let Some(entry) = next.topics.get_mut(&topic.number) {
                    entry.segments.drain(..plan.gone.len());
                    entry.first_seq = entry.first_seq.max(plan.first_seq.min(flushed));
                }
            }
            plans.push((&**topic, plan));
        }
        if let Some(next) = next {
            match next.write(&*self.options.disk, &self.options.dir) {
                Err(error) if is_full(&error) && self.give_room(true) => {
                    next.write(&*self.options.disk, &self.options.dir)?;
                }
                written => written?,
            }
            *manifest = next;
        }
        let mut all = Vec::new();
        for (topic, plan) in plans {
            let mut inner = topic.inner.lock();
            if !plan.gone.is_empty() {
                let left = inner.segments.get(plan.gone.len()..).unwrap_or_default().to_vec();
                inner.segments = Arc::new(left);
            }
            inner.hide(plan.first_seq);
            drop(inner);
            if !plan.gone.is_empty() {
                all.push((topic, plan.gone));
            }
        }
        Ok(all)
    }

    /// What goes of a topic; `None` where nothing does. The caller has the manifest's lock.
    fn plan(&self, topic: &TopicState, segments: &[Meta], now: Millis) -> Option<Plan> {
        let (mark, retention, tail) = {
            let inner = topic.inner.lock();
            (inner.first_seq, inner.settings.retention, inner.tail_size())
        };
        if mark == 1 && retention == Retention::default() {
            return None;
        }
        let (mut events, mut bytes) = tail;
        // What is hidden already is not counted.
        let visible = |meta: &Meta| {
            let hidden = if meta.last_seq < mark {
                (meta.events, meta.bytes)
            } else {
                self.hidden(topic, meta, mark).unwrap_or_default()
            };
            (meta.events.saturating_sub(hidden.0), meta.bytes.saturating_sub(hidden.1))
        };
        for meta in segments {
            let here = visible(meta);
            (events, bytes) = (events + here.0, bytes + here.1);
        }
        let goes = |meta: &&Meta| {
            let here = visible(meta);
            let (events_after, bytes_after) = (events - here.0, bytes - here.1);
            let goes = meta.last_seq < mark
                || retention.max_age.is_some_and(|age| now.since(Millis(meta.max_appended)) > age)
                || retention.max_events.is_some_and(|most| events_after >= most)
                || retention.max_bytes.is_some_and(|most| bytes_after >= most);
            if goes {
                (events, bytes) = (events_after, bytes_after);
            }
            goes
        };
        let gone: Vec<Meta> = segments.iter().take_while(goes).cloned().collect();
        let mut first_seq = gone.last().map_or(mark, |last| mark.max(last.last_seq + 1));
        match self.hide_from(topic, segments.get(gone.len()), first_seq, &retention, (events, bytes), now) {
            Ok(hidden) => first_seq = first_seq.max(hidden),
            Err(error) => tracing::error!(topic = %topic.name, %error, "retention cannot read a damaged segment"),
        }
        (first_seq > mark || !gone.is_empty()).then_some(Plan { gone, first_seq })
    }

    /// The first event that stays when what is far beyond a bound is hidden; 0 where nothing is. `first`: the oldest
    /// segment that stays; `there`: the visible events and their bytes.
    fn hide_from(
        &self,
        topic: &TopicState,
        first: Option<&Meta>,
        mark: Seq,
        retention: &Retention,
        there: (u64, u64),
        now: Millis,
    ) -> Result<Seq> {
        let far = |is: u64, most: u64| is.saturating_sub(most) > most / PART;
        let within = (
            retention.max_events.filter(|most| far(there.0, *most)).unwrap_or(u64::MAX),
            retention.max_bytes.filter(|most| far(there.1, *most)).unwrap_or(u64::MAX),
        );
        let much = within != (u64::MAX, u64::MAX);
        let limit = retention.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let oldest = limit.map(|age| now.0.saturating_sub(age));
        let old = limit.map(|age| now.0.saturating_sub(age.saturating_add(age / PART)));
        let Some(meta) = first else {
            let inner = topic.inner.lock();
            let cut = if much { inner.last_within(within.0, within.1) } else { 0 };
            let young = match (old, oldest) {
                (Some(old), Some(oldest)) => inner.first_young(mark, old, oldest),
                _ => 0,
            };
            return Ok(cut.max(young));
        };
        let open = self.segment(topic.number, meta)?;
        let mut hidden = 0;
        if much {
            // What the first segment may keep: the bound without what is younger than it.
            let before = self.hidden(topic, meta, mark)?;
            let younger = (
                there.0.saturating_sub(meta.events.saturating_sub(before.0)),
                there.1.saturating_sub(meta.bytes.saturating_sub(before.1)),
            );
            hidden = open.last_within(within.0.saturating_sub(younger.0), within.1.saturating_sub(younger.1))?;
        }
        if let (Some(old), Some(oldest)) = (old, oldest)
            && meta.first_appended < old
        {
            hidden = hidden.max(first_young(&open, mark, old, oldest)?);
        }
        Ok(hidden)
    }

    /// Events of a segment, and their bytes, that the mark `first_seq` hides.
    pub(in crate::log) fn hidden(&self, topic: &TopicState, meta: &Meta, first_seq: Seq) -> Result<(u64, u64)> {
        if first_seq <= meta.first_seq {
            return Ok((0, 0));
        }
        let known = topic.inner.lock().hidden.filter(|hidden| hidden.is_of(meta) && hidden.before <= first_seq);
        let mut hidden = known.unwrap_or_else(|| Hidden::of(meta));
        if hidden.before < first_seq {
            let (events, bytes) = self.segment(topic.number, meta)?.between(hidden.before, first_seq)?;
            (hidden.events, hidden.bytes) = (hidden.events + events, hidden.bytes + bytes);
            hidden.before = first_seq;
            topic.inner.lock().hidden = Some(hidden);
        }
        Ok((hidden.events, hidden.bytes))
    }

    /// Removes a segment that is not named any more, and what the index has of it.
    fn drop_segment(&self, topic: &TopicState, meta: &Meta, pace: &mut Pace) -> std::result::Result<(), Trouble> {
        let mut kept = Ok(());
        if meta.indexed {
            match self.segment(topic.number, meta).and_then(|open| self.remove_entries_of(topic.number, &open, pace)) {
                // The file stays, and the sweep of the next round removes it with its entries.
                Err(Error::Refused(reason)) => kept = Err(Trouble::NoRoom(reason)),
                // Its entries in the index lead nowhere then, which whoever follows them finds out.
                Err(error) => {
                    tracing::error!(topic = %topic.name, %error, "a damaged segment was dropped by retention");
                }
                Ok(()) => {}
            }
        }
        self.close_segment(topic.number, meta);
        if kept.is_err() {
            self.sweep_again();
            return kept;
        }
        self.give_way(pace);
        Ok(self.options.disk.remove(&meta.path(&self.options.dir, topic.number))?)
    }

    /// Removes what the index has of a segment, some entries at a time.
    pub(super) fn remove_entries_of(&self, topic: u32, segment: &Segment, pace: &mut Pace) -> Result<()> {
        let (mut removals, mut removed) = (Removals::default(), Ok(()));
        segment.scan(0, 1 << 20, |seq, held| {
            removals.add(topic, seq, &held);
            if removals.len() >= BATCH {
                removed = self.remove_entries(&std::mem::take(&mut removals));
                self.give_way(pace);
            }
            removed.is_ok()
        })?;
        removed?;
        self.remove_entries(&removals)
    }

    pub(super) fn remove_entries(&self, removals: &Removals) -> Result<()> {
        loop {
            let removed = self.index()?.remove(removals);
            if let Err(Error::Refused(_)) = removed {
                self.reopen_index()?;
                if self.give_room(true) {
                    continue;
                }
            }
            return removed;
        }
    }
}

/// The first event from `mark` on that was appended at `oldest` or later, if the one at `mark` is older than `old`.
fn first_young(segment: &Segment, mark: Seq, old: u64, oldest: u64) -> Result<Seq> {
    let (mut first, mut end) = (None, 0);
    let mut looked = false;
    segment.scan(mark, 1 << 18, |seq, held| {
        let young = held.appended.0 >= if looked { oldest } else { old };
        looked = true;
        end = seq + 1;
        first = young.then_some(seq);
        !young
    })?;
    Ok(first.unwrap_or(end))
}

impl Inner {
    /// The first of the youngest unflushed events that are at most `events` and have at most `bytes` together.
    fn last_within(&self, events: u64, bytes: u64) -> Seq {
        let (mut first, mut events, mut bytes) = (self.last_seq + 1, events, bytes);
        if bytes == u64::MAX {
            return self.tail_first().max(first.saturating_sub(events));
        }
        while events > 0
            && let Some(held) = self.held(first - 1)
            && held.wire_len() <= bytes
        {
            (first, events, bytes) = (first - 1, events - 1, bytes - held.wire_len());
        }
        first
    }

    /// The first unflushed event from `mark` on that was appended at `oldest` or later, if the one at `mark` is older
    /// than `old`; else 0.
    fn first_young(&self, mark: Seq, old: u64, oldest: u64) -> Seq {
        let mut seq = mark.max(self.tail_first());
        if self.held(seq).is_none_or(|held| held.appended.0 >= old) {
            return 0;
        }
        while self.held(seq).is_some_and(|held| held.appended.0 < oldest) {
            seq += 1;
        }
        seq
    }
}

impl Removals {
    pub(super) fn len(&self) -> usize {
        self.keys.len() + self.clients.len()
    }

    pub(super) fn add(&mut self, topic: u32, seq: Seq, held: &Held) {
        if let Some(key) = held.key() {
            self.keys.push((index::key(topic, &key), seq));
        }
        self.add_id(topic, seq, held);
    }

    /// Adds an event whose key has a later one.
    pub(super) fn add_id(&mut self, topic: u32, seq: Seq, held: &Held) {
        if held.client {
            self.clients.push((held.id, (topic, seq)));
        }
    }
}
