//! One topic of the memory engine.
//!
//! Invariants: events are ascending by seq; `latest` has, for each key, the seq of its last event that is still
//! here; `bytes` is the sum of the events' wire lengths.

use std::collections::BTreeMap;
use std::ops::Bound;

use promethean_event::{Event, EventId, Millis, NewEvent, Seq, Topic};
use tokio::sync::watch;

use super::chunks::Chunks;
use crate::life::Life;
use crate::pins::keeps;
use crate::{Compaction, Ranges, ReadMax, Retention, Tail, TopicInfo};

/// Events that one step of retention takes.
const STEP: usize = 1024;

pub(super) struct TopicLog {
    pub(super) topic: Topic,
    events: Chunks,
    latest: BTreeMap<String, Seq>,
    bytes: u64,
    last_seq: Seq,
    last: Option<(EventId, Millis)>,
    life: Life,
    tail: watch::Sender<Tail>,
    /// The watchers of topics know that it exists.
    announced: bool,
}

impl TopicLog {
    pub(super) fn new(topic: Topic, tail: watch::Sender<Tail>) -> Self {
        Self {
            topic,
            events: Chunks::default(),
            latest: BTreeMap::new(),
            bytes: 0,
            last_seq: 0,
            last: None,
            life: Life::default(),
            tail,
            announced: false,
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.life.exists(self.last_seq)
    }

    /// Creates the topic without an event.
    pub(super) fn create(&mut self) {
        self.life.created = true;
    }

    /// Deletes the topic; returns the ids of its events.
    pub(super) fn delete(&mut self) -> Vec<EventId> {
        let gone = self.trim(Seq::MAX);
        (self.life, self.last) = (self.life.ended(self.last_seq), None);
        gone
    }

    /// Removes the events at these seqs; returns their ids.
    pub(super) fn remove(&mut self, seqs: &Ranges<()>) -> Vec<EventId> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let gone;
            (gone, next) = self.events.sift(from, |event| !seqs.contains(event.seq));
            gone.iter().for_each(|event| self.removed(event));
            all.extend(gone.iter().map(|event| event.id));
        }
        all
    }

    pub(super) fn last_seq(&self) -> Seq {
        self.last_seq
    }

    pub(super) fn first_seq(&self) -> Seq {
        self.events.first().map_or(self.last_seq() + 1, |event| event.seq)
    }

    pub(super) fn push(&mut self, event: NewEvent) -> Seq {
        let event = event.at(self.last_seq() + 1);
        if let Some(key) = event.key() {
            match self.latest.get_mut(key.as_ref()) {
                Some(seq) => *seq = event.seq,
                None => {
                    self.latest.insert(key.into_owned(), event.seq);
                }
            }
        }
        (self.last_seq, self.last) = (event.seq, Some((event.id, event.ts)));
        self.bytes += event.wire_len() as u64;
        self.events.push(event);
        self.last_seq()
    }

    /// Tells the watchers where the topic ends, if that is news; whether it was created or deleted since the last time.
    pub(super) fn announce(&mut self) -> bool {
        let tail = Tail { seq: self.last_seq, deletions: self.life.deletions };
        let ended = self.tail.borrow().deletions != tail.deletions;
        self.tail.send_if_modified(|now| std::mem::replace(now, tail) != tail);
        let exists = self.exists();
        std::mem::replace(&mut self.announced, exists) != exists || ended
    }

    pub(super) fn watch(&self) -> watch::Receiver<Tail> {
        self.tail.subscribe()
    }

    pub(super) fn at(&self, seq: Seq) -> Option<&Event> {
        self.events.from(seq).next().filter(|event| event.seq == seq)
    }

    pub(super) fn read(&self, from: Seq, max: ReadMax) -> Vec<Event> {
        let mut bytes = 0;
        let fits = |event: &&Event| {
            let first = bytes == 0;
            bytes += event.body.len();
            first || bytes <= max.bytes
        };
        self.events.from(from).take(max.events).take_while(fits).cloned().collect()
    }

    /// The last seq before the first event whose `ts` is ≥ `ts`.
    pub(super) fn before_ts(&self, ts: Millis) -> Seq {
        self.events.iter().find(|event| event.ts >= ts).map_or(self.last_seq(), |event| event.seq - 1)
    }

    pub(super) fn latest(&self, key: &str) -> Option<&Event> {
        self.latest.get(key).and_then(|seq| self.at(*seq))
    }

    /// The latest events of live keys after `after`, by key.
    pub(super) fn live(&self, after: Option<&str>) -> impl Iterator<Item = &Event> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.latest
            .range::<str, _>((from, Bound::Unbounded))
            .filter_map(|(_, seq)| self.at(*seq))
            .filter(|event| !event.is_tombstone())
    }

    pub(super) fn info(&self) -> TopicInfo {
        TopicInfo {
            topic: self.topic.clone(),
            events: self.events.len() as u64,
            bytes: self.bytes,
            first_seq: self.first_seq(),
            last_seq: self.last_seq(),
            last: self.last,
        }
    }

    /// Removes events below `before`; returns their ids.
    pub(super) fn trim(&mut self, before: Seq) -> Vec<EventId> {
        let mut gone = Vec::new();
        while self.events.first().is_some_and(|event| event.seq < before)
            && let Some(event) = self.events.pop_first()
        {
            self.removed(&event);
            gone.push(event.id);
        }
        gone
    }

    fn removed(&mut self, event: &Event) {
        self.bytes -= event.wire_len() as u64;
        if let Some(key) = event.key()
            && self.latest.get(key.as_ref()) == Some(&event.seq)
        {
            self.latest.remove(key.as_ref());
        }
    }

    /// One step of retention: the ids of what went, and whether there is more to do.
    pub(super) fn retain(&mut self, retention: Retention, now: Millis) -> (Vec<EventId>, bool) {
        let mut keep_from = self.first_seq();
        let (mut events, mut bytes) = (self.events.len() as u64, self.bytes);
        for event in self.events.iter().take(STEP) {
            let old = retention.max_age.is_some_and(|age| now.since(event.appended) > age);
            let many = retention.max_events.is_some_and(|most| events > most);
            let big = retention.max_bytes.is_some_and(|most| bytes > most);
            if !(old || many || big) {
                break;
            }
            keep_from = event.seq + 1;
            events -= 1;
            bytes -= event.wire_len() as u64;
        }
        let gone = self.trim(keep_from);
        let more = gone.len() == STEP;
        (gone, more)
    }

    /// One step of compaction, from `from` on: the ids of what went, and where the next step begins.
    pub(super) fn compact(
        &mut self,
        compaction: Compaction,
        now: Millis,
        from: Seq,
        pins: &[Seq],
    ) -> (Vec<EventId>, Option<Seq>) {
        let latest = &self.latest;
        let stays = |event: &Event| {
            let Some(key) = event.key() else { return true };
            match latest.get(key.as_ref()) {
                Some(latest) if *latest > event.seq => keeps(pins, event.seq, *latest),
                _ => {
                    let expired = event.is_tombstone() && now.since(event.appended) > compaction.tombstone_grace;
                    // A reader may have seen an earlier event of its key, or still keep one.
                    !expired || !pins.is_empty()
                }
            }
        };
        let (gone, next) = self.events.sift(from, stays);
        gone.iter().for_each(|event| self.removed(event));
        (gone.iter().map(|event| event.id).collect(), next)
    }
}
