//! What waits for a subscription's reader, between the driver ([`Feed`]) and the reader.
//!
//! Invariants: the driver can take back what waits, also when the reader is gone; after the end nothing more comes in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use promethean_event::EventId;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{Delivery, Error};

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Delivery>,
    ended: bool,
    /// Why it has ended, until the reader was told.
    error: Option<Error>,
    /// Nobody reads any more.
    abandoned: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue's two ends.
pub(crate) fn queue() -> (Feed, Reader) {
    let queue = Arc::new(Queue::default());
    (Feed(Arc::clone(&queue)), Reader(queue))
}

/// The driver's end. Dropping it ends the queue.
#[derive(Debug)]
pub(crate) struct Feed(Arc<Queue>);

impl Feed {
    pub(crate) fn push(&self, delivery: Delivery) {
        self.0.state().waiting.push_back(delivery);
        self.0.more.notify_one();
    }

    /// Ends it: after what waits the reader is told why.
    pub(crate) fn fail(self, error: Error) {
        self.0.state().error = Some(error);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.state().waiting.len()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.state().abandoned
    }

    /// Takes back what waits; the ids of those that are still leased to this subscriber.
    pub(crate) fn take_back(&self) -> Vec<EventId> {
        let waiting = std::mem::take(&mut self.0.state().waiting);
        let now = Instant::now();
        waiting.into_iter().filter(|one| one.leased_until > now).map(|one| one.event.id).collect()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.more.notify_one();
    }
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Reader(Arc<Queue>);

impl Reader {
    /// The next delivery and how many wait behind it; `None` after the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<(Delivery, usize)>, Error> {
        loop {
            {
                let mut state = self.0.state();
                if let Some(delivery) = state.waiting.pop_front() {
                    return Ok(Some((delivery, state.waiting.len())));
                }
                if state.ended {
                    return state.error.take().map_or(Ok(None), Err);
                }
            }
            self.0.more.notified().await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.state().abandoned = true;
    }
}
