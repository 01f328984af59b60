//! The handle.

use std::sync::Arc;

use promethean_event::{Group, IdMaker, Selector};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::driver::{Command, Topics};
use crate::publish::topic;
use crate::{Builder, Error, Publish, Published, SubscribeOptions, Subscription};

/// A connection to a hub that comes back by itself. Clones share it; when the last one and all subscriptions are gone,
/// what was published is still confirmed, then the connection ends.
#[derive(Clone)]
pub struct Client {
    commands: mpsc::Sender<Command>,
    window: Arc<Semaphore>,
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

    pub(crate) fn new(
        commands: mpsc::Sender<Command>,
        window: Arc<Semaphore>,
        ids: Arc<IdMaker>,
        name: Option<String>,
    ) -> Self {
        Self { commands, window, ids, name }
    }

    /// Publishes `value`. **Returned ⇒ as durable as the hub's store says.**
    ///
    /// # Errors
    /// The hub refused it, or it cannot be published at all. Not for a lost connection: that is waited out.
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
    /// As [`Client::publish`]; nothing of the batch is stored.
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
        let permit = Arc::clone(&self.window).acquire_owned().await.map_err(|_| Error::Closed)?;
        let (reply, answer) = oneshot::channel();
        let command = Command::Publish { topic, events, batch, reply, permit };
        self.commands.send(command).await.map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
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
        let (reply, answer) = oneshot::channel();
        let commands = self.commands.clone();
        self.commands.send(Command::Subscribe { topics, commands, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Ends the connection, after everything that waits was confirmed.
    ///
    /// # Errors
    /// It was closed already.
    pub async fn close(self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Close(reply)).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }
}
