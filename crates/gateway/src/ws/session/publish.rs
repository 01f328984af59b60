//! `PUBLISH` frames on their way: one commit a burst, answers in the order of the frames.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use promethean_bus::{Burst, Bus, Error, Placed, Published};
use promethean_event::frame::{Corr, Item, write};
use promethean_event::{Draft, Invalid, Topic};

use super::core::write_rejection;
use crate::rejection::Rejection;
use crate::trace::{Open, Traces};
use crate::ws::codec::Outbox;

/// Most bursts whose answers wait: while the store syncs one, the next are collected.
const MOST: usize = 4;

/// What a body has more than the frame that brought it, at most: the time and the partition.
const STAMP: usize = 24;

type Outcomes = Vec<Result<Placed, Error>>;

/// What becomes of the publishes of a connection.
#[derive(Default)]
pub(super) struct Publishes<'h> {
    /// `OK`s of frames without `corr` are left out, of those that come in from now on.
    pub(super) quiet: bool,
    /// The burst of the frames that are being read.
    open: Option<(Burst<'h>, Vec<Slot>)>,
    /// Frames that were read with the burst, and their bytes: most of them publish, or none.
    expected: (usize, usize),
    sent: VecDeque<Sent<'h>>,
}

/// A frame that waits for its answer.
struct Slot {
    corr: Option<Corr>,
    /// Its `OK` is left out: it came in without `corr` while the connection was quiet.
    quiet: bool,
    kind: Kind,
    span: Option<Open>,
}

enum Kind {
    One,
    Batch,
    /// Not part of the burst: the answer is known.
    Refused(Box<Rejection>),
}

struct Sent<'h> {
    slots: Vec<Slot>,
    state: State<'h>,
}

enum State<'h> {
    Waiting(BoxFuture<'h, Outcomes>),
    Done(Outcomes),
}

impl<'h> Publishes<'h> {
    pub(super) fn has_room(&self) -> bool {
        self.sent.len() < MOST
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_none() && self.sent.is_empty()
    }

    /// Says how many frames are about to come, and how large they are together.
    pub(super) fn expect(&mut self, (frames, bytes): (usize, usize)) {
        self.expected = (frames, bytes);
    }

    fn open(&mut self, bus: &'h Bus) -> &mut (Burst<'h>, Vec<Slot>) {
        let (frames, bytes) = self.expected;
        self.open.get_or_insert_with(|| {
            let mut burst = bus.burst();
            burst.reserve(frames, bytes + frames * STAMP);
            (burst, Vec::with_capacity(frames))
        })
    }

    /// Adds what a frame publishes.
    ///
    /// # Errors
    /// What the contract refuses, with the field; nothing of the frame is added, and it has no slot yet.
    pub(super) fn add(
        &mut self,
        topic: Topic,
        item: Item<'_>,
        corr: Option<&Corr>,
        span: Option<Open>,
        bus: &'h Bus,
    ) -> Result<(), Invalid> {
        let quiet = self.quiet && corr.is_none();
        let (burst, slots) = self.open(bus);
        let kind = match item {
            Item::One { payload, options } => {
                burst.add(&Draft { topic, payload: Cow::Borrowed(payload), options }).map_err(named)?;
                Kind::One
            }
            Item::Batch(items) => {
                let drafts = items.into_iter().map(|(payload, options)| Draft {
                    topic: topic.clone(),
                    payload: Cow::Borrowed(payload),
                    options,
                });
                burst.add_batch(drafts)?;
                Kind::Batch
            }
        };
        slots.push(Slot { corr: corr.cloned(), quiet, kind, span });
        Ok(())
    }

    /// Refuses a frame in its place.
    pub(super) fn refuse(&mut self, corr: Option<Corr>, rejection: Rejection, bus: &'h Bus) {
        self.open(bus).1.push(Slot { corr, quiet: false, kind: Kind::Refused(Box::new(rejection)), span: None });
    }

    /// Sends the burst to the bus.
    pub(super) fn send(&mut self, bus: &'h Bus) {
        if let Some((burst, slots)) = self.open.take() {
            let empty = burst.is_empty();
            let state = if empty { State::Done(Vec::new()) } else { State::Waiting(Box::pin(bus.commit(burst))) };
            self.sent.push_back(Sent { slots, state });
        }
    }

    /// Writes the answers that are there, in order; whether there was one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, traces: &Traces<'_>, outbox: &mut Outbox) -> bool {
        for sent in &mut self.sent {
            if let State::Waiting(waiting) = &mut sent.state
                && let Poll::Ready(outcomes) = waiting.as_mut().poll(cx)
            {
                sent.state = State::Done(outcomes);
            }
        }
        let mut answered = false;
        while let Some(Sent { state: State::Done(_), .. }) = self.sent.front()
            && let Some(Sent { state: State::Done(outcomes), slots }) = self.sent.pop_front()
        {
            answered = true;
            let mut outcomes = outcomes.into_iter();
            for Slot { corr, quiet, kind, span } in slots {
                let corr = corr.as_ref();
                let outcome = match &kind {
                    Kind::Refused(rejection) => {
                        outbox.text(|out| write_rejection(out, corr, rejection));
                        continue;
                    }
                    Kind::One | Kind::Batch => outcomes.next().unwrap_or_else(|| Err(Error::shutting_down())),
                };
                if span.is_some() {
                    let first = |placed: &Placed| placed.iter().next().map(|one| (one.id, one.seq));
                    traces.published(span, outcome.as_ref().map(first).map_err(|error| error.code));
                }
                match (outcome, kind) {
                    (Err(error), _) => {
                        let rejection = Rejection::new(error.code, error.message);
                        outbox.text(|out| write_rejection(out, corr, &rejection));
                    }
                    (Ok(_), _) if quiet => {}
                    (Ok(published), Kind::Batch) => {
                        let places = published.iter().map(|one| (one.id, one.seq, one.duplicate));
                        outbox.text(|out| write::published_batch(out, corr, places));
                    }
                    (Ok(published), _) => {
                        for &Published { id, seq, duplicate } in published.iter() {
                            outbox.text(|out| write::published(out, corr, id, seq, duplicate));
                        }
                    }
                }
            }
        }
        answered
    }
}

/// The field as a single event's frame calls it.
fn named(invalid: Invalid) -> Invalid {
    if invalid.field == "payload" { invalid } else { invalid.within("opts.") }
}
