//! One topic in memory: its unsettled events, and what is known of the settled ones.
//!
//! Invariants: unsettled events have no holes between them; all events before them are in the segments. The lock is
//! held for moments only, never over I/O. A generation is the topic's part of one journal file; it is not changed any
//! more once a younger one exists.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{Event, EventId, Group, Millis, Seq, Topic};
use tokio::sync::watch;

use super::codec::Held;
use super::index::Latest;
use super::manifest::{Saved, TopicEntry};
use super::segment::Meta;
use crate::{ReadMax, Tail, TopicSettings};

/// Events share one entry in `maxima`, so that a search by time skips them together.
const STRIDE: usize = 256;

/// A topic that has a number.
#[derive(Debug)]
pub(super) struct TopicState {
    pub(super) name: Topic,
    pub(super) number: u32,
    pub(super) watch: watch::Sender<Tail>,
    pub(super) inner: Mutex<Inner>,
}

/// What changes of a topic.
#[derive(Debug)]
pub(super) struct Inner {
    generations: VecDeque<Generation>,
    /// Events before this one are gone.
    pub(super) first_seq: Seq,
    pub(super) last_seq: Seq,
    pub(super) last: Option<(EventId, Millis)>,
    pub(super) segments: Arc<Vec<Meta>>,
    pub(super) settings: TopicSettings,
    pub(super) groups: BTreeMap<Group, Saved>,
}

/// A topic's part of one journal file.
#[derive(Debug)]
pub(super) struct Generation {
    journal: u64,
    first: Seq,
    events: Vec<Held>,
    keys: HashMap<Bytes, Seq, RandomState>,
    bytes: u64,
    /// The latest time of each [`STRIDE`] events.
    maxima: Vec<u64>,
}

impl TopicState {
    pub(super) fn new(number: u32, entry: &TopicEntry, watch: watch::Sender<Tail>) -> Self {
        let inner = Inner {
            generations: VecDeque::new(),
            first_seq: entry.first_seq,
            last_seq: entry.last_seq,
            last: entry.last,
            segments: Arc::new(entry.segments.clone()),
            settings: entry.settings.clone(),
            groups: entry.groups.clone(),
        };
        Self { name: entry.name.clone(), number, watch, inner: Mutex::new(inner) }
    }
}

impl Inner {
    /// Adds the next event.
    pub(super) fn push(&mut self, journal: u64, event: Held) {
        self.last_seq += 1;
        self.last = Some((event.id, event.ts));
        let seq = self.last_seq;
        if self.generations.back().is_none_or(|generation| generation.journal != journal) {
            self.generations.push_back(Generation {
                journal,
                first: seq,
                events: Vec::new(),
                keys: HashMap::default(),
                bytes: 0,
                maxima: Vec::new(),
            });
        }
        let Some(generation) = self.generations.back_mut() else { return };
        event.keep_latest(&mut generation.keys, seq);
        generation.bytes += event.wire_len();
        match generation.maxima.last_mut() {
            Some(max) if !generation.events.len().is_multiple_of(STRIDE) => *max = event.ts.0.max(*max),
            _ => generation.maxima.push(event.ts.0),
        }
        generation.events.push(event);
    }

    /// The first unsettled event's seq; the next one's when there is none.
    pub(super) fn tail_first(&self) -> Seq {
        self.generations.front().map_or(self.last_seq + 1, |generation| generation.first)
    }

    /// Whether there are unsettled events.
    pub(super) fn has_tail(&self) -> bool {
        !self.generations.is_empty()
    }

    pub(super) fn held(&self, seq: Seq) -> Option<&Held> {
        if seq < self.first_seq {
            return None;
        }
        let generation = self.generations.iter().rev().find(|generation| generation.first <= seq)?;
        generation.events.get(usize::try_from(seq - generation.first).ok()?)
    }

    /// Adds unsettled events from `from` on.
    pub(super) fn read(&self, topic: &Topic, from: Seq, max: ReadMax, out: &mut Vec<Event>) {
        let mut bytes: usize = out.iter().map(|event| event.body.len()).sum();
        let from = from.max(self.first_seq);
        for generation in &self.generations {
            let skip = usize::try_from(from.saturating_sub(generation.first)).unwrap_or(usize::MAX);
            let rest = generation.events.get(skip..).unwrap_or_default();
            for (index, event) in rest.iter().enumerate() {
                if out.len() >= max.events || (!out.is_empty() && bytes + event.body.len() > max.bytes) {
                    return;
                }
                bytes += event.body.len();
                out.push(event.clone().at(topic, generation.first + (skip + index) as u64));
            }
        }
    }

    /// The first unsettled event whose time is ≥ `ts`.
    pub(super) fn first_since(&self, ts: Millis) -> Option<Seq> {
        for generation in &self.generations {
            let skip = usize::try_from(self.first_seq.saturating_sub(generation.first)).unwrap_or(usize::MAX);
            for (stride, _) in generation.maxima.iter().enumerate().filter(|(_, max)| **max >= ts.0) {
                let start = (stride * STRIDE).max(skip);
                let end = ((stride + 1) * STRIDE).min(generation.events.len());
                let found = generation.events.get(start..end).and_then(|part| part.iter().position(|e| e.ts >= ts));
                if let Some(index) = found {
                    return Some(generation.first + (start + index) as u64);
                }
            }
        }
        None
    }

    /// The latest unsettled event of a key.
    pub(super) fn latest(&self, key: &[u8]) -> Option<Seq> {
        self.generations.iter().rev().find_map(|generation| generation.keys.get(key).copied())
    }

    /// The latest unsettled event of every key after `after`, by key.
    pub(super) fn keys_after(&self, after: Option<&[u8]>) -> Vec<(Bytes, Latest)> {
        let mut all = Vec::new();
        for generation in self.generations.iter().rev() {
            let wanted = generation.keys.iter().filter(|(key, _)| after.is_none_or(|after| &key[..] > after));
            all.extend(wanted.map(|(key, seq)| (key.clone(), *seq)));
        }
        // Of one key in several generations, the youngest comes first.
        all.sort_by(|(one, a), (two, b)| one.cmp(two).then(b.cmp(a)));
        all.dedup_by(|(next, _), (first, _)| next == first);
        let latest = |seq| Latest { seq, tombstone: self.held(seq).is_none_or(Held::is_tombstone) };
        all.into_iter().map(|(key, seq)| (key, latest(seq))).collect()
    }

    /// At most `max` events of a journal file from `from` on, for settling them.
    pub(super) fn part(&self, journal: u64, from: Seq, max: usize) -> (Seq, Vec<Held>) {
        let Some(generation) = self.generations.iter().find(|generation| generation.journal == journal) else {
            return (from, Vec::new());
        };
        let first = from.max(self.first_seq).max(generation.first);
        let skip = usize::try_from(first - generation.first).unwrap_or(usize::MAX);
        let part = generation.events.get(skip..).unwrap_or_default();
        (first, part[..part.len().min(max)].to_vec())
    }

    /// The events of journal files up to `journal` are in `segments` now. Drop the result outside of the lock.
    pub(super) fn settled(&mut self, journal: u64, segments: Vec<Meta>) -> Vec<Generation> {
        self.segments = Arc::new(segments);
        let mut gone = Vec::new();
        while self.generations.front().is_some_and(|generation| generation.journal <= journal) {
            gone.extend(self.generations.pop_front());
        }
        gone
    }

    /// Events that are there and unsettled, and their bytes in the wire form.
    pub(super) fn tail_size(&self) -> (u64, u64) {
        let mut size = (0, 0);
        for generation in &self.generations {
            let len = generation.events.len() as u64;
            let hidden = self.first_seq.saturating_sub(generation.first).min(len);
            let hidden_bytes: u64 =
                generation.events[..usize::try_from(hidden).unwrap_or(0)].iter().map(Held::wire_len).sum();
            size = (size.0 + len - hidden, size.1 + generation.bytes - hidden_bytes);
        }
        size
    }
}
