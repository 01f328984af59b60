//! The queue of deliveries for their subscribers. One inbox may serve many subscriptions: a connection has one.
//!
//! Bounded by its subscribers: each holds at most `max_in_flight` events, what is queued included, and what has
//! expired while it was queued is dropped before it can pile up.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use promethean_event::{Event, EventId, Millis};
use promethean_store::Fence;
use tokio::sync::Notify;

use crate::Error;
use crate::group::MemberId;
use crate::lane::{Lane, Subscriber};

/// A subscription's number, unique in the hub.
pub type SubscriptionId = MemberId;

/// An event given to a subscriber.
#[derive(Debug, Clone)]
pub struct Given {
    /// Whose it is.
    pub subscription: SubscriptionId,
    /// The event.
    pub event: Event,
    /// The how-manieth delivery.
    pub attempt: u32,
    /// Deliveries before it is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// The number of this delivery; 0: an ephemeral tail, nothing to answer.
    pub lease: u64,
    /// Until when it has to be answered; 0: never.
    pub deadline: Millis,
    /// It belongs to a snapshot start.
    pub snapshot: bool,
    /// With the last event of a tail's snapshot, where that is known: the event at which the snapshot was taken.
    pub cut: Option<EventId>,
    /// In a cluster, until when this hub may pass it on; none: always.
    pub fence: Option<Fence>,
}

impl Given {
    /// Whether it may be passed on at `now`: its lease runs, and the hub that gave it still owns the group.
    pub fn is_current(&self, now: Millis) -> bool {
        !self.is_over(now) && self.is_ours()
    }

    /// Whether its lease ran out before anybody saw it, and the hub that gave it still owns the group.
    pub(crate) fn has_expired(&self, now: Millis) -> bool {
        self.is_over(now) && self.is_ours()
    }

    fn is_over(&self, now: Millis) -> bool {
        self.deadline <= now && self.deadline != Millis(0)
    }

    fn is_ours(&self) -> bool {
        self.fence.as_ref().is_none_or(Fence::holds)
    }
}

/// Where deliveries wait. Clones share one queue.
#[derive(Clone, Default)]
pub struct Inbox {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<(Arc<Lane>, VecDeque<Given>)>,
    ended: Vec<(SubscriptionId, Error)>,
}

impl Queue {
    /// Takes out what `take` selects of the lanes that `of` selects.
    fn purge(
        &mut self,
        of: impl Fn(&Arc<Lane>) -> bool,
        take: impl Fn(&Given) -> bool,
        mut into: impl FnMut(&Arc<Lane>, VecDeque<Given>),
    ) {
        for (lane, batch) in &mut self.batches {
            if of(lane) {
                let (out, kept) = std::mem::take(batch).into_iter().partition::<VecDeque<_>, _>(&take);
                *batch = kept;
                lane.taken(out.len());
                into(lane, out);
            }
        }
        self.batches.retain(|(_, batch)| !batch.is_empty());
    }
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what is there, at most `events` and about `bytes`, in order; leaves out what expired before `now`.
    pub fn take(&self, events: usize, bytes: usize, now: Millis, into: &mut Vec<Given>) {
        let (mut events, mut bytes) = (events, bytes);
        let mut queue = self.shared.queue.lock();
        while let Some((lane, batch)) = queue.batches.front_mut() {
            let mut taken = 0;
            while events > 0
                && bytes > 0
                && let Some(given) = batch.pop_front()
            {
                taken += 1;
                if given.is_current(now) {
                    events -= 1;
                    bytes = bytes.saturating_sub(given.event.body.len());
                    into.push(given);
                } else if given.has_expired(now) {
                    lane.was_unseen([given]);
                }
            }
            lane.taken(taken);
            if !batch.is_empty() {
                return;
            }
            queue.batches.pop_front();
        }
    }

    /// Takes the subscriptions that the bus ended by itself, with the reason.
    pub fn take_ended(&self) -> Vec<(SubscriptionId, Error)> {
        std::mem::take(&mut self.shared.queue.lock().ended)
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        let queue = self.shared.queue.lock();
        queue.batches.is_empty() && queue.ended.is_empty()
    }

    /// Resolves when there may be something to take. Cancel-safe.
    pub async fn ready(&self) {
        loop {
            let notified = self.shared.wake.notified();
            if !self.is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// Adds deliveries of a lane.
    pub(crate) fn push(&self, lane: &Arc<Lane>, batch: VecDeque<Given>) {
        let mut queue = self.shared.queue.lock();
        if lane.subscriber.is_gone() {
            lane.taken(batch.len());
            lane.was_unseen(batch);
            return;
        }
        match queue.batches.back_mut() {
            Some((last, waiting)) if Arc::ptr_eq(last, lane) => waiting.extend(batch),
            _ => queue.batches.push_back((Arc::clone(lane), batch)),
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Ends a subscription: its connection is told why.
    pub(crate) fn end(&self, subscription: SubscriptionId, error: Error) {
        self.shared.queue.lock().ended.push((subscription, error));
        self.shared.wake.notify_one();
    }

    /// Takes out of a lane what `take` selects.
    pub(crate) fn purge(&self, lane: &Arc<Lane>, take: impl Fn(&Given) -> bool) -> VecDeque<Given> {
        let mut taken = VecDeque::new();
        let this = |one: &Arc<Lane>| Arc::ptr_eq(one, lane);
        self.shared.queue.lock().purge(this, take, |_, out| taken.extend(out));
        taken
    }

    /// Takes out everything that belongs to `subscriber`, unseen; nothing more is added for it.
    pub(crate) fn close(&self, subscriber: &Arc<Subscriber>) {
        let mut queue = self.shared.queue.lock();
        subscriber.set_gone();
        let its = |lane: &Arc<Lane>| Arc::ptr_eq(&lane.subscriber, subscriber);
        queue.purge(its, |_| true, |lane, out| lane.was_unseen(out));
    }
}
