//! A subscriber's side: deliveries come out, answers go in. Dropping it gives its leases back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_util::future::join_all;
use parking_lot::Mutex;
use promethean_event::{Code, Cursor, Event, EventId, From, Group, Identified, Selector, SubscribeOptions, Topic};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::bounds::CountedPatterns;
use crate::bus::{Core, Request, TopicGate};
use crate::group::{Answer, MemberOptions, Policy, Receipt};
use crate::inbox::{Given, Inbox, SubscriptionId};
use crate::lane::Subscriber;
use crate::relay::Origin;
use crate::resume::{Places, Resume};
use crate::runner::Input;
use crate::{Error, fan_in};

/// The answering side of a subscription. Dropping it ends the subscription and gives its leases back at once.
pub struct Membership {
    pub(crate) inner: Arc<Inner>,
    /// The tasks of a fan-in or an ephemeral tail; they end with this.
    tasks: JoinSet<()>,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) group: Option<Group>,
    pub(crate) options: SubscribeOptions,
    pub(crate) selectors: Vec<Selector>,
    pub(crate) gate: Option<TopicGate>,
    pub(crate) relayed: Option<Origin>,
    /// Of a tail, the place to resume at.
    pub(crate) resume: Option<Resume>,
    /// The topics it is a member on.
    pub(crate) joined: Mutex<Joined>,
    /// The gate may let more through than before.
    pub(crate) look_again: Arc<Notify>,
    /// Counts its patterns while it lives.
    _patterns: CountedPatterns,
}

/// The indexes of ids, by the topic that they are on.
type ByTopic = HashMap<Topic, Vec<usize>, RandomState>;

#[derive(Default)]
pub(crate) struct Joined {
    pub(crate) topics: HashSet<Topic, RandomState>,
    /// Those it has asked to join: the answer may come when nobody waits for it any more.
    pub(crate) joining: HashSet<Topic, RandomState>,
    /// Topics that a pattern selects and the gate did not let through: not new when it does.
    pub(crate) held_back: HashSet<Topic, RandomState>,
    pub(crate) left: bool,
}

impl Membership {
    pub(crate) async fn attach(
        core: &Arc<Core>,
        id: SubscriptionId,
        request: Request,
        inbox: &Inbox,
    ) -> Result<(Self, Vec<Cursor>), Error> {
        let Request { topic, group, mut options, gate, relayed } = request;
        let mut selectors = vec![topic];
        for selector in &options.topics {
            if !selectors.contains(selector) {
                selectors.push(selector.clone());
            }
        }
        for selector in &selectors {
            if let Selector::Topic(topic) = selector {
                core.must_know(topic)?;
            }
        }
        let counted = CountedPatterns::admit(core, &selectors)?;
        let shared = selectors.len() > 1 || matches!(selectors[0], Selector::Pattern(_));
        let resume = options.resume.as_deref().map(Resume::parse).transpose()?;
        let is_state = resume.as_ref().map_or(options.from == From::Snapshot, Resume::is_state);
        if resume.is_some() {
            options.from = From::Latest;
        }
        let grows = selectors.iter().any(|selector| matches!(selector, Selector::Pattern(_)));
        let places = group.is_none().then(|| Places::new(core, is_state, grows));
        let (most, look_again) = (options.max_in_flight, Arc::<Notify>::default());
        let subscriber = Subscriber::new(id, inbox.clone(), most, shared, places, Arc::clone(&look_again));
        let inner = Arc::new(Inner {
            core: Arc::clone(core),
            subscriber,
            group,
            options,
            selectors,
            gate,
            relayed,
            resume,
            joined: Mutex::default(),
            look_again,
            _patterns: counted,
        });
        // From here on, an early return or a cancellation drops the membership, which leaves whatever was joined.
        let mut membership = Self { inner, tasks: JoinSet::new() };
        if membership.inner.group.is_some() && membership.inner.has_pattern() {
            // Before the topics are listed: one that is created meanwhile is either in the list or finds it there.
            core.patterns.add(&membership.inner);
        }
        let (cursors, tasks) = fan_in::start(&membership.inner).await?;
        membership.tasks = tasks;
        Ok((membership, cursors))
    }

    /// The subscription's number.
    pub fn id(&self) -> SubscriptionId {
        self.inner.subscriber.id
    }

    /// The group; none: an ephemeral tail.
    pub fn group(&self) -> Option<&Group> {
        self.inner.group.as_ref()
    }

    /// Returns the place of a live tail at which another one may resume (`SubscribeOptions::resume`).
    pub fn resume(&self) -> Option<Box<str>> {
        self.inner.subscriber.places.as_ref().map(Places::text)
    }

    /// The topics it is a member on now.
    pub fn topics(&self) -> Vec<Topic> {
        self.inner.joined.lock().topics.iter().cloned().collect()
    }

    /// Answers deliveries, each with its lease where it has to be the current one. A receipt for each, in order.
    ///
    /// An `Ack` is answered once it is durable.
    ///
    /// # Errors
    /// `ack_failed`: whether it was saved is not known.
    pub async fn answer(&self, ids: Vec<(EventId, Option<u64>)>, answer: Answer) -> Result<Vec<Receipt>, Error> {
        self.inner.answer(ids, answer).await
    }

    /// Acks an event and all before it on its topic.
    ///
    /// # Errors
    /// `unknown_id`, `lease_lost`, `ack_failed`.
    pub async fn ack_up_to(&self, id: EventId, lease: Option<u64>) -> Result<(), Error> {
        let Some(group) = &self.inner.group else { return Ok(()) };
        let topic = self.inner.topic_of(id).await?.ok_or_else(|| Error::unknown_id("upTo", id))?;
        let ask = |reply| Input::AckUpTo { by: self.id(), id, lease, reply };
        self.inner.core.ask(&topic, group, ask).await.map(drop)
    }

    /// Lets deliveries out of the inbox of a connection, which knows the subscription from now on.
    pub fn open(&self) {
        self.inner.subscriber.open();
    }

    /// Stops deliveries to this subscriber, or resumes them. A member's deliveries that wait in the inbox are given back
    /// without an attempt; those of a live tail wait there.
    pub fn pause(&self, paused: bool) {
        let joined = self.inner.joined.lock();
        self.inner.subscriber.set_paused(paused);
        for topic in &joined.topics {
            self.inner.tell(topic, Input::Pause(self.id(), paused));
        }
    }

    /// True if deliveries are stopped.
    pub fn is_paused(&self) -> bool {
        self.inner.subscriber.is_paused()
    }

    /// Leaves one topic, when the subscriber may no longer see it. An ephemeral tail goes on, and whoever reads it shows
    /// nothing of it.
    pub fn leave(&self, topic: &Topic) {
        if self.inner.group.is_none() {
            return;
        }
        let mut joined = self.inner.joined.lock();
        if joined.topics.remove(topic) {
            joined.held_back.insert(topic.clone());
            self.inner.tell(topic, Input::Leave(self.id()));
        }
    }

    /// The gate may let topics through that it did not: joins those that a pattern selects.
    pub fn look_again(&self) {
        self.inner.look_again.notify_one();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.inner.core.patterns.remove(self.id());
        // First: whoever hears that it leaves asks what it never saw.
        self.inner.subscriber.close();
        let mut joined = self.inner.joined.lock();
        joined.left = true;
        let Joined { topics, joining, .. } = &mut *joined;
        for topic in topics.drain().chain(joining.drain()) {
            self.inner.tell(&topic, Input::Leave(self.inner.subscriber.id));
        }
    }
}

impl Inner {
    pub(crate) fn has_pattern(&self) -> bool {
        self.selectors.iter().any(|selector| matches!(selector, Selector::Pattern(_)))
    }

    /// Notes that all topics were joined that there were when that many had been created.
    pub(crate) fn joined_all(&self, created: u64) {
        if let Some(places) = &self.subscriber.places {
            places.complete(created);
        }
    }

    /// True if it is about the topic.
    pub(crate) fn selects(&self, topic: &Topic) -> bool {
        self.selectors.iter().any(|selector| selector.matches(topic))
    }

    /// True if the gate lets the topic through.
    pub(crate) fn may_see(&self, topic: &Topic) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate(topic))
    }

    pub(crate) fn tell(&self, topic: &Topic, input: Input) {
        if let Some(runner) = self.group.as_ref().and_then(|group| self.core.runner_of(topic, group)) {
            // A runner that has ended has no members to be told of.
            let _ = runner.send(input);
        }
    }

    pub(crate) fn member_options(&self) -> MemberOptions {
        let SubscribeOptions { max_in_flight, ack_timeout, batch_size, .. } = self.options;
        MemberOptions { max_in_flight, ack_timeout, batch_size }
    }

    pub(crate) fn policy(&self) -> Policy {
        let SubscribeOptions { ordered, max_attempts, filter, .. } = &self.options;
        Policy { ordered: *ordered, max_attempts: *max_attempts, filter: filter.clone() }
    }

    /// The topic that an id of this subscription is on; none: it is on no topic that this subscription is on.
    async fn topic_of(&self, id: EventId) -> Result<Option<Topic>, Error> {
        match self.selectors.as_slice() {
            [Selector::Topic(topic)] => Ok(Some(topic.clone())),
            _ => {
                let Some(topic) = self.core.topics_of(&[id]).await?.pop().flatten() else { return Ok(None) };
                if self.joined.lock().topics.contains(&topic) {
                    return Ok(Some(topic));
                }
                // Only to who has seen it: others are not told that there is such an event.
                let seen = self.subscriber.topics_of(&[id], false).contains(&Some(topic.clone()));
                if seen && !self.may_see(&topic) { Err(out_of_reach(id)) } else { Ok(None) }
            }
        }
    }

    /// Which of `ids` are on which topic, by their indexes; and those that are on a topic which a renewed token has taken
    /// out of reach. Others are on no topic of this subscription. `last`: the ids will not be asked for again.
    async fn by_topic(&self, ids: &[(EventId, Option<u64>)], last: bool) -> Result<(ByTopic, Vec<usize>), Error> {
        let plain: Vec<EventId> = ids.iter().map(|(id, _)| *id).collect();
        let mut topics = self.subscriber.topics_of(&plain, last);
        let unknown: Vec<usize> = (0..topics.len()).filter(|&index| topics[index].is_none()).collect();
        if !unknown.is_empty() {
            // Given out before a restart, or long ago.
            let ids: Vec<EventId> = unknown.iter().map(|&index| plain[index]).collect();
            for (&index, topic) in unknown.iter().zip(self.core.topics_of(&ids).await?) {
                topics[index] = topic;
            }
        }
        let mut by_topic = ByTopic::default();
        for (index, topic) in topics.into_iter().enumerate() {
            if let Some(topic) = topic {
                by_topic.entry(topic).or_default().push(index);
            }
        }
        let (joined, mut forbidden) = (self.joined.lock(), Vec::new());
        by_topic.retain(|topic, indexes| {
            let on = joined.topics.contains(topic);
            if !on && self.selects(topic) && !self.may_see(topic) {
                // Only to who has seen it: others are not told that there is such an event.
                indexes.retain(|index| unknown.binary_search(index).is_err());
                self.subscriber.asked_again(indexes.iter().map(|&index| plain[index]), topic);
                forbidden.append(indexes);
            }
            on
        });
        Ok((by_topic, forbidden))
    }

    /// Answers a delivery of which the topic is known. It counts also after the subscription has ended.
    async fn answer_one(
        &self,
        topic: &Topic,
        id: (EventId, Option<u64>),
        answer: Answer,
    ) -> Result<Vec<Receipt>, Error> {
        let left = self.joined.lock().left;
        match &self.group {
            Some(group) if left => {
                let by = self.subscriber.id;
                let input = |reply| Input::Answer { by, ids: vec![id], answer: answer.clone(), reply };
                self.core.ask(topic, group, input).await
            }
            _ => self.answer(vec![id], answer).await,
        }
    }

    async fn answer(&self, ids: Vec<(EventId, Option<u64>)>, answer: Answer) -> Result<Vec<Receipt>, Error> {
        let Some(group) = &self.group else { return Ok(vec![Receipt::Done; ids.len()]) };
        if let [Selector::Topic(topic)] = self.selectors.as_slice() {
            let by = self.subscriber.id;
            let input = |reply| Input::Answer { by, ids: ids.clone(), answer: answer.clone(), reply };
            return self.core.ask(topic, group, input).await;
        }
        let (by_topic, forbidden) = self.by_topic(&ids, !matches!(answer, Answer::Extend { .. })).await?;
        let asked = by_topic.into_iter().map(|(topic, indexes)| {
            let (ids, answer) = (&ids, &answer);
            async move {
                let of_topic: Vec<_> = indexes.iter().map(|&index| ids[index]).collect();
                let by = self.subscriber.id;
                let input = |reply| Input::Answer { by, ids: of_topic.clone(), answer: answer.clone(), reply };
                self.core.ask(&topic, group, input).await.map(|receipts| (indexes, receipts))
            }
        });
        // All topics at once: each saves by itself, and the store writes what comes together as one.
        let mut receipts = vec![Receipt::NotInFlight; ids.len()];
        forbidden.into_iter().for_each(|index| receipts[index] = Receipt::Forbidden);
        for answered in join_all(asked).await {
            let (indexes, of_topic) = answered?;
            for (index, receipt) in indexes.into_iter().zip(of_topic) {
                receipts[index] = receipt;
            }
        }
        Ok(receipts)
    }
}

/// A renewed token does not let the subscriber see the event's topic.
fn out_of_reach(id: EventId) -> Error {
    Error::new(Code::Forbidden, format!("the event {id} is on a topic that is out of reach now"))
}

/// A stream of deliveries. Dropping it gives its leases back.
pub struct Subscription {
    membership: Membership,
    inbox: Inbox,
    wanted: Option<Predicate>,
}

/// Accepts the events that a subscription returns.
type Predicate = Box<dyn Fn(&Event) -> bool + Send + Sync>;

impl Subscription {
    pub(crate) fn new(membership: Membership, inbox: Inbox) -> Self {
        Self { membership, inbox, wanted: None }
    }

    /// Returns only events that `wanted` accepts. The others are acked when their turn comes, and so count as done.
    #[must_use]
    pub fn only(mut self, wanted: impl Fn(&Event) -> bool + Send + Sync + 'static) -> Self {
        self.wanted = Some(Box::new(wanted));
        self
    }

    /// The next delivery; an error when the bus ended the subscription, after which there are no more.
    /// Cancel-safe: nothing is taken until it is returned.
    ///
    /// # Errors
    /// Why the bus ended the subscription.
    pub async fn next(&mut self) -> Result<Delivery, Error> {
        // One by one: what stays in the inbox until its lease is over was seen by nobody, and is no attempt.
        self.next_batch(1).await?.pop().ok_or_else(Error::shutting_down)
    }

    /// The next deliveries, at least one, at most `max`. Cancel-safe.
    ///
    /// # Errors
    /// As [`Subscription::next`].
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, Error> {
        loop {
            let taken = self.take(max.max(1)).await?;
            let deliveries = taken.into_iter().map(|given| self.delivery(given));
            let Some(wanted) = &self.wanted else { return Ok(deliveries.collect()) };
            let (deliveries, skipped): (Vec<_>, Vec<_>) = deliveries.partition(|delivery| wanted(delivery.event()));
            for delivery in skipped {
                // By itself, so that this stays cancel-safe. One that fails leaves the lease to run out.
                tokio::spawn(async move { delivery.ack().await });
            }
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    /// Waits until there is something, and takes at most `max` of it.
    async fn take(&mut self, max: usize) -> Result<Vec<Given>, Error> {
        let mut taken = Vec::new();
        loop {
            self.inbox.take(max, usize::MAX, self.membership.inner.core.clock.now(), &mut taken);
            if !taken.is_empty() {
                return Ok(taken);
            }
            if let Some((_, error)) = self.inbox.take_ended().pop() {
                return Err(error);
            }
            self.inbox.ready().await;
        }
    }

    fn delivery(&self, given: Given) -> Delivery {
        Delivery { given, inner: Arc::clone(&self.membership.inner) }
    }

    /// Acks many deliveries at once, whatever their order.
    ///
    /// # Errors
    /// `lease_lost` if one of them was given out again, `ack_failed`.
    pub async fn ack_all(&self, deliveries: &[Delivery]) -> Result<(), Error> {
        let ids: Vec<_> = deliveries.iter().map(|delivery| (delivery.given.event.id, None)).collect();
        self.membership.answer(ids, Answer::Ack).await.map(drop)
    }

    /// The answering side.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Stops deliveries, or goes on with them.
    pub fn pause(&self, paused: bool) {
        self.membership.pause(paused);
    }
}

/// An event given to this subscriber. Dropping it sends nothing: the lease runs out, or ends with the subscription.
pub struct Delivery {
    given: Given,
    /// Not the membership: that ends with the subscription, however long its deliveries are kept.
    inner: Arc<Inner>,
}

impl Delivery {
    /// The event.
    pub fn event(&self) -> &Event {
        &self.given.event
    }

    /// The how-manieth delivery of the event this is.
    pub fn attempt(&self) -> u32 {
        self.given.attempt
    }

    /// Everything known of the delivery.
    pub fn given(&self) -> &Given {
        &self.given
    }

    /// It is done. **Returned ⇒ durable.**
    ///
    /// # Errors
    /// `lease_lost`: it was given out again since; `ack_failed`.
    pub async fn ack(&self) -> Result<(), Error> {
        self.answer(Answer::Ack).await
    }

    /// It failed: comes back after a backoff.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn nack(&self, reason: impl Into<String>) -> Result<(), Error> {
        self.answer(Answer::Nack { reason: Some(reason.into()), delay: None, release: false }).await
    }

    /// It failed: comes back after `delay`.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn nack_after(&self, reason: impl Into<String>, delay: Duration) -> Result<(), Error> {
        self.answer(Answer::Nack { reason: Some(reason.into()), delay: Some(delay), release: false }).await
    }

    /// Gives it back without counting the attempt.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn release(&self) -> Result<(), Error> {
        self.answer(Answer::Nack { reason: None, delay: None, release: true }).await
    }

    /// Prolongs the lease to `by` from now.
    ///
    /// # Errors
    /// `unknown_id`: it is no longer in flight; `lease_lost`.
    pub async fn extend(&self, by: Duration) -> Result<(), Error> {
        self.answer(Answer::Extend { by: Some(by) }).await
    }

    async fn answer(&self, answer: Answer) -> Result<(), Error> {
        let (id, lease) = (self.given.event.id, self.given.lease);
        if lease == 0 {
            return Ok(());
        }
        let extends = matches!(answer, Answer::Extend { .. });
        let receipts = self.inner.answer_one(&self.given.event.topic, (id, Some(lease)), answer).await?;
        match receipts.first() {
            Some(Receipt::Forbidden) => Err(out_of_reach(id)),
            Some(Receipt::LeaseLost) => {
                Err(Error::new(Code::LeaseLost, format!("the event {id} was given out again since")))
            }
            Some(Receipt::NotInFlight) if extends => Err(Error::new(
                Code::UnknownId,
                format!("the event {id} is not in flight; there is no lease to extend"),
            )),
            _ => Ok(()),
        }
    }
}

impl Identified for Delivery {
    fn event_id(&self) -> EventId {
        self.given.event.id
    }
}
