//! The queue of deliveries for their subscribers. One inbox may serve many subscriptions: a connection has one.
//!
//! Invariants: what waits here, and on its way out of the connection, is bounded by the credit that was taken for it:
//! [`InboxOptions::bytes`] and one event more; deliveries of one lane stay in order; a subscriber that is not open yet, or
//! is paused, gets nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use promethean_event::{Event, EventId, Millis};
use promethean_store::Fence;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Error;
use crate::credit::Account;
use crate::group::MemberId;
use crate::lane::{Holder, Lane, Subscriber, call};

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
    /// Until when it has to be answered, known once it is taken out of the inbox; 0: never.
    pub deadline: Millis,
    /// How long the lease lasts that begins when it is taken out of the inbox; zero: it has begun before.
    pub lease_for: Duration,
    /// It belongs to a snapshot start.
    pub snapshot: bool,
    /// It was redriven from a dead letter.
    pub redriven: bool,
    /// With the last event of a tail's snapshot, where that is known: the event at which the snapshot was taken.
    pub cut: Option<EventId>,
    /// The place of a live tail after it, known once it is taken out of the inbox.
    pub resume: Option<Box<str>>,
    /// In a cluster, until when this hub may pass it on; none: always.
    pub fence: Option<Fence>,
}

impl Given {
    /// True if it may be passed on at `now`: its lease runs, and the hub that gave it still owns the group.
    pub fn is_current(&self, now: Millis) -> bool {
        !self.is_over(now) && self.is_ours()
    }

    /// True if its lease ran out before anybody saw it, and the hub that gave it still owns the group.
    pub(crate) fn has_expired(&self, now: Millis) -> bool {
        self.is_over(now) && self.is_ours()
    }

    fn is_over(&self, now: Millis) -> bool {
        self.deadline <= now && self.deadline != Millis(0)
    }

    /// Starts the lease; `false`: it has begun before.
    fn hand_over(&mut self, now: Millis) -> bool {
        let starts = !self.lease_for.is_zero();
        if starts {
            self.deadline = now + self.lease_for;
        }
        starts
    }

    /// The bytes that it is counted with.
    pub(crate) fn size(&self) -> usize {
        self.event.body.len()
    }

    fn is_ours(&self) -> bool {
        self.fence.as_ref().is_none_or(Fence::holds)
    }
}

/// Most bytes that wait for one connection, where nothing else is said.
pub const CONNECTION_BYTES: usize = 8 * 1024 * 1024;

/// What an inbox may hold, and for what.
#[derive(Debug, Clone, Copy)]
pub struct InboxOptions {
    /// Most bytes of events that wait, one event more included.
    pub bytes: usize,
    /// A connection writes what is taken: it counts until [`Inbox::set_sending`] says that it is written. A subscription
    /// gets nothing until [`crate::Membership::open`].
    pub connection: bool,
    /// How long an ephemeral tail may have too many bytes waiting, of which none is taken, before it ends.
    pub patience: Option<Duration>,
}

impl Default for InboxOptions {
    fn default() -> Self {
        Self { bytes: CONNECTION_BYTES, connection: false, patience: None }
    }
}

/// Where deliveries wait. Clones share one queue.
#[derive(Clone)]
pub struct Inbox {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbox({} bytes)", self.buffered())
    }
}

struct Shared {
    options: InboxOptions,
    queue: Mutex<Queue>,
    wake: Notify,
    /// Holds the bytes that the connection has taken and not written.
    sending: Holder,
}

type Batches = VecDeque<(Arc<Lane>, VecDeque<Given>)>;

struct Queue {
    batches: Batches,
    /// Batches of subscribers that are not open, and of tails that are paused.
    parked: Batches,
    bytes: Account<Holder>,
    /// When bytes were taken or written last.
    moved: Instant,
    ended: Vec<(Arc<Subscriber>, Error)>,
}

impl Queue {
    fn add(batches: &mut Batches, lane: &Arc<Lane>, batch: VecDeque<Given>) {
        match batches.back_mut() {
            Some((last, waiting)) if Arc::ptr_eq(last, lane) => waiting.extend(batch),
            _ => batches.push_back((Arc::clone(lane), batch)),
        }
    }

    /// Takes out what `take` selects of the lanes that `of` selects.
    fn purge(
        &mut self,
        of: impl Fn(&Arc<Lane>) -> bool,
        take: impl Fn(&Given) -> bool,
        mut into: impl FnMut(&Arc<Lane>, VecDeque<Given>),
    ) {
        let Self { batches, parked, bytes, .. } = self;
        for (lane, batch) in batches.iter_mut().chain(parked.iter_mut()).filter(|(lane, _)| of(lane)) {
            let (out, kept) = std::mem::take(batch).into_iter().partition::<VecDeque<_>, _>(&take);
            *batch = kept;
            bytes.give_back(lane.holder(), out.iter().map(Given::size).sum());
            lane.taken(out.len());
            into(lane, out);
        }
        batches.retain(|(_, batch)| !batch.is_empty());
        parked.retain(|(_, batch)| !batch.is_empty());
        call(bytes);
    }

    fn is_empty(&self) -> bool {
        self.batches.is_empty() && !self.ended.iter().any(|(subscriber, _)| subscriber.is_open())
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self::with(InboxOptions::default())
    }
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty inbox with these options.
    pub fn with(options: InboxOptions) -> Self {
        let queue = Queue {
            batches: VecDeque::new(),
            parked: VecDeque::new(),
            bytes: Account::new(options.bytes),
            moved: Instant::now(),
            ended: Vec::new(),
        };
        let sending = Holder::new(Arc::default());
        Self { shared: Arc::new(Shared { options, queue: Mutex::new(queue), wake: Notify::new(), sending }) }
    }

    /// Takes deliveries, at most `events` and about `bytes`, in order: they are handed over at `now`, and their leases
    /// begin. Leaves out deliveries that are over.
    pub fn take(&self, events: usize, bytes: usize, now: Millis, into: &mut Vec<Given>) {
        let (mut events, mut bytes) = (events, bytes);
        let mut queue = self.shared.queue.lock();
        let Queue { batches, bytes: account, moved, .. } = &mut *queue;
        while let Some((lane, batch)) = batches.front_mut() {
            let (mut taken, mut size, mut kept, mut last) = (0, 0, 0, 0);
            while events > 0
                && bytes > 0
                && let Some(mut given) = batch.pop_front()
            {
                taken += 1;
                size += given.size();
                if given.hand_over(now) {
                    last = given.lease;
                }
                if given.is_current(now) {
                    events -= 1;
                    kept += given.size();
                    bytes = bytes.saturating_sub(given.size());
                    given.resume = lane.resume_after(&given);
                    into.push(given);
                } else if given.has_expired(now) {
                    lane.was_unseen([given]);
                }
            }
            if taken > 0 {
                if last > 0 {
                    lane.handed(last, now);
                }
                account.give_back(lane.holder(), size);
                if self.shared.options.connection {
                    account.put(&self.shared.sending, kept);
                }
                lane.taken(taken);
                *moved = Instant::now();
            }
            if !batch.is_empty() {
                break;
            }
            batches.pop_front();
        }
        call(account);
    }

    /// Says how many bytes the connection has still to write.
    pub fn set_sending(&self, bytes: usize) {
        let mut queue = self.shared.queue.lock();
        let Queue { bytes: account, moved, .. } = &mut *queue;
        let before = account.of(&self.shared.sending);
        if bytes < before {
            *moved = Instant::now();
        }
        account.keep(&self.shared.sending, bytes);
        account.put(&self.shared.sending, bytes.saturating_sub(before));
        call(account);
    }

    /// Bytes that wait for the connection: of events here, and on their way out.
    pub fn buffered(&self) -> usize {
        let queue = self.shared.queue.lock();
        let waiting = queue.batches.iter().chain(&queue.parked).flat_map(|(_, batch)| batch);
        waiting.map(Given::size).sum::<usize>() + queue.bytes.of(&self.shared.sending)
    }

    /// Takes the subscriptions that the bus ended by itself, with the reason.
    pub fn take_ended(&self) -> Vec<(SubscriptionId, Error)> {
        let mut queue = self.shared.queue.lock();
        let ended = queue.ended.extract_if(.., |(subscriber, _)| subscriber.is_open());
        ended.map(|(subscriber, error)| (subscriber.id, error)).collect()
    }

    /// True if there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.shared.queue.lock().is_empty()
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

    pub(crate) fn options(&self) -> &InboxOptions {
        &self.shared.options
    }

    /// Adds deliveries of a lane, for which bytes were reserved. What its subscriber does not take is noted as unseen.
    pub(crate) fn push(&self, lane: &Arc<Lane>, batch: VecDeque<Given>) {
        let mut queue = self.shared.queue.lock();
        let Queue { batches, parked, bytes, .. } = &mut *queue;
        let subscriber = &lane.subscriber;
        if subscriber.refuses() {
            bytes.give_back(lane.holder(), batch.iter().map(Given::size).sum());
            call(bytes);
            lane.taken(batch.len());
            lane.was_unseen(batch);
        } else if batch.front().is_some_and(|first| lane.rereads(first)) {
            lane.reread(batch.iter());
            bytes.give_back(lane.holder(), batch.iter().map(Given::size).sum());
            call(bytes);
            lane.taken(batch.len());
        } else if subscriber.is_parked() {
            Queue::add(parked, lane, batch);
        } else {
            Queue::add(batches, lane, batch);
            drop(queue);
            self.shared.wake.notify_one();
        }
    }

    /// Changes the bytes of a lane.
    pub(crate) fn credit<T>(&self, change: impl FnOnce(&mut Account<Holder>) -> T) -> T {
        let mut queue = self.shared.queue.lock();
        let result = change(&mut queue.bytes);
        call(&mut queue.bytes);
        result
    }

    /// When a tail has to end that has too many bytes waiting, unless some are taken before.
    pub(crate) fn stuck_at(&self) -> Option<Instant> {
        self.shared.options.patience.map(|patience| self.shared.queue.lock().moved + patience)
    }

    /// Ends a subscription: its connection is told why.
    pub(crate) fn end(&self, subscriber: &Arc<Subscriber>, error: Error) {
        self.shared.queue.lock().ended.push((Arc::clone(subscriber), error));
        self.shared.wake.notify_one();
    }

    /// Takes out of a lane what `take` selects.
    pub(crate) fn purge(&self, lane: &Arc<Lane>, take: impl Fn(&Given) -> bool) -> VecDeque<Given> {
        let mut taken = VecDeque::new();
        let this = |one: &Arc<Lane>| Arc::ptr_eq(one, lane);
        self.shared.queue.lock().purge(this, take, |_, out| taken.extend(out));
        taken
    }

    /// Changes whether a subscriber gets deliveries. What waits for a member that takes none any more is noted as unseen;
    /// what waits for a tail is read again later, but for a snapshot, which waits here, as does what came before the
    /// subscription was open.
    pub(crate) fn change(&self, subscriber: &Arc<Subscriber>, change: impl FnOnce(&Subscriber)) {
        let mut queue = self.shared.queue.lock();
        change(subscriber);
        let its = |lane: &Arc<Lane>| Arc::ptr_eq(&lane.subscriber, subscriber);
        if subscriber.refuses() {
            queue.purge(its, |_| true, |lane, out| lane.was_unseen(out));
            if subscriber.is_gone() {
                queue.ended.retain(|(this, _)| !Arc::ptr_eq(this, subscriber));
            }
        } else {
            if subscriber.is_paused() {
                queue.purge(its, |given| !given.snapshot, |lane, out| lane.reread(out.iter()));
            }
            let Queue { batches, parked, .. } = &mut *queue;
            let (from, to) = if subscriber.is_parked() { (batches, parked) } else { (parked, batches) };
            let (moving, staying): (Batches, Batches) =
                std::mem::take(from).into_iter().partition(|(lane, _)| its(lane));
            *from = staying;
            for (lane, batch) in moving {
                Queue::add(to, &lane, batch);
            }
        }
        drop(queue);
        self.shared.wake.notify_one();
    }
}
