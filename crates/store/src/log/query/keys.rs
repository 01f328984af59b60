//! The latest event of each key: the index, with the unflushed events laid over it.

use std::cmp::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use promethean_event::{Event, Seq};

use crate::log::flush::index::{Latest, View};
use crate::log::memtable::TopicState;
use crate::log::memtable::ordered::Recent;
use crate::log::shared::Shared;
use crate::{KeySnapshot, Page, Pending, Result};

impl Shared {
    /// The latest event of each key, tombstones included.
    pub(in crate::log) fn latest_by_key(&self, topic: &TopicState, keys: &[String]) -> Result<Vec<Option<Event>>> {
        keys.iter().map(|key| self.latest(topic, key)).collect()
    }

    fn latest(&self, topic: &TopicState, key: &str) -> Result<Option<Event>> {
        let mut tried = None;
        loop {
            let recent = topic.keyed().latest(key.as_bytes());
            let seq = match recent {
                Some(seq) => Some(seq),
                None => self.view()?.latest(topic.number, key.as_bytes())?.map(|latest| latest.seq),
            };
            let Some(seq) = seq else { return Ok(None) };
            let event = self.pick(topic, &[seq])?.pop().filter(|event| event.key().as_deref() == Some(key));
            // Gone: either for good, or a later one has taken its place meanwhile.
            if event.is_some() || tried == Some(seq) {
                return Ok(event);
            }
            tried = Some(seq);
        }
    }

    /// The latest events of live keys after `after`.
    pub(in crate::log) fn keys(
        &self,
        topic: &Arc<TopicState>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Event>> {
        let (recent, view) = topic.ordered(|_| self.view());
        let mut merged = Merged::new(topic, recent, Seq::MAX);
        if let Some(after) = after {
            merged.skip(after.as_bytes());
        }
        let mut items = merged.events(self, &view?, limit.saturating_add(1))?;
        let more = items.len() > limit;
        items.truncate(limit);
        Ok(Page { items, more })
    }

    pub(in crate::log) fn key_snapshot(self: &Arc<Self>, topic: &Arc<TopicState>) -> Result<Box<dyn KeySnapshot>> {
        // Under the topic's lock nothing can leave the memory between the two.
        let (recent, (view, cut)) = topic.ordered(|inner| (self.view(), inner.last_seq));
        let reading = Reading { merged: Merged::new(topic, recent, cut), view: Some((view?, Instant::now())) };
        let reading = Arc::new(Mutex::new(reading));
        let mut readers = self.snapshots.lock();
        readers.retain(|reading| reading.strong_count() > 0);
        readers.push(Arc::downgrade(&reading));
        Ok(Box::new(Snapshot { shared: self.clone(), cut, reading }))
    }

    /// Gives up the views of the index that snapshots have had for long: the index grows while one is held.
    pub(in crate::log) fn release_views(&self) {
        let readers: Vec<_> = self.snapshots.lock().iter().filter_map(Weak::upgrade).collect();
        for mut reading in readers.iter().filter_map(|reading| reading.try_lock()) {
            reading.view.take_if(|(_, since)| since.elapsed() >= self.options.view_for);
        }
    }
}

/// Keys of the index that are counted at once.
const COUNTED: usize = 1_024;

/// Keys of the index and of memory in one order.
struct Merged {
    topic: Arc<TopicState>,
    /// Keys in memory.
    recent: Recent,
    /// Events after this one are not part of it.
    cut: Seq,
    /// The last key that was read from the index, or where to start.
    last: Option<Bytes>,
    /// Keys of the index that were read and not used, last first.
    ahead: Vec<(Bytes, Latest)>,
    /// There are no more keys in the index.
    drained: bool,
}

impl Merged {
    fn new(topic: &Arc<TopicState>, recent: Recent, cut: Seq) -> Self {
        Self { topic: topic.clone(), recent, cut, last: None, ahead: Vec::new(), drained: false }
    }

    fn next(&mut self, view: &View, batch: usize) -> Result<Option<Seq>> {
        loop {
            if self.ahead.is_empty() && !self.drained {
                self.ahead = view.keys_after(self.topic.number, self.last.as_deref(), batch)?;
                self.drained = self.ahead.len() < batch;
                self.last = self.ahead.last().map(|(key, _)| key.clone()).or(self.last.take());
                self.ahead.reverse();
            }
            let order = match (self.ahead.last(), self.recent.peek()) {
                (None, None) => return Ok(None),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((flushed, _)), Some((recent, _))) => flushed.cmp(recent),
            };
            // Of equal keys, the event in memory is the later one.
            let flushed = if order == Ordering::Greater { None } else { self.ahead.pop() };
            let recent = if order == Ordering::Less { None } else { self.recent.pop() };
            if let Some((_, latest)) = recent.or(flushed).filter(|(_, latest)| self.is_live(*latest)) {
                return Ok(Some(latest.seq));
            }
        }
    }

    /// True if the key has an event. One that is later than the cut is in the live part: a view that was renewed has it.
    fn is_live(&self, latest: Latest) -> bool {
        !latest.tombstone && latest.seq <= self.cut
    }

    /// Leaves out the keys up to `key`.
    fn skip(&mut self, key: &[u8]) {
        self.recent.skip(key);
        self.last = Some(Bytes::copy_from_slice(key));
        self.ahead.clear();
        self.drained = false;
    }

    /// Counts the live keys that are still to come.
    fn count(&self, view: &View) -> Result<u64> {
        let mut rest = Self {
            topic: self.topic.clone(),
            recent: self.recent.clone(),
            cut: self.cut,
            last: self.last.clone(),
            ahead: self.ahead.clone(),
            drained: self.drained,
        };
        let mut count = 0;
        while rest.next(view, COUNTED)?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// At most `max` events of the next live keys; fewer only at the end.
    fn events(&mut self, shared: &Shared, view: &View, max: usize) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while events.len() < max {
            let want = (max - events.len()).min(1024);
            let mut seqs = Vec::with_capacity(want);
            while seqs.len() < want
                && let Some(seq) = self.next(view, want.max(64))?
            {
                seqs.push(seq);
            }
            if seqs.is_empty() {
                break;
            }
            seqs.sort_unstable();
            let mut found = shared.pick(&self.topic, &seqs)?;
            found.sort_by(|one, two| one.key().cmp(&two.key()));
            events.append(&mut found);
        }
        Ok(events)
    }
}

/// All live keys as of one moment.
struct Snapshot {
    shared: Arc<Shared>,
    cut: Seq,
    reading: Arc<Mutex<Reading>>,
}

/// The place of a snapshot.
pub(in crate::log) struct Reading {
    merged: Merged,
    /// A view of the index and its age. `None` once it was held for long: the next read takes another.
    view: Option<(View, Instant)>,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reading")
    }
}

impl Reading {
    fn with<T>(&mut self, shared: &Shared, read: impl FnOnce(&mut Merged, &View) -> Result<T>) -> Result<T> {
        let view = match &mut self.view {
            Some((view, _)) => view,
            none => &mut none.insert((shared.view()?, Instant::now())).0,
        };
        read(&mut self.merged, view)
    }
}

impl KeySnapshot for Snapshot {
    fn cut(&self) -> Seq {
        self.cut
    }

    fn begin_after(&mut self, key: &str) {
        self.reading.lock().merged.skip(key.as_bytes());
    }

    fn left(&mut self) -> Pending<'_, u64> {
        let reading = self.reading.clone();
        crate::log::blocking(&self.shared, move |shared| reading.lock().with(shared, |merged, view| merged.count(view)))
    }

    fn next(&mut self, max: usize) -> Pending<'_, Vec<Event>> {
        let reading = self.reading.clone();
        crate::log::blocking(&self.shared, move |shared| {
            reading.lock().with(shared, |merged, view| merged.events(shared, view, max))
        })
    }
}
