//! What the compactor decides: which keys to look at, what to write for each, whose turn it is. No I/O, no clock.

use std::collections::HashMap;
use std::time::Duration;

use promethean_event::{Event, EventId, Millis, Seq, Topic};

/// What the snapshot topic has of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// The snapshot event.
    pub(super) id: EventId,
    /// The source event it was written for; none where the key went away without one.
    pub(super) of: Option<EventId>,
    /// True if it says that there is a state.
    pub(super) live: bool,
}

impl Kept {
    pub(super) fn of(event: &Event) -> Self {
        Self { id: event.id, of: event.fields().caused_by.first().copied(), live: !event.is_tombstone() }
    }
}

/// What to write for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// It is as it should be.
    Nothing,
    /// The state.
    State,
    /// That there is none any more.
    Tombstone,
}

/// What brings the snapshot topic from `kept` to the key's `latest` event.
///
/// It goes by the latest event there is, never by an earlier one: the snapshot of a key does not go back.
pub(super) fn decide(latest: Option<&Event>, kept: Option<Kept>) -> Write {
    let was_live = kept.is_some_and(|kept| kept.live);
    match latest {
        Some(event) if !event.is_tombstone() => match kept {
            Some(kept) if kept.live && kept.of == Some(event.id) => Write::Nothing,
            _ => Write::State,
        },
        _ if was_live => Write::Tombstone,
        _ => Write::Nothing,
    }
}

/// How much of a topic a run looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing happened.
    Nothing,
    /// The keys of the events after `after`.
    Changes {
        /// The cursor.
        after: Seq,
    },
    /// Every key of both topics.
    Everything,
}

/// What is known when a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Situation {
    /// Up to where earlier runs looked; none: there was no run, or for another snapshot topic or key set.
    pub(super) cursor: Option<Seq>,
    /// The topic's first and last seq.
    pub(super) first: Seq,
    pub(super) last: Seq,
    /// The first seq at the last run of this process; none: there was none.
    pub(super) first_then: Option<Seq>,
    /// True if events go away by age, bytes or count.
    pub(super) retention: bool,
    /// How long ago the last run of this process was.
    pub(super) since: Option<Duration>,
    /// How long tombstones stay; none: no compaction.
    pub(super) grace: Option<Duration>,
}

impl Situation {
    /// The changes, unless something may have gone without leaving an event after the cursor: then everything.
    pub(super) fn plan(&self) -> Plan {
        let Some(after) = self.cursor else { return Plan::Everything };
        // Retention took events away: with them keys may have gone that nothing after the cursor tells of. Without
        // compaction nothing else does that, so also where it was turned off since.
        if (self.retention || self.grace.is_none()) && self.first_then != Some(self.first) {
            return Plan::Everything;
        }
        if self.last <= after {
            return Plan::Nothing;
        }
        // Tombstones stay for their grace. Who looks more often than that sees each of them.
        let seen_all = match (self.grace, self.since) {
            (None, _) => true,
            (Some(grace), Some(since)) => since < grace / 2,
            (Some(_), None) => false,
        };
        if self.first > after + 1 || !seen_all {
            return Plan::Everything;
        }
        Plan::Changes { after }
    }
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    due: HashMap<Topic, Millis>,
}

/// How long the loop waits at most before it looks which topics are configured.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Schedule {
    /// Which of the configured topics are due, and how long to wait until the next one is. A topic that is new is due
    /// at once; one that is no longer configured is forgotten.
    pub(super) fn turn(&mut self, now: Millis, configured: &[(Topic, Duration)]) -> (Vec<Topic>, Duration) {
        let before = std::mem::take(&mut self.due);
        let (mut turn, mut wait) = (Vec::new(), LOOK_EVERY);
        for (topic, interval) in configured {
            let mut at = before.get(topic).copied().unwrap_or(now);
            if at <= now {
                turn.push(topic.clone());
                at = now + *interval;
            }
            // A shorter interval than before counts at once.
            at = at.min(now + *interval);
            wait = wait.min(at.since(now));
            self.due.insert(topic.clone(), at);
        }
        (turn, wait)
    }
}

/// A step of walking two sorted lists of keys together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The key is on the source only.
    Source,
    /// The key is on the snapshot only.
    Snapshot,
    /// Both have it.
    Both,
}

/// Which of the next keys comes first; `None` at the end of both.
pub(super) fn side(source: Option<&str>, snapshot: Option<&str>) -> Option<Side> {
    use std::cmp::Ordering;
    match (source, snapshot) {
        (None, None) => None,
        (Some(_), None) => Some(Side::Source),
        (None, Some(_)) => Some(Side::Snapshot),
        (Some(one), Some(two)) => Some(match one.as_bytes().cmp(two.as_bytes()) {
            Ordering::Less => Side::Source,
            Ordering::Greater => Side::Snapshot,
            Ordering::Equal => Side::Both,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn running() -> Situation {
        Situation {
            cursor: Some(10),
            first: 1,
            last: 20,
            first_then: Some(1),
            retention: false,
            since: Some(30 * SECOND),
            grace: Some(3600 * SECOND),
        }
    }

    #[test]
    fn a_run_looks_at_what_came_after_the_cursor() {
        assert_eq!(running().plan(), Plan::Changes { after: 10 });
        assert_eq!(Situation { last: 10, ..running() }.plan(), Plan::Nothing);
        assert_eq!(Situation { grace: None, since: None, ..running() }.plan(), Plan::Changes { after: 10 });
        assert_eq!(Situation { first: 11, ..running() }.plan(), Plan::Changes { after: 10 });
    }

    #[test]
    fn where_something_may_have_gone_unseen_it_looks_at_everything() {
        let everything = [
            ("the first run, or the first for this snapshot topic", Situation { cursor: None, ..running() }),
            ("events after the cursor are gone", Situation { first: 12, ..running() }),
            ("tombstones may have come and gone", Situation { since: Some(1800 * SECOND), ..running() }),
            ("a restart with news", Situation { since: None, first_then: None, ..running() }),
            ("retention moved the start", Situation { retention: true, first: 2, ..running() }),
            ("retention moved the start, and was turned off", Situation { grace: None, first: 2, ..running() }),
            ("retention, and a restart", Situation { retention: true, first_then: None, last: 10, ..running() }),
        ];
        for (why, situation) in everything {
            assert_eq!(situation.plan(), Plan::Everything, "{why}");
        }
        let restart = Situation { since: None, first_then: None, last: 10, ..running() };
        assert_eq!(restart.plan(), Plan::Nothing, "a restart without news");
        assert_eq!(Situation { retention: true, ..running() }.plan(), Plan::Changes { after: 10 });
    }

    #[test]
    fn topics_take_turns_by_their_intervals() {
        let topic = |name: &str| Topic::parse(name).expect("a topic");
        let (a, b) = ((topic("a"), SECOND), (topic("b"), 3 * SECOND));
        let both = [a.clone(), b.clone()];
        let mut schedule = Schedule::default();
        assert_eq!(schedule.turn(Millis(10_000), &both), (vec![topic("a"), topic("b")], SECOND));
        assert_eq!(schedule.turn(Millis(10_400), &both), (vec![], 600 * SECOND / 1000));
        assert_eq!(schedule.turn(Millis(11_000), &both), (vec![topic("a")], SECOND));
        assert_eq!(schedule.turn(Millis(13_000), &both), (vec![topic("a"), topic("b")], SECOND));
        assert_eq!(schedule.turn(Millis(13_100), &[]), (vec![], LOOK_EVERY));
        assert_eq!(schedule.turn(Millis(13_200), std::slice::from_ref(&b)), (vec![topic("b")], 3 * SECOND));
        let hurried = [(topic("b"), SECOND)];
        assert_eq!(schedule.turn(Millis(13_300), &hurried), (vec![], SECOND), "a shorter interval counts at once");
    }

    #[test]
    fn two_sorted_lists_are_walked_together() {
        assert_eq!(side(None, None), None);
        assert_eq!(side(Some("a"), None), Some(Side::Source));
        assert_eq!(side(Some("a"), Some("b")), Some(Side::Source));
        assert_eq!(side(Some("b"), Some("a")), Some(Side::Snapshot));
        assert_eq!(side(Some("z"), Some("é")), Some(Side::Source), "by bytes");
        assert_eq!(side(Some("a"), Some("a")), Some(Side::Both));
    }
}
