//! The way out of a subscription: no more deliveries, what nobody has read goes back, then the goodbye.
//!
//! The hub counts what a subscriber held when it left as tried and failed, so what was never looked at is given back
//! first. Each step waits for the answer to the one before; a subscription of the same name waits for the last.

use promethean_event::EventId;
use promethean_event::frame::ask::{self, GiveBack};
use promethean_event::limits::MAX_BATCH;

use super::again::{self, Again};
use super::{Driver, Subscribed, Topics};
use crate::mailbox::Mailbox;
use crate::pending::{Ask, Reply};
use crate::{Error, Subscription};

/// A subscription that ends, or stops for a while.
pub(super) struct Leaving {
    step: Step,
    /// To be given back.
    unhandled: Vec<EventId>,
    /// It is not left, only halted.
    stays: bool,
    result: Result<(), Error>,
    replies: Vec<Reply<()>>,
    /// Who wants a subscription of the same name.
    next: Option<Wanted>,
}

/// A subscription that waits for another one's end.
pub(super) struct Wanted {
    pub(super) topics: Topics,
    pub(super) mailbox: Mailbox,
    pub(super) reply: Reply<Subscription>,
}

#[derive(Clone, Copy)]
enum Step {
    Pause,
    Release,
    Unsubscribe,
}

impl Leaving {
    /// Takes on who wants the name next, unless somebody does already, or the subscription stays.
    pub(super) fn then(&mut self, wanted: Wanted) -> Option<Wanted> {
        if self.stays || self.next.is_some() {
            return Some(wanted);
        }
        self.next = Some(wanted);
        None
    }
}

impl Driver {
    pub(super) fn leave(&mut self, number: u64, unhandled: Vec<EventId>, reply: Option<Reply<()>>) {
        self.begin(number, unhandled, reply, false);
    }

    pub(super) fn halt(&mut self, number: u64, unhandled: Vec<EventId>, reply: Option<Reply<()>>) {
        if let Some(subscribed) = self.subscriptions.get_mut(&number) {
            subscribed.held = true;
        }
        self.begin(number, unhandled, reply, true);
    }

    fn begin(&mut self, number: u64, unhandled: Vec<EventId>, reply: Option<Reply<()>>, stays: bool) {
        let Some(subscribed) = self.subscriptions.get_mut(&number) else {
            // It has ended already, and what it held went back.
            reply.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
            return;
        };
        if let Some((opening, _)) = subscribed.opening.take() {
            let _ = opening.send(Err(Error::Closed));
        }
        if let Some(leaving) = &mut subscribed.leaving {
            leaving.stays &= stays;
            leaving.unhandled.extend(unhandled);
            leaving.replies.extend(reply);
            return;
        }
        let step = if subscribed.topics.group.is_some() { Step::Pause } else { Step::Unsubscribe };
        let replies = reply.into_iter().collect();
        subscribed.leaving = Some(Leaving { step, unhandled, stays, result: Ok(()), replies, next: None });
        self.leave_on(number);
    }

    /// Asks for the step that comes next.
    pub(super) fn leave_on(&mut self, number: u64) {
        let Self { subscriptions, pending, outgoing, .. } = self;
        let Some(Subscribed { topics, leaving: Some(leaving), .. }) = subscriptions.get(&number) else { return };
        let Topics { topic, group, .. } = topics;
        let frame = pending.ask(Ask::Leave { subscription: number }, |out, corr| match (leaving.step, group) {
            (Step::Pause, group) => ask::pause(out, corr, topic, group.as_ref()),
            (Step::Release, Some(group)) => {
                let some = leaving.unhandled.get(..MAX_BATCH).unwrap_or(&leaving.unhandled);
                let released = GiveBack { release: true, ..GiveBack::default() };
                ask::nack(out, corr, topic, group, some, &released, None);
            }
            (Step::Release | Step::Unsubscribe, group) => ask::unsubscribe(out, corr, topic, group.as_ref()),
        });
        outgoing.push_back(frame);
    }

    /// The hub has answered a step. A refusal means that it does not have the subscription (any more).
    pub(super) fn on_left(&mut self, number: u64, result: Result<(), Error>) {
        if let Some(pause) = result.as_ref().err().and_then(again::pause) {
            return self.ask_later(pause, Again::Leave(number));
        }
        let Some(Subscribed { deliveries, leaving: Some(leaving), .. }) = self.subscriptions.get_mut(&number) else {
            return;
        };
        match leaving.step {
            Step::Pause => leaving.unhandled.extend(deliveries.take_back()),
            Step::Release => {
                let sent = leaving.unhandled.len().min(MAX_BATCH);
                leaving.unhandled.drain(..sent);
                leaving.result = std::mem::replace(&mut leaving.result, Ok(())).and(result);
            }
            Step::Unsubscribe => return self.left(number),
        }
        leaving.step = if leaving.unhandled.is_empty() { Step::Unsubscribe } else { Step::Release };
        if leaving.stays && leaving.unhandled.is_empty() {
            return self.left(number);
        }
        self.leave_on(number);
    }

    /// It is over: whoever waits is told, and who wants the name next has it.
    fn left(&mut self, number: u64) {
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        let Some(Leaving { stays, result, replies, next, .. }) = subscribed.leaving.take() else { return };
        if !stays {
            let name = subscribed.topics.name();
            self.by_name.remove(&name);
            self.subscriptions.remove(&number);
        }
        replies.into_iter().for_each(|reply| drop(reply.send(result.clone())));
        if let Some(Wanted { topics, mailbox, reply }) = next {
            self.on_subscribe(topics, mailbox, reply);
        }
    }

    /// The connection is lost, and with it what was held over it.
    pub(super) fn all_left(&mut self) {
        let leaving = |(number, one): (&u64, &Subscribed)| one.leaving.is_some().then_some(*number);
        let numbers: Vec<u64> = self.subscriptions.iter().filter_map(leaving).collect();
        numbers.into_iter().for_each(|number| self.left(number));
    }
}
