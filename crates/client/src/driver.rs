//! The owner of the connection: takes commands, hands out deliveries, reconnects.
//!
//! Invariants: reading never waits for writing, so that a hub that waits for us to read is read; frames that wait to be
//! written are bounded, and at the bound no command is taken; every reply is answered, also when the client ends.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, Stream};
use promethean_event::frame::ask::{self, GiveBack};
use promethean_event::frame::{Answer, Delivered};
use promethean_event::{Code, EventId, From, Group, Millis, Selector, SubscribeOptions, Topic};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::pending::{Ask, Outcome, Pending, Reply, Unconfirmed};
use crate::settings::Settings;
use crate::subscription::PAUSE_AT;
use crate::token::{Fetching, Token, renew_in};
use crate::wire::{self, Connected, Wire};
use crate::{Delivery, Error, Publish, Published, Subscription};

/// Most frames that wait to be written before the next command is taken.
const MOST_OUTGOING: usize = 1_024;
/// Most commands that are taken at once: their acks share a frame.
const COMMANDS: usize = 256;

/// How long to wait before a token that was not renewed is asked for again.
const RENEW_AGAIN: Duration = Duration::from_secs(1);

/// What a handle asks of the driver.
pub(crate) enum Command {
    Publish {
        topic: Topic,
        events: Vec<Publish>,
        batch: bool,
        reply: Reply<Vec<Published>>,
        permit: OwnedSemaphorePermit,
    },
    Subscribe {
        topics: Topics,
        commands: mpsc::Sender<Command>,
        reply: Reply<Subscription>,
    },
    Settle {
        subscription: u64,
        id: EventId,
        how: Settle,
        reply: Reply<()>,
    },
    /// The reader wants a pause, or its end.
    Hold {
        subscription: u64,
        held: bool,
        reply: Reply<()>,
    },
    /// The reader of a tail has caught up.
    Resume,
    Unsubscribe(u64),
    Close(oneshot::Sender<()>),
}

/// An answer to a delivery.
pub(crate) enum Settle {
    Ack,
    /// With the number of its lease.
    Fenced(u64),
    Nack(GiveBack),
    Extend(Duration),
}

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
    deliveries: mpsc::UnboundedSender<Result<Delivery, Error>>,
    waiting: Arc<AtomicUsize>,
    commands: mpsc::Sender<Command>,
    /// Who waits for the first `OK`, and what it gets.
    opening: Option<(Reply<Subscription>, Subscription)>,
    /// A tail of a single topic: after a reconnect it goes on after its last event.
    resumable: bool,
    last: Option<EventId>,
    paused: bool,
    /// The reader wants no deliveries for now.
    held: bool,
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
    /// When to fetch the next token.
    renew_at: Option<Instant>,
    fetching: Option<Fetching>,
    closing: Option<oneshot::Sender<()>>,
    /// No handle is left, or the client was closed: end when nothing waits.
    ending: bool,
}

enum Event {
    Message(Option<Result<Message, WsError>>),
    Commands,
    Silence,
    Renew,
    Fetched(Result<String, String>),
}

impl Driver {
    pub(crate) fn new(settings: Settings, commands: mpsc::Receiver<Command>) -> Self {
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
            renew_at: None,
            fetching: None,
            closing: None,
            ending: false,
        }
    }

    pub(crate) async fn run(mut self, first: Connected) {
        let mut next = Some(first);
        let ended = loop {
            match next.take() {
                Some(connected) => {
                    if self.serve(connected).await {
                        break Error::Closed;
                    }
                    tracing::debug!(url = self.settings.url, "the connection was lost");
                    self.on_lost();
                }
                None => match self.reconnect().await {
                    Ok(new) => next = Some(new),
                    Err(error) => break error,
                },
            }
        };
        self.fail(&ended);
    }

    /// Everybody who waits is told why.
    fn fail(mut self, error: &Error) {
        self.pending.fail(error);
        self.commands.close();
        for (_, subscribed) in self.subscriptions.drain() {
            match (subscribed.opening, error) {
                (Some((reply, _)), error) => drop(reply.send(Err(error.clone()))),
                (None, Error::Closed) => {}
                (None, error) => drop(subscribed.deliveries.send(Err(error.clone()))),
            }
        }
        if let Some(closing) = self.closing.take() {
            let _ = closing.send(());
        }
    }

    fn on_lost(&mut self) {
        self.pending.on_lost();
        self.outgoing.clear();
        self.flushed = true;
        (self.renew_at, self.fetching) = (None, None);
        for subscribed in self.subscriptions.values_mut() {
            subscribed.paused = false;
        }
    }

    /// Tries until it works, or the hub refuses the token, or nobody needs it any more.
    async fn reconnect(&mut self) -> Result<Connected, Error> {
        for attempt in 0.. {
            let Settings { shortest_wait, longest_wait, .. } = self.settings;
            let wait = wire::wait(attempt, shortest_wait, longest_wait);
            let until = Instant::now() + wait;
            loop {
                if self.ending {
                    return Err(Error::Lost);
                }
                tokio::select! {
                    () = tokio::time::sleep_until(until) => break,
                    // What is asked meanwhile waits for the new connection; the window bounds it.
                    _ = self.commands.recv_many(&mut self.taken, COMMANDS), if !self.ending => self.on_commands(),
                }
            }
            // What was asked meanwhile is asked anew on the new connection, or makes no sense there.
            self.outgoing.clear();
            self.pending.forget();
            let settings = self.settings.clone();
            match wire::connect(&settings).await {
                Ok(connected) => return Ok(connected),
                Err(error) if error.is_retryable() => tracing::debug!(%error, attempt, "not connected yet"),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Lost)
    }

    /// Uses a connection until it is lost (`false`) or the client ends (`true`).
    async fn serve(&mut self, Connected { mut wire, expires }: Connected) -> bool {
        self.on_authenticated(expires);
        let mut again = Vec::new();
        let numbers: Vec<u64> = self.subscriptions.keys().copied().collect();
        for number in numbers {
            again.extend(self.subscribe_frame(number));
            if self.is_held(number) {
                again.extend(self.hold_frame(number, Ask::Nothing));
            }
        }
        self.pending.again(&mut again);
        self.outgoing.extend(again);
        let mut heard = Instant::now();
        loop {
            if self.ending && self.pending.is_empty() && self.outgoing.is_empty() && self.flushed {
                let _ = tokio::time::timeout(Duration::from_secs(5), wire.close(None)).await;
                return true;
            }
            let may_take = !self.ending && self.outgoing.len() < MOST_OUTGOING;
            let Self { commands, taken, outgoing, flushed, settings, renew_at, fetching, .. } = self;
            let (renew, fetches) = (*renew_at, fetching.is_some());
            let event = tokio::select! {
                biased;
                message = poll_fn(|cx| poll_wire(&mut wire, outgoing, flushed, cx)) => Event::Message(message),
                _ = commands.recv_many(taken, COMMANDS), if may_take => Event::Commands,
                () = tokio::time::sleep_until(heard + settings.silence) => Event::Silence,
                () = sleep_until(renew), if renew.is_some() => Event::Renew,
                fetched = fetched(fetching), if fetches => Event::Fetched(fetched),
            };
            match event {
                Event::Commands => self.on_commands(),
                Event::Renew => (self.renew_at, self.fetching) = (None, self.settings.token.renewal()),
                Event::Fetched(token) => self.on_fetched(token),
                Event::Silence | Event::Message(None | Some(Err(_))) => return false,
                Event::Message(Some(Ok(message))) => {
                    heard = Instant::now();
                    match message {
                        Message::Text(text) => self.on_frame(&text),
                        Message::Close(_) => return false,
                        _ => {}
                    }
                }
            }
        }
    }

    fn on_commands(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        // Nothing came although it was waited for: no handle is left.
        self.ending |= taken.is_empty();
        let mut acks: HashMap<u64, (Vec<EventId>, Vec<Reply<()>>)> = HashMap::new();
        for command in taken.drain(..) {
            match command {
                Command::Publish { topic, events, batch, reply, permit } => {
                    let unconfirmed = Unconfirmed { topic, events, batch, reply, resent: false, _permit: permit };
                    let frame = self.pending.publish(unconfirmed);
                    self.outgoing.push_back(frame);
                }
                Command::Subscribe { topics, commands, reply } => self.on_subscribe(topics, commands, reply),
                Command::Settle { subscription, id, how: Settle::Ack, reply } => {
                    let (ids, replies) = acks.entry(subscription).or_default();
                    ids.push(id);
                    replies.push(reply);
                }
                Command::Settle { subscription, id, how, reply } => self.on_settle(subscription, id, how, reply),
                Command::Hold { subscription, held, reply } => self.on_hold(subscription, held, reply),
                // Looked at below.
                Command::Resume => {}
                Command::Unsubscribe(number) => self.unsubscribe(number),
                Command::Close(reply) => {
                    let numbers: Vec<u64> = self.subscriptions.keys().copied().collect();
                    numbers.into_iter().for_each(|number| self.unsubscribe(number));
                    self.closing = Some(reply);
                    self.ending = true;
                }
            }
        }
        self.taken = taken;
        for (number, (ids, replies)) in acks {
            match self.subscriptions.get(&number) {
                Some(subscribed) => {
                    let frame = self.pending.ack(&subscribed.topics, ids, replies);
                    self.outgoing.extend(frame);
                }
                None => replies.into_iter().for_each(|reply| drop(reply.send(Err(Error::Lost)))),
            }
        }
        self.resume();
        // A queue that was full may have swallowed the goodbye of a subscription that was dropped.
        let dropped = |(_, one): &(&u64, &Subscribed)| one.opening.is_none() && one.deliveries.is_closed();
        let gone: Vec<u64> = self.subscriptions.iter().filter(dropped).map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|number| self.unsubscribe(number));
    }

    fn on_subscribe(&mut self, topics: Topics, commands: mpsc::Sender<Command>, reply: Reply<Subscription>) {
        let name = topics.name();
        if self.by_name.contains_key(&name) {
            let code = Code::AlreadySubscribed.as_str().to_owned();
            let message = "this client has that subscription already".to_owned();
            let _ = reply.send(Err(Error::Refused { code, message, retry_after: None }));
            return;
        }
        self.next_subscription += 1;
        let number = self.next_subscription;
        let (deliveries, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let subscription =
            Subscription { number, deliveries: receiver, waiting: Arc::clone(&waiting), commands: commands.clone() };
        let opening = Some((reply, subscription));
        let single = matches!(Selector::parse(&topics.topic), Ok(Selector::Topic(_)));
        let resumable = topics.group.is_none() && single && topics.options.topics.is_empty();
        let subscribed = Subscribed {
            topics,
            deliveries,
            waiting,
            commands,
            opening,
            resumable,
            last: None,
            paused: false,
            held: false,
        };
        self.by_name.insert(name, number);
        self.subscriptions.insert(number, subscribed);
        let frame = self.subscribe_frame(number);
        self.outgoing.extend(frame);
    }

    fn subscribe_frame(&mut self, number: u64) -> Option<Message> {
        let Self { subscriptions, pending, .. } = self;
        let Subscribed { topics: Topics { topic, group, options }, last, .. } = subscriptions.get(&number)?;
        let resumed;
        let options = match last {
            Some(id) => {
                resumed = SubscribeOptions { from: From::AfterId(*id), ..options.clone() };
                &resumed
            }
            None => options,
        };
        let ask = Ask::Subscribe { subscription: number };
        Some(pending.ask(ask, |out, corr| ask::subscribe(out, corr, topic, group.as_ref(), options, true)))
    }

    /// The frame that makes the hub pause a subscription, or go on with it.
    fn hold_frame(&mut self, number: u64, ask: Ask) -> Option<Message> {
        let Self { subscriptions, pending, .. } = self;
        let Subscribed { topics: Topics { topic, group, .. }, held, .. } = subscriptions.get(&number)?;
        let write = if *held { ask::pause } else { ask::resume };
        Some(pending.ask(ask, |out, corr| write(out, corr, topic, group.as_ref())))
    }

    fn is_held(&self, number: u64) -> bool {
        self.subscriptions.get(&number).is_some_and(|subscribed| subscribed.held)
    }

    fn on_hold(&mut self, number: u64, held: bool, reply: Reply<()>) {
        match self.subscriptions.get_mut(&number) {
            Some(subscribed) => subscribed.held = held,
            None => return drop(reply.send(Err(Error::Lost))),
        }
        let frame = self.hold_frame(number, Ask::Hold { reply });
        self.outgoing.extend(frame);
    }

    /// The token counts until `expires`: the next one is fetched before that, where there can be one.
    fn on_authenticated(&mut self, expires: Option<u64>) {
        self.renew_at = match (&self.settings.token, expires) {
            (Token::Source(_), Some(exp)) => Some(Instant::now() + renew_in(exp, Millis::now())),
            _ => None,
        };
    }

    fn on_fetched(&mut self, token: Result<String, String>) {
        self.fetching = None;
        match token {
            Ok(token) => {
                let frame = self.pending.ask(Ask::Renew, |out, corr| ask::auth(out, corr, &token));
                self.outgoing.push_back(frame);
            }
            Err(reason) => self.renew_later(&reason),
        }
    }

    /// Until the token has run out there is time for other tries; after that a new connection asks for one.
    fn renew_later(&mut self, reason: &str) {
        tracing::warn!(reason, "the token was not renewed, trying again");
        self.renew_at = Some(Instant::now() + RENEW_AGAIN);
    }

    fn on_settle(&mut self, number: u64, id: EventId, how: Settle, reply: Reply<()>) {
        let Some(Subscribed { topics, .. }) = self.subscriptions.get(&number) else {
            let _ = reply.send(Err(Error::Lost));
            return;
        };
        let frame = match (how, &topics.group) {
            (Settle::Nack(how), _) => self.pending.nack(topics, id, &how, reply),
            (Settle::Extend(by), Some(group)) => {
                let write = |out: &mut Vec<u8>, corr| ask::modack(out, corr, &topics.topic, group, &[id], by);
                Some(self.pending.ask(Ask::Extend { reply }, write))
            }
            (Settle::Fenced(lease), Some(group)) => {
                let write = |out: &mut Vec<u8>, corr| ask::ack_fenced(out, corr, &topics.topic, group, id, lease);
                Some(self.pending.ask(Ask::Extend { reply }, write))
            }
            (Settle::Ack | Settle::Fenced(_) | Settle::Extend(_), _) => {
                let _ = reply.send(Ok(()));
                None
            }
        };
        self.outgoing.extend(frame);
    }

    fn unsubscribe(&mut self, number: u64) {
        if let Some(Subscribed { topics, opening, .. }) = self.subscriptions.remove(&number) {
            self.by_name.remove(&topics.name());
            let write = |out: &mut Vec<u8>, corr| ask::unsubscribe(out, corr, &topics.topic, topics.group.as_ref());
            let frame = self.pending.ask(Ask::Nothing, write);
            self.outgoing.push_back(frame);
            if let Some((reply, _)) = opening {
                let _ = reply.send(Err(Error::Closed));
            }
        }
    }

    /// Goes on with tails whose reader has caught up.
    fn resume(&mut self) {
        let Self { subscriptions, pending, outgoing, .. } = self;
        for subscribed in subscriptions.values_mut() {
            if subscribed.paused && !subscribed.held && subscribed.waiting.load(Ordering::Acquire) < PAUSE_AT / 2 {
                subscribed.paused = false;
                let topic = &subscribed.topics.topic;
                outgoing.push_back(pending.ask(Ask::Nothing, |out, corr| ask::resume(out, corr, topic, None)));
            }
        }
    }

    fn on_frame(&mut self, text: &str) {
        let outcome = match Answer::parse(text) {
            Ok(Some(Answer::Events { topic, group, events })) => {
                return self.on_events(&name(&topic, group.as_deref()), events);
            }
            Ok(Some(Answer::Ok(done))) => self.pending.on_done(&done),
            Ok(Some(Answer::Error(refusal))) => match (self.pending.on_refusal(&refusal), &refusal.topic) {
                (Outcome::Unasked, Some(topic)) if refusal.code != Some(Code::ShuttingDown) => {
                    // The hub ended a subscription.
                    let ended = self.by_name.remove(&name(topic, refusal.group.as_deref()));
                    if let Some(subscribed) = ended.and_then(|number| self.subscriptions.remove(&number)) {
                        let _ = subscribed.deliveries.send(Err(Error::refused(&refusal)));
                    }
                    return;
                }
                (outcome, _) => outcome,
            },
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, "a frame of the hub is not understood"),
        };
        match outcome {
            Outcome::Subscribed { subscription, result } => self.on_subscribed(subscription, result),
            Outcome::Renewed(Ok(expires)) => self.on_authenticated(expires),
            Outcome::Renewed(Err(error)) => self.renew_later(&error.to_string()),
            Outcome::Settled | Outcome::Unasked => {}
        }
    }

    fn on_subscribed(&mut self, number: u64, result: Result<(), Error>) {
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        match result {
            Ok(()) => {
                if let Some((reply, subscription)) = subscribed.opening.take() {
                    // Whoever asked is gone: dropping the subscription unsubscribes.
                    let _ = reply.send(Ok(subscription));
                }
            }
            Err(error) if error.code() == Some(Code::UnknownId) && subscribed.last.take().is_some() => {
                // The event a tail wanted to go on after is gone from the log.
                let frame = self.subscribe_frame(number);
                self.outgoing.extend(frame);
            }
            Err(error) => {
                let Some(subscribed) = self.subscriptions.remove(&number) else { return };
                self.by_name.remove(&subscribed.topics.name());
                match subscribed.opening {
                    Some((reply, _)) => drop(reply.send(Err(error))),
                    None => drop(subscribed.deliveries.send(Err(error))),
                }
            }
        }
    }

    fn on_events(&mut self, name: &str, events: Vec<Delivered<'_>>) {
        let Some(&number) = self.by_name.get(name) else { return };
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        for Delivered { event, ctx } in events {
            let received = match serde_json::from_str(event.get()) {
                Ok(received) => received,
                Err(error) => {
                    tracing::warn!(%error, "an event of the hub is not understood");
                    continue;
                }
            };
            let delivery = Delivery {
                event: received,
                json: event.get().into(),
                context: ctx,
                subscription: number,
                commands: subscribed.commands.clone(),
            };
            // A snapshot comes in the order of its keys: one that was cut short starts over.
            if subscribed.resumable && !ctx.snapshot {
                subscribed.last = Some(delivery.event.id);
            }
            subscribed.waiting.fetch_add(1, Ordering::AcqRel);
            if subscribed.deliveries.send(Ok(delivery)).is_err() {
                return self.unsubscribe(number);
            }
        }
        if subscribed.topics.group.is_none()
            && !subscribed.paused
            && subscribed.waiting.load(Ordering::Acquire) >= PAUSE_AT
        {
            subscribed.paused = true;
            let topic = Arc::clone(&subscribed.topics.topic);
            let frame = self.pending.ask(Ask::Nothing, |out, corr| ask::pause(out, corr, &topic, None));
            self.outgoing.push_back(frame);
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn fetched(fetching: &mut Option<Fetching>) -> Result<String, String> {
    match fetching {
        Some(fetching) => fetching.await,
        None => std::future::pending().await,
    }
}

/// Writes what can be written, and reads one message.
fn poll_wire(
    wire: &mut Wire,
    outgoing: &mut VecDeque<Message>,
    flushed: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Message, WsError>>> {
    let mut pinned = Pin::new(wire);
    while !outgoing.is_empty() {
        match pinned.as_mut().poll_ready(cx) {
            Poll::Ready(Ok(())) => {
                if let Some(message) = outgoing.pop_front()
                    && let Err(error) = pinned.as_mut().start_send(message)
                {
                    return Poll::Ready(Some(Err(error)));
                }
                *flushed = false;
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
            Poll::Pending => break,
        }
    }
    if !*flushed {
        match pinned.as_mut().poll_flush(cx) {
            Poll::Ready(Ok(())) => *flushed = true,
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
            Poll::Pending => {}
        }
    }
    pinned.as_mut().poll_next(cx)
}
