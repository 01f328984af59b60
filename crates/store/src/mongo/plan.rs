//! What a batch of appends becomes: pure, so that every case of duplicates is a test without a server.
//!
//! Invariants: the seqs of a topic follow each other in the order of the batch; a unit is planned whole or not at all.

use std::collections::HashMap;

use promethean_event::{EventId, IdOrigin, Millis, Seq, Topic};

use crate::{Appended, Outcome};

/// What the plan has to know of an event.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) id: EventId,
    pub(super) origin: IdOrigin,
    pub(super) topic: Topic,
    pub(super) unit: u32,
    pub(super) ts: Millis,
    /// Bytes in the wire form.
    pub(super) bytes: u64,
}

/// Where an id is already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) topic: Topic,
    pub(super) seq: Seq,
}

/// What a topic's counter becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) topic: Topic,
    /// The last seq before.
    pub(super) from: Seq,
    /// The last seq then.
    pub(super) to: Seq,
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) last: (EventId, Millis),
}

/// A batch with its seqs.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    /// An answer for each event of each call.
    pub(super) outcomes: Vec<Vec<Outcome>>,
    /// Call, index in the call, seq.
    pub(super) inserts: Vec<(usize, usize, Seq)>,
    pub(super) growth: Vec<Growth>,
}

impl Plan {
    /// Plans the calls, in order, on topics that end at `ends` (0 where not named).
    pub(super) fn new(calls: &[Vec<Item>], taken: &HashMap<EventId, Taken>, ends: impl Fn(&Topic) -> Seq) -> Self {
        let mut planning = Planning { taken, within: HashMap::new(), ends, growth: Vec::new(), inserts: Vec::new() };
        let outcomes = (0..).zip(calls).map(|(number, call)| planning.call(number, call)).collect();
        Self { outcomes, inserts: planning.inserts, growth: planning.growth }
    }
}

struct Planning<'a, F> {
    taken: &'a HashMap<EventId, Taken>,
    /// Ids of this batch. Only clients' ids can come twice.
    within: HashMap<EventId, Taken>,
    ends: F,
    growth: Vec<Growth>,
    inserts: Vec<(usize, usize, Seq)>,
}

impl<F: Fn(&Topic) -> Seq> Planning<'_, F> {
    fn call(&mut self, number: usize, call: &[Item]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(call.len());
        let mut start = 0;
        for unit in call.chunk_by(|one, next| one.unit == next.unit) {
            if let Some((id, topic)) = self.elsewhere(unit) {
                outcomes.extend(unit.iter().map(|_| Outcome::DuplicateId { id, topic: topic.clone() }));
            } else {
                outcomes.extend((start..).zip(unit).map(|(index, item)| self.place(number, index, item)));
            }
            start += unit.len();
        }
        outcomes
    }

    fn find(&self, id: EventId) -> Option<&Taken> {
        self.taken.get(&id).or_else(|| self.within.get(&id))
    }

    /// The id that keeps a unit out: it is on another topic, before the unit or within it.
    fn elsewhere(&self, unit: &[Item]) -> Option<(EventId, Topic)> {
        let clients = unit.iter().enumerate().filter(|(_, item)| item.origin == IdOrigin::Client);
        clients.into_iter().find_map(|(index, item)| {
            let before = self.find(item.id).map(|taken| &taken.topic);
            let within = || unit[..index].iter().find(|other| other.id == item.id).map(|other| &other.topic);
            let topic = before.or_else(within)?;
            (*topic != item.topic).then(|| (item.id, topic.clone()))
        })
    }

    fn place(&mut self, call: usize, index: usize, item: &Item) -> Outcome {
        let id = item.id;
        // Also a hub's own id: a migration that goes on after a crash brings the ids it brought before.
        if let Some(taken) = self.find(id) {
            return Outcome::Stored(Appended { id, seq: taken.seq, duplicate: true });
        }
        let at = self.growth.iter().position(|growth| growth.topic == item.topic).unwrap_or_else(|| {
            let (topic, from) = (item.topic.clone(), (self.ends)(&item.topic));
            self.growth.push(Growth { topic, from, to: from, events: 0, bytes: 0, last: (id, item.ts) });
            self.growth.len() - 1
        });
        let growth = &mut self.growth[at];
        growth.to += 1;
        growth.events += 1;
        growth.bytes += item.bytes;
        growth.last = (id, item.ts);
        let seq = growth.to;
        self.inserts.push((call, index, seq));
        if item.origin == IdOrigin::Client {
            self.within.insert(id, Taken { topic: item.topic.clone(), seq });
        }
        Outcome::Stored(Appended { id, seq, duplicate: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(topic: &str, id: u8, unit: u32) -> Item {
        let topic = Topic::parse(topic).expect("a topic");
        let id = EventId::from_bytes([id; 16]);
        Item { id, origin: IdOrigin::Client, topic, unit, ts: Millis(u64::from(unit)), bytes: 10 }
    }

    fn taken(topic: &str, id: u8, seq: Seq) -> HashMap<EventId, Taken> {
        let topic = Topic::parse(topic).expect("a topic");
        HashMap::from([(EventId::from_bytes([id; 16]), Taken { topic, seq })])
    }

    fn seqs(outcomes: &[Outcome]) -> Vec<(Seq, bool)> {
        let place = |outcome: &Outcome| match outcome {
            Outcome::Stored(stored) => (stored.seq, stored.duplicate),
            Outcome::DuplicateId { .. } => (0, true),
            Outcome::Failed(error) => panic!("{error}"),
        };
        outcomes.iter().map(place).collect()
    }

    #[test]
    fn calls_of_many_are_numbered_in_their_order() {
        let calls = [vec![item("a", 1, 0), item("a", 2, 0)], vec![item("a", 3, 0)]];
        let plan = Plan::new(&calls, &HashMap::new(), |_| 7);
        assert_eq!(plan.inserts, [(0, 0, 8), (0, 1, 9), (1, 0, 10)]);
        let growth = &plan.growth[0];
        assert_eq!((growth.from, growth.to, growth.bytes, growth.last.0), (7, 10, 30, EventId::from_bytes([3; 16])));
        assert_eq!(plan.growth.len(), 1);
    }

    #[test]
    fn a_duplicate_takes_no_seq_whoever_brought_it_first() {
        let calls = [vec![item("a", 1, 0), item("a", 2, 0)], vec![item("a", 2, 0), item("a", 3, 0), item("a", 3, 0)]];
        let plan = Plan::new(&calls, &taken("a", 1, 4), |_| 9);
        assert_eq!(seqs(&plan.outcomes[0]), [(4, true), (10, false)]);
        assert_eq!(seqs(&plan.outcomes[1]), [(10, true), (11, false), (11, true)]);
        assert_eq!(plan.growth[0].events, 2);
    }

    #[test]
    fn an_id_of_another_topic_keeps_its_unit_out_and_no_other() {
        let calls = [vec![item("b", 2, 1), item("b", 3, 2), item("b", 1, 2), item("b", 4, 3)]];
        let plan = Plan::new(&calls, &taken("a", 1, 4), |_| 0);
        assert_eq!(seqs(&plan.outcomes[0]), [(1, false), (0, true), (0, true), (2, false)]);
        assert_eq!(plan.inserts, [(0, 0, 1), (0, 3, 2)]);
    }

    #[test]
    fn a_refused_unit_leaves_its_ids_free() {
        let calls = [vec![item("a", 1, 1), item("b", 1, 1), item("b", 1, 2)]];
        let plan = Plan::new(&calls, &HashMap::new(), |_| 0);
        assert_eq!(seqs(&plan.outcomes[0]), [(0, true), (0, true), (1, false)]);
        let nothing = Plan::new(&[], &HashMap::new(), |_| 0);
        assert!(nothing.growth.is_empty() && nothing.inserts.is_empty());
    }

    #[test]
    fn topics_of_one_unit_count_for_themselves() {
        let calls = [vec![item("a", 1, 0), item("b", 2, 0), item("a", 3, 0)]];
        let plan = Plan::new(&calls, &HashMap::new(), |topic| if topic.as_str() == "a" { 5 } else { 0 });
        assert_eq!(seqs(&plan.outcomes[0]), [(6, false), (1, false), (7, false)]);
        assert_eq!(plan.growth.iter().map(|growth| growth.to).collect::<Vec<_>>(), [7, 1]);
    }
}
