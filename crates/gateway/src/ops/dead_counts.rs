//! How many dead letters each group and each reason has, of those that were not sent back.
//!
//! The letters are read once, upwards from where all is sent back, and what was counted is kept: the next question reads
//! only what came since, or goes on where the last one stopped at its bound. A redrive or retention makes a count begin
//! anew. Memory is bounded: [`KEPT`] topics with [`KINDS`] groups and reasons each; what is over is counted together.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use promethean_bus::Envelope;
use promethean_event::{Event, Seq, Topic};
use promethean_store::GroupState;

use super::dead_letters::Dead;
use super::scan::{STEP, Scan};
use crate::Hub;
use crate::http::unreadable;
use crate::rejection::Rejection;

/// Letters and bytes of them that one question reads at most.
const LETTERS: u64 = 1_000_000;
const BYTES: usize = 1024 * 1024 * 1024;
/// Topics whose counts are kept.
const KEPT: usize = 64;
/// Groups, and reasons, of a topic that are told apart.
const KINDS: usize = 1_000;
/// The longest reason that is told apart: more than the hub writes.
const REASON: usize = 512;

/// The counts of some topics, each behind a lock of its own.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Vec<(Topic, Arc<tokio::sync::Mutex<Tally>>)>>);

impl Counts {
    /// The topic's count; of too many, the one that was asked for longest ago is forgotten.
    fn of(&self, letters: &Topic) -> Arc<tokio::sync::Mutex<Tally>> {
        let mut kept = self.0.lock();
        let known = kept.iter().position(|(topic, _)| topic == letters).map(|index| kept.remove(index));
        let (topic, tally) = known.unwrap_or_else(|| (letters.clone(), Arc::default()));
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((topic, Arc::clone(&tally)));
        tally
    }
}

/// Kinds and how many letters each has.
type Rows<K> = Vec<(K, u64)>;

/// What was counted of a topic's letters.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// What had been sent back, and where the topic began: the count is of that.
    state: GroupState,
    first: Seq,
    /// The first seq that was not looked at.
    next: Seq,
    /// Letters, those that are none included.
    pub(super) counted: u64,
    /// Of them, no dead letters: somebody else's events.
    pub(super) foreign: u64,
    groups: HashMap<String, u64>,
    other_groups: u64,
    reasons: HashMap<(String, String), u64>,
    other_reasons: u64,
}

impl Tally {
    fn see(&mut self, event: &Event) {
        self.counted += 1;
        match event.payload_as::<Envelope<'_>>() {
            Ok(letter) if letter.has_event() => {
                self.count(letter.group.unwrap_or_default(), letter.err.unwrap_or_default());
            }
            Ok(_) | Err(_) => self.foreign += 1,
        }
    }

    fn count(&mut self, group: Cow<'_, str>, err: Cow<'_, str>) {
        let room = self.groups.len() < KINDS && group.len() <= REASON;
        match self.groups.get_mut(&*group) {
            Some(count) => *count += 1,
            None if room => drop(self.groups.insert(group.clone().into_owned(), 1)),
            None => self.other_groups += 1,
        }
        if err.len() > REASON || group.len() > REASON {
            self.other_reasons += 1;
            return;
        }
        let (kind, room) = ((err.into_owned(), group.into_owned()), self.reasons.len() < KINDS);
        match self.reasons.get_mut(&kind) {
            Some(count) => *count += 1,
            None if room => drop(self.reasons.insert(kind, 1)),
            None => self.other_reasons += 1,
        }
    }

    /// The `most` largest groups, largest first, and how many letters the others have.
    pub(super) fn groups(&self, most: usize) -> (Rows<&str>, u64) {
        let rows = self.groups.iter().map(|(group, count)| (group.as_str(), *count));
        largest(rows.collect(), most, self.other_groups)
    }

    /// The `most` most frequent reasons with their groups, and how many letters have another one.
    pub(super) fn reasons(&self, most: usize) -> (Rows<(&str, &str)>, u64) {
        let rows = self.reasons.iter().map(|((err, group), count)| ((err.as_str(), group.as_str()), *count));
        largest(rows.collect(), most, self.other_reasons)
    }
}

fn largest<K: Ord>(mut rows: Rows<K>, most: usize, other: u64) -> (Rows<K>, u64) {
    rows.sort_by(|one, two| (two.1, &one.0).cmp(&(one.1, &two.0)));
    let rest: u64 = rows.drain(most.min(rows.len())..).map(|(_, count)| count).sum();
    (rows, rest + other)
}

/// Counts the letters that were not sent back.
pub(super) async fn counted(hub: &Hub, letters: &Topic, dead: &Dead) -> Result<Tally, Rejection> {
    let tally = hub.dead_counts.of(letters);
    let mut tally = tally.lock().await;
    count_on(hub, letters, dead, &mut tally, LETTERS).await?;
    Ok(tally.clone())
}

/// Goes on with a count, or begins it anew where it is of something else; reads at most about `most` letters.
async fn count_on(hub: &Hub, letters: &Topic, dead: &Dead, tally: &mut Tally, most: u64) -> Result<(), Rejection> {
    if tally.state != dead.state || tally.first != dead.info.first_seq {
        let (state, first) = (dead.state.clone(), dead.info.first_seq);
        *tally = Tally { next: first.max(state.floor + 1), state, first, ..Tally::default() };
    }
    if tally.next > dead.info.last_seq {
        return Ok(());
    }
    let mut turn = Scan::begin().await;
    let (mut read, mut bytes) = (0, 0);
    while tally.next <= dead.info.last_seq && read < most && bytes < BYTES {
        let chunk = hub.bus.store().read(letters, tally.next, STEP).await.map_err(unreadable)?;
        let Some(last) = chunk.last() else { break };
        for event in chunk.iter().filter(|event| !dead.is_redriven(event.seq)) {
            tally.see(event);
        }
        tally.next = last.seq + 1;
        read += chunk.len() as u64;
        bytes += chunk.iter().map(|event| event.body.len()).sum::<usize>();
        turn.rest(hub).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use promethean_bus::Bus;

    use super::*;
    use crate::EdgeConfig;
    use crate::auth::{AuthConfig, Authenticator};
    use crate::limits::Quotas;

    #[test]
    fn kinds_beyond_the_bound_are_counted_together_and_no_letter_is_lost() {
        let mut tally = Tally::default();
        for n in 0..3 * KINDS {
            tally.count(Cow::Owned(format!("g{n:04}")), Cow::Borrowed("boom"));
        }
        tally.count(Cow::Borrowed("g0007"), Cow::Borrowed("boom"));
        tally.count(Cow::Borrowed("g0007"), Cow::Owned("x".repeat(REASON + 1)));
        assert_eq!((tally.groups.len(), tally.reasons.len()), (KINDS, KINDS), "memory is bounded");
        let (groups, others) = tally.groups(2);
        assert_eq!((groups, others), (vec![("g0007", 3), ("g0000", 1)], 3 * KINDS as u64 + 2 - 4));
        let (reasons, others) = tally.reasons(1);
        assert_eq!((reasons, others), (vec![(("boom", "g0007"), 2)], 3 * KINDS as u64 + 2 - 2));
    }

    #[tokio::test]
    async fn a_count_that_stopped_at_its_bound_says_so_and_goes_on_with_the_next_question() {
        let auth = Authenticator::new(&AuthConfig::default()).expect("a configuration");
        let bus = Bus::new(Arc::new(promethean_store::memory::Memory::new()), Default::default());
        let hub = Hub::new(bus, auth, Quotas::default(), EdgeConfig::default());
        let topic = Topic::parse("dlq.t").expect("a topic");
        for n in 0..600 {
            let letter = serde_json::json!({ "group": "g", "err": "boom", "original": { "payload": n } });
            hub.bus.publish_value(&topic, &letter).await.expect("published");
        }
        let info = hub.bus.store().info(&topic).await.expect("readable").expect("there");
        let mut dead = Dead { info, state: GroupState::default() };
        let mut tally = Tally::default();
        for expected in [256, 512, 600, 600] {
            count_on(&hub, &topic, &dead, &mut tally, 1).await.expect("counted");
            assert_eq!((tally.counted, tally.groups(9)), (expected, (vec![("g", expected)], 0)));
        }
        dead.state.done.insert(11, 20, None);
        dead.state.floor = 10;
        count_on(&hub, &topic, &dead, &mut tally, 10_000).await.expect("counted");
        assert_eq!((tally.counted, tally.reasons(9)), (580, (vec![(("boom", "g"), 580)], 0)), "anew");
    }

    #[test]
    fn the_counts_of_some_topics_are_kept() {
        let (counts, topic) = (Counts::default(), |n: usize| Topic::parse(&format!("dlq.t{n}")).expect("a topic"));
        let first = counts.of(&topic(0));
        for n in 1..KEPT {
            counts.of(&topic(n));
        }
        assert!(Arc::ptr_eq(&first, &counts.of(&topic(0))));
        counts.of(&topic(KEPT));
        assert!(Arc::ptr_eq(&first, &counts.of(&topic(0))), "another one was asked for longer ago");
        assert_eq!(counts.0.lock().len(), KEPT);
    }
}
