//! A subscriber, and its way on each of its topics: what the tasks that serve it and its inbox share.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{EventId, Millis, Topic};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::Error;
use crate::credit::Account;
use crate::inbox::{Given, Inbox, SubscriptionId};
use crate::resume::{LanePlace, Places};

/// A holder of credit: a lane, with the task to wake when it is its turn.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    number: u64,
    wake: Arc<Notify>,
}

impl Holder {
    pub(crate) fn new(wake: Arc<Notify>) -> Self {
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
    /// True if several topics share `max_in_flight`.
    pub(crate) shared: bool,
    /// A member of a group; else an ephemeral tail.
    pub(crate) member: bool,
    /// The events that its lanes may hold together: of a tail, in the inbox. Unused where one topic has them alone.
    events: Mutex<Account<Holder>>,
    /// The topics of delivered events, so that an answer finds its topic without asking the store. Used only when shared;
    /// the store knows the rest.
    topics: Mutex<HashMap<EventId, Topic, RandomState>>,
    /// The connection knows the subscription. This and the next two change under the inbox's lock.
    open: AtomicBool,
    paused: AtomicBool,
    /// The subscription has ended.
    gone: AtomicBool,
    /// Wakes a tail that is paused.
    resumed: Notify,
    /// Progress of a live tail.
    pub(crate) places: Option<Places>,
    /// Topics that it has left because they were deleted, until the task that joins topics asks.
    left: Mutex<Vec<Topic>>,
    /// Wakes the task that joins topics.
    look_again: Arc<Notify>,
}

impl Subscriber {
    /// A member of a group, or a live tail with its `places`.
    pub(crate) fn new(
        id: SubscriptionId,
        inbox: Inbox,
        max_in_flight: usize,
        shared: bool,
        places: Option<Places>,
        look_again: Arc<Notify>,
    ) -> Arc<Self> {
        let member = places.is_none();
        let open = !inbox.options().connection;
        Arc::new(Self {
            id,
            inbox,
            max_in_flight,
            shared,
            member,
            events: Mutex::new(Account::new(if member { max_in_flight } else { TAIL_EVENTS })),
            topics: Mutex::default(),
            open: AtomicBool::new(open),
            paused: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            resumed: Notify::new(),
            places,
            left: Mutex::default(),
            look_again,
        })
    }

    /// Ends the subscription: the inbox gives out none of its deliveries any more and takes no new ones.
    pub(crate) fn close(self: &Arc<Self>) {
        self.inbox.change(self, |this| this.gone.store(true, Ordering::Release));
    }

    /// Lets deliveries out of the inbox: the connection knows the subscription.
    pub(crate) fn open(self: &Arc<Self>) {
        self.inbox.change(self, |this| this.open.store(true, Ordering::Release));
    }

    /// Stops deliveries, or resumes them.
    pub(crate) fn set_paused(self: &Arc<Self>, paused: bool) {
        self.inbox.change(self, |this| this.paused.store(paused, Ordering::Release));
        self.resumed.notify_waiters();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// True if nothing may be put into the inbox for it: it goes back.
    pub(crate) fn refuses(&self) -> bool {
        self.is_gone() || self.member && self.is_paused()
    }

    /// True if its deliveries stay in the inbox.
    pub(crate) fn is_parked(&self) -> bool {
        !self.is_open() || self.is_paused()
    }

    /// Resolves when it is resumed after the signal was enabled.
    pub(crate) fn resume_signal(&self) -> Notified<'_> {
        self.resumed.notified()
    }

    /// Resolves when it is not paused.
    pub(crate) async fn resumed(&self) {
        loop {
            let mut resumed = std::pin::pin!(self.resumed.notified());
            resumed.as_mut().enable();
            if !self.is_paused() {
                return;
            }
            resumed.await;
        }
    }

    /// Leaves one of its topics, which was deleted.
    pub(crate) fn leave_deleted(&self, topic: &Topic) {
        self.left.lock().push(topic.clone());
        self.look_again.notify_one();
    }

    /// Takes the topics that it has left because they were deleted.
    pub(crate) fn take_left(&self) -> Vec<Topic> {
        std::mem::take(&mut self.left.lock())
    }

    /// Ends the subscription from the bus's side.
    pub(crate) fn end(self: &Arc<Self>, error: Error) {
        self.inbox.end(self, error);
    }

    /// The topics of delivered events, where they are known here. `last`: they are not asked for again.
    pub(crate) fn topics_of(&self, ids: &[EventId], last: bool) -> Vec<Option<Topic>> {
        let mut topics = self.topics.lock();
        ids.iter().map(|id| if last { topics.remove(id) } else { topics.get(id).cloned() }).collect()
    }

    /// Takes back that events of the topic are not asked for again: their answer was refused.
    pub(crate) fn asked_again(&self, ids: impl IntoIterator<Item = EventId>, topic: &Topic) {
        self.topics.lock().extend(ids.into_iter().map(|id| (id, topic.clone())));
    }

    fn note_topics(&self, batch: &VecDeque<Given>) {
        let mut topics = self.topics.lock();
        // Events that went to other members after all are never answered here.
        if topics.len() > 2 * self.max_in_flight + 1_024 {
            topics.clear();
        }
        topics.extend(batch.iter().map(|given| (given.event.id, given.event.topic.clone())));
    }
}

/// Most events that wait in the inbox of a tail.
const TAIL_EVENTS: usize = 1_000;

/// A subscriber on one topic.
pub(crate) struct Lane {
    pub(crate) subscriber: Arc<Subscriber>,
    holder: Holder,
    /// Deliveries in the inbox.
    queued: AtomicUsize,
    /// Deliveries that left the inbox unseen, until the task that serves the lane asks. Bounded by what may be in flight.
    unseen: Mutex<Vec<(EventId, u64)>>,
    /// When deliveries up to which lease were handed over, until the task that serves the lane asks. Bounded by what may be
    /// in flight: each stamp is of another delivery, and an answer makes the task ask.
    stamps: Mutex<Vec<(u64, Millis)>>,
    /// Progress of a tail. The place where it reads again changes under the inbox's lock.
    pub(crate) place: Arc<LanePlace>,
}

impl Lane {
    /// The lane of `subscriber` that is served by the task that `wake` wakes.
    pub(crate) fn new(subscriber: Arc<Subscriber>, wake: Arc<Notify>) -> Arc<Self> {
        let (holder, queued) = (Holder::new(wake), AtomicUsize::new(0));
        Arc::new(Self {
            subscriber,
            holder,
            queued,
            unseen: Mutex::default(),
            stamps: Mutex::default(),
            place: Arc::default(),
        })
    }

    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Resolves when it may be this lane's turn to take credit.
    pub(crate) async fn called(&self) {
        self.holder.wake.notified().await;
    }

    /// Puts deliveries into the inbox, for which bytes were reserved.
    pub(crate) fn give(self: &Arc<Self>, batch: VecDeque<Given>) {
        if !self.subscriber.member {
            self.place.push(batch.iter());
        } else if self.subscriber.shared {
            self.subscriber.note_topics(&batch);
        }
        self.queued.fetch_add(batch.len(), Ordering::AcqRel);
        self.subscriber.inbox.push(self, batch);
    }

    /// The number of deliveries that wait in the inbox.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Drops deliveries that are over.
    pub(crate) fn drop_expired(self: &Arc<Self>, now: Millis) {
        self.expire(now);
        self.subscriber.inbox.purge(self, |given| !given.is_current(now));
    }

    /// Deliveries have left the inbox.
    pub(crate) fn taken(&self, count: usize) {
        if count > 0 {
            self.queued.fetch_sub(count, Ordering::AcqRel);
            if !self.subscriber.member {
                self.change(|account, holder| account.give_back(holder, count));
            }
        }
    }

    /// True if a tail drops a delivery to read it again later: it is paused, or an earlier one was dropped.
    pub(crate) fn rereads(&self, given: &Given) -> bool {
        let tail = !self.subscriber.member && !given.snapshot;
        tail && (self.subscriber.is_paused() || self.reads_again())
    }

    /// Notes deliveries of a tail that are read again later.
    pub(crate) fn reread<'g>(&self, given: impl Iterator<Item = &'g Given>) {
        self.place.reread(given);
    }

    /// True if a tail that was paused reads earlier events again.
    pub(crate) fn reads_again(&self) -> bool {
        self.place.reads_again()
    }

    /// Notes that a delivery of a tail was handed over; the place after it.
    pub(crate) fn resume_after(&self, given: &Given) -> Option<Box<str>> {
        self.subscriber.places.as_ref().map(|places| places.take(&self.place, given))
    }

    /// Notes that deliveries up to a lease were handed over.
    pub(crate) fn handed(&self, lease: u64, at: Millis) {
        let mut stamps = self.stamps.lock();
        match stamps.last_mut() {
            Some(last) if last.1 == at => last.0 = lease,
            _ => stamps.push((lease, at)),
        }
    }

    /// When deliveries up to which lease were handed over, since the last call.
    pub(crate) fn take_stamps(&self) -> Vec<(u64, Millis)> {
        std::mem::take(&mut self.stamps.lock())
    }

    /// Takes up to `want` bytes for deliveries. Where there are none, the task is woken when it is its turn.
    pub(crate) fn reserve_bytes(&self, want: usize) -> usize {
        self.subscriber.inbox.credit(|account| account.take(&self.holder, want))
    }

    /// Takes up to `want` bytes for deliveries, without waiting for more.
    pub(crate) fn try_reserve_bytes(&self, want: usize) -> usize {
        self.subscriber.inbox.credit(|account| account.try_take(&self.holder, want))
    }

    /// True if there are bytes for a delivery.
    pub(crate) fn has_bytes(&self) -> bool {
        self.subscriber.inbox.credit(|account| account.available(&self.holder) > 0)
    }

    /// Takes bytes for one delivery that is larger than what was reserved; `false`: an event is over the bound already.
    pub(crate) fn stretch(&self, short: usize) -> bool {
        self.subscriber.inbox.credit(|account| account.stretch(&self.holder, short))
    }

    /// Has the task woken when there are bytes.
    pub(crate) fn wait_for_bytes(&self) {
        self.subscriber.inbox.credit(|account| account.wait(&self.holder));
    }

    /// Gives back bytes that were reserved. `waits`: there were too few, and the task is woken when it is its turn.
    pub(crate) fn return_bytes(&self, unused: usize, waits: bool) {
        self.subscriber.inbox.credit(|account| {
            account.give_back(&self.holder, unused);
            if waits {
                account.wait(&self.holder);
            } else {
                account.try_take(&self.holder, 0);
            }
        });
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

    /// The deliveries, with their leases, that left the inbox unseen since the last call.
    pub(crate) fn take_unseen(&self) -> Vec<(EventId, u64)> {
        std::mem::take(&mut self.unseen.lock())
    }

    /// Drops all deliveries from the inbox.
    pub(crate) fn clear(self: &Arc<Self>) {
        self.subscriber.inbox.purge(self, |_| true);
        self.unseen.lock().clear();
    }

    /// Drops the deliveries of these events from the inbox: they are done.
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

    /// Gives back room that was reserved and not used.
    pub(crate) fn give_room_back(&self, unused: usize) {
        self.change(|account, holder| account.give_back(holder, unused));
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

    /// Gives all room back and waits for none. What waits in the inbox is to be taken out before.
    pub(crate) fn release(&self) {
        if self.subscriber.shared {
            self.change(Account::leave);
        }
        self.subscriber.inbox.credit(|account| account.leave(&self.holder));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Account<Holder>, &Holder) -> T) -> T {
        let mut account = self.subscriber.events.lock();
        let result = change(&mut account, &self.holder);
        call(&mut account);
        result
    }
}
