//! A projector in a service that has only a connection to a hub.
//!
//! It keeps nothing of its own and has no group: the position is with the state on the output topic. Opening it reads
//! that topic from the beginning up to a barrier that it publishes there: a tombstone of a key that nobody uses. The
//! barrier is also the fence: whoever sees one that came after its own stops.
//!
//! Keep the output topic compacted (`compaction = true`), with a `tombstone_grace` longer than the service may be down.

use std::borrow::Cow;
use std::convert::Infallible;

use futures_util::FutureExt as _;
use promethean_client::{Client, Code, Delivery, Filter, From, Publish, SubscribeOptions, Subscription};
use promethean_event::{EventId, Millis, PublishOptions};
use serde_json::value::RawValue;
use tokio::time::{MissedTickBehavior, interval};

use crate::folder::{MOST_BYTES, MOST_KEYS, NAME};
use crate::states::Extent;
use crate::{Error, Folder, Input, Output, Position, Projection, Settings, States};

/// The header of a barrier: the name of the projection.
const BARRIER: &str = "x-projection-barrier";
/// Events folded at once.
const READ: usize = 500;

/// A projection that runs over a connection.
pub struct Projector<P: Projection> {
    client: Client,
    folder: Folder<P>,
    input: Subscription,
    /// The input begins right after the position: nothing of it was folded before.
    exact: bool,
    /// Barriers that came after this one's.
    barriers: Subscription,
}

impl<P: Projection> Projector<P> {
    /// Takes over where the projection was. An instance that runs elsewhere stops.
    ///
    /// # Errors
    /// The hub refuses, or the client is closed.
    pub async fn open(client: &Client, settings: Settings, projection: P) -> Result<Self, Error> {
        let mut folder = Folder::new(settings, projection);
        let barrier = restore(client, &mut folder).await?;
        let Settings { name, input, output, .. } = folder.settings();
        let headers = vec![(BARRIER.to_owned(), name.to_string())];
        let filter = Filter { headers, ..Filter::default() };
        let after = SubscribeOptions { from: From::AfterId(barrier), filter, ..SubscribeOptions::default() };
        let barriers = client.subscribe(output.as_str(), None, after).await?;
        let (input, exact) = follow(client, input.as_str(), folder.position()).await?;
        let mut projector = Self { client: client.clone(), folder, input, exact, barriers };
        // Keys that an instance left behind their state when it was replaced.
        projector.publish().await?;
        Ok(projector)
    }

    /// The state.
    pub fn states(&self) -> &States<P::State> {
        self.folder.states()
    }

    /// Up to where the input was folded.
    pub fn position(&self) -> Position {
        self.folder.position()
    }

    /// Waits for events and folds them; returns how many. **Returned ⇒ their state is durable.** Not cancel-safe: what
    /// was cancelled has to be opened again.
    ///
    /// # Errors
    /// The projection has to stop; opening it again goes on where it was.
    pub async fn step(&mut self) -> Result<usize, Error> {
        let first = tokio::select! {
            replaced = self.barriers.next() => {
                replaced?.ok_or(Error::Closed)?;
                return Err(Error::Replaced { name: self.folder.settings().name.to_string() });
            }
            first = self.input.next() => first?.ok_or(Error::Closed)?,
        };
        self.fold(first).await
    }

    async fn fold(&mut self, first: Delivery) -> Result<usize, Error> {
        let (mut next, mut folded) = (Some(first), 0);
        while let Some(delivery) = next.take() {
            let input = Input::from(delivery.event());
            if self.exact && input.seq <= self.folder.position().seq {
                return Err(Error::Renumbered { topic: self.folder.settings().input.to_string() });
            }
            self.folder.fold(&input)?;
            let Extent { keys, bytes } = self.folder.last();
            if keys > MOST_KEYS || bytes > MOST_BYTES {
                return Err(Error::TooMuch { id: input.id, keys, bytes });
            }
            folded += 1;
            if folded < READ && !self.folder.is_full() {
                next = match self.input.next().now_or_never() {
                    Some(ready) => Some(ready?.ok_or(Error::Closed)?),
                    None => None,
                };
            }
        }
        self.publish().await?;
        Ok(folded)
    }

    /// Lets time change the state. It also keeps the position on the output topic where only tombstones carry it: call it
    /// every few minutes, also when time changes nothing ([`Projector::run`] does).
    ///
    /// # Errors
    /// As [`Projector::step`].
    pub async fn tick(&mut self, now: Millis) -> Result<(), Error> {
        self.folder.tick(now)?;
        self.publish().await?;
        if let Some(Output { payload, options }) = self.folder.mark(now) {
            let topic = self.folder.settings().output.as_str();
            self.client.send(topic, Publish::raw(payload).options(options)).await?;
        }
        Ok(())
    }

    /// Folds what comes, for as long as the client lives.
    ///
    /// # Errors
    /// As [`Projector::step`].
    pub async fn run(mut self) -> Result<Infallible, Error> {
        let mut ticks = interval(self.folder.settings().tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first one comes at once, before anything was heard.
        ticks.reset();
        loop {
            let first = tokio::select! {
                biased;
                replaced = self.barriers.next() => {
                    replaced?.ok_or(Error::Closed)?;
                    return Err(Error::Replaced { name: self.folder.settings().name.to_string() });
                }
                first = self.input.next() => Some(first?.ok_or(Error::Closed)?),
                _ = ticks.tick() => None,
            };
            match first {
                Some(first) => drop(self.fold(first).await?),
                None => self.tick(Millis::now()).await?,
            }
        }
    }

    async fn publish(&mut self) -> Result<(), Error> {
        loop {
            let mut again = false;
            for outputs in self.folder.units()? {
                let keys: Vec<String> = outputs.iter().map(Output::key).collect();
                let publish = |Output { payload, options }| Publish::raw(payload).options(options);
                let topic = self.folder.settings().output.as_str();
                // What is not confirmed when the connection is lost is sent again by the client, with the same ids.
                let answers = self.client.publish_batch(topic, outputs.into_iter().map(publish).collect()).await?;
                let duplicates = answers.into_iter().map(|answer| answer.duplicate);
                again |= self.folder.published(keys.into_iter().zip(duplicates));
            }
            if !again {
                return Ok(());
            }
        }
    }
}

/// Reads the output topic up to a barrier of its own, which it returns.
async fn restore<P: Projection>(client: &Client, folder: &mut Folder<P>) -> Result<EventId, Error> {
    let (name, topic) = (folder.settings().name.to_string(), folder.settings().output.clone());
    let options = SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() };
    let mut events = client.subscribe(topic.as_str(), None, options).await?;
    let options = PublishOptions {
        key: Some(Cow::Owned(format!("projection:{name}"))),
        headers: vec![(Cow::Borrowed(BARRIER), Cow::Owned(name.clone())), (Cow::Borrowed(NAME), Cow::Owned(name))],
        ..PublishOptions::default()
    };
    let barrier = client.send(topic.as_str(), Publish::raw(RawValue::NULL.to_owned()).options(options)).await?;
    loop {
        let delivery = events.next().await?.ok_or(Error::Closed)?;
        let event = delivery.event();
        if event.id == barrier.id {
            return Ok(barrier.id);
        }
        if let Some(key) = event.key.as_deref().filter(|_| !event.headers.contains_key(BARRIER)) {
            folder.restore(key, event.payload.get(), |name| event.headers.get(name).map(String::as_str));
        }
    }
}

/// The input after `position`.
/// What comes after the position; and whether it is known that nothing of it was folded before.
async fn follow(client: &Client, topic: &str, position: Position) -> Result<(Subscription, bool), Error> {
    if let Some(id) = position.id {
        let options = SubscribeOptions { from: From::AfterId(id), ..SubscribeOptions::default() };
        match client.subscribe(topic, None, options).await {
            // It has gone from the log: from the beginning of what is there, and what was folded before is left out.
            Err(error) if error.code() == Some(Code::UnknownId) => {}
            subscribed => return Ok((subscribed?, true)),
        }
    }
    let options = SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() };
    Ok((client.subscribe(topic, None, options).await?, false))
}
