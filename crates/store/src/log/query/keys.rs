//! The latest event of each key: the index, with the unflushed events laid over it.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use promethean_event::{Event, Seq};

use crate::log::flush::index::{Latest, View};
use crate::log::memtable::TopicState;
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
        let (view, recent) = self.key_view(topic, after.map(str::as_bytes))?;
        let last = after.map(|after| Bytes::copy_from_slice(after.as_bytes()));
        let mut merged = Merged { topic: topic.clone(), view, recent, last, ahead: Vec::new(), drained: false };
        let mut items = merged.events(self, limit.saturating_add(1))?;
        let more = items.len() > limit;
        items.truncate(limit);
        Ok(Page { items, more })
    }

    /// A view of the index and the keys that it does not have yet, of one moment; the keys last first.
    fn key_view(&self, topic: &TopicState, after: Option<&[u8]>) -> Result<(View, Vec<(Bytes, Latest)>)> {
        // Under the topic's lock nothing can leave the memory between the two.
        let inner = topic.keyed();
        let view = self.view()?;
        let mut recent = inner.keys_after(after);
        drop(inner);
        recent.reverse();
        Ok((view, recent))
    }

    pub(in crate::log) fn key_snapshot(self: &Arc<Self>, topic: &Arc<TopicState>) -> Result<Box<dyn KeySnapshot>> {
        let inner = topic.keyed();
        let (view, mut recent, cut) = (self.view()?, inner.keys_after(None), inner.last_seq);
        drop(inner);
        recent.reverse();
        let merged = Merged { topic: topic.clone(), view, recent, last: None, ahead: Vec::new(), drained: false };
        Ok(Box::new(Snapshot { shared: self.clone(), cut, merged: Arc::new(Mutex::new(merged)) }))
    }
}

/// Keys of the index that are counted at once.
const COUNTED: usize = 1_024;

/// Keys of the index and of memory in one order.
struct Merged {
    topic: Arc<TopicState>,
    view: View,
    /// Keys in memory, last first.
    recent: Vec<(Bytes, Latest)>,
    /// The last key that was read from the index, or where to start.
    last: Option<Bytes>,
    /// Keys of the index that were read and not used, last first.
    ahead: Vec<(Bytes, Latest)>,
    /// There are no more keys in the index.
    drained: bool,
}

impl Merged {
    fn next(&mut self, batch: usize) -> Result<Option<Seq>> {
        loop {
            if self.ahead.is_empty() && !self.drained {
                self.ahead = self.view.keys_after(self.topic.number, self.last.as_deref(), batch)?;
                self.drained = self.ahead.len() < batch;
                self.last = self.ahead.last().map(|(key, _)| key.clone()).or(self.last.take());
                self.ahead.reverse();
            }
            let latest = match (self.ahead.last(), self.recent.last()) {
                (None, None) => return Ok(None),
                (Some(_), None) => self.ahead.pop(),
                (None, Some(_)) => self.recent.pop(),
                (Some((flushed, _)), Some((recent, _))) => match flushed.cmp(recent) {
                    std::cmp::Ordering::Less => self.ahead.pop(),
                    std::cmp::Ordering::Greater => self.recent.pop(),
                    std::cmp::Ordering::Equal => {
                        self.ahead.pop();
                        self.recent.pop()
                    }
                },
            };
            if let Some((_, latest)) = latest.filter(|(_, latest)| !latest.tombstone) {
                return Ok(Some(latest.seq));
            }
        }
    }

    /// Leaves out the keys up to `key`.
    fn skip(&mut self, key: &[u8]) {
        self.recent.retain(|(recent, _)| &recent[..] > key);
        self.last = Some(Bytes::copy_from_slice(key));
        self.ahead.clear();
    }

    /// Counts the live keys that are still to come.
    fn count(&self) -> Result<u64> {
        let mut recent = self.recent.iter().rev().peekable();
        let (mut count, mut ahead, mut drained) = (0, self.ahead.clone(), self.drained);
        let mut last = self.last.clone();
        ahead.reverse();
        loop {
            for (key, latest) in &ahead {
                // Of a key that has a newer event in memory, that one counts.
                while let Some((_, newer)) = recent.next_if(|(newer, _)| newer < key) {
                    count += u64::from(!newer.tombstone);
                }
                let newest = recent.next_if(|(newer, _)| newer == key).map_or(latest, |(_, newer)| newer);
                count += u64::from(!newest.tombstone);
            }
            if drained {
                return Ok(count + recent.filter(|(_, newer)| !newer.tombstone).count() as u64);
            }
            ahead = self.view.keys_after(self.topic.number, last.as_deref(), COUNTED)?;
            drained = ahead.len() < COUNTED;
            last = ahead.last().map(|(key, _)| key.clone()).or(last);
        }
    }

    /// At most `max` events of the next live keys; fewer only at the end.
    fn events(&mut self, shared: &Shared, max: usize) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while events.len() < max {
            let want = (max - events.len()).min(1024);
            let mut seqs = Vec::with_capacity(want);
            while seqs.len() < want
                && let Some(seq) = self.next(want.max(64))?
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
    merged: Arc<Mutex<Merged>>,
}

impl KeySnapshot for Snapshot {
    fn cut(&self) -> Seq {
        self.cut
    }

    fn begin_after(&mut self, key: &str) {
        self.merged.lock().skip(key.as_bytes());
    }

    fn left(&mut self) -> Pending<'_, u64> {
        let merged = self.merged.clone();
        crate::log::blocking(&self.shared, move |_| merged.lock().count())
    }

    fn next(&mut self, max: usize) -> Pending<'_, Vec<Event>> {
        let merged = self.merged.clone();
        crate::log::blocking(&self.shared, move |shared| merged.lock().events(shared, max))
    }
}
