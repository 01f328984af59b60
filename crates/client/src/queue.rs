//! What waits for a subscription's reader, between the driver ([`Feed`]) and the reader.
//!
//! Invariants: the driver can take back what waits, also when the reader is gone; after the end nothing more comes in.
//! Leased events wait once each, under their newest lease, at most `most` of them whose lease is not over; the reader gets
//! none whose lease is. The driver extends the leases of those that wait, so that the reader finds them alive.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// The ids of those that have a lease.
    leased: HashSet<EventId>,
    /// Of the JSON that waits.
    bytes: usize,
    ended: bool,
    /// Why it has ended, until the reader was told.
    error: Option<Error>,
    /// Nobody reads any more.
    abandoned: bool,
    /// The reader starts a handler for each delivery.
    has_handlers: bool,
    /// The reader gets no more deliveries.
    halted: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes at which the hub is asked to pause a subscription. At half of them it is asked to resume.
pub(crate) const PAUSE_BYTES: usize = 8 * 1024 * 1024;

/// The leases of a queue that need something.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// Events whose lease is to be extended, by its length.
    pub(crate) extend: BTreeMap<Duration, Vec<EventId>>,
    /// Events that waited for too long and left the queue.
    pub(crate) release: Vec<EventId>,
    /// When to look again. `None` if no leased event waits.
    pub(crate) next: Option<Instant>,
}

impl State {
    fn push(&mut self, mut delivery: Delivery, most: usize) {
        let bytes = delivery.json.len();
        if delivery.context.lease == 0 {
            self.bytes += bytes;
            return self.waiting.push_back(delivery);
        }
        let id = delivery.event.id;
        if !self.leased.insert(id) {
            // Given out again while it waited: the lease before is over.
            if let Some(one) = self.waiting.iter_mut().find(|one| one.event.id == id) {
                delivery.arrived = one.arrived;
                self.bytes += bytes;
                self.bytes -= one.json.len();
                *one = delivery;
            }
            return;
        }
        if self.waiting.len() >= most {
            let now = Instant::now();
            self.remove(|one| one.is_over(now));
        }
        self.bytes += bytes;
        self.waiting.push_back(delivery);
    }

    /// Removes the leased events that `which` names.
    fn remove(&mut self, which: impl Fn(&Delivery) -> bool) {
        let Self { waiting, leased, bytes, .. } = self;
        waiting.retain(|one| {
            let gone = one.context.lease != 0 && which(one);
            if gone {
                leased.remove(&one.event.id);
                *bytes -= one.json.len();
            }
            !gone
        });
    }

    fn forget(&mut self, ids: &[EventId]) {
        for id in ids {
            if self.leased.contains(id) {
                self.remove(|one| one.event.id == *id);
            }
        }
    }

    fn pop(&mut self) -> Option<Delivery> {
        loop {
            let delivery = self.waiting.pop_front()?;
            self.bytes -= delivery.json.len();
            if delivery.context.lease == 0 {
                return Some(delivery);
            }
            self.leased.remove(&delivery.event.id);
            if !delivery.is_over(Instant::now()) {
                return Some(delivery);
            }
        }
    }

    fn upkeep(&mut self, now: Instant, longest: Duration) -> Upkeep {
        let mut upkeep = Upkeep::default();
        for one in self.waiting.iter().filter(|one| one.context.lease != 0) {
            let (lease, look) = (one.lease_time(), now + one.keep_in());
            if now.duration_since(one.arrived) >= longest {
                upkeep.release.push(one.event.id);
                continue;
            }
            if one.leased_until.duration_since(now) <= lease * 2 / 3 {
                upkeep.extend.entry(lease).or_default().push(one.event.id);
            }
            upkeep.next = Some(upkeep.next.map_or(look, |next| next.min(look)));
        }
        let released: HashSet<EventId> = upkeep.release.iter().copied().collect();
        if !released.is_empty() {
            self.remove(|one| released.contains(&one.event.id));
        }
        upkeep
    }
}

/// A queue's two ends. The hub leases at most `most` events at a time.
pub(crate) fn queue(most: usize) -> (Feed, Reader) {
    let queue = Arc::new(Queue::default());
    (Feed { queue: Arc::clone(&queue), most }, Reader(queue))
}

/// Waiting deliveries at which a reader has caught up.
const RESUME_AT: usize = 100;

/// The driver's end. Dropping it ends the queue.
#[derive(Debug)]
pub(crate) struct Feed {
    queue: Arc<Queue>,
    most: usize,
}

impl Feed {
    pub(crate) fn push(&self, delivery: Delivery) {
        self.queue.state().push(delivery, self.most);
        self.queue.more.notify_one();
    }

    /// Ends it: after what waits the reader is told why.
    pub(crate) fn fail(self, error: Error) {
        self.queue.state().error = Some(error);
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.state().waiting.len()
    }

    /// Of the JSON that waits.
    pub(crate) fn bytes(&self) -> usize {
        self.queue.state().bytes
    }

    /// Finds the leases to extend, and removes what has waited for `longest`.
    pub(crate) fn upkeep(&self, now: Instant, longest: Duration) -> Upkeep {
        self.queue.state().upkeep(now, longest)
    }

    /// The hub has set the leases of these to `until`.
    pub(crate) fn extended(&self, ids: &[EventId], until: Instant) {
        let ids: HashSet<EventId> = ids.iter().copied().collect();
        for one in self.queue.state().waiting.iter_mut().filter(|one| ids.contains(&one.event.id)) {
            one.leased_until = one.leased_until.max(until);
        }
    }

    pub(crate) fn has_handlers(&self) -> bool {
        self.queue.state().has_handlers
    }

    /// Ends the deliveries to the reader, and takes back what waits as [`Feed::take_back`] does.
    pub(crate) fn halt(&self) -> Vec<EventId> {
        self.queue.state().halted = true;
        self.queue.more.notify_one();
        self.take_back()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.queue.state().abandoned
    }

    /// These are done: where one was given out again meanwhile, that is, too.
    pub(crate) fn forget(&self, ids: &[EventId]) {
        self.queue.state().forget(ids);
    }

    /// Takes back what waits; the ids of those that are still leased to this subscriber.
    pub(crate) fn take_back(&self) -> Vec<EventId> {
        let waiting = {
            let mut state = self.queue.state();
            state.leased.clear();
            state.bytes = 0;
            std::mem::take(&mut state.waiting)
        };
        let now = Instant::now();
        waiting.into_iter().filter(|one| one.leased_until > now).map(|one| one.event.id).collect()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.queue.state().ended = true;
        self.queue.more.notify_one();
    }
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Reader(Arc<Queue>);

impl Reader {
    /// Makes the end of the client wait for the handlers of this reader.
    pub(crate) fn has_handlers(&self) {
        self.0.state().has_handlers = true;
    }

    /// The next delivery, and whether the reader has caught up with it; `None` after the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<(Delivery, bool)>, Error> {
        loop {
            {
                let mut state = self.0.state();
                if state.halted {
                    return Ok(None);
                }
                let before = state.bytes;
                if let Some(delivery) = state.pop() {
                    let light = before > PAUSE_BYTES / 2 && state.bytes <= PAUSE_BYTES / 2;
                    return Ok(Some((delivery, light || state.waiting.len() + 1 == RESUME_AT)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Mailbox;
    use crate::report::Reporter;
    use promethean_event::frame::DeliveryContext;

    /// Event number `n` under a lease of so many milliseconds.
    fn given(n: u64, lease: u64, ms: u64) -> Delivery {
        let id = format!("0199d1c0-7d3b-7cc2-8b1a-{n:012x}");
        let json = format!(r#"{{"id":"{id}","seq":{n},"ts":1,"topic":"a","payload":{n}}}"#);
        let (attempt, max_attempts, snapshot, cut, resume) = (1, 5, false, None, None);
        let context = DeliveryContext {
            attempt,
            max_attempts,
            ack_deadline_ms: ms,
            lease,
            snapshot,
            redriven: false,
            cut,
            resume,
        };
        Delivery {
            event: serde_json::from_str(&json).expect("an event"),
            json: json.into(),
            context,
            restarted: false,
            subscription: 1,
            arrived: Instant::now(),
            lease: lease.into(),
            leased_until: Instant::now() + Duration::from_millis(ms),
            mailbox: Mailbox::open(Reporter::default()).0,
        }
    }

    /// What the reader gets: number and lease.
    async fn all(feed: Feed, mut reader: Reader) -> Vec<(u64, u64)> {
        drop(feed);
        let mut seen = Vec::new();
        while let Some((delivery, _)) = reader.next().await.expect("no error") {
            seen.push((delivery.event.seq, delivery.context.lease));
        }
        seen
    }

    const LONG: u64 = 60_000;

    #[tokio::test]
    async fn what_is_given_out_again_while_it_waits_waits_once_under_its_newest_lease() {
        let (feed, reader) = queue(10);
        for (n, lease) in [(1, 1), (2, 2), (3, 3), (2, 4), (1, 5)] {
            feed.push(given(n, lease, LONG));
        }
        feed.forget(&[given(3, 0, 0).event.id]);
        assert_eq!(all(feed, reader).await, [(1, 5), (2, 4)]);
    }

    #[tokio::test]
    async fn a_delivery_whose_lease_ran_out_while_it_waited_is_not_handed_out() {
        let (feed, reader) = queue(10);
        for (n, lease, ms) in [(1, 1, 0), (2, 2, LONG), (3, 3, 0), (4, 0, 0), (4, 0, 0)] {
            feed.push(given(n, lease, ms));
        }
        assert_eq!(all(feed, reader).await, [(2, 2), (4, 0), (4, 0)], "those of a tail have no lease, and stay");
    }

    #[tokio::test]
    async fn what_nobody_reads_stays_within_its_bound() {
        let (feed, reader) = queue(10);
        for n in 1..=1_000 {
            feed.push(given(n, n, if n <= 992 { 0 } else { LONG }));
            assert!(feed.len() <= 10);
        }
        assert_eq!(all(feed, reader).await.len(), 8);
    }
}
