//! Everything of a session but the socket: what frames work on while they are borrowed from the decoder.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use promethean_bus::{Given, Inbox};
use promethean_event::Code;
use promethean_event::frame::{Corr, Op, write};
use tokio::time::Instant;

use super::Wire;
use super::awaited::{Awaited, InForce};
use super::deadlines::Deadlines;
use super::held::Held;
use super::names::Names;
use super::pace::{self, Pace};
use super::publish::Publishes;
use super::settle::Settles;
use super::subscriptions::Subscriptions;
use crate::Hub;
use crate::audit::Client;
use crate::auth::{Identity, Policy};
use crate::limits::ConnectionQuota;
use crate::rejection::Rejection;
use crate::trace::Traces;
use crate::ws::codec::{Decoder, Outbox};
use crate::ws::connections::Registered;

/// The state of a session.
pub(super) struct Core<'h> {
    pub(super) hub: &'h Hub,
    pub(super) registered: Registered<'h>,
    pub(super) identity: Option<Identity>,
    /// The policy in force, shared with the gates of pattern subscriptions.
    pub(super) in_force: InForce,
    pub(super) quota: ConnectionQuota,
    pub(super) pace: Pace,
    /// `OK`s of frames without `corr` are left out; frames that wait for their answer keep what counted when they came.
    pub(super) quiet: bool,
    /// A frame with a field that is not one of its kind is refused.
    pub(super) strict: bool,
    pub(super) names: Names,
    pub(super) subscriptions: Subscriptions,
    pub(super) inbox: Inbox,
    /// The policy was another one before: what was on its way has to be looked at.
    pub(super) narrowed: bool,
    /// Deliveries on their way into the outbox; empty between steps.
    pub(super) given: Vec<Given>,
    pub(super) publishes: Publishes<'h>,
    pub(super) settles: Settles,
    pub(super) traces: Traces<'h>,
    /// A frame whose answer the next frames have to wait for: `AUTH`, `SUBSCRIBE`.
    pub(super) barrier: Option<BoxFuture<'h, Awaited>>,
    /// That frame is a `SUBSCRIBE`: answers to deliveries are read meanwhile.
    pub(super) subscribing: bool,
    pub(super) held: Held,
    pub(super) outbox: Outbox,
    pub(super) deadlines: Deadlines,
    /// The hub shuts down: nothing more is accepted.
    pub(super) leaving: bool,
}

/// What made the session go on.
pub(super) enum Step {
    /// Something was written or answered.
    Progress,
    /// So many bytes were read.
    Read(usize),
    /// The frame that others wait for has its answer.
    Awaited(Awaited),
    /// A deadline may have passed.
    Tick,
    /// There is no room for the rest of the frame, and no other half-read frame is larger.
    TooMuch,
    /// The hub shuts down.
    Drain,
    /// The client is gone.
    Gone,
}

/// What to do after a frame.
pub(super) enum Flow {
    /// The next one.
    Next,
    /// This one again, when something else is done.
    Hold,
}

impl<'h> Core<'h> {
    pub(super) fn new(hub: &'h Hub, registered: Registered<'h>, inbox: Inbox, identity: Option<Identity>) -> Self {
        let now = Instant::now();
        let mut core = Self {
            hub,
            registered,
            identity: None,
            pace: Pace::before_auth(now),
            in_force: InForce::new(RwLock::new(Arc::new(Policy::nothing()))),
            quota: hub.quotas.connection(),
            quiet: false,
            strict: false,
            names: Names::default(),
            subscriptions: Subscriptions::default(),
            inbox,
            narrowed: false,
            given: Vec::new(),
            publishes: Publishes::default(),
            settles: Settles::default(),
            traces: Traces::new(hub.tracer.as_ref()),
            barrier: None,
            subscribing: false,
            held: Held::new(hub.quotas.limits_connections()),
            outbox: Outbox::default(),
            deadlines: Deadlines::new(&hub.config, now),
            leaving: false,
        };
        if let Some(identity) = identity {
            core.set_identity(identity);
        }
        core
    }

    /// True if more frames may be taken in: at a bound the client has to wait.
    pub(super) fn may_read(&mut self) -> bool {
        self.reads_on()
            && self.publishes.has_room()
            && self.settles.has_room()
            && self.may_answer()
            && self.pace.may_read(Instant::now())
    }

    /// True if no frame is awaited behind which nothing may be taken in.
    pub(super) fn reads_on(&self) -> bool {
        self.barrier.is_none() || self.subscribing
    }

    /// True if there is room in the outbox for deliveries.
    pub(super) fn has_room(&self) -> bool {
        let most = self.hub.config.max_outbound_bytes;
        self.outbox.len() < if self.identity.is_some() { most } else { most.min(pace::ANSWERS) }
            && self.registered.holder().may_answer()
    }

    /// True if there is room for answers: deliveries alone, the last of which may be as large as an event can be, do not
    /// take it. So a client that reads slowly is read, and its acks count in time.
    pub(super) fn may_answer(&self) -> bool {
        if self.identity.is_none() {
            return self.has_room();
        }
        let config = &self.hub.config;
        let deliveries = config.max_outbound_bytes + config.max_event_bytes;
        self.outbox.len() < deliveries + config.max_outbound_bytes
    }

    /// Moves answers into the outbox, writes, reads: whatever goes without waiting.
    pub(super) fn poll(&mut self, wire: &mut Wire, decoder: &mut Decoder, cx: &mut Context<'_>) -> Poll<Step> {
        let mut progress = self.poll_answers(cx);
        if let Some(barrier) = &mut self.barrier
            && let Poll::Ready(awaited) = barrier.as_mut().poll(cx)
        {
            self.barrier = None;
            return Poll::Ready(Step::Awaited(awaited));
        }
        if self.poll_write(wire, cx, &mut progress).is_err() {
            return Poll::Ready(Step::Gone);
        }
        if !decoder.has_message() && self.may_read() {
            match self.registered.holder().poll_reading(decoder.prepare(), cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Step::TooMuch),
                Poll::Pending => return if progress { Poll::Ready(Step::Progress) } else { Poll::Pending },
            }
            match decoder.poll_fill(wire, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Step::Gone),
                Poll::Ready(Ok(bytes)) => {
                    let now = Instant::now();
                    self.deadlines.on_read(now);
                    self.pace.on_read(bytes, now);
                    return Poll::Ready(Step::Read(bytes));
                }
                Poll::Pending => {}
            }
        }
        if progress { Poll::Ready(Step::Progress) } else { Poll::Pending }
    }

    /// Puts the answers that are there into the outbox, while there is room; whether there was one.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.may_answer() {
            return false;
        }
        let published = self.publishes.poll(cx, &self.traces, &mut self.outbox);
        let settled = self.settles.poll(cx, &self.traces, &mut self.outbox);
        published || settled
    }

    fn poll_write(&mut self, wire: &mut Wire, cx: &mut Context<'_>, progress: &mut bool) -> std::io::Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let full = !self.has_room();
        let mut written = false;
        let result = self.outbox.poll_write(wire, cx, &mut written);
        self.inbox.set_sending(self.outbox.len());
        self.registered.holder().set_answers(self.outbox.len());
        if written || !full {
            self.deadlines.on_unblocked();
        }
        match result {
            Poll::Ready(result) => {
                // There is room again for what had to wait.
                *progress |= full;
                result
            }
            Poll::Pending => {
                // A new deadline: the session has to wait anew, with it.
                *progress |= full && self.deadlines.on_blocked(Instant::now());
                Ok(())
            }
        }
    }

    /// Ready when everything that was asked has its answer, and the answers are written.
    pub(super) fn poll_last_answers(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(barrier) = &mut self.barrier
                && let Poll::Ready(awaited) = barrier.as_mut().poll(cx)
            {
                self.barrier = None;
                self.on_awaited(awaited);
            }
            let answered = self.poll_answers(cx);
            let mut written = false;
            let nothing_left = self.publishes.is_empty() && self.settles.is_empty() && self.barrier.is_none();
            match self.outbox.poll_write(wire, cx, &mut written) {
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) if nothing_left => return Poll::Ready(()),
                Poll::Ready(Ok(())) if answered || written => {}
                Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Leaves `OK`s of frames without `corr` out from now on, or not.
    pub(super) fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet;
        self.publishes.quiet = quiet;
        self.settles.quiet = quiet;
    }

    /// The client as the audit log names it.
    pub(super) fn client(&self) -> Client<'_> {
        let sub = self.identity.as_ref().and_then(|identity| identity.sub.as_deref());
        Client { peer: Some(self.registered.peer()), via: "ws", sub }
    }

    /// Answers a frame of an immediate kind.
    pub(super) fn ok(&mut self, corr: Option<&Corr>) {
        if corr.is_some() || !self.quiet {
            self.outbox.text(|out| write::ok(out, corr));
        }
    }

    /// Refuses a frame, in its place among the answers of its kind.
    pub(super) fn refuse(&mut self, op: Op, corr: Option<Corr>, rejection: Rejection) {
        if rejection.code == Code::Forbidden {
            self.hub.audit.forbidden(self.client(), &rejection);
        }
        match op {
            // Before AUTH nothing waits for the bus, so every answer is in its place.
            _ if self.identity.is_none() => self.error(corr.as_ref(), &rejection),
            Op::Publish => self.publishes.refuse(corr, rejection, &self.hub.bus),
            Op::Ack | Op::Nack | Op::Modack => self.settles.refuse(corr, rejection),
            _ => self.error(corr.as_ref(), &rejection),
        }
    }

    pub(super) fn error(&mut self, corr: Option<&Corr>, rejection: &Rejection) {
        self.outbox.text(|out| write_rejection(out, corr, rejection));
    }
}

/// An `ERR` with what a rejection says.
pub(super) fn write_rejection(out: &mut Vec<u8>, corr: Option<&Corr>, rejection: &Rejection) {
    let retry_after = rejection.retry_after_ms().map(Duration::from_millis);
    let detail = write::ErrorDetail { retry_after, ..write::ErrorDetail::default() };
    write::error(out, corr, rejection.code, &rejection.msg, detail);
}
