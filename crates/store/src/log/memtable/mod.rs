//! One topic in memory: its unflushed events, and what is known of the flushed ones.
//!
//! Invariants: unflushed events have no holes between them; all events before them are in the segments. The lock is
//! held for moments only, never over I/O. A generation is the topic's part of one journal file; it is not changed any
//! more once a younger one exists.

pub(in crate::log) mod ordered;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use promethean_event::{Event, EventId, Group, Millis, Seq, Topic};
use tokio::sync::watch;

use crate::life::Life;
use crate::log::commit::codec::Held;
use crate::log::flush::manifest::{Saved, TopicEntry};
use crate::log::flush::segment::Meta;
use crate::log::memtable::ordered::Ordered;
use crate::{EventSettings, ReadMax, Tail, TopicSettings};

/// Events share one entry in `maxima`, so that a search by time skips them together.
const STRIDE: usize = 256;
/// Events that are taken into the maps of keys in one go while somebody waits for the lock.
const STEP: usize = 4096;
/// Events of a topic whose keys wait, before the writer takes them in: one after another they find the map at hand.
const MANY: usize = 256;
/// Goes after which the rest is taken in at once: the writer is slower than this, so it does not come to it.
const STEPS: usize = 1024;

/// A topic that has a number. What an event needs of it stands in its first two cache lines, the lock included: where
/// each event is another topic's, fetching them is most of what making it visible costs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::log) struct TopicState {
    pub(in crate::log) inner: Mutex<Inner>,
    pub(in crate::log) name: Topic,
    pub(in crate::log) number: u32,
    /// Of the settings what counts for every event: to be had without the lock.
    partitions: AtomicU32,
    max_event_bytes: AtomicU64,
    /// True if its settings have a `key_path`, which stands under the lock.
    keyed: AtomicBool,
    watch: watch::Sender<Tail>,
}

/// What changes of a topic.
#[derive(Debug)]
#[repr(C)]
pub(in crate::log) struct Inner {
    pub(in crate::log) last_seq: Seq,
    /// The last of the writer's frames that added events.
    pub(in crate::log) frame: u64,
    /// It is among the topics whose keys the writer takes in.
    pub(in crate::log) unkeyed: bool,
    /// Somebody may wait for its tail. While nobody does, `watch` is not kept up to date.
    pub(in crate::log) watched: bool,
    pub(in crate::log) last: Option<(EventId, Millis)>,
    /// The generation that grows; it follows on those in `older`.
    youngest: Option<Generation>,
    older: VecDeque<Generation>,
    /// Events before this one are gone.
    pub(in crate::log) first_seq: Seq,
    pub(in crate::log) segments: Arc<Vec<Meta>>,
    pub(in crate::log) settings: TopicSettings,
    pub(in crate::log) life: Life,
    pub(in crate::log) groups: BTreeMap<Group, Saved>,
    /// When the oldest of the flushed tombstones came, among those that compaction kept and those flushed since.
    pub(in crate::log) tombstone: Option<Millis>,
    /// The hidden part of a segment, counted once.
    pub(in crate::log) hidden: Option<Hidden>,
}

/// The part of a segment that a topic's `first_seq` hides.
#[derive(Debug, Clone, Copy)]
pub(in crate::log) struct Hidden {
    /// First seq and generation of the segment.
    segment: (Seq, u64),
    /// Events before this one are hidden.
    pub(in crate::log) before: Seq,
    pub(in crate::log) events: u64,
    /// Of the events in the wire form.
    pub(in crate::log) bytes: u64,
}

impl Hidden {
    /// Nothing of a segment yet.
    pub(in crate::log) fn of(meta: &Meta) -> Self {
        Self { segment: (meta.first_seq, meta.generation), before: meta.first_seq, events: 0, bytes: 0 }
    }

    pub(in crate::log) fn is_of(&self, meta: &Meta) -> bool {
        self.segment == (meta.first_seq, meta.generation)
    }
}

/// A topic's part of one journal file.
#[derive(Debug)]
#[repr(C)]
pub(in crate::log) struct Generation {
    events: Events,
    journal: u64,
    bytes: u64,
    /// The latest time of the events that `maxima` does not have yet.
    newest: u64,
    keyed: usize,
    first: Seq,
    /// The latest time of each [`STRIDE`] events.
    maxima: Vec<u64>,
    /// The latest event of each key among the first `keyed` events. Looking a key up costs a publisher more than all
    /// else that happens to its event in memory, so it is done for [`MANY`] of them together, or when somebody asks.
    keys: HashMap<Bytes, Seq, RandomState>,
    ordered: Ordered,
    /// The first so many events are before the topic's `first_seq`, with so many bytes.
    hidden: (usize, u64),
}

/// The events of a generation.
#[derive(Debug)]
enum Events {
    Growing(Vec<Held>),
    /// No more are added: flushing reads them without the lock.
    Sealed(Arc<Vec<Held>>),
}

impl Deref for Events {
    type Target = Vec<Held>;

    fn deref(&self) -> &Vec<Held> {
        match self {
            Self::Growing(events) => events,
            Self::Sealed(events) => events,
        }
    }
}

impl Events {
    fn grow(&mut self) -> &mut Vec<Held> {
        match self {
            Self::Growing(events) => events,
            // A sealed journal file gets no more frames; if it did, they would be added to a copy.
            Self::Sealed(events) => Arc::make_mut(events),
        }
    }

    fn seal(&mut self) -> Arc<Vec<Held>> {
        let sealed = match self {
            Self::Growing(events) => Arc::new(std::mem::take(events)),
            Self::Sealed(events) => return events.clone(),
        };
        *self = Self::Sealed(sealed.clone());
        sealed
    }
}

/// A topic's part of one journal file, for flushing.
pub(in crate::log) struct Unflushed {
    pub(in crate::log) first: Seq,
    pub(in crate::log) events: Arc<Vec<Held>>,
    /// How many of them are gone already.
    pub(in crate::log) gone: usize,
    /// The latest event of each key.
    pub(in crate::log) keys: Vec<(Bytes, Seq)>,
}

impl TopicState {
    pub(in crate::log) fn new(number: u32, entry: &TopicEntry, watch: watch::Sender<Tail>) -> Self {
        let inner = Inner {
            last_seq: entry.last_seq,
            frame: 0,
            unkeyed: false,
            watched: true,
            last: entry.last,
            youngest: None,
            older: VecDeque::new(),
            first_seq: entry.first_seq,
            segments: Arc::new(entry.segments.clone()),
            settings: TopicSettings::default(),
            life: entry.life,
            groups: entry.groups.clone(),
            tombstone: None,
            hidden: None,
        };
        let state = Self {
            inner: Mutex::new(inner),
            name: entry.name.clone(),
            number,
            partitions: AtomicU32::new(0),
            max_event_bytes: AtomicU64::new(0),
            keyed: AtomicBool::new(false),
            watch,
        };
        state.set(entry.settings.clone());
        state
    }

    /// Changes its settings.
    pub(in crate::log) fn set(&self, settings: TopicSettings) {
        let mut inner = self.inner.lock();
        self.partitions.store(settings.partitions, Relaxed);
        self.max_event_bytes.store(settings.max_event_bytes.unwrap_or(u64::MAX), Relaxed);
        self.keyed.store(settings.key_path.is_some(), Relaxed);
        inner.settings = settings;
    }

    /// Deletes it: all events up to `last_seq` are gone. The groups are removed one by one, in the order of the journal.
    pub(in crate::log) fn delete(&self, last_seq: Seq) {
        self.set(TopicSettings::default());
        let mut inner = self.inner.lock();
        inner.hide(last_seq + 1);
        if inner.last_seq == last_seq {
            inner.last = None;
        }
        inner.tombstone = None;
        inner.life = inner.life.ended(last_seq);
    }

    /// Of its settings what counts for every event. Two that were changed together may be seen one by one.
    pub(in crate::log) fn event_settings(&self) -> EventSettings {
        let max_event_bytes = self.max_event_bytes.load(Relaxed);
        EventSettings {
            partitions: self.partitions.load(Relaxed),
            max_event_bytes: (max_event_bytes < u64::MAX).then_some(max_event_bytes),
            key_path: if self.keyed.load(Relaxed) { self.inner.lock().settings.key_path.clone() } else { None },
        }
    }

    /// Its tail, from now on. Under the lock: who comes either sees the newest event or is seen by its announcement.
    pub(in crate::log) fn subscribe(&self) -> watch::Receiver<Tail> {
        let mut inner = self.inner.lock();
        inner.watched = true;
        if self.watch.receiver_count() == 0 {
            self.watch.send_replace(inner.tail());
        }
        self.watch.subscribe()
    }

    /// Tells those who wait for it what its tail is now.
    pub(in crate::log) fn announce(&self) {
        let mut inner = self.inner.lock();
        inner.watched = self.watch.receiver_count() > 0;
        if inner.watched {
            let tail = inner.tail();
            drop(inner);
            self.watch.send_replace(tail);
        }
    }

    /// The topic with all its unflushed events in the maps of keys. The writer gets in between the steps.
    pub(in crate::log) fn keyed(&self) -> MutexGuard<'_, Inner> {
        for _ in 0..STEPS {
            let mut inner = self.inner.lock();
            if inner.take_keys(STEP) {
                return inner;
            }
            MutexGuard::unlock_fair(inner);
        }
        let mut inner = self.inner.lock();
        inner.take_keys(usize::MAX);
        inner
    }

    /// Its events of a journal file that gets no more of them, for flushing.
    pub(in crate::log) fn sealed(&self, journal: u64) -> Option<Unflushed> {
        loop {
            let mut inner = self.inner.lock();
            inner.take_keys(STEP);
            let first_seq = inner.first_seq;
            let generation = inner.generations_mut().find(|generation| generation.journal == journal)?;
            if generation.keyed == generation.events.len() {
                let gone = usize::try_from(first_seq.saturating_sub(generation.first)).unwrap_or(usize::MAX);
                let keys = generation.keys.iter().map(|(key, seq)| (key.clone(), *seq)).collect();
                return Some(Unflushed { first: generation.first, events: generation.events.seal(), gone, keys });
            }
            MutexGuard::unlock_fair(inner);
        }
    }
}

impl Inner {
    /// True if the topic was created, or has had an event since it was last deleted.
    pub(in crate::log) fn exists(&self) -> bool {
        self.life.exists(self.last_seq)
    }

    fn tail(&self) -> Tail {
        Tail { seq: self.last_seq, deletions: self.life.deletions }
    }

    /// Adds the next event.
    pub(in crate::log) fn push(&mut self, journal: u64, event: Held) {
        self.extend(journal, std::iter::once(event));
    }

    /// Adds the next events.
    pub(in crate::log) fn extend(&mut self, journal: u64, events: impl Iterator<Item = Held>) {
        if self.youngest.as_ref().is_none_or(|generation| generation.journal != journal) {
            // About as many as last time: growing would copy them.
            let capacity = self.youngest.as_ref().map_or(0, |generation| generation.events.len());
            self.older.extend(self.youngest.take());
            self.youngest = Some(Generation {
                events: Events::Growing(Vec::with_capacity(capacity)),
                journal,
                bytes: 0,
                newest: 0,
                keyed: 0,
                first: self.last_seq + 1,
                maxima: Vec::new(),
                keys: HashMap::default(),
                ordered: Ordered::default(),
                hidden: (0, 0),
            });
        }
        let Some(generation) = &mut self.youngest else { return };
        let held = generation.events.grow();
        for event in events {
            self.last_seq += 1;
            self.last = Some((event.id, event.ts));
            generation.bytes += event.wire_len();
            if self.last_seq < self.first_seq {
                generation.hidden = (held.len() + 1, generation.bytes);
            }
            generation.newest = event.ts.0.max(generation.newest);
            held.push(event);
            if held.len().is_multiple_of(STRIDE) {
                generation.maxima.push(std::mem::take(&mut generation.newest));
            }
        }
    }

    /// The generations, oldest first.
    fn generations(&self) -> impl DoubleEndedIterator<Item = &Generation> {
        self.older.iter().chain(&self.youngest)
    }

    fn generations_mut(&mut self) -> impl Iterator<Item = &mut Generation> {
        self.older.iter_mut().chain(&mut self.youngest)
    }

    /// True if so many events' keys wait that it is worth taking them in.
    pub(in crate::log) fn has_many_unkeyed(&self) -> bool {
        self.youngest.as_ref().is_some_and(|generation| generation.events.len() - generation.keyed >= MANY)
    }

    /// Takes at most `max` more events into the maps of keys; whether all are in them now.
    pub(in crate::log) fn take_keys(&mut self, max: usize) -> bool {
        let mut left = max;
        for generation in self.generations_mut() {
            let rest = generation.events.get(generation.keyed..).unwrap_or_default();
            let part = &rest[..rest.len().min(left)];
            for (seq, event) in (generation.first + generation.keyed as u64..).zip(part) {
                event.keep_latest(&mut generation.keys, seq);
            }
            left -= part.len();
            generation.keyed += part.len();
            if generation.keyed < generation.events.len() {
                return false;
            }
        }
        true
    }

    /// The first unflushed event's seq; the next one's when there is none.
    pub(in crate::log) fn tail_first(&self) -> Seq {
        self.generations().next().map_or(self.last_seq + 1, |generation| generation.first)
    }

    /// True if there are unflushed events.
    pub(in crate::log) fn has_tail(&self) -> bool {
        self.generations().next().is_some()
    }

    pub(in crate::log) fn held(&self, seq: Seq) -> Option<&Held> {
        if seq < self.first_seq {
            return None;
        }
        let generation = self.generations().rev().find(|generation| generation.first <= seq)?;
        generation.events.get(usize::try_from(seq - generation.first).ok()?)
    }

    /// Adds unflushed events from `from` on.
    pub(in crate::log) fn read(&self, topic: &Topic, from: Seq, max: ReadMax, out: &mut Vec<Event>) {
        let mut bytes: usize = out.iter().map(|event| event.body.len()).sum();
        let from = from.max(self.first_seq);
        for generation in self.generations() {
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

    /// The first unflushed event whose time is ≥ `ts`.
    pub(in crate::log) fn first_since(&self, ts: Millis) -> Option<Seq> {
        for generation in self.generations() {
            let skip = usize::try_from(self.first_seq.saturating_sub(generation.first)).unwrap_or(usize::MAX);
            let maxima = generation.maxima.iter().chain(std::iter::once(&generation.newest));
            for (stride, _) in maxima.enumerate().filter(|(_, max)| **max >= ts.0) {
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

    /// The latest unflushed event of a key, as far as the keys are taken in.
    pub(in crate::log) fn latest(&self, key: &[u8]) -> Option<Seq> {
        self.generations().rev().find_map(|generation| generation.keys.get(key).copied())
    }

    /// The events of journal files up to `journal` are in `segments` now. Drop the result outside of the lock.
    pub(in crate::log) fn flushed(&mut self, journal: u64, segments: Vec<Meta>) -> Vec<Generation> {
        self.segments = Arc::new(segments);
        let is_flushed = |generation: &mut Generation| generation.journal <= journal;
        let mut gone: Vec<Generation> = Vec::new();
        while let Some(flushed) = self.older.pop_front_if(is_flushed) {
            gone.push(flushed);
        }
        gone.extend(self.youngest.take_if(is_flushed));
        gone
    }

    /// Remembers tombstones: when the oldest of them came.
    pub(in crate::log) fn tombstones_since(&mut self, oldest: Option<Millis>) {
        self.tombstone = self.tombstone.into_iter().chain(oldest).min();
    }

    /// Hides the events before `first_seq` for good.
    pub(in crate::log) fn hide(&mut self, first_seq: Seq) {
        if first_seq <= self.first_seq {
            return;
        }
        self.first_seq = first_seq;
        for generation in self.generations_mut().take_while(|generation| generation.first < first_seq) {
            let (known, bytes) = generation.hidden;
            let until = usize::try_from(first_seq - generation.first).unwrap_or(usize::MAX);
            let until = until.min(generation.events.len()).max(known);
            let more: u64 = generation.events[known..until].iter().map(Held::wire_len).sum();
            generation.hidden = (until, bytes + more);
        }
    }

    /// Events that are there and unflushed, and their bytes in the wire form.
    pub(in crate::log) fn tail_size(&self) -> (u64, u64) {
        let mut size = (0, 0);
        for generation in self.generations() {
            let (hidden, hidden_bytes) = generation.hidden;
            size.0 += (generation.events.len() - hidden) as u64;
            size.1 += generation.bytes - hidden_bytes;
        }
        size
    }
}
