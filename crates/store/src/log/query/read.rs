//! Reading: the unflushed end from memory, everything before it from segments.
//!
//! Flushing, retention and compaction go on meanwhile: whoever finds a segment gone looks at the list again.

use std::sync::Arc;

use promethean_event::{Event, Millis, Seq};

use crate::log::commit::codec::Held;
use crate::log::flush::segment::Meta;
use crate::log::memtable::TopicState;
use crate::log::shared::Shared;
use crate::{ReadMax, Result, Seek, Start, TopicInfo};

impl Shared {
    /// Events from `from` on, if they are all in memory or there are none; `None`: segments have to be read.
    pub(in crate::log) fn read_memory(&self, topic: &TopicState, from: Seq, max: ReadMax) -> Option<Vec<Event>> {
        let inner = topic.inner.lock();
        let from = from.max(inner.first_seq);
        if from < inner.tail_first() && inner.segments.last().is_some_and(|last| last.last_seq >= from) {
            return None;
        }
        let mut out = Vec::with_capacity(
            max.events.min(usize::try_from(inner.last_seq + 1 - from.min(inner.last_seq + 1)).unwrap_or(0)),
        );
        inner.read(&topic.name, from, max, &mut out);
        Some(out)
    }

    /// Events from `from` on.
    pub(in crate::log) fn read(&self, topic: &TopicState, from: Seq, max: ReadMax) -> Result<Vec<Event>> {
        let (mut from, mut out) = (from, Vec::new());
        loop {
            let segments = {
                let inner = topic.inner.lock();
                from = from.max(inner.first_seq);
                if from >= inner.tail_first() || inner.segments.last().is_none_or(|last| last.last_seq < from) {
                    inner.read(&topic.name, from, max, &mut out);
                    return Ok(out);
                }
                inner.segments.clone()
            };
            let start = segments.partition_point(|meta| meta.last_seq < from);
            let read = segments[start..].iter().try_fold(true, |room, meta| {
                if !room {
                    return Ok(false);
                }
                let room = self.segment(topic.number, meta)?.read(&topic.name, from, max, &mut out)?;
                from = out.last().map_or(from, |event| event.seq + 1);
                if room {
                    from = from.max(meta.last_seq + 1);
                }
                Ok(room)
            });
            match read {
                Ok(true) => {}
                Ok(false) => return Ok(out),
                Err(error) => unless_changed(topic, &segments, error)?,
            }
        }
    }

    /// The events at these seqs that are still there; `seqs` ascend.
    pub(in crate::log) fn pick(&self, topic: &TopicState, seqs: &[Seq]) -> Result<Vec<Event>> {
        loop {
            let (mut in_memory, segments, first, flushed) = {
                let inner = topic.inner.lock();
                let flushed = seqs.partition_point(|seq| *seq < inner.tail_first());
                let held =
                    seqs[flushed..].iter().filter_map(|seq| Some(inner.held(*seq)?.clone().at(&topic.name, *seq)));
                (held.collect::<Vec<_>>(), inner.segments.clone(), inner.first_seq, flushed)
            };
            let mut out = Vec::with_capacity(seqs.len());
            let mut rest = &seqs[seqs.partition_point(|seq| *seq < first).min(flushed)..flushed];
            let read = segments.iter().try_for_each(|meta| {
                rest = &rest[rest.partition_point(|seq| *seq < meta.first_seq)..];
                let here = rest.partition_point(|seq| *seq <= meta.last_seq);
                if here > 0 {
                    self.segment(topic.number, meta)?.pick(&topic.name, &rest[..here], &mut out)?;
                    rest = &rest[here..];
                }
                Ok(())
            });
            match read {
                Ok(()) => {
                    out.append(&mut in_memory);
                    return Ok(out);
                }
                Err(error) => unless_changed(topic, &segments, error)?,
            }
        }
    }

    /// The event at `seq`, where it is still there.
    pub(in crate::log) fn event_at(&self, topic: &TopicState, seq: Seq) -> Result<Option<Held>> {
        let event = self.pick(topic, &[seq])?.pop();
        Ok(event.map(|event| Held {
            id: event.id,
            ts: event.ts,
            appended: event.appended,
            spans: event.spans,
            client: false,
            body: event.body,
        }))
    }

    /// The first event's seq; the next one's when there is none.
    pub(in crate::log) fn first_seq(&self, topic: &TopicState) -> Result<Seq> {
        {
            let inner = topic.inner.lock();
            match inner.segments.first() {
                None => return Ok(inner.first_seq.max(inner.tail_first())),
                Some(meta) if meta.first_seq >= inner.first_seq => return Ok(meta.first_seq),
                Some(_) => {}
            }
        }
        let first = self.read(topic, 0, ReadMax::events(1))?;
        Ok(first.first().map_or_else(|| topic.inner.lock().last_seq + 1, |event| event.seq))
    }

    /// Finds a place; ids are looked for elsewhere.
    pub(in crate::log) fn seek(&self, topic: &TopicState, to: Seek) -> Result<Option<Start>> {
        let done = match to {
            Seek::Earliest => self.first_seq(topic)? - 1,
            Seek::Latest => topic.inner.lock().last_seq,
            Seek::Ts(ts) => self.before_ts(topic, ts)?,
            Seek::AfterId(id) => {
                let Some((found, seq, held)) = self.find(id)? else { return Ok(None) };
                let here = found.number == topic.number;
                return Ok(here.then_some(Start { done: seq, last: Some((id, held.ts)) }));
            }
        };
        let last = if done == 0 { None } else { self.event_at(topic, done)? };
        Ok(Some(Start { done, last: last.map(|event| (event.id, event.ts)) }))
    }

    /// The last seq before the first event whose time is ≥ `ts`.
    fn before_ts(&self, topic: &TopicState, ts: Millis) -> Result<Seq> {
        loop {
            let (segments, first) = {
                let inner = topic.inner.lock();
                (inner.segments.clone(), inner.first_seq)
            };
            let candidates = segments.iter().filter(|meta| meta.max_ts >= ts.0 && meta.last_seq >= first);
            let found = candidates
                .map(|meta| self.segment(topic.number, meta)?.first_since(ts, first))
                .find(|found| !matches!(found, Ok(None)));
            match found {
                Some(Ok(Some(seq))) => return Ok(seq - 1),
                Some(Err(error)) => {
                    unless_changed(topic, &segments, error)?;
                    continue;
                }
                _ => {}
            }
            let inner = topic.inner.lock();
            if Arc::ptr_eq(&segments, &inner.segments) {
                return Ok(inner.first_since(ts).map_or(inner.last_seq, |seq| seq - 1));
            }
        }
    }

    /// What is known of a topic; `None` when it does not exist.
    pub(in crate::log) fn info(&self, topic: &TopicState) -> Result<Option<TopicInfo>> {
        loop {
            let first_seq = self.first_seq(topic)?;
            let (mut info, segments, mark) = {
                let inner = topic.inner.lock();
                if !inner.exists() {
                    return Ok(None);
                }
                let (events, bytes) = inner.tail_size();
                let (last_seq, last) = (inner.last_seq, inner.last);
                let info = TopicInfo { topic: topic.name.clone(), events, bytes, first_seq, last_seq, last };
                (info, inner.segments.clone(), inner.first_seq)
            };
            for meta in segments.iter().filter(|meta| meta.last_seq >= mark) {
                info.events += meta.events;
                info.bytes += meta.bytes;
            }
            // One segment at most is trimmed in part.
            let Some(part) = segments.iter().find(|meta| meta.first_seq < mark && meta.last_seq >= mark) else {
                return Ok(Some(info));
            };
            match self.hidden(topic, part, mark) {
                Ok((events, bytes)) => {
                    info.events = info.events.saturating_sub(events);
                    info.bytes = info.bytes.saturating_sub(bytes);
                    return Ok(Some(info));
                }
                Err(error) => unless_changed(topic, &segments, error)?,
            }
        }
    }
}

/// An error in a segment counts only if the segment still does.
fn unless_changed(topic: &TopicState, segments: &Arc<Vec<Meta>>, error: crate::Error) -> Result<()> {
    if Arc::ptr_eq(segments, &topic.inner.lock().segments) { Err(error) } else { Ok(()) }
}
