//! Answers to deliveries: one frame's worth, and the joining of those that the hub had no room for.

use std::collections::VecDeque;
use std::time::Duration;

use promethean_event::frame::ask::{self, GiveBack};
use promethean_event::limits::MAX_BATCH;
use promethean_event::{EventId, Group};
use tokio::time::Instant;

use crate::Error;
use crate::pending::Reply;

/// One answer to some deliveries of a subscription.
pub(crate) struct Settlement {
    pub(crate) subscription: u64,
    pub(crate) how: How,
    pub(crate) items: Vec<(EventId, Option<Reply<()>>)>,
}

/// The kind of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum How {
    Ack,
    /// An ack that counts only under this lease.
    Fenced(u64),
    /// With the lease, for a single event.
    Nack(GiveBack, Option<u64>),
    /// With the lease, for a single event.
    Extend(Duration, Option<u64>),
    /// The client's own extension of events that wait for their reader, and when it was asked for.
    Keep(Duration, Instant),
}

impl Settlement {
    pub(crate) fn new(subscription: u64, how: How, id: EventId, reply: Reply<()>) -> Self {
        Self { subscription, how, items: vec![(id, Some(reply))] }
    }

    /// An answer that nothing in the program waits for.
    pub(crate) fn unasked(subscription: u64, how: How, ids: impl IntoIterator<Item = EventId>) -> Self {
        Self { subscription, how, items: ids.into_iter().map(|id| (id, None)).collect() }
    }

    pub(crate) fn ids(&self) -> Vec<EventId> {
        self.items.iter().map(|(id, _)| *id).collect()
    }

    pub(crate) fn frame(&self, corr: u64, topic: &str, group: &Group) -> Vec<u8> {
        let (mut out, ids) = (Vec::new(), self.ids());
        match &self.how {
            How::Ack => ask::ack(&mut out, corr, topic, group, &ids, None),
            How::Fenced(lease) => ask::ack(&mut out, corr, topic, group, &ids, Some(*lease)),
            How::Nack(how, lease) => ask::nack(&mut out, corr, topic, group, &ids, how, *lease),
            How::Extend(by, lease) => ask::modack(&mut out, corr, topic, group, &ids, *by, *lease),
            How::Keep(by, _) => ask::modack(&mut out, corr, topic, group, &ids, *by, None),
        }
        out
    }

    /// Tells all callers the result.
    pub(crate) fn reply(self, result: &Result<(), Error>) {
        for reply in self.items.into_iter().filter_map(|(_, reply)| reply) {
            let _ = reply.send(result.clone());
        }
    }

    /// Returns the acks, which still count on another connection, and answers the rest.
    pub(crate) fn over_a_lost_connection(self) -> Option<Self> {
        match self.how {
            How::Ack => return Some(self),
            // A lost connection gives events back too.
            How::Nack(..) => self.reply(&Ok(())),
            How::Fenced(_) | How::Extend(..) | How::Keep(..) => self.reply(&Err(Error::Lost)),
        }
        None
    }

    /// Takes in `other` if one frame can say both. A joined frame names no lease.
    fn join(&mut self, other: Self) -> Option<Self> {
        let room = self.items.len() + other.items.len() <= MAX_BATCH;
        let joined = match (&self.how, &other.how) {
            _ if self.subscription != other.subscription || !room => None,
            (How::Ack, How::Ack) => Some(How::Ack),
            (How::Nack(how, _), How::Nack(same, _)) if how == same => Some(How::Nack(how.clone(), None)),
            (How::Extend(by, _), How::Extend(same, _)) if by == same => Some(How::Extend(*by, None)),
            _ => None,
        };
        let Some(joined) = joined else { return Some(other) };
        self.how = joined;
        self.items.extend(other.items);
        None
    }
}

/// Answers that wait because the hub refused one with `rate_limited`: sent together when it says.
#[derive(Default)]
pub(crate) struct Refused {
    waiting: VecDeque<Settlement>,
    due: Option<Instant>,
}

impl Refused {
    /// When to send them. `None` if the hub takes answers.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps an answer until `pause` is over, at the earliest.
    pub(crate) fn refused(&mut self, settlement: Settlement, pause: Duration) {
        self.due = self.due.max(Some(Instant::now() + pause));
        self.add(settlement);
    }

    /// Keeps an answer, joined with one that waits where that is possible.
    pub(crate) fn add(&mut self, settlement: Settlement) {
        let mut left = Some(settlement);
        for one in self.waiting.iter_mut().rev().take(16) {
            let Some(more) = left.take() else { return };
            left = one.join(more);
        }
        self.waiting.extend(left);
    }

    /// Hands out everything that waits.
    pub(crate) fn take(&mut self) -> VecDeque<Settlement> {
        self.due = None;
        std::mem::take(&mut self.waiting)
    }
}
