//! The contract of the event log.
//!
//! ```text
//!   topic a   1   2   3   4   5   6 ─► append gives 7
//!             ▲           ▲       ▲
//!           first       read(4)  tail      trim(3) takes 1, 2 away; compaction may leave holes; seqs are never reused
//! ```

use promethean_event::{Event, EventId, Millis, NewEvent, Seq, Topic};
use tokio::sync::watch;

use crate::{Done, Error, EventSettings, Pending, Ranges, Result, TopicSettings};

/// What became of one event of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the log, or was already.
    Stored(Appended),
    /// The id is taken by an event of another topic: nothing of this event's unit was stored.
    DuplicateId {
        /// The id at fault.
        id: EventId,
        /// The topic that has it.
        topic: Topic,
    },
    /// What the error says holds for this event's unit, and for no other.
    Failed(Error),
}

/// An event's place after an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The id.
    pub id: EventId,
    /// The place in its topic.
    pub seq: Seq,
    /// The same id was on the topic before; `seq` is the first one's.
    pub duplicate: bool,
}

/// Where a topic ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tail {
    /// The last event's `seq`; 0 when there was never one.
    pub seq: Seq,
    /// Number of times that the topic was deleted.
    pub deletions: u64,
}

/// How much to read at once, at most; at least one event is returned where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadMax {
    /// Events.
    pub events: usize,
    /// Bytes of their bodies.
    pub bytes: usize,
}

impl ReadMax {
    /// At most `events`, and 4 MiB.
    pub const fn events(events: usize) -> Self {
        Self { events, bytes: 4 * 1024 * 1024 }
    }
}

/// A place to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Before the first event there is.
    Earliest,
    /// After the last.
    Latest,
    /// Before the first event, in `seq` order, whose `ts` is ≥ this.
    Ts(Millis),
    /// After the event with this id, which has to be on the topic.
    AfterId(EventId),
}

/// A place found: everything up to and including `done` lies before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// The last `seq` before the place; 0 at the very beginning.
    pub done: Seq,
    /// The event at `done`, where there is one.
    pub last: Option<(EventId, Millis)>,
}

/// Where an id is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The topic.
    pub topic: Topic,
    /// The place in it.
    pub seq: Seq,
    /// The event's time.
    pub ts: Millis,
}

/// What is known of a topic without looking at its events.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicInfo {
    /// The name.
    pub topic: Topic,
    /// Events in the log now.
    pub events: u64,
    /// Their bytes in the wire form, about.
    pub bytes: u64,
    /// The first event's `seq`; `last_seq + 1` when there is none.
    pub first_seq: Seq,
    /// The last `seq` given out; 0 when there was never an event.
    pub last_seq: Seq,
    /// The last event's id and time.
    pub last: Option<(EventId, Millis)>,
}

impl TopicInfo {
    /// How many events after `floor` are there and not in `done`; no scan. What retention took from the front does not
    /// count. Where compaction took some from the middle it may be too many, but never more than are in the log.
    pub fn left(&self, floor: Seq, done: &Done) -> u64 {
        let from = self.first_seq.max(floor + 1);
        let seqs = (self.last_seq + 1).saturating_sub(from).saturating_sub(done.count_from(from));
        seqs.min(self.events)
    }
}

/// A part of something long.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// True if there may be more after the last one.
    pub more: bool,
}

/// The latest event of every live key as of one point, read piece by piece.
pub trait KeySnapshot: Send {
    /// The point: the topic's last `seq` when the snapshot was opened.
    fn cut(&self) -> Seq;

    /// Leaves out the keys up to `key`, also of a later snapshot of the topic. Called before the first `next`.
    fn begin_after(&mut self, key: &str);

    /// Counts the keys that are still to come; an engine may count deleted keys too.
    fn left(&mut self) -> Pending<'_, u64>;

    /// The next events, at most `max`, in the order of their keys; none at the end.
    ///
    /// An event that was trimmed or compacted away since is left out: a later one with its key has `seq > cut`.
    fn next(&mut self, max: usize) -> Pending<'_, Vec<Event>>;
}

/// Keeps compaction from taking what a reader still has to read; see [`EventLog::pin`]. Dropping it lets go.
pub trait Pin: Send + Sync {
    /// True if it still holds. A reader asks after each piece that it has read.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) once it was held for too long: what was read since may lack keys.
    fn check(&self) -> Result<()>;
}

/// A log of topics.
///
/// Reads never see an event before its append has returned durable, and see it from then on.
pub trait EventLog: Send + Sync + 'static {
    /// Appends events of any topics, in order, and answers for each in the same order.
    ///
    /// **Returned ⇒ durable** as the engine was opened: with `sync = always` on disk, with MongoDB majority and
    /// journal. Seqs of a topic are gapless in append order, and the order of the answer is the order of the log.
    ///
    /// Idempotent by id: an id that is on the topic already is answered with the first one's place
    /// (`duplicate: true`) and not stored again; also twice within the batch. An id on another topic refuses its
    /// whole unit (consecutive events with one `unit` number); other units are stored.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused): nothing was stored. [`Error::Unknown`](crate::Error::Unknown): may
    /// or may not have been. Never a partial unit. An error holds for the whole call; an engine that stores the topics of
    /// a call apart answers with [`Outcome::Failed`] where one fares worse than another.
    fn append(&self, events: Vec<NewEvent>) -> Pending<'_, Vec<Outcome>>;

    /// Events with `seq ≥ from`, ascending, from the first that is still there.
    fn read<'a>(&'a self, topic: &'a Topic, from: Seq, max: ReadMax) -> Pending<'a, Vec<Event>>;

    /// Finds a place; `None` when the id is not on the topic.
    fn seek<'a>(&'a self, topic: &'a Topic, to: Seek) -> Pending<'a, Option<Start>>;

    /// Where these ids are, in the same order.
    fn locate<'a>(&'a self, ids: &'a [EventId]) -> Pending<'a, Vec<Option<Place>>>;

    /// The latest event of each key, tombstones included, in the same order. Never scans.
    fn latest_by_key<'a>(&'a self, topic: &'a Topic, keys: &'a [String]) -> Pending<'a, Vec<Option<Event>>>;

    /// The latest events of live keys after the key `after`, in the order of the keys' bytes.
    fn keys<'a>(&'a self, topic: &'a Topic, after: Option<&'a str>, limit: usize) -> Pending<'a, Page<Event>>;

    /// A consistent view of all live keys: none missing, none of a later time.
    fn key_snapshot<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Box<dyn KeySnapshot>>;

    /// Pins these topics for a reader that goes through their events.
    ///
    /// As long as it holds, compaction keeps for each key the latest event up to where the topic ended when this was
    /// called, and tombstones up to there. Retention and trims go on. It holds for some hours at most.
    fn pin<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, Box<dyn Pin>>;

    /// Where the topic ends, now and whenever it grows.
    fn watch(&self, topic: &Topic) -> watch::Receiver<Tail>;

    /// A number that changes when a topic is created or deleted.
    fn watch_topics(&self) -> watch::Receiver<u64>;

    /// The names of all topics, sorted.
    fn topics(&self) -> Pending<'_, Vec<Topic>>;

    /// True if the topic was created, or has had an event since it was last deleted; from memory.
    fn exists(&self, topic: &Topic) -> bool;

    /// Creates a topic without events; does nothing where it exists. **Returned ⇒ durable.**
    fn create<'a>(&'a self, topic: &'a Topic) -> Pending<'a, ()>;

    /// Deletes these topics: events, settings and the states of groups. **Returned ⇒ durable**, all or nothing.
    ///
    /// The ids are free again. A topic that is created again continues above its last `seq`.
    fn delete<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, ()>;

    /// Removes the events at these seqs. **Returned ⇒ durable.** A crash may leave some of them.
    fn remove<'a>(&'a self, topic: &'a Topic, seqs: &'a Ranges<()>) -> Pending<'a, ()>;

    /// What is known of a topic; `None` when it does not exist.
    fn info<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Option<TopicInfo>>;

    /// Removes events with `seq < before`, at the latest by and by: a reader may still see some for a while.
    fn trim<'a>(&'a self, topic: &'a Topic, before: Seq) -> Pending<'a, ()>;

    /// The topic's settings, from memory.
    fn settings(&self, topic: &Topic) -> TopicSettings;

    /// The topics that were given settings, with or without events, from memory and in no order.
    fn all_settings(&self) -> Vec<(Topic, TopicSettings)>;

    /// What of them counts for every event. Asked for each that is another topic's than the one before it.
    fn event_settings(&self, topic: &Topic) -> EventSettings {
        self.settings(topic).of_events()
    }

    /// Changes a topic's settings. **Returned ⇒ durable.**
    fn set_settings<'a>(&'a self, topic: &'a Topic, settings: TopicSettings) -> Pending<'a, ()>;

    /// Applies retention and compaction now, as the background would at its time; for tests and operators.
    fn maintain(&self, now: Millis) -> Pending<'_, ()>;

    /// True if the store can take writes, or why not.
    fn ready(&self) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn what_is_left_is_there_and_not_done(
            first in 1_u64..20, last in 0_u64..40, floor in 0_u64..40, done in proptest::collection::btree_set(1_u64..40, 0..20),
            holes in proptest::collection::btree_set(1_u64..40, 0..20), compacted in any::<bool>(),
        ) {
            let (floor, done): (Seq, Done) = (floor.min(last), done.iter().filter(|seq| **seq <= last).map(|seq| (*seq, *seq, None)).collect());
            let gone = |seq: &Seq| compacted && holes.contains(seq);
            let there: BTreeSet<Seq> = (first..=last).filter(|seq| !gone(seq)).collect();
            let info = TopicInfo {
                topic: Topic::parse("t").expect("a topic"),
                events: there.len() as u64,
                bytes: 0,
                first_seq: there.first().copied().unwrap_or(last + 1),
                last_seq: last,
                last: None,
            };
            let exact = there.iter().filter(|seq| **seq > floor && !done.contains(**seq)).count() as u64;
            let left = info.left(floor, &done);
            if compacted {
                prop_assert!((exact..=info.events).contains(&left), "{left} of {exact}");
            } else {
                prop_assert_eq!(left, exact);
            }
        }
    }
}
