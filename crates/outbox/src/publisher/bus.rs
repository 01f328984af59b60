//! Into a bus of the same process: one append for a whole batch, and so all or nothing but for what is refused.

use promethean_bus::Bus;
use promethean_event::Draft;

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
            let mut burst = self.bus.burst();
            let refused: Vec<Option<Answer>> =
                drafts.iter().map(|draft| burst.add(draft).err().map(Answer::from)).collect();
            let mut placed = self.bus.commit(burst).await.into_iter();
            let answer = |refused: Option<Answer>| {
                refused.unwrap_or_else(|| match placed.next() {
                    Some(Ok(_)) => Answer::Stored,
                    Some(Err(error)) => Answer::refusal(Some(error.code), error.message, None),
                    None => Answer::Failed("the bus gave no answer".to_owned()),
                })
            };
            refused.into_iter().map(answer).collect()
        })
    }
}
