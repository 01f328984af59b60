//! Deliveries for a caller that comes and goes: leased in one call, answered by id in another.
//!
//! A pull is a member of the group while it waits. With the deliveries it becomes a *held* membership: paused, kept until
//! the last of them is answered or its lease is over. So leases, attempts and order are those of every other member.
//!
//! Bounded: at most [`MAX_HELD`] held memberships, each with at most `max` deliveries; over it a pull is refused.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{Code, EventId, Group, Millis, Ordered, Selector, Topic, limits};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bus::{Core, Request};
use crate::group::{Answer, Receipt};
use crate::inbox::{Given, Inbox};
use crate::runner::Input;
use crate::subscription::Membership;
use crate::{Bus, Error};

/// Most memberships that are held for callers.
const MAX_HELD: usize = 10_000;
/// Most bytes of one pull, and one event more.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// How long a pull that must not wait does so all the same, while the group reads events that are there.
const READING: Duration = Duration::from_secs(1);
/// The same for a group with an order, where events may be there and wait for others.
const READING_IN_ORDER: Duration = Duration::from_millis(100);
/// How often a pull looks whether the group still reads.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The topic or pattern that a pull named, and its group.
type Name = (Selector, Group);

/// The memberships that outlive their calls, oldest first for each name.
#[derive(Default)]
pub(crate) struct Pulls {
    held: Mutex<HashMap<Name, Vec<Arc<Held>>, RandomState>>,
}

/// A paused member that holds deliveries for a caller.
struct Held {
    membership: Membership,
    /// How long its leases last.
    ack_timeout: Duration,
    /// The unanswered deliveries by event.
    open: Mutex<Open>,
    /// `open` has changed.
    changed: Notify,
}

struct Open {
    leases: HashMap<EventId, u64, RandomState>,
    /// When the last of the leases ends.
    until: Millis,
}

impl Held {
    /// True if it holds the event, under this lease where one is named.
    fn holds(&self, id: EventId, lease: Option<u64>) -> bool {
        self.open.lock().leases.get(&id).is_some_and(|held| lease.is_none_or(|lease| lease == *held))
    }

    fn answered(&self, ids: impl Iterator<Item = EventId>, answer: &Answer, now: Millis) {
        let mut open = self.open.lock();
        match answer {
            Answer::Extend { by } => {
                let by = by.unwrap_or(self.ack_timeout).clamp(limits::MIN_EXTENSION, limits::MAX_LEASE);
                let until = now + by;
                open.until = open.until.max(until);
            }
            Answer::Ack | Answer::Nack { .. } => ids.for_each(|id| _ = open.leases.remove(&id)),
        }
        self.changed.notify_one();
    }
}

impl Pulls {
    fn of(&self, name: &Name) -> Vec<Arc<Held>> {
        self.held.lock().get(name).cloned().unwrap_or_default()
    }

    fn is_full(&self) -> bool {
        self.held.lock().values().map(Vec::len).sum::<usize>() >= MAX_HELD
    }

    fn add(&self, name: &Name, held: &Arc<Held>) {
        self.held.lock().entry(name.clone()).or_default().push(Arc::clone(held));
    }

    fn remove(&self, name: &Name, gone: &Arc<Held>) {
        let mut all = self.held.lock();
        if let Some(held) = all.get_mut(name) {
            held.retain(|one| !Arc::ptr_eq(one, gone));
            if held.is_empty() {
                all.remove(name);
            }
        }
    }
}

impl Bus {
    /// Leases up to `max` events to the caller, who answers them with [`Bus::answer`]; waits at most `wait` for the first.
    ///
    /// Cancel-safe: a call that is dropped while it waits leases nothing.
    ///
    /// # Errors
    /// As [`Bus::attach`]; `limit_reached` when too many pulls wait for their answers.
    pub async fn pull(&self, mut request: Request, max: usize, wait: Duration) -> Result<Vec<Given>, Error> {
        let Some(group) = request.group.clone() else {
            return Err(Error::new(Code::BadRequest, "group: is missing"));
        };
        if self.core.pulls.is_full() {
            let message = format!("{MAX_HELD} requests hold unanswered events; ack, nack or let their leases end");
            return Err(Error::new(Code::LimitReached, message));
        }
        request.options.max_in_flight = max;
        request.options.batch_size = max;
        let name = (request.topic.clone(), group);
        let (ordered, ack_timeout) = (request.options.ordered, request.options.ack_timeout);
        let inbox = Inbox::new();
        let (membership, _) = self.attach(request, &inbox).await?;
        let given = self.first(&membership, &inbox, max, wait, ordered).await?;
        if !given.is_empty() {
            self.core.hold(name, (membership, ack_timeout), inbox, &given);
        }
        Ok(given)
    }

    /// Waits for the first deliveries: for `wait`, and as long as the group reads events that are there already.
    async fn first(
        &self,
        membership: &Membership,
        inbox: &Inbox,
        max: usize,
        wait: Duration,
        ordered: Ordered,
    ) -> Result<Vec<Given>, Error> {
        let reading = if ordered == Ordered::None { READING } else { READING_IN_ORDER };
        let (end, last) = (Instant::now() + wait, Instant::now() + wait.max(reading));
        let mut given = Vec::new();
        loop {
            inbox.take(max, MAX_BYTES, self.now(), &mut given);
            if !given.is_empty() {
                return Ok(given);
            }
            if let Some((_, error)) = inbox.take_ended().pop() {
                return Err(error);
            }
            let now = Instant::now();
            if now >= last || (now >= end && !self.reads_on(membership).await?) {
                // What came while that was asked.
                inbox.take(max, MAX_BYTES, self.now(), &mut given);
                return Ok(given);
            }
            let look = if now < end { end } else { now + LOOK_EVERY };
            let _ = tokio::time::timeout_at(look.min(last), inbox.ready()).await;
        }
    }

    /// True if a topic of the member has events that the group has neither read nor done.
    async fn reads_on(&self, membership: &Membership) -> Result<bool, Error> {
        let Some(group) = membership.group() else { return Ok(false) };
        for topic in membership.topics() {
            let status = self.group_outline(&topic, group).await?;
            let busy = |status: &crate::GroupStatus| (status.in_flight + status.waiting) as u64;
            if status.is_some_and(|status| status.lag > busy(&status)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Answers deliveries of a group by their ids, each with its lease where it has to be the current one, without a
    /// subscription. `name` is the topic or pattern that was pulled or subscribed. A receipt for each, in order.
    ///
    /// An ack is answered once it is durable. Without a lease, a nack or an extension counts only for deliveries of
    /// [`Bus::pull`].
    ///
    /// # Errors
    /// `ack_failed`: whether it was saved is not known.
    pub async fn answer(
        &self,
        name: &Selector,
        group: &Group,
        ids: &[(EventId, Option<u64>)],
        answer: Answer,
    ) -> Result<Vec<Receipt>, Error> {
        let held = self.core.pulls.of(&(name.clone(), group.clone()));
        let holder = |(id, lease)| held.iter().rposition(|one| one.holds(id, lease));
        let mut receipts = vec![Receipt::NotInFlight; ids.len()];
        let mut by_holder: HashMap<Option<usize>, Vec<usize>, RandomState> = HashMap::default();
        for (index, &one) in ids.iter().enumerate() {
            by_holder.entry(holder(one)).or_default().push(index);
        }
        for (holder, indexes) in by_holder {
            let asked: Vec<_> = indexes.iter().map(|&index| ids[index]).collect();
            let told = match holder.map(|holder| &held[holder]) {
                Some(held) => {
                    let told = held.membership.answer(asked.clone(), answer.clone()).await?;
                    held.answered(asked.iter().map(|(id, _)| *id), &answer, self.now());
                    told
                }
                None => self.core.answer_unheld(name, group, &asked, &answer).await?,
            };
            for (index, receipt) in indexes.into_iter().zip(told) {
                receipts[index] = receipt;
            }
        }
        Ok(receipts)
    }

    /// Acks an event and all before it on its topic, without a subscription; returns how many were not done before.
    ///
    /// # Errors
    /// `unknown_id`, `lease_lost`, `ack_failed`.
    pub async fn ack_up_to(
        &self,
        name: &Selector,
        group: &Group,
        id: EventId,
        lease: Option<u64>,
    ) -> Result<u64, Error> {
        let topic = self.core.topics_of(&[id]).await?.pop().flatten().filter(|topic| name.matches(topic));
        let topic = topic.ok_or_else(|| Error::unknown_id("upTo", id))?;
        let by = self.core.next_subscription();
        self.core.ask(&topic, group, |reply| Input::AckUpTo { by, id, lease, reply }).await
    }
}

impl Core {
    /// Keeps a membership until its deliveries are answered or their leases are over.
    fn hold(
        self: &Arc<Self>,
        name: Name,
        (membership, ack_timeout): (Membership, Duration),
        inbox: Inbox,
        given: &[Given],
    ) {
        membership.pause(true);
        let leases = given.iter().map(|given| (given.event.id, given.lease)).collect();
        let until = given.iter().map(|given| given.deadline).max().unwrap_or(Millis(0));
        let open = Mutex::new(Open { leases, until });
        let held = Arc::new(Held { membership, ack_timeout, open, changed: Notify::new() });
        self.pulls.add(&name, &held);
        let core = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let until = {
                    let open = held.open.lock();
                    if open.leases.is_empty() || open.until <= core.clock.now() {
                        break;
                    }
                    open.until
                };
                tokio::select! {
                    () = held.changed.notified() => {}
                    () = inbox.ready() => {}
                    () = tokio::time::sleep_until(core.clock.instant(until)) => {}
                }
                if !inbox.take_ended().is_empty() || core.is_draining() {
                    break;
                }
            }
            core.pulls.remove(&name, &held);
        });
    }

    /// Answers for events that no pull holds: a late ack counts, and so does any answer with the current lease.
    async fn answer_unheld(
        self: &Arc<Self>,
        name: &Selector,
        group: &Group,
        ids: &[(EventId, Option<u64>)],
        answer: &Answer,
    ) -> Result<Vec<Receipt>, Error> {
        let mut receipts = vec![Receipt::NotInFlight; ids.len()];
        let counts = |lease: Option<u64>| *answer == Answer::Ack || lease.is_some();
        let plain: Vec<EventId> = ids.iter().map(|(id, _)| *id).collect();
        let mut by_topic: HashMap<Topic, Vec<usize>, RandomState> = HashMap::default();
        for (index, topic) in self.topics_of(&plain).await?.into_iter().enumerate() {
            if let Some(topic) = topic.filter(|topic| name.matches(topic) && counts(ids[index].1)) {
                by_topic.entry(topic).or_default().push(index);
            }
        }
        for (topic, indexes) in by_topic {
            let of_topic: Vec<_> = indexes.iter().map(|&index| ids[index]).collect();
            let by = self.next_subscription();
            let input = |reply| Input::Answer { by, ids: of_topic.clone(), answer: answer.clone(), reply };
            for (index, receipt) in indexes.into_iter().zip(self.ask(&topic, group, input).await?) {
                receipts[index] = receipt;
            }
        }
        Ok(receipts)
    }
}
