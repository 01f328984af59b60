//! `ACK`, `NACK` and `MODACK` frames on their way: one call a subscription and burst, answers in the order of the frames.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use promethean_bus::{Answer, Error, Membership, Receipt};
use promethean_event::frame::{Corr, Ids, write};
use promethean_event::{Code, EventId};

use super::core::write_rejection;
use crate::rejection::Rejection;
use crate::trace::{Open, Traces};
use crate::ws::codec::Outbox;

/// Most calls whose answers wait, and most frames.
const MOST: usize = 64;
const MOST_FRAMES: usize = 16 * 1024;
/// How far back a call is looked for that a frame may join.
const LOOK_BACK: usize = 16;

type Receipts = Result<Vec<Receipt>, Error>;
type Leased = (EventId, Option<u64>);

/// What becomes of the acks of a connection.
#[derive(Default)]
pub(super) struct Settles {
    /// `OK`s of frames without `corr` are left out, of those that come in from now on.
    pub(super) quiet: bool,
    slots: VecDeque<Slot>,
    calls: VecDeque<Call>,
    /// The number of the first of `calls`.
    first: u64,
}

/// A frame that waits for its answer.
struct Slot {
    corr: Option<Corr>,
    /// Its `OK` is left out: it came in without `corr` while the connection was quiet.
    quiet: bool,
    kind: Kind,
    spans: Vec<Open>,
}

enum Kind {
    /// The answer is known.
    Refused(Box<Rejection>),
    /// A part of a call's receipts.
    Part { call: u64, from: usize, count: usize },
}

struct Call {
    /// Slots that wait for it.
    slots: usize,
    /// Receipts that say "not in flight" are refused.
    strict: bool,
    state: State,
}

enum State {
    /// Frames of the same burst may still join.
    Open {
        membership: Arc<Membership>,
        answer: Answer,
        ids: Vec<Leased>,
    },
    Waiting(BoxFuture<'static, Receipts>),
    Done(Receipts),
}

impl Settles {
    pub(super) fn has_room(&self) -> bool {
        self.calls.len() < MOST && self.slots.len() < MOST_FRAMES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Refuses a frame in its place.
    pub(super) fn refuse(&mut self, corr: Option<Corr>, rejection: Rejection) {
        self.wait(corr, Kind::Refused(Box::new(rejection)), Vec::new());
    }

    /// Adds an answer to deliveries.
    pub(super) fn add(
        &mut self,
        membership: &Arc<Membership>,
        ids: &Ids,
        lease: Option<u64>,
        answer: Answer,
        corr: Option<Corr>,
        spans: Vec<Open>,
    ) {
        let leased = ids.as_slice().iter().map(|id| (*id, lease));
        let same = |state: &State| match state {
            State::Open { membership: this, .. } => Arc::ptr_eq(this, membership),
            State::Waiting(_) | State::Done(_) => false,
        };
        // Only the last call of this subscription may be joined: answers to one event count in the order they came.
        let last = self.calls.iter_mut().enumerate().rev().take(LOOK_BACK).find(|(_, call)| same(&call.state));
        if let Some((index, call)) = last
            && let State::Open { answer: this, ids: waiting, .. } = &mut call.state
            && *this == answer
        {
            let (from, count) = (waiting.len(), leased.len());
            waiting.extend(leased);
            call.slots += 1;
            let call = self.first + index as u64;
            self.wait(corr, Kind::Part { call, from, count }, spans);
            return;
        }
        let ids: Vec<Leased> = leased.collect();
        let count = ids.len();
        let strict = matches!(answer, Answer::Extend { .. });
        self.push(State::Open { membership: Arc::clone(membership), answer, ids }, strict, count, corr, spans);
    }

    /// Adds an ack of an event and all before it.
    pub(super) fn add_up_to(
        &mut self,
        membership: &Arc<Membership>,
        id: EventId,
        lease: Option<u64>,
        corr: Option<Corr>,
    ) {
        self.send();
        let membership = Arc::clone(membership);
        let call = async move { membership.ack_up_to(id, lease).await.map(|()| vec![Receipt::Done]) };
        self.push(State::Waiting(Box::pin(call)), false, 1, corr, Vec::new());
    }

    fn push(&mut self, state: State, strict: bool, count: usize, corr: Option<Corr>, spans: Vec<Open>) {
        let call = self.first + self.calls.len() as u64;
        self.calls.push_back(Call { slots: 1, strict, state });
        self.wait(corr, Kind::Part { call, from: 0, count }, spans);
    }

    fn wait(&mut self, corr: Option<Corr>, kind: Kind, spans: Vec<Open>) {
        let quiet = self.quiet && corr.is_none();
        self.slots.push_back(Slot { corr, quiet, kind, spans });
    }

    /// Sends the calls of the burst to the bus.
    pub(super) fn send(&mut self) {
        for call in self.calls.iter_mut().rev() {
            if !matches!(call.state, State::Open { .. }) {
                break;
            }
            let open = std::mem::replace(&mut call.state, State::Done(Ok(Vec::new())));
            if let State::Open { membership, answer, ids } = open {
                let waiting = async move { membership.answer(ids, answer).await };
                call.state = State::Waiting(Box::pin(waiting));
            }
        }
    }

    /// Writes the answers that are there, in order; whether there was one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, traces: &Traces<'_>, outbox: &mut Outbox) -> bool {
        for call in &mut self.calls {
            if let State::Waiting(waiting) = &mut call.state
                && let Poll::Ready(receipts) = waiting.as_mut().poll(cx)
            {
                call.state = State::Done(receipts);
            }
        }
        let mut answered = false;
        while let Some(Slot { corr, quiet, kind, spans }) = self.slots.front_mut() {
            let corr = corr.as_ref();
            match kind {
                Kind::Refused(rejection) => outbox.text(|out| write_rejection(out, corr, rejection)),
                Kind::Part { call, from, count } => {
                    let index = usize::try_from(*call - self.first).unwrap_or(usize::MAX);
                    let Some(call) = self.calls.get_mut(index) else { break };
                    let State::Done(receipts) = &call.state else { break };
                    let verdict = verdict(receipts, *from, *count, call.strict);
                    if !spans.is_empty() {
                        traces.settled(std::mem::take(spans), verdict.as_ref().err().map(|no| no.code));
                    }
                    match verdict {
                        Ok(()) if *quiet => {}
                        Ok(()) => outbox.text(|out| write::ok(out, corr)),
                        Err(rejection) => outbox.text(|out| write_rejection(out, corr, &rejection)),
                    }
                    call.slots -= 1;
                }
            }
            self.slots.pop_front();
            answered = true;
            while self.calls.front().is_some_and(|call| call.slots == 0) {
                self.calls.pop_front();
                self.first += 1;
            }
        }
        answered
    }
}

/// The answer to a frame whose receipts these are.
fn verdict(receipts: &Receipts, from: usize, count: usize, strict: bool) -> Result<(), Rejection> {
    let receipts = match receipts {
        Ok(receipts) => receipts.get(from..from + count).unwrap_or_default(),
        Err(error) => return Err(Rejection::new(error.code, error.message.clone())),
    };
    if receipts.contains(&Receipt::Forbidden) {
        let message =
            "the event's topic is out of reach since the token was renewed; it goes to other members of the group";
        return Err(Rejection::new(Code::Forbidden, message));
    }
    if receipts.contains(&Receipt::LeaseLost) {
        return Err(Rejection::new(
            Code::LeaseLost,
            "the event was given out again since; its new holder answers for it",
        ));
    }
    if strict && receipts.contains(&Receipt::NotInFlight) {
        return Err(Rejection::new(Code::UnknownId, "the event is not in flight; there is no lease to extend"));
    }
    Ok(())
}
