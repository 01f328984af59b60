//! Events that were read beyond what could be given out at once.
//!
//! A consumer that is behind asks for as many events as it has credit for, which may be few; the store reads a piece of
//! a file whatever is asked. So a backlog is read in pieces of a good size and given out from here. Invariants: what is
//! held follows directly on what was given out; it is bounded by [`READ`], and what all groups hold by [`Room`]: the more
//! they hold, the smaller the pieces; it is let go soon after it was read, so that what retention or compaction took away
//! meanwhile is not given out much later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use promethean_event::{Event, Millis, Seq};
use promethean_store::ReadMax;

/// What is read at once while there is a backlog.
pub(super) const READ: ReadMax = ReadMax { events: 2_048, bytes: 512 * 1024 };
/// How long after they were read events may be given out from here.
const KEPT: Duration = Duration::from_secs(1);

/// What all groups may hold together, about: then each reads pieces of [`LEAST`].
const MOST: usize = 64 << 20;
/// The smallest piece: a file is never read event by event.
const LEAST: usize = 16 * 1024;
/// A piece is this part of what is free at most.
const SHARE: usize = 64;

/// The bytes that all groups hold.
#[derive(Debug, Default)]
pub(crate) struct Room(AtomicUsize);

impl Room {
    /// What a group with a backlog reads at once, if it can give out `most` now.
    pub(super) fn read(&self, most: ReadMax) -> ReadMax {
        let free = MOST.saturating_sub(self.0.load(Ordering::Relaxed));
        ReadMax { events: most.events.max(READ.events), bytes: (free / SHARE).clamp(LEAST, READ.bytes) }
    }
}

/// What was read ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    room: Arc<Room>,
    /// Bytes of the events.
    bytes: usize,
    /// The place that the events follow on: only who asks for this one gets them.
    from: Seq,
    events: VecDeque<Event>,
    until: Millis,
}

impl Ahead {
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self { room, bytes: 0, from: 0, events: VecDeque::new(), until: Millis(0) }
    }

    /// It holds so many bytes now.
    fn hold(&mut self, bytes: usize) {
        self.room.0.fetch_add(bytes, Ordering::Relaxed);
        self.room.0.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }

    /// Up to `most` events from `from` on, one at least, where they are here.
    pub(super) fn take(&mut self, from: Seq, most: ReadMax, now: Millis) -> Option<Vec<Event>> {
        if from != self.from || self.events.is_empty() || self.until <= now {
            self.clear();
            return None;
        }
        let count = fitting(&self.events, most);
        let taken: Vec<Event> = self.events.drain(..count).collect();
        self.from = taken.last().map_or(from, |last| last.seq + 1);
        if self.events.is_empty() {
            self.clear();
        } else {
            self.hold(self.bytes - size(&taken));
        }
        Some(taken)
    }

    /// Keeps of `read` what is beyond `most`, but for the first event.
    pub(super) fn keep(&mut self, read: &mut Vec<Event>, most: ReadMax, now: Millis) {
        let count = fitting(&*read, most);
        if read.len() > count {
            let rest = read.split_off(count);
            self.hold(size(&rest));
            self.events = rest.into();
            self.from = read.last().map_or(0, |last| last.seq + 1);
            self.until = now + KEPT;
        }
    }

    /// Lets everything go: the place was moved, or nobody wants it.
    pub(super) fn clear(&mut self) {
        self.events = VecDeque::new();
        self.hold(0);
    }

    /// When what is here is to be let go.
    pub(super) fn expires(&self) -> Option<Millis> {
        (!self.events.is_empty()).then_some(self.until)
    }

    /// Lets everything go whose time is over.
    pub(super) fn expire(&mut self, now: Millis) {
        if self.expires().is_some_and(|until| until <= now) {
            self.clear();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// How many of the first events are within `most`: one at least, if there is one.
fn fitting<'e>(events: impl IntoIterator<Item = &'e Event>, most: ReadMax) -> usize {
    let mut bytes = 0_usize;
    let fits = |event: &&Event| {
        let first = bytes == 0;
        bytes = bytes.saturating_add(event.body.len());
        first || bytes <= most.bytes
    };
    events.into_iter().take(most.events.max(1)).take_while(fits).count()
}

fn size(events: &[Event]) -> usize {
    events.iter().map(|event| event.body.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use promethean_event::{Draft, EventId, Limits, Sealer, Topic, payload_of};

    fn events(seqs: impl Iterator<Item = Seq>) -> Vec<Event> {
        let topic = Topic::parse("t").expect("valid");
        let payload = payload_of(&1).expect("valid");
        seqs.map(|seq| {
            let mut sealer = Sealer::new(Limits::default());
            let draft = Draft::new(topic.clone(), std::borrow::Cow::Borrowed(&*payload));
            sealer.seal(&draft, EventId::from_bytes([1; 16]), Millis(0), 16, 0).expect("valid");
            sealer.finish().remove(0).at(seq)
        })
        .collect()
    }

    fn seqs(events: Option<Vec<Event>>) -> Vec<Seq> {
        events.unwrap_or_default().iter().map(|event| event.seq).collect()
    }

    #[test]
    fn what_was_read_too_much_is_given_out_in_order_holes_included() {
        let (mut ahead, mut read) = (Ahead::default(), events([1, 2, 3, 5, 8, 9].into_iter()));
        ahead.keep(&mut read, ReadMax::events(2), Millis(0));
        assert_eq!(seqs(Some(read)), [1, 2]);
        assert_eq!(seqs(ahead.take(3, ReadMax::events(2), Millis(0))), [3, 5]);
        assert_eq!(seqs(ahead.take(6, ReadMax::events(9), Millis(0))), [8, 9]);
        assert_eq!((ahead.take(10, ReadMax::events(9), Millis(0)), ahead.expires()), (None, None));
    }

    #[test]
    fn what_is_not_wanted_soon_is_let_go() {
        let (mut ahead, mut read) = (Ahead::default(), events(1..=9));
        ahead.keep(&mut read, ReadMax::events(3), Millis(0));
        ahead.expire(Millis(999));
        assert_eq!(seqs(ahead.take(4, ReadMax::events(1), Millis(999))), [4]);
        assert_eq!(ahead.expires(), Some(Millis(0) + KEPT), "taking some does not make the rest younger");
        assert_eq!(ahead.take(5, ReadMax::events(1), Millis(1_000)), None);

        ahead.keep(&mut events(1..=9), ReadMax::events(3), Millis(0));
        ahead.expire(Millis(1_000));
        assert_eq!(ahead.expires(), None);
    }

    #[test]
    fn the_more_all_groups_hold_the_less_is_read_and_what_is_let_go_counts_no_more() {
        let room = Arc::new(Room::default());
        assert_eq!(room.read(ReadMax::events(5)), READ);
        assert_eq!(room.read(ReadMax::events(9_000)).events, 9_000);
        let mut holders: Vec<Ahead> = Vec::new();
        let (mut read, one) = (events(1..=9), size(&events(1..=1)));
        for number in 0..3 {
            let mut ahead = Ahead::new(Arc::clone(&room));
            ahead.keep(&mut read.clone(), ReadMax::events(3), Millis(0));
            holders.push(ahead);
            assert_eq!(room.0.load(Ordering::Relaxed), (number + 1) * 6 * one);
        }
        assert_eq!(seqs(holders[0].take(4, ReadMax::events(2), Millis(0))), [4, 5]);
        assert_eq!(room.0.load(Ordering::Relaxed), 16 * one);
        holders[0].keep(&mut read, ReadMax::events(3), Millis(0));
        assert_eq!(room.0.load(Ordering::Relaxed), 18 * one, "what it held before is gone");
        holders[1].expire(Millis(0) + KEPT);
        assert_eq!(room.0.load(Ordering::Relaxed), 12 * one);
        drop(holders);
        assert_eq!(room.0.load(Ordering::Relaxed), 0);
        let sizes = [0, MOST - SHARE * 100_000, MOST, 2 * MOST].map(|held| {
            room.0.store(held, Ordering::Relaxed);
            room.read(ReadMax::events(1)).bytes
        });
        assert_eq!(sizes, [READ.bytes, 100_000, LEAST, LEAST]);
    }

    #[test]
    fn another_place_gets_nothing() {
        let (mut ahead, mut read) = (Ahead::default(), events(1..=9));
        ahead.keep(&mut read, ReadMax::events(3), Millis(0));
        assert_eq!(ahead.take(1, ReadMax::events(5), Millis(0)), None, "a seek went elsewhere");
        assert_eq!(ahead.take(4, ReadMax::events(5), Millis(0)), None);
    }
}
