//! Everything that waits for the hub's answer, and what becomes of it when the connection is lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use promethean_event::frame::{Done, Refusal, ask};
use promethean_event::{Code, Group, Topic};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;

use crate::driver::Topics;
use crate::settlement::Settlement;
use crate::window::Room;
use crate::wire::text;
use crate::{Error, Publish, Published};

/// Who waits for an answer.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A publish that is not confirmed.
pub(crate) struct Unconfirmed {
    topic: Topic,
    events: Vec<Publish>,
    batch: bool,
    reply: Reply<Vec<Published>>,
    /// It was sent on an earlier connection.
    resent: bool,
    /// What became of it on an earlier connection is unknown.
    uncertain: bool,
    /// Its frame's size.
    bytes: usize,
    /// Its place in the window.
    _room: Room,
}

impl Unconfirmed {
    pub(crate) fn new(
        topic: Topic,
        events: Vec<Publish>,
        batch: bool,
        reply: Reply<Vec<Published>>,
        room: Room,
    ) -> Self {
        Self { topic, events, batch, reply, resent: false, uncertain: false, bytes: 0, _room: room }
    }

    pub(crate) fn frame(&self, corr: u64) -> Message {
        let mut out = Vec::new();
        match self.events.as_slice() {
            [one] if !self.batch => ask::publish(&mut out, corr, self.topic.as_str(), &one.payload, &one.options),
            events => {
                let events = events.iter().map(|event| (&*event.payload, &event.options));
                ask::publish_batch(&mut out, corr, self.topic.as_str(), events);
            }
        }
        text(out)
    }

    fn confirm(self, done: &Done<'_>) {
        let published = match (done.id, done.seq) {
            (Some(id), Some(seq)) => vec![Published { id, seq, duplicate: done.duplicate && !self.resent }],
            _ => {
                let place = |(&id, &seq)| Published { id, seq, duplicate: false };
                let mut published: Vec<_> = done.ids.iter().zip(&done.seqs).map(place).collect();
                for index in done.duplicates.iter().filter(|_| !self.resent) {
                    if let Some(one) = published.get_mut(*index) {
                        one.duplicate = true;
                    }
                }
                published
            }
        };
        let _ = self.reply.send(Ok(published));
    }
}

/// A question other than a publish.
pub(crate) enum Ask {
    /// A subscription that is being made, on this connection.
    Subscribe { subscription: u64 },
    /// Answers to deliveries. Acks are sent again on the next connection: a late ack still counts.
    Settle { settlement: Settlement, topic: Arc<str>, group: Group },
    /// The next token.
    Renew,
    /// A pause, or its end, and who asked for it.
    Hold { subscription: u64, reply: Option<Reply<()>> },
    /// A step on the way out of a subscription.
    Leave { subscription: u64 },
}

/// Everything that waits for an answer.
#[derive(Default)]
pub(crate) struct Pending {
    corr: u64,
    publishes: BTreeMap<u64, Unconfirmed>,
    /// With the sizes of their frames.
    asks: HashMap<u64, (Ask, usize)>,
}

/// What an answer means for the driver.
pub(crate) enum Outcome {
    /// Nothing more.
    Settled,
    /// Answers to deliveries were taken, or refused.
    Answered { settlement: Settlement, result: Result<(), Error> },
    /// A subscription is there, of a tail with its place, or not.
    Subscribed { subscription: u64, result: Result<Option<Box<str>>, Error> },
    /// A pause is there, or its end, or not.
    Held { subscription: u64, reply: Option<Reply<()>>, result: Result<(), Error> },
    /// A step on the way out of a subscription was answered.
    Left { subscription: u64, result: Result<(), Error> },
    /// The token was renewed until then (epoch seconds, where the hub says so), or not.
    Renewed(Result<Option<u64>, Error>),
    /// The hub says something by itself.
    Unasked,
}

impl Pending {
    pub(crate) fn next_corr(&mut self) -> u64 {
        self.corr += 1;
        self.corr
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.publishes.is_empty() && self.asks.is_empty()
    }

    pub(crate) fn publish(&mut self, mut unconfirmed: Unconfirmed) -> Message {
        let corr = self.next_corr();
        let frame = unconfirmed.frame(corr);
        unconfirmed.bytes = frame.len();
        self.publishes.insert(corr, unconfirmed);
        frame
    }

    /// Adds a question whose frame `write` makes.
    pub(crate) fn ask(&mut self, ask: Ask, write: impl FnOnce(&mut Vec<u8>, u64)) -> Message {
        let corr = self.next_corr();
        let mut out = Vec::new();
        write(&mut out, corr);
        self.asks.insert(corr, (ask, out.len()));
        text(out)
    }

    /// Writes the frame of answers to deliveries. `None` for a subscription without a group, which has none.
    pub(crate) fn answers(&mut self, settlement: Settlement, topics: &Topics) -> Option<Message> {
        let Some(group) = topics.group.clone() else {
            settlement.reply(&Ok(()));
            return None;
        };
        let (topic, corr) = (Arc::clone(&topics.topic), self.next_corr());
        let frame = settlement.frame(corr, &topic, &group);
        self.asks.insert(corr, (Ask::Settle { settlement, topic, group }, frame.len()));
        Some(text(frame))
    }

    pub(crate) fn on_done(&mut self, done: &Done<'_>) -> Outcome {
        let Some(corr) = done.corr else { return Outcome::Unasked };
        if let Some(unconfirmed) = self.publishes.remove(&corr) {
            unconfirmed.confirm(done);
            return Outcome::Settled;
        }
        if matches!(self.asks.get(&corr), Some((Ask::Renew, _))) {
            self.asks.remove(&corr);
            return Outcome::Renewed(Ok(done.exp));
        }
        match self.settle(corr, &Ok(())) {
            Outcome::Subscribed { subscription, result: Ok(_) } => {
                let resume = done.resume.as_deref().map(Into::into);
                Outcome::Subscribed { subscription, result: Ok(resume) }
            }
            outcome => outcome,
        }
    }

    pub(crate) fn on_refusal(&mut self, refusal: &Refusal<'_>) -> Outcome {
        let Some(corr) = refusal.corr else { return Outcome::Unasked };
        if refusal.code == Some(Code::ShuttingDown) && self.publishes.contains_key(&corr) {
            // Nothing was stored; it waits for the next connection.
            return Outcome::Settled;
        }
        let error = Error::refused(refusal);
        if let Some(unconfirmed) = self.publishes.remove(&corr) {
            let _ = unconfirmed.reply.send(Err(error));
            return Outcome::Settled;
        }
        self.settle(corr, &Err(error))
    }

    fn settle(&mut self, corr: u64, result: &Result<(), Error>) -> Outcome {
        match self.asks.remove(&corr).map(|(ask, _)| ask) {
            Some(Ask::Subscribe { subscription }) => {
                return Outcome::Subscribed { subscription, result: result.clone().map(|()| None) };
            }
            Some(Ask::Settle { settlement, .. }) => return Outcome::Answered { settlement, result: result.clone() },
            Some(Ask::Hold { subscription, reply }) => {
                return Outcome::Held { subscription, reply, result: result.clone() };
            }
            Some(Ask::Leave { subscription }) => return Outcome::Left { subscription, result: result.clone() },
            Some(Ask::Renew) => return Outcome::Renewed(result.clone().map(|()| None)),
            None => {}
        }
        Outcome::Settled
    }

    /// The hub has closed the connection because of a frame over its `max_frame_bytes`. Sent again, that frame would end
    /// every connection: it is answered here.
    ///
    /// Which one it was the hub does not say. It reads a whole frame before it acts, so the one it closed on is among
    /// those without an answer, and the largest of these is over the limit too: it was not and would not be stored.
    pub(crate) fn on_too_large(&mut self) -> Outcome {
        let publish = self.publishes.iter().map(|(corr, unconfirmed)| (unconfirmed.bytes, *corr)).max();
        let ask = self.asks.iter().map(|(corr, (_, bytes))| (*bytes, *corr)).max();
        let Some((bytes, corr)) = publish.max(ask) else { return Outcome::Settled };
        let mut message = format!(
            "the frame has {bytes} bytes, more than the hub's max_frame_bytes: send less at once, or raise that limit"
        );
        if self.publishes.get(&corr).is_some_and(|unconfirmed| unconfirmed.uncertain) {
            // The hub may have had another limit then.
            message.push_str("; whether it was stored before, when a connection was lost, is unknown");
        }
        let error = Error::Refused { code: Code::TooLarge.as_str().to_owned(), message, retry_after: None };
        if let Some(unconfirmed) = self.publishes.remove(&corr) {
            let _ = unconfirmed.reply.send(Err(error));
            return Outcome::Settled;
        }
        self.settle(corr, &Err(error))
    }

    /// The connection is lost: what was sent on it may have arrived. `too_large`: the hub closed it because of a frame
    /// over its limit, after it had answered what came before.
    pub(crate) fn on_lost(&mut self, too_large: bool) {
        for unconfirmed in self.publishes.values_mut() {
            unconfirmed.resent = true;
            unconfirmed.uncertain |= !too_large;
        }
        self.forget();
    }

    /// Answers what makes no sense on another connection.
    pub(crate) fn forget(&mut self) {
        let mut kept = HashMap::new();
        for (corr, (ask, bytes)) in self.asks.drain() {
            match ask {
                Ask::Settle { settlement, topic, group } => {
                    if let Some(settlement) = settlement.over_a_lost_connection() {
                        kept.insert(corr, (Ask::Settle { settlement, topic, group }, bytes));
                    }
                }
                // A new connection is told what is held.
                Ask::Hold { reply: Some(reply), .. } => {
                    let _ = reply.send(Ok(()));
                }
                Ask::Subscribe { .. } | Ask::Hold { .. } | Ask::Leave { .. } | Ask::Renew => {}
            }
        }
        self.asks = kept;
    }

    /// What has to be asked again on a new connection.
    pub(crate) fn again(&self, out: &mut Vec<Message>) {
        for (corr, (ask, _)) in &self.asks {
            if let Ask::Settle { settlement, topic, group } = ask {
                out.push(text(settlement.frame(*corr, topic, group)));
            }
        }
        out.extend(self.publishes.iter().map(|(corr, unconfirmed)| unconfirmed.frame(*corr)));
    }

    /// Nothing will be answered any more.
    pub(crate) fn fail(&mut self, error: &Error) {
        for (_, unconfirmed) in std::mem::take(&mut self.publishes) {
            let _ = unconfirmed.reply.send(Err(error.clone()));
        }
        let corrs: Vec<u64> = self.asks.keys().copied().collect();
        for corr in corrs {
            match self.settle(corr, &Err(error.clone())) {
                Outcome::Held { reply: Some(reply), .. } => drop(reply.send(Err(error.clone()))),
                Outcome::Answered { settlement, result } => settlement.reply(&result),
                _ => {}
            }
        }
    }
}
