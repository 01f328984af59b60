//! A subscriber, and its way on each of its topics: what the tasks that serve it and its inbox share.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{EventId, Millis, Topic};
use tokio::sync::Notify;

use crate::Error;
use crate::credit::Account;
use crate::inbox::{Given, Inbox, SubscriptionId};

/// A holder of credit: a lane, with the task to wake when it is its turn.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    number: u64,
    wake: Arc<Notify>,
}

impl Holder {
    fn new(wake: Arc<Notify>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), wake }
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Holder {}

impl Hash for Holder {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.number.hash(state);
    }
}

/// Wakes the holders whose turn it is.
pub(crate) fn call(account: &mut Account<Holder>) {
    while let Some(holder) = account.call() {
        holder.wake.notify_one();
    }
}

/// A subscriber as the tasks that serve it see it.
pub(crate) struct Subscriber {
    pub(crate) id: SubscriptionId,
    pub(crate) inbox: Inbox,
    pub(crate) max_in_flight: usize,
    /// Whether several topics share `max_in_flight`.
    pub(crate) shared: bool,
    /// The events that its lanes may hold together. Used only when shared.
    events: Mutex<Account<Holder>>,
    /// The topics of delivered events, so that an answer finds its topic without asking the store. Used only when shared;
    /// the store knows the rest.
    places: Mutex<HashMap<EventId, Topic, RandomState>>,
    /// An ephemeral tail reads nothing while this is set.
    paused: AtomicBool,
    /// Deliveries of an ephemeral tail in the inbox.
    queued: AtomicUsize,
    /// Wakes an ephemeral tail when the queue has been taken.
    space: Notify,
    /// The subscription has ended: nothing of it is taken out of the inbox. Set under the inbox's lock.
    gone: AtomicBool,
}

impl Subscriber {
    pub(crate) fn new(id: SubscriptionId, inbox: Inbox, max_in_flight: usize, shared: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            inbox,
            max_in_flight,
            shared,
            events: Mutex::new(Account::new(max_in_flight)),
            places: Mutex::default(),
            paused: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            space: Notify::new(),
            gone: AtomicBool::new(false),
        })
    }

    /// Ends the subscription: what waits in the inbox is not taken any more, nor anything that is pushed from now on.
    pub(crate) fn close(self: &Arc<Self>) {
        self.inbox.close(self);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Under the inbox's lock.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Ends the subscription from the bus's side.
    pub(crate) fn end(&self, error: Error) {
        self.inbox.end(self.id, error);
    }

    /// The topics of delivered events, where they are known here. `last`: they are not asked for again.
    pub(crate) fn topics_of(&self, ids: &[EventId], last: bool) -> Vec<Option<Topic>> {
        let mut places = self.places.lock();
        ids.iter().map(|id| if last { places.remove(id) } else { places.get(id).cloned() }).collect()
    }

    /// Takes back that events of the topic are not asked for again: their answer was refused.
    pub(crate) fn asked_again(&self, ids: impl IntoIterator<Item = EventId>, topic: &Topic) {
        self.places.lock().extend(ids.into_iter().map(|id| (id, topic.clone())));
    }

    fn note_places(&self, batch: &VecDeque<Given>) {
        let mut places = self.places.lock();
        // Events that went to other members after all are never answered here.
        if places.len() > 2 * self.max_in_flight + 1_024 {
            places.clear();
        }
        places.extend(batch.iter().map(|given| (given.event.id, given.event.topic.clone())));
    }

    /// Stops an ephemeral tail, or resumes it.
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
}

/// A subscriber on one topic.
pub(crate) struct Lane {
    pub(crate) subscriber: Arc<Subscriber>,
    holder: Holder,
    /// Deliveries in the inbox.
    queued: AtomicUsize,
    /// Deliveries that left the inbox unseen, until the task that serves the lane asks. Bounded by what may be in flight.
    unseen: Mutex<Vec<(EventId, u64)>>,
}

impl Lane {
    /// The lane of `subscriber` that is served by the task that `wake` wakes.
    pub(crate) fn new(subscriber: Arc<Subscriber>, wake: Arc<Notify>) -> Arc<Self> {
        let holder = Holder::new(wake);
        Arc::new(Self { subscriber, holder, queued: AtomicUsize::new(0), unseen: Mutex::default() })
    }

    /// Puts deliveries into the inbox.
    pub(crate) fn give(self: &Arc<Self>, batch: VecDeque<Given>, now: Millis) {
        let subscriber = &self.subscriber;
        if subscriber.shared {
            subscriber.note_places(&batch);
        }
        subscriber.queued.fetch_add(batch.len(), Ordering::AcqRel);
        let queued = self.queued.fetch_add(batch.len(), Ordering::AcqRel) + batch.len();
        subscriber.inbox.push(self, batch);
        if queued > 2 * subscriber.max_in_flight {
            self.expire(now);
            subscriber.inbox.purge(self, |given| !given.is_current(now));
        }
    }

    /// Deliveries have left the inbox.
    pub(crate) fn taken(&self, count: usize) {
        if count > 0 {
            self.queued.fetch_sub(count, Ordering::AcqRel);
            self.subscriber.queued.fetch_sub(count, Ordering::AcqRel);
            self.subscriber.space.notify_one();
        }
    }

    /// Notes deliveries that left the inbox and reached no subscriber.
    pub(crate) fn was_unseen(&self, given: impl IntoIterator<Item = Given>) {
        let with_lease = given.into_iter().filter(|given| given.lease != 0);
        self.unseen.lock().extend(with_lease.map(|given| (given.event.id, given.lease)));
    }

    /// Takes out of the inbox what is over unseen.
    fn expire(self: &Arc<Self>, now: Millis) {
        let expired = self.subscriber.inbox.purge(self, |given| given.has_expired(now));
        self.was_unseen(expired);
    }

    /// The deliveries, with their leases, that the subscriber has not seen and will not: it has left the topic.
    pub(crate) fn unseen(self: &Arc<Self>) -> Vec<(EventId, u64)> {
        let waiting = self.subscriber.inbox.purge(self, |_| true);
        self.was_unseen(waiting);
        std::mem::take(&mut self.unseen.lock())
    }

    /// The deliveries, with their leases, that the subscriber has not seen before their leases were over.
    pub(crate) fn unseen_in_time(self: &Arc<Self>, now: Millis) -> Vec<(EventId, u64)> {
        if self.queued.load(Ordering::Acquire) > 0 {
            self.expire(now);
        }
        std::mem::take(&mut self.unseen.lock())
    }

    /// Drops what waits in the inbox.
    pub(crate) fn clear(self: &Arc<Self>) {
        self.subscriber.inbox.purge(self, |_| true);
        self.unseen.lock().clear();
    }

    /// Drops what waits in the inbox of these events: they are done.
    pub(crate) fn clear_events(self: &Arc<Self>, ids: &[EventId]) {
        self.subscriber.inbox.purge(self, |given| ids.contains(&given.event.id));
    }

    /// Takes room for up to `want` more events. Where there is none, the task is woken when it is its turn.
    pub(crate) fn reserve(&self, want: usize) -> usize {
        self.change(|account, holder| account.take(holder, want))
    }

    /// Takes room for up to `want` more events, without waiting for more.
    pub(crate) fn try_reserve(&self, want: usize) -> usize {
        self.change(|account, holder| account.try_take(holder, want))
    }

    /// How many events there is room for.
    pub(crate) fn room(&self) -> usize {
        self.subscriber.events.lock().available(&self.holder)
    }

    /// Gives back the room beyond `held` events. `waits`: there was too little, and the task is woken when it is its turn;
    /// else what was set aside for it goes to the next.
    pub(crate) fn settle(&self, held: usize, waits: bool) {
        if self.subscriber.shared {
            self.change(|account, holder| {
                account.keep(holder, held);
                if waits {
                    account.wait(holder);
                } else {
                    account.try_take(holder, 0);
                }
            });
        }
    }

    /// Gives all room back and waits for none.
    pub(crate) fn release(&self) {
        if self.subscriber.shared {
            self.change(Account::leave);
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Account<Holder>, &Holder) -> T) -> T {
        let mut account = self.subscriber.events.lock();
        let result = change(&mut account, &self.holder);
        call(&mut account);
        result
    }
}
