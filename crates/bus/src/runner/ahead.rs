//! Events that were read beyond what could be given out at once.
//!
//! A consumer that is behind asks for as many events as it has credit for, which may be few; the store reads a piece of
//! a file whatever is asked. So a backlog is read in pieces of a good size and given out from here. Invariants: what is
//! held follows directly on what was given out; it is bounded by [`READ`]; it is let go soon after it was read, so that
//! what retention or compaction took away meanwhile is not given out much later.

use std::collections::VecDeque;
use std::time::Duration;

use promethean_event::{Event, Millis, Seq};
use promethean_store::ReadMax;

/// What is read at once while there is a backlog.
pub(super) const READ: ReadMax = ReadMax { events: 2_048, bytes: 512 * 1024 };
/// How long after they were read events may be given out from here.
const KEPT: Duration = Duration::from_secs(1);

/// What was read ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The place that the events follow on: only who asks for this one gets them.
    from: Seq,
    events: VecDeque<Event>,
    until: Millis,
}

impl Ahead {
    /// Up to `max` events from `from` on, where they are here.
    pub(super) fn take(&mut self, from: Seq, max: usize, now: Millis) -> Option<Vec<Event>> {
        if from != self.from || self.events.is_empty() || self.until <= now {
            self.clear();
            return None;
        }
        let count = max.max(1).min(self.events.len());
        let taken: Vec<Event> = self.events.drain(..count).collect();
        self.from = taken.last().map_or(from, |last| last.seq + 1);
        if self.events.is_empty() {
            self.clear();
        }
        Some(taken)
    }

    /// Keeps of `read` what is beyond `max` events.
    pub(super) fn keep(&mut self, read: &mut Vec<Event>, max: usize, now: Millis) {
        if read.len() > max {
            self.events = read.split_off(max).into();
            self.from = read.last().map_or(0, |last| last.seq + 1);
            self.until = now + KEPT;
        }
    }

    /// Lets everything go: the place was moved, or nobody wants it.
    pub(super) fn clear(&mut self) {
        self.events = VecDeque::new();
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
        ahead.keep(&mut read, 2, Millis(0));
        assert_eq!(seqs(Some(read)), [1, 2]);
        assert_eq!(seqs(ahead.take(3, 2, Millis(0))), [3, 5]);
        assert_eq!(seqs(ahead.take(6, 9, Millis(0))), [8, 9]);
        assert_eq!((ahead.take(10, 9, Millis(0)), ahead.expires()), (None, None));
    }

    #[test]
    fn what_is_not_wanted_soon_is_let_go() {
        let (mut ahead, mut read) = (Ahead::default(), events(1..=9));
        ahead.keep(&mut read, 3, Millis(0));
        ahead.expire(Millis(999));
        assert_eq!(seqs(ahead.take(4, 1, Millis(999))), [4]);
        assert_eq!(ahead.expires(), Some(Millis(0) + KEPT), "taking some does not make the rest younger");
        assert_eq!(ahead.take(5, 1, Millis(1_000)), None);

        ahead.keep(&mut events(1..=9), 3, Millis(0));
        ahead.expire(Millis(1_000));
        assert_eq!(ahead.expires(), None);
    }

    #[test]
    fn another_place_gets_nothing() {
        let (mut ahead, mut read) = (Ahead::default(), events(1..=9));
        ahead.keep(&mut read, 3, Millis(0));
        assert_eq!(ahead.take(1, 5, Millis(0)), None, "a seek went elsewhere");
        assert_eq!(ahead.take(4, 5, Millis(0)), None);
    }
}
