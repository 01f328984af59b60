//! The owner of the connection: takes commands, hands out deliveries, reconnects.
//!
//! Invariants: reading never waits for writing, so that a hub that waits for us to read is read; frames that wait to be
//! written are bounded, and at the bound no command is taken; every reply is answered, also when the client ends.
//!
//! Here: the connection's life, from one to the next. `commands`: what handles ask. `frames`: what the hub says.
//! `leave`: the way out of a subscription. `again`: what the hub had no room for, or could not serve. `keep`: the leases of
//! what waits. `renewal`: the token's next one.

mod again;
mod commands;
mod frames;
mod keep;
mod leave;
mod renewal;

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, Stream};
use promethean_event::{Code, EventId, Group};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::mailbox::{Mailbox, Shared};
use crate::pending::{Pending, Reply};
use crate::queue::Feed;
use crate::settings::Settings;
use crate::settlement::{Refused, Settlement};
use crate::token::Fetching;
use crate::wire::{self, Connected, Wire};
use crate::{Error, Report, SubscribeOptions, Subscription};

use again::Again;
pub(crate) use commands::Command;
use leave::Leaving;

/// Most frames that wait to be written before the next command is taken.
const MOST_OUTGOING: usize = 1_024;
/// Most commands that are taken at once: their acks share a frame.
const COMMANDS: usize = 256;
/// How often in a row a hub that took the token before may call it `jwt_invalid`: one that has just started may have
/// no signing keys yet, and tries for them every 30 s at most.
const REFUSALS: u32 = 10;

/// What is subscribed to.
#[derive(Clone)]
pub(crate) struct Topics {
    pub(crate) topic: Arc<str>,
    pub(crate) group: Option<Group>,
    pub(crate) options: SubscribeOptions,
}

impl Topics {
    fn name(&self) -> String {
        name(&self.topic, self.group.as_ref().map(Group::as_str))
    }
}

fn name(topic: &str, group: Option<&str>) -> String {
    group.map_or_else(|| topic.to_owned(), |group| format!("{topic}\0{group}"))
}

/// A subscription as the driver sees it.
struct Subscribed {
    topics: Topics,
    deliveries: Feed,
    mailbox: Mailbox,
    /// Who waits for the first `OK`, and what it gets.
    opening: Option<(Reply<Subscription>, Subscription)>,
    /// A tail of a single topic: after a reconnect it resumes after its last event, also in a snapshot start.
    resumable: bool,
    last: Option<EventId>,
    /// The place of a tail, as the hub named it last.
    resume: Option<Box<str>>,
    /// Something was delivered.
    began: bool,
    /// A tail's snapshot begins again, and the next delivery has to say so.
    restarted: bool,
    paused: bool,
    /// The reader wants no deliveries for now.
    held: bool,
    /// The hub has it on this connection.
    live: bool,
    /// It ends, or stops for a while.
    leaving: Option<Leaving>,
}

impl Subscribed {
    /// Forgets where a tail resumes; `false`: there was no such place.
    fn forget_place(&mut self) -> bool {
        let known = self.resume.is_some() || self.last.is_some();
        (self.resume, self.last) = (None, None);
        known
    }

    /// The hub does not have it any more.
    fn lost(&mut self) {
        (self.live, self.paused) = (false, false);
        if self.topics.group.is_some() {
            // The hub has given it back, and gives it out again.
            self.deliveries.take_back();
        }
    }
}

/// The owner of the connection.
pub(crate) struct Driver {
    settings: Settings,
    commands: mpsc::Receiver<Command>,
    taken: Vec<Command>,
    pending: Pending,
    subscriptions: HashMap<u64, Subscribed>,
    by_name: HashMap<String, u64>,
    next_subscription: u64,
    outgoing: VecDeque<Message>,
    flushed: bool,
    again: Vec<(Instant, Again)>,
    /// Answers to deliveries that the hub had no room for.
    refused: Refused,
    /// When to look at the leases of what waits.
    keep_at: Option<Instant>,
    /// When to fetch the next token.
    renew_at: Option<Instant>,
    fetching: Option<Fetching>,
    shared: Arc<Shared>,
    /// The caller that waits for the end. No new publish or subscription is taken then.
    closing: Option<Reply<()>>,
    /// No handle is left: end when nothing waits.
    ending: bool,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The client ends.
    Done,
    /// It was lost.
    Lost,
    /// The hub closed it because of a frame over its limit.
    TooLarge,
    /// The peer sent something else than a JSON object.
    Garbled,
}

enum Event {
    Message(Option<Result<Message, WsError>>),
    Commands,
    Silence,
    Again,
    Keep,
    Renew,
    Fetched(Result<String, String>),
    Aborted,
}

impl Driver {
    pub(crate) fn new(settings: Settings, commands: mpsc::Receiver<Command>, shared: Arc<Shared>) -> Self {
        Self {
            settings,
            commands,
            taken: Vec::new(),
            pending: Pending::default(),
            subscriptions: HashMap::new(),
            by_name: HashMap::new(),
            next_subscription: 0,
            outgoing: VecDeque::new(),
            flushed: true,
            again: Vec::new(),
            refused: Refused::default(),
            keep_at: None,
            renew_at: None,
            fetching: None,
            shared,
            closing: None,
            ending: false,
        }
    }

    /// Serves the connection of try number `at`, then its successors.
    pub(crate) async fn run(mut self, (mut at, first): (usize, Connected)) {
        let mut next = Some(first);
        let ended = loop {
            match next.take() {
                Some(connected) => {
                    let end = self.serve(connected).await;
                    if let End::Done = end {
                        break Error::Closed;
                    }
                    tracing::debug!(?end, "the connection was lost");
                    self.report(at, &Error::Lost);
                    self.on_lost(end);
                }
                None => match self.reconnect(at).await {
                    Ok((now, connected)) => (at, next) = (now, Some(connected)),
                    Err(error) => break error,
                },
            }
        };
        self.fail(&ended).await;
    }

    fn report(&self, at: usize, error: &Error) {
        self.shared.report(Report::Connection { url: self.settings.url(at), error });
    }

    /// Tells all callers that wait why nothing is answered any more.
    async fn fail(mut self, error: &Error) {
        self.shared.end(error);
        self.pending.fail(error);
        self.commands.close();
        // Dropped without an answer: their callers find the reason.
        while self.commands.recv_many(&mut self.taken, COMMANDS).await > 0 {
            self.taken.clear();
        }
        self.all_left();
        for (_, subscribed) in self.subscriptions.drain() {
            match (subscribed.opening, error) {
                (Some((reply, _)), error) => drop(reply.send(Err(error.clone()))),
                (None, Error::Closed) => {}
                (None, error) => subscribed.deliveries.fail(error.clone()),
            }
        }
        if let Some(closing) = self.closing.take() {
            let _ = closing.send(Ok(()));
        }
    }

    fn on_lost(&mut self, end: End) {
        let too_large = matches!(end, End::TooLarge);
        if too_large {
            let outcome = self.pending.on_too_large();
            self.on_outcome(outcome);
        }
        self.pending.on_lost(too_large);
        self.flushed = true;
        (self.renew_at, self.fetching, self.keep_at) = (None, None, None);
        for subscribed in self.subscriptions.values_mut() {
            subscribed.lost();
        }
        self.forget();
    }

    /// What was asked is asked anew on a new connection, or makes no sense there.
    fn forget(&mut self) {
        for (_, again) in std::mem::take(&mut self.again) {
            match again {
                Again::Hold(_, Some(reply)) => drop(reply.send(Ok(()))),
                Again::Settle(settlement) => self.settle(settlement),
                _ => {}
            }
        }
        let refused = self.refused.take();
        refused.into_iter().filter_map(Settlement::over_a_lost_connection).for_each(|acks| self.settle(acks));
        self.all_left();
        self.outgoing.clear();
        self.pending.forget();
    }

    /// True if the client was closed or has no handle left, and nothing waits for an answer or a handler.
    fn is_done(&self) -> bool {
        let answered = self.pending.is_empty() && self.again.is_empty() && self.refused.is_empty();
        (self.ending || self.closing.is_some()) && answered && self.subscriptions.is_empty()
    }

    /// Tries all addresses from number `at` on, again and again, until one works, the hub refuses the token, or nothing
    /// needs a connection any more.
    async fn reconnect(&mut self, at: usize) -> Result<(usize, Connected), Error> {
        let (addresses, mut refusals) = (self.settings.urls.len(), 0);
        for tried in 0.. {
            let Settings { shortest_wait, longest_wait, .. } = self.settings;
            // One wait for each round of the addresses.
            let wait = match tried % addresses {
                0 => wire::wait(u32::try_from(tried / addresses).unwrap_or(u32::MAX), shortest_wait, longest_wait),
                _ => Duration::ZERO,
            };
            self.meanwhile(tokio::time::sleep(wait)).await?;
            let settings = self.settings.clone();
            match self.meanwhile(wire::connect(&settings, at + tried)).await? {
                Ok(connected) => return Ok((at + tried, connected)),
                Err(error) if error.is_retryable() => self.report(at + tried, &error),
                Err(error) if error.code() == Some(Code::JwtInvalid) && refusals + 1 < REFUSALS => {
                    refusals += 1;
                    tracing::debug!(%error, refusals, "the token is refused, trying again");
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Lost)
    }

    /// Waits for `work` without a connection, and takes commands: they wait for the next one, bounded by the window.
    ///
    /// # Errors
    /// The client ends.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = std::pin::pin!(work);
        let shared = Arc::clone(&self.shared);
        loop {
            self.forget();
            if self.ending {
                return Err(Error::Lost);
            }
            if self.is_done() {
                return Err(Error::Closed);
            }
            tokio::select! {
                biased;
                () = shared.aborted() => return Err(Error::Closed),
                _ = self.commands.recv_many(&mut self.taken, COMMANDS) => self.on_commands(),
                done = &mut work => return Ok(done),
            }
        }
    }

    /// Uses a connection until it is lost or the client ends.
    async fn serve(&mut self, Connected { mut wire, expires }: Connected) -> End {
        self.on_authenticated(expires);
        let mut again = Vec::new();
        let numbers: Vec<u64> = self.subscriptions.keys().copied().collect();
        for number in numbers {
            again.extend(self.subscribe_frame(number));
        }
        self.pending.again(&mut again);
        self.outgoing.extend(again);
        let mut heard = Instant::now();
        let shared = Arc::clone(&self.shared);
        loop {
            if self.is_done() && self.outgoing.is_empty() && self.flushed {
                tokio::select! {
                    _ = tokio::time::timeout(Duration::from_secs(5), wire.close(None)) => {}
                    () = shared.aborted() => {}
                }
                return End::Done;
            }
            let may_take = !self.ending && self.outgoing.len() < MOST_OUTGOING;
            let again_at = again::first(&self.again).into_iter().chain(self.refused.due()).min();
            let Self { commands, taken, outgoing, flushed, settings, keep_at, renew_at, fetching, .. } = self;
            let event = tokio::select! {
                biased;
                message = poll_fn(|cx| poll_wire(&mut wire, outgoing, flushed, cx)) => Event::Message(message),
                _ = commands.recv_many(taken, COMMANDS), if may_take => Event::Commands,
                () = tokio::time::sleep_until(heard + settings.silence) => Event::Silence,
                () = renewal::due(again_at) => Event::Again,
                () = renewal::due(*keep_at) => Event::Keep,
                () = renewal::due(*renew_at) => Event::Renew,
                token = renewal::fetched(fetching) => Event::Fetched(token),
                () = shared.aborted() => Event::Aborted,
            };
            match event {
                Event::Commands => self.on_commands(),
                Event::Again => self.on_again(),
                Event::Keep => self.keep(),
                Event::Renew => (self.renew_at, self.fetching) = (None, self.settings.token.renewal()),
                Event::Fetched(token) => self.on_fetched(token),
                Event::Aborted => return End::Done,
                Event::Silence | Event::Message(None | Some(Err(_))) => return End::Lost,
                Event::Message(Some(Ok(message))) => {
                    heard = Instant::now();
                    match message {
                        Message::Text(text) if self.on_frame(&text) => {}
                        Message::Text(_) | Message::Binary(_) => return End::Garbled,
                        Message::Close(Some(CloseFrame { code: CloseCode::Size, .. })) => return End::TooLarge,
                        Message::Close(_) => return End::Lost,
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Writes what can be written, and reads one message. Where writing fails, what the hub said before may still be there to
/// be read: why it closed the connection.
fn poll_wire(
    wire: &mut Wire,
    outgoing: &mut VecDeque<Message>,
    flushed: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Message, WsError>>> {
    let mut pinned = Pin::new(wire);
    let failed = |mut wire: Pin<&mut Wire>, error, cx: &mut Context<'_>| match wire.as_mut().poll_next(cx) {
        Poll::Pending => Poll::Ready(Some(Err(error))),
        ready => ready,
    };
    while !outgoing.is_empty() {
        match pinned.as_mut().poll_ready(cx) {
            Poll::Ready(Ok(())) => {
                if let Some(message) = outgoing.pop_front()
                    && let Err(error) = pinned.as_mut().start_send(message)
                {
                    return failed(pinned, error, cx);
                }
                *flushed = false;
            }
            Poll::Ready(Err(error)) => return failed(pinned, error, cx),
            Poll::Pending => break,
        }
    }
    if !*flushed {
        match pinned.as_mut().poll_flush(cx) {
            Poll::Ready(Ok(())) => *flushed = true,
            Poll::Ready(Err(error)) => return failed(pinned, error, cx),
            Poll::Pending => {}
        }
    }
    pinned.as_mut().poll_next(cx)
}
