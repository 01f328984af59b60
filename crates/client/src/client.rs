//! The handle.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::{EventId, Group, IdMaker, Selector};
use serde::Serialize;

use crate::driver::{Command, Topics};
use crate::mailbox::Mailbox;
use crate::publish::topic;
use crate::window::Window;
use crate::{Builder, Error, Publish, Published, SubscribeOptions, Subscription};

/// The limit of [`Client::close`].
const CLOSE: Duration = Duration::from_secs(10);

/// A connection to a hub that comes back by itself. Clones share it; when the last one and all subscriptions are gone,
/// what was published is still confirmed, then the connection ends.
#[derive(Clone)]
pub struct Client {
    mailbox: Mailbox,
    window: Window,
    ids: Arc<IdMaker>,
    name: Option<String>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the hub at `url`, `ws://…` or `wss://…`.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(url.into())
    }

    pub(crate) fn new(mailbox: Mailbox, window: Window, ids: Arc<IdMaker>, name: Option<String>) -> Self {
        Self { mailbox, window, ids, name }
    }

    /// Publishes `value`. **Returned ⇒ as durable as the hub's store says.**
    ///
    /// # Errors
    /// The hub refused it, or it cannot be published at all. Not for a lost connection: that is waited out.
    /// [`Error::ids`] has the id to publish it again with.
    pub async fn publish<T: Serialize + ?Sized>(&self, topic: &str, value: &T) -> Result<Published, Error> {
        self.send(topic, Publish::new(value)?).await
    }

    /// Publishes an event.
    ///
    /// # Errors
    /// As [`Client::publish`].
    pub async fn send(&self, topic: &str, event: Publish) -> Result<Published, Error> {
        let published = self.publish_all(topic, vec![event], false).await?;
        published.first().copied().ok_or(Error::Lost)
    }

    /// Publishes several events: all or none.
    ///
    /// # Errors
    /// As [`Client::publish`]; nothing of the batch is stored. [`Error::ids`] names all its events.
    pub async fn publish_batch(&self, topic: &str, events: Vec<Publish>) -> Result<Vec<Published>, Error> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        self.publish_all(topic, events, true).await
    }

    async fn publish_all(&self, name: &str, mut events: Vec<Publish>, batch: bool) -> Result<Vec<Published>, Error> {
        let topic = topic(name)?;
        for event in &mut events {
            event.seal(&self.ids, self.name.as_deref())?;
        }
        let ids: Vec<EventId> = events.iter().filter_map(|event| event.options.id).collect();
        let room = self.window.room(events.iter().map(|event| event.payload.get().len()).sum()).await;
        let published = self.mailbox.ask(|reply| Command::Publish { topic, events, batch, reply, room }).await;
        published.map_err(|error| error.of(ids))
    }

    /// Subscribes to a topic or pattern; without a group an ephemeral tail, nothing to ack.
    ///
    /// # Errors
    /// The hub refused it.
    pub async fn subscribe(
        &self,
        topic: &str,
        group: Option<&str>,
        options: SubscribeOptions,
    ) -> Result<Subscription, Error> {
        Selector::parse(topic)?;
        options.check().map_err(|invalid| invalid.within("opts."))?;
        let group = group.map(Group::parse).transpose()?;
        let topics = Topics { topic: topic.into(), group, options };
        let mailbox = self.mailbox.clone();
        self.mailbox.ask(|reply| Command::Subscribe { topics, mailbox, reply }).await
    }

    /// Ends the client as [`Client::close_within`] does, within 10 s.
    ///
    /// # Errors
    /// As [`Client::close_within`].
    pub async fn close(self) -> Result<(), Error> {
        self.close_within(CLOSE).await
    }

    /// Stops deliveries, gives back the events that wait, finishes the handlers that run, sends their answers and the
    /// publishes that wait, and disconnects. A connection that is away is waited for if one of these needs it. After `limit`
    /// the client ends whatever the hub does, and calls that still wait fail with [`Error::Closed`]; so do later ones.
    /// Dropping the future ends it at once. A handler must not await it, but spawn it: it waits for that handler.
    ///
    /// # Errors
    /// The client had ended before: why.
    pub async fn close_within(self, limit: Duration) -> Result<(), Error> {
        let _end = self.mailbox.end_with();
        tokio::time::timeout(limit, self.mailbox.ask(Command::Close)).await.unwrap_or(Ok(()))
    }

    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}
