//! One connection to another hub: frames out, answers and deliveries in, a `PING` now and then.
//!
//! Invariants: reading never waits for writing; every call is answered, at the latest when the connection ends; what was
//! given may be passed on only while the owner keeps it for this subscriber (`fence`): that is [`TRUST`] after the last
//! `PING` that was answered, counted from before it was sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use promethean_bus::{Code, Error, RelayGiven, Relayed, SubscriptionId, Topic};
use promethean_client::{LinkReader, LinkWriter};
use promethean_event::Event;
use promethean_event::frame::{Answer, Delivered, ask};
use promethean_gateway::cluster::{PING, TRUST};
use promethean_store::Fence;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Most frames that are written at once.
const AT_ONCE: usize = 256;

/// What came back for a frame.
pub(super) struct Said {
    /// The `OK`'s cursor where it has one, or what was refused.
    pub(super) result: Result<Option<String>, Error>,
    /// The whole frame.
    pub(super) text: String,
}

/// Where deliveries of a topic go.
type Deliveries = mpsc::Sender<(SubscriptionId, Relayed)>;

enum Command {
    Call { corr: u64, frame: Vec<u8>, reply: oneshot::Sender<Said> },
    Subscribe { topic: Topic, subscription: SubscriptionId, deliveries: Deliveries },
    Unsubscribe(Topic),
}

/// One connection. Dropping it ends the connection.
pub(super) struct Link {
    /// Bounded by what its subscriber may have unanswered: each call is an answer to a delivery, or one of the few others
    /// that wait for their own answer. A connection on which nothing moves ends after [`TRUST`].
    commands: mpsc::UnboundedSender<Command>,
    next: AtomicU64,
    lost: Arc<AtomicBool>,
}

impl Link {
    pub(super) fn open(link: promethean_client::Link) -> Self {
        let (writer, reader) = link.split();
        let (commands, received) = mpsc::unbounded_channel();
        let lost = Arc::new(AtomicBool::new(false));
        let (frames, outgoing) = mpsc::unbounded_channel();
        tokio::spawn(write(writer, outgoing));
        let driver = Driver {
            commands: received,
            frames,
            waiting: HashMap::new(),
            topics: HashMap::new(),
            // Connecting is a sign of life as good as a PING; what it took counts.
            fence: Fence::new(Instant::now() + TRUST - Duration::from_secs(1)),
            ping: None,
            lost: Arc::clone(&lost),
        };
        tokio::spawn(driver.run(reader));
        Self { commands, next: AtomicU64::new(1), lost }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Sends a frame. What is called first is sent first; the answer is dropped when the connection ends before it.
    pub(super) fn call(&self, frame: impl FnOnce(u64) -> Vec<u8>) -> oneshot::Receiver<Said> {
        let corr = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, said) = oneshot::channel();
        let _ = self.commands.send(Command::Call { corr, frame: frame(corr), reply });
        said
    }

    /// Sends a `SUBSCRIBE`; deliveries of its topic go to `deliveries` from then on.
    pub(super) fn subscribe(
        &self,
        topic: &Topic,
        subscription: SubscriptionId,
        deliveries: Deliveries,
        frame: impl FnOnce(u64) -> Vec<u8>,
    ) -> oneshot::Receiver<Said> {
        let _ = self.commands.send(Command::Subscribe { topic: topic.clone(), subscription, deliveries });
        self.call(frame)
    }

    /// Sends an `UNSUBSCRIBE`; deliveries of its topic are dropped from then on.
    pub(super) fn unsubscribe(&self, topic: &Topic, frame: impl FnOnce(u64) -> Vec<u8>) {
        let _ = self.commands.send(Command::Unsubscribe(topic.clone()));
        drop(self.call(frame));
    }
}

/// Writes frames until there are no more, or nobody takes them.
async fn write(mut writer: LinkWriter, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) {
    let mut taken = Vec::new();
    while frames.recv_many(&mut taken, AT_ONCE).await > 0 {
        for frame in taken.drain(..) {
            if writer.feed(frame).await.is_err() {
                return;
            }
        }
        if writer.flush().await.is_err() {
            return;
        }
    }
    writer.close().await;
}

struct Driver {
    commands: mpsc::UnboundedReceiver<Command>,
    /// Bounded as the commands are.
    frames: mpsc::UnboundedSender<Vec<u8>>,
    waiting: HashMap<u64, oneshot::Sender<Said>>,
    topics: HashMap<Topic, (SubscriptionId, Deliveries)>,
    fence: Fence,
    /// When the `PING` was sent that is not answered yet.
    ping: Option<Instant>,
    lost: Arc<AtomicBool>,
}

/// `corr` of a `PING`: calls count from 1.
const PING_CORR: u64 = 0;

impl Driver {
    async fn run(mut self, mut reader: LinkReader) {
        let mut pings = tokio::time::interval(PING);
        pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let reason = loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break "nobody needs it any more",
                },
                text = reader.next() => match text {
                    Some(text) => self.on_frame(&text).await,
                    None => break "the connection to the owner was lost",
                },
                _ = pings.tick() => {
                    if self.ping.is_some() && !self.fence.holds() {
                        break "the owner does not answer";
                    }
                    if self.ping.is_none() {
                        self.ping = Some(Instant::now());
                        let mut frame = Vec::new();
                        ask::ping(&mut frame, PING_CORR);
                        let _ = self.frames.send(frame);
                    }
                }
            }
        };
        self.lost.store(true, Ordering::Release);
        self.fence.end();
        // Whoever waits finds its answer dropped.
        self.waiting.clear();
        self.commands.close();
        for (_, (subscription, deliveries)) in self.topics.drain() {
            let _ = deliveries.send((subscription, Relayed::Lost(reason.to_owned()))).await;
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Call { corr, frame, reply } => {
                self.waiting.insert(corr, reply);
                let _ = self.frames.send(frame);
            }
            Command::Subscribe { topic, subscription, deliveries } => {
                self.topics.insert(topic, (subscription, deliveries));
            }
            Command::Unsubscribe(topic) => drop(self.topics.remove(&topic)),
        }
    }

    async fn on_frame(&mut self, text: &str) {
        match Answer::parse(text) {
            Ok(Some(Answer::Events { topic, events, .. })) => self.on_events(&topic, events).await,
            Ok(Some(Answer::Ok(done))) if done.corr == Some(PING_CORR) => {
                if let Some(sent) = self.ping.take() {
                    self.fence.extend(sent + TRUST);
                }
            }
            Ok(Some(Answer::Ok(done))) => {
                let cursor = done.cursor.map(|raw| raw.get().to_owned());
                self.said(done.corr, Ok(cursor), text);
            }
            Ok(Some(Answer::Error(refusal))) => {
                let code = refusal.code.unwrap_or(Code::AckFailed);
                let error = Error::new(code, refusal.message.clone().into_owned());
                match (refusal.corr, &refusal.topic) {
                    (None, Some(topic)) => self.on_ended(topic, error).await,
                    (corr, _) => self.said(corr, Err(error), text),
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "a frame of another hub is not understood"),
        }
    }

    fn said(&mut self, corr: Option<u64>, result: Result<Option<String>, Error>, text: &str) {
        if let Some(reply) = corr.and_then(|corr| self.waiting.remove(&corr)) {
            let _ = reply.send(Said { result, text: text.to_owned() });
        }
    }

    async fn on_events(&mut self, topic: &str, events: Vec<Delivered<'_>>) {
        let Some((_, (subscription, deliveries))) = self.topics.iter().find(|(name, _)| name.as_str() == topic) else {
            return;
        };
        let mut given = Vec::with_capacity(events.len());
        for Delivered { event, ctx } in events {
            match Event::read(event.get()) {
                Ok(event) => given.push(RelayGiven {
                    event,
                    attempt: ctx.attempt,
                    max_attempts: ctx.max_attempts,
                    lease: ctx.lease,
                    left: Duration::from_millis(ctx.ack_deadline_ms),
                    snapshot: ctx.snapshot,
                    redriven: ctx.redriven,
                    fence: self.fence.clone(),
                }),
                Err(error) => tracing::warn!(%error, "an event of another hub is not understood"),
            }
        }
        let _ = deliveries.send((*subscription, Relayed::Given(given))).await;
    }

    /// The owner has ended a subscription: it is the owner no more.
    async fn on_ended(&mut self, topic: &str, error: Error) {
        let topic = self.topics.keys().find(|name| name.as_str() == topic).cloned();
        if let Some((subscription, deliveries)) = topic.and_then(|topic| self.topics.remove(&topic)) {
            let _ = deliveries.send((subscription, Relayed::Lost(error.message))).await;
        }
    }
}
