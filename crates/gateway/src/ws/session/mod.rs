//! One connection: one task, no task, lock or allocation per event.
//!
//! ```text
//!            read all that is ready          one commit a burst          one write
//!  client ──────────► decoder ──► requests ──────────────────► bus ─► answers ──┐
//!     ▲                              │ one call a (topic, group)                ▼
//!     └──────────────────────────────┴────────────── inbox ─► deliveries ─► outbox
//! ```
//!
//! Invariants: every client frame is answered once; answers to frames of one kind keep their order, and a slow answer
//! of one kind holds up neither the others nor deliveries; what waits is bounded (`may_read`, `max_outbound_bytes`), and
//! at the bound the client is read no more; deadlines and the shutdown are looked at after every read, and a client that
//! sends without a pause lets others have their turn; the subscriptions go with the session, whatever way it ends.

mod awaited;
mod core;
mod deadlines;
mod deliver;
mod held;
mod names;
mod pace;
mod publish;
mod request;
mod settle;
mod subscriptions;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use promethean_bus::{Inbox, InboxOptions};
use promethean_event::frame::Op;
use promethean_event::{Code, Millis};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::codec::{Decoder, Message};
use crate::Hub;
use crate::auth::Identity;
use crate::buffers::Holder;
use crate::drain::Draining;
use crate::rejection::{Close, Rejection};

use self::core::{Core, Flow, Step};
use deadlines::Due;
pub(crate) use deliver::context;

/// A connection's bytes.
pub(super) type Wire = Box<dyn ReadWrite>;

/// Both directions of a connection.
pub(super) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// A connection after its handshake.
pub(super) struct Opened {
    pub(super) wire: Wire,
    /// Bytes that came with the handshake.
    pub(super) first: Bytes,
    /// Its part of the account of buffered bytes.
    pub(super) holder: Arc<Holder>,
}

/// How long answers that are under way may hold up a goodbye.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// How long a goodbye may take to be written, and the client to take notice.
const GOODBYE: Duration = Duration::from_secs(5);
/// Most bytes that are dropped while the hub waits for the client's close frame: what it had sent already, mostly.
const DROPPED: usize = 16 * 1024 * 1024;
/// Reads, and bytes of them, after which other connections have their turn.
const TURN: (usize, usize) = (32, 512 * 1024);

/// Serves a connection until it ends.
pub(super) async fn run(hub: Arc<Hub>, opened: Opened, identity: Option<Identity>, peer: SocketAddr) {
    let Opened { wire, first, holder } = opened;
    let bytes = hub.config.max_connection_bytes;
    let inbox = Inbox::with(InboxOptions { bytes, connection: true, ..InboxOptions::default() });
    let registered = hub.connections.open(peer, &inbox, holder);
    tracing::debug!(connection = registered.id(), %peer, "connected");
    let core = Core::new(&hub, registered, inbox.clone(), identity);
    let mut session = Session {
        wire,
        decoder: Decoder::new(core.pace.allowance(hub.config.max_frame_bytes), &first),
        draining: hub.drain.watch(),
        timer: Box::pin(sleep_until(Instant::now())),
        turn: (0, 0),
        core,
        inbox,
    };
    let end = session.serve().await;
    tracing::debug!(connection = session.core.registered.id(), %peer, ?end, "disconnected");
    session.finish(end).await;
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The hub says goodbye, with this code.
    Close(Close),
    /// There is nobody to say goodbye to.
    Gone,
}

struct Session<'h> {
    wire: Wire,
    decoder: Decoder,
    draining: Draining,
    timer: Pin<Box<Sleep>>,
    inbox: Inbox,
    /// Reads, and bytes of them, since others had their turn.
    turn: (usize, usize),
    core: Core<'h>,
}

impl Session<'_> {
    async fn serve(&mut self) -> End {
        loop {
            if let Some(end) = self.handle_messages() {
                return end;
            }
            self.core.deliver();
            match self.step().await {
                Step::Progress | Step::Tick => {}
                Step::Read(bytes) => self.on_read(bytes).await,
                Step::Awaited(awaited) => {
                    self.core.on_awaited(awaited);
                    self.decoder.set_allowance(self.core.pace.allowance(self.core.hub.config.max_frame_bytes));
                }
                Step::Gone => return End::Gone,
                Step::TooMuch => return End::Close(Close::TooBig),
                Step::Drain => return self.leave().await,
            }
            if self.draining.has_begun() {
                return self.leave().await;
            }
            if Instant::now() >= self.core.deadlines.next()
                && let Some(close) = self.on_tick()
            {
                return End::Close(close);
            }
        }
    }

    /// Counts a read. A task whose socket always has something to read would else hold its thread for long.
    async fn on_read(&mut self, bytes: usize) {
        self.turn = (self.turn.0 + 1, self.turn.1 + bytes);
        if self.turn.0 >= TURN.0 || self.turn.1 >= TURN.1 {
            self.turn = (0, 0);
            tokio::task::yield_now().await;
        }
    }

    /// Handles every message that is there, unless one has to wait or there is no room for answers.
    fn handle_messages(&mut self) -> Option<End> {
        let Self { decoder, core, .. } = self;
        let (now, mut end) = (Instant::now(), None);
        core.publishes.expect(decoder.waiting());
        while core.reads_on()
            && end.is_none()
            && core.may_answer()
            && let Some(index) = decoder.peek()
        {
            let message = decoder.message(index);
            if core.barrier.is_some() && !matches!(message, Message::Text(_) | Message::Ping(_) | Message::Pong) {
                break;
            }
            if matches!(message, Message::Text(_) | Message::Binary) && !core.pace.on_frame(now) {
                break;
            }
            if matches!(message, Message::Ping(_) | Message::Pong) && !core.pace.on_control(now) {
                end = Some(End::Close(Close::TooManyPings));
                break;
            }
            match message {
                Message::Text(text) => {
                    if let Flow::Hold = core.on_frame(text) {
                        break;
                    }
                }
                Message::Binary => {
                    let refused = Rejection::new(Code::BadJson, "frame: must be text, not binary");
                    core.refuse(Op::Unknown, None, refused);
                }
                Message::Ping(payload) => core.outbox.pong(payload),
                Message::Pong => core.deadlines.on_pong(now),
                Message::Close => end = Some(End::Close(Close::Normal)),
                Message::Violation(close) => end = Some(End::Close(close)),
            }
            decoder.advance();
        }
        core.publishes.send(&core.hub.bus);
        core.settles.send();
        end
    }

    async fn step(&mut self) -> Step {
        let Self { wire, decoder, draining, timer, inbox, core, .. } = self;
        let deadline = core.deadlines.next();
        let wake_at = core.pace.resumes(Instant::now()).map_or(deadline, |resumes| resumes.min(deadline));
        if timer.deadline() != wake_at {
            timer.as_mut().reset(wake_at);
        }
        let may_deliver = core.has_room();
        tokio::select! {
            biased;
            step = poll_fn(|cx| core.poll(wire, decoder, cx)) => step,
            () = inbox.ready(), if may_deliver => Step::Progress,
            () = draining.begun() => Step::Drain,
            () = timer.as_mut() => Step::Tick,
        }
    }

    fn on_tick(&mut self) -> Option<Close> {
        let Self { decoder, core, .. } = self;
        if core.identity.as_ref().is_some_and(|identity| identity.is_expired(Millis::now())) {
            let message = "the token has expired; connect again with a new one, or renew it in time with AUTH";
            core.error(None, &Rejection::new(Code::TokenExpired, message));
            return Some(Close::Unauthorized);
        }
        let reading = core.may_read();
        match core.deadlines.due(Instant::now(), reading) {
            Some(Due::Close(close)) => return Some(close),
            Some(Due::Ping { idle }) => {
                if idle {
                    decoder.rest();
                    core.outbox.rest();
                }
                core.outbox.ping();
            }
            None => {}
        }
        None
    }

    /// Accepts nothing more, waits for its subscriptions to be taken back, ends with 1001.
    async fn leave(&mut self) -> End {
        self.core.leaving = true;
        self.handle_messages();
        // The bus takes the subscriptions back by itself, without counting the deliveries as attempts. Dropping them
        // here would count.
        let Self { inbox, core, .. } = self;
        let dismissed = async {
            while core.subscriptions.hold_leases() {
                inbox.ready().await;
                for (id, _) in inbox.take_ended() {
                    core.end_subscription(id);
                }
                inbox.take(usize::MAX, usize::MAX, core.hub.bus.now(), &mut core.given);
                core.given.clear();
                inbox.set_sending(core.outbox.len());
            }
        };
        if timeout(LAST_ANSWERS, dismissed).await.is_err() {
            tracing::warn!(
                connection = self.core.registered.id(),
                "the bus did not take the subscriptions back in time"
            );
        }
        End::Close(Close::GoingAway)
    }

    /// Says goodbye, after the answers that are under way.
    async fn finish(mut self, end: End) {
        let End::Close(close) = end else { return };
        let Self { wire, decoder, core, .. } = &mut self;
        decoder.expect_close();
        core.registered.holder().end_reading();
        if close == Close::DoesNotRead {
            core.subscriptions.clear();
            core.outbox.drop_unsent();
        } else {
            let answered = poll_fn(|cx| core.poll_last_answers(wire, cx));
            let _ = timeout(LAST_ANSWERS, answered).await;
            core.subscriptions.clear();
        }
        core.outbox.close(close);
        let goodbye = async {
            poll_fn(|cx| core.outbox.poll_write(wire, cx, &mut false)).await?;
            wire.flush().await?;
            // A socket that is closed with bytes unread resets the connection, and the client may never see why.
            // So the client goes first: its close frame, or its end, or a while.
            let mut dropped = 0;
            while !decoder.is_closed() && dropped < DROPPED {
                match poll_fn(|cx| decoder.poll_fill(wire, cx)).await? {
                    0 => break,
                    bytes => dropped += bytes,
                }
                // Also from a client that never stops to send, the deadline and other connections have their turn.
                tokio::task::yield_now().await;
            }
            wire.shutdown().await
        };
        let _ = timeout(GOODBYE, goodbye).await;
    }
}

#[cfg(test)]
mod tests;
