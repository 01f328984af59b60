//! Where deliveries wait for their subscriber. One inbox may serve many subscriptions: a connection has one.
//!
//! Bounded by its subscribers: each holds at most `max_in_flight` events, what is queued included, and what has
//! expired while it was queued is dropped before it can pile up.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{Event, EventId, Millis, Topic};
use promethean_store::Fence;
use tokio::sync::Notify;

use crate::Error;
use crate::group::MemberId;

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
    fn has_expired(&self, now: Millis) -> bool {
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
    batches: VecDeque<(Arc<Subscriber>, VecDeque<Given>)>,
    ended: Vec<(SubscriptionId, Error)>,
}

impl Queue {
    /// Takes out of what belongs to `subscriber` what `take` says.
    fn purge(&mut self, subscriber: &Arc<Subscriber>, take: impl Fn(&Given) -> bool) -> VecDeque<Given> {
        let mut taken = VecDeque::new();
        for (owner, batch) in &mut self.batches {
            if Arc::ptr_eq(owner, subscriber) {
                let (out, kept) = std::mem::take(batch).into_iter().partition::<VecDeque<_>, _>(&take);
                *batch = kept;
                taken.extend(out);
            }
        }
        self.batches.retain(|(_, batch)| !batch.is_empty());
        subscriber.taken(taken.len());
        taken
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
        while let Some((subscriber, batch)) = queue.batches.front_mut() {
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
                    subscriber.was_unseen([given]);
                }
            }
            subscriber.taken(taken);
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

    fn push(&self, subscriber: &Arc<Subscriber>, batch: VecDeque<Given>) {
        let mut queue = self.shared.queue.lock();
        if subscriber.gone.load(Ordering::Acquire) {
            subscriber.was_unseen(batch);
            return;
        }
        match queue.batches.back_mut() {
            Some((last, waiting)) if Arc::ptr_eq(last, subscriber) => waiting.extend(batch),
            _ => queue.batches.push_back((Arc::clone(subscriber), batch)),
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    fn end(&self, subscription: SubscriptionId, error: Error) {
        self.shared.queue.lock().ended.push((subscription, error));
        self.shared.wake.notify_one();
    }

    /// Drops of what belongs to `subscriber` all but what `keep` says.
    fn purge(&self, subscriber: &Arc<Subscriber>, keep: impl Fn(&Given) -> bool) {
        self.shared.queue.lock().purge(subscriber, |given| !keep(given));
    }

    /// Takes everything that belongs to `subscriber`; nothing more is put in for it.
    fn close(&self, subscriber: &Arc<Subscriber>) {
        let mut queue = self.shared.queue.lock();
        subscriber.gone.store(true, Ordering::Release);
        let unseen = queue.purge(subscriber, |_| true);
        subscriber.was_unseen(unseen);
    }
}

/// Runners in the order in which they came: each is woken once, when it is its turn. A pattern may have thousands.
#[derive(Default)]
struct Line {
    runners: VecDeque<Arc<Notify>>,
    /// The addresses of those in `runners`.
    places: HashSet<usize, RandomState>,
}

impl Line {
    fn place(runner: &Arc<Notify>) -> usize {
        Arc::as_ptr(runner).addr()
    }

    fn len(&self) -> usize {
        self.runners.len()
    }

    /// Puts it at the end, unless it is in the line.
    fn join(&mut self, runner: &Arc<Notify>) {
        if self.places.insert(Self::place(runner)) {
            self.runners.push_back(Arc::clone(runner));
        }
    }

    fn leave(&mut self, runner: &Arc<Notify>) {
        if self.places.remove(&Self::place(runner)) {
            self.runners.retain(|this| !Arc::ptr_eq(this, runner));
        }
    }

    /// Wakes the first ones, `most` of them.
    fn wake(&mut self, most: usize) {
        let count = most.min(self.runners.len());
        for runner in self.runners.drain(..count) {
            self.places.remove(&Self::place(&runner));
            runner.notify_one();
        }
    }
}

/// A subscriber as the runners of its topics see it.
pub(crate) struct Subscriber {
    pub(crate) id: SubscriptionId,
    pub(crate) inbox: Inbox,
    pub(crate) max_in_flight: usize,
    /// Whether several topics share `max_in_flight`.
    pub(crate) shared: bool,
    /// Of `max_in_flight`, what is in flight or reserved on any topic. Used only when shared.
    used: AtomicUsize,
    starved: AtomicBool,
    /// The runners to wake when there is room again. Used only when shared.
    runners: Mutex<Vec<Arc<Notify>>>,
    /// Runners that wanted room and got none.
    waiting: Mutex<Line>,
    /// How many are in `waiting`.
    waiters: AtomicUsize,
    /// Where the events are from that were given out, so that an answer finds its topic without asking the store.
    /// Used only when shared; what is missing here is looked up there.
    places: Mutex<HashMap<EventId, Topic, RandomState>>,
    /// An ephemeral tail gives nothing while this is set.
    paused: AtomicBool,
    queued: AtomicUsize,
    /// Wakes an ephemeral tail when the queue has been taken.
    space: Notify,
    /// The subscription has ended: nobody takes anything of it out of the inbox. Set under the inbox's lock.
    gone: AtomicBool,
    /// What nobody saw of what was given to it, until its runners ask. Bounded by what it may have in flight.
    unseen: Mutex<Vec<(Topic, EventId, u64)>>,
}

impl Subscriber {
    pub(crate) fn new(id: SubscriptionId, inbox: Inbox, max_in_flight: usize, shared: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            inbox,
            max_in_flight,
            shared,
            used: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            runners: Mutex::default(),
            waiting: Mutex::default(),
            waiters: AtomicUsize::new(0),
            places: Mutex::default(),
            paused: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            space: Notify::new(),
            gone: AtomicBool::new(false),
            unseen: Mutex::default(),
        })
    }

    /// Puts deliveries into the inbox.
    pub(crate) fn give(self: &Arc<Self>, batch: VecDeque<Given>, now: Millis) {
        if self.shared {
            let mut places = self.places.lock();
            // Events that went to others after all are never answered here.
            if places.len() > 2 * self.max_in_flight + 1_024 {
                places.clear();
            }
            places.extend(batch.iter().map(|given| (given.event.id, given.event.topic.clone())));
        }
        let queued = self.queued.fetch_add(batch.len(), Ordering::AcqRel) + batch.len();
        self.inbox.push(self, batch);
        if queued > 2 * self.max_in_flight {
            self.expire(now, |_| true);
            self.inbox.purge(self, |given| given.is_current(now));
        }
    }

    /// The subscription has ended: nobody sees what waits in the inbox, or is given to it from now on.
    pub(crate) fn close(self: &Arc<Self>) {
        self.inbox.close(self);
    }

    /// What waits in the inbox, and whose lease is over, was not seen.
    fn expire(self: &Arc<Self>, now: Millis, which: impl Fn(&Given) -> bool) {
        let mut queue = self.inbox.shared.queue.lock();
        let expired = queue.purge(self, |given| given.has_expired(now) && which(given));
        self.was_unseen(expired);
    }

    fn was_unseen(&self, given: impl IntoIterator<Item = Given>) {
        let with_lease = given.into_iter().filter(|given| given.lease != 0);
        self.unseen.lock().extend(with_lease.map(|given| (given.event.topic.clone(), given.event.id, given.lease)));
    }

    /// The deliveries on this topic, with their leases, that nobody saw and nobody will: the subscriber has left it.
    pub(crate) fn unseen(self: &Arc<Self>, topic: &Topic) -> Vec<(EventId, u64)> {
        let waiting = self.inbox.shared.queue.lock().purge(self, |given| given.event.topic == *topic);
        self.was_unseen(waiting);
        self.take_unseen(topic)
    }

    /// The deliveries on this topic, with their leases, that nobody saw before their leases were over.
    pub(crate) fn unseen_in_time(self: &Arc<Self>, topic: &Topic, now: Millis) -> Vec<(EventId, u64)> {
        if self.queued.load(Ordering::Acquire) > 0 {
            self.expire(now, |given| given.event.topic == *topic);
        }
        self.take_unseen(topic)
    }

    fn take_unseen(&self, topic: &Topic) -> Vec<(EventId, u64)> {
        let mut unseen = self.unseen.lock();
        unseen.extract_if(.., |(on, ..)| on == topic).map(|(_, id, lease)| (id, lease)).collect()
    }

    /// Drops what waits in the inbox of this topic alone: other topics of the subscription go on.
    pub(crate) fn clear_topic(self: &Arc<Self>, topic: &Topic) {
        self.inbox.purge(self, |given| given.event.topic != *topic);
        self.take_unseen(topic);
    }

    /// Drops what waits in the inbox of these events: they are done.
    pub(crate) fn clear_events(self: &Arc<Self>, ids: &[EventId]) {
        self.inbox.purge(self, |given| !ids.contains(&given.event.id));
    }

    /// The topics of events that were given out, where they are known here. `last`: they are not asked for again.
    pub(crate) fn topics_of(&self, ids: &[EventId], last: bool) -> Vec<Option<Topic>> {
        let mut places = self.places.lock();
        ids.iter().map(|id| if last { places.remove(id) } else { places.get(id).cloned() }).collect()
    }

    /// Takes back that events of the topic are not asked for again: their answer was refused.
    pub(crate) fn asked_again(&self, ids: impl IntoIterator<Item = EventId>, topic: &Topic) {
        self.places.lock().extend(ids.into_iter().map(|id| (id, topic.clone())));
    }

    /// Ends the subscription from the bus's side.
    pub(crate) fn end(&self, error: Error) {
        self.inbox.end(self.id, error);
    }

    fn taken(&self, count: usize) {
        if count > 0 {
            self.queued.fetch_sub(count, Ordering::AcqRel);
            self.space.notify_one();
        }
    }

    /// Stops an ephemeral tail, or lets it go on.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
        self.space.notify_one();
    }

    /// Resolves when fewer than `bound` events are queued and the tail is not paused.
    pub(crate) async fn space(&self, bound: usize) {
        while self.queued.load(Ordering::Acquire) >= bound || self.paused.load(Ordering::Acquire) {
            self.space.notified().await;
        }
        // Pass it on: several topics may wait.
        self.space.notify_one();
    }

    /// Has `runner` woken when there is room again.
    pub(crate) fn wake_on_room(&self, runner: &Arc<Notify>) {
        self.runners.lock().push(Arc::clone(runner));
    }

    /// Ends what [`Subscriber::wake_on_room`] began.
    pub(crate) fn forget_runner(&self, runner: &Arc<Notify>) {
        self.runners.lock().retain(|this| !Arc::ptr_eq(this, runner));
        let mut waiting = self.waiting.lock();
        waiting.leave(runner);
        self.waiters.store(waiting.len(), Ordering::SeqCst);
    }

    /// Reserves all the room there is, of what the topics share.
    pub(crate) fn reserve(&self) -> usize {
        let take_all = |used: usize| (used < self.max_in_flight).then_some(self.max_in_flight);
        let try_take = || match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, take_all) {
            Ok(used) => self.max_in_flight - used,
            Err(_) => 0,
        };
        match try_take() {
            0 => {
                self.starved.store(true, Ordering::SeqCst);
                try_take()
            }
            room => room,
        }
    }

    /// Reserves room for up to `want` events. Where there is none, `runner` is woken when there is.
    pub(crate) fn reserve_up_to(&self, want: usize, runner: &Arc<Notify>) -> usize {
        let try_take = || {
            let take = |used: usize| (used < self.max_in_flight).then(|| self.max_in_flight.min(used + want));
            let taken = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
            taken.map_or(0, |used| self.max_in_flight.min(used + want) - used)
        };
        match try_take() {
            0 if want > 0 => {
                let mut waiting = self.waiting.lock();
                waiting.join(runner);
                self.waiters.store(waiting.len(), Ordering::SeqCst);
                drop(waiting);
                // Somebody may have given room back before this runner was in the list.
                try_take()
            }
            room => room,
        }
    }

    /// Wakes as many of those who wait as there is room for. Whoever was woken calls this again when it is done, by
    /// [`Subscriber::release`], so that room which it does not need goes to the next.
    fn pass_on(&self) {
        if self.waiters.load(Ordering::SeqCst) == 0 {
            return;
        }
        let free = self.max_in_flight.saturating_sub(self.used.load(Ordering::SeqCst));
        let mut waiting = self.waiting.lock();
        waiting.wake(free);
        self.waiters.store(waiting.len(), Ordering::SeqCst);
    }

    /// Gives room back.
    pub(crate) fn release(&self, room: usize) {
        if room > 0 {
            self.used.fetch_sub(room, Ordering::SeqCst);
            if self.starved.swap(false, Ordering::SeqCst) {
                for runner in self.runners.lock().iter() {
                    runner.notify_one();
                }
            }
        }
        self.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn is_woken(runner: &Arc<Notify>) -> bool {
        runner.notified().now_or_never().is_some()
    }

    #[test]
    fn room_goes_to_those_who_wait_for_it_in_turn() {
        let subscriber = Subscriber::new(1, Inbox::new(), 4, true);
        let [one, two, three] = std::array::from_fn(|_| Arc::new(Notify::new()));
        assert_eq!(subscriber.reserve_up_to(3, &one), 3);
        assert_eq!((subscriber.reserve_up_to(3, &two), subscriber.reserve_up_to(1, &two)), (1, 0));
        assert_eq!((subscriber.reserve_up_to(1, &two), subscriber.reserve_up_to(9, &three)), (0, 0));
        assert!(!is_woken(&two) && !is_woken(&three));

        subscriber.release(1);
        assert!(is_woken(&two) && !is_woken(&three), "one place, one is woken");
        // It has no use for the place any more.
        subscriber.release(0);
        assert!(is_woken(&three) && !is_woken(&two), "two waits no longer, though it asked twice");
        assert_eq!(subscriber.reserve_up_to(9, &three), 1);
    }

    #[test]
    fn a_runner_that_goes_away_waits_no_longer() {
        let subscriber = Subscriber::new(1, Inbox::new(), 1, true);
        let [one, two, three] = std::array::from_fn(|_| Arc::new(Notify::new()));
        assert_eq!(subscriber.reserve_up_to(1, &one), 1);
        assert_eq!((subscriber.reserve_up_to(1, &two), subscriber.reserve_up_to(1, &three)), (0, 0));
        subscriber.forget_runner(&two);
        subscriber.release(1);
        assert!(!is_woken(&two) && is_woken(&three));
    }
}
