//! Into a bus of the same process: one append for a whole batch, or for each wave of it ([`crate::plan::waves`]) where a
//! key stands in several topics. A store may take the topics of an append one by one, and lose one of them.

use std::collections::HashSet;

use promethean_bus::Bus;
use promethean_event::Draft;

use super::draft_key;
use crate::plan::waves;
use crate::{Answer, Answers, Publisher};

/// Publishes into a bus of the same process.
#[derive(Clone)]
pub struct BusPublisher {
    bus: Bus,
}

impl std::fmt::Debug for BusPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BusPublisher").finish_non_exhaustive()
    }
}

impl BusPublisher {
    /// Into `bus`.
    pub fn new(bus: Bus) -> Self {
        Self { bus }
    }
}

impl Publisher for BusPublisher {
    fn publish<'a>(&'a self, drafts: &'a [Draft<'a>]) -> Answers<'a> {
        Box::pin(async move {
            let mut answers = vec![Answer::Held; drafts.len()];
            let mut held: HashSet<&str> = HashSet::new();
            for wave in waves(drafts) {
                let mut burst = self.bus.burst();
                let mut added = Vec::new();
                for row in wave.into_iter().flat_map(|(_, rows)| rows) {
                    if !draft_key(&drafts[row]).is_some_and(|key| held.contains(key)) {
                        match burst.add(&drafts[row]) {
                            Ok(()) => added.push(row),
                            Err(invalid) => answers[row] = invalid.into(),
                        }
                    }
                }
                let mut placed = self.bus.commit(burst).await.into_iter();
                for row in added {
                    answers[row] = match placed.next() {
                        Some(Ok(_)) => Answer::Stored,
                        Some(Err(error)) => Answer::refusal(Some(error.code), error.message, None),
                        None => Answer::Failed("the bus gave no answer".to_owned()),
                    };
                    if answers[row].holds_its_key() {
                        held.extend(draft_key(&drafts[row]));
                    }
                }
            }
            answers
        })
    }
}
