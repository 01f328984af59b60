//! Typed topics: the payload's type belongs to the topic, and the compiler checks it.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Deref;

use promethean_event::{Draft, Group, Invalid, PublishOptions, SubscribeOptions, Topic, payload_of};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Bus, Delivery, Error, Published, Subscription};

/// A topic whose payloads are `T`s.
///
/// ```
/// # use promethean_bus::TypedTopic;
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Heartbeat { pid: u32, host: String }
///
/// let heartbeats: TypedTopic<Heartbeat> = TypedTopic::parse("heartbeat.received").expect("a topic");
/// assert_eq!(heartbeats.topic().as_str(), "heartbeat.received");
/// ```
pub struct TypedTopic<T> {
    topic: Topic,
    payload: PhantomData<fn() -> T>,
}

impl<T> Clone for TypedTopic<T> {
    fn clone(&self) -> Self {
        Self::new(self.topic.clone())
    }
}

impl<T> TypedTopic<T> {
    /// `topic` with payloads of type `T`.
    pub fn new(topic: Topic) -> Self {
        Self { topic, payload: PhantomData }
    }

    /// Checks a name.
    ///
    /// # Errors
    /// `bad_topic`.
    pub fn parse(name: &str) -> Result<Self, Invalid> {
        Topic::parse(name).map(Self::new)
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }
}

impl<T: Serialize> TypedTopic<T> {
    /// Publishes a payload.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn publish(&self, bus: &Bus, payload: &T, options: PublishOptions<'_>) -> Result<Published, Error> {
        let payload = Cow::Owned(payload_of(payload)?);
        bus.publish(&Draft { topic: self.topic.clone(), payload, options }).await
    }
}

impl<T: DeserializeOwned> TypedTopic<T> {
    /// Subscribes.
    ///
    /// # Errors
    /// As [`Bus::subscribe`].
    pub async fn subscribe(
        &self,
        bus: &Bus,
        group: Option<Group>,
        options: SubscribeOptions,
    ) -> Result<TypedSubscription<T>, Error> {
        let subscription = bus.subscribe(self.topic.as_str(), group, options).await?;
        Ok(TypedSubscription { subscription, payload: PhantomData })
    }
}

/// A stream of deliveries whose payloads are `T`s.
pub struct TypedSubscription<T> {
    subscription: Subscription,
    payload: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> TypedSubscription<T> {
    /// The next delivery with its payload, or with what is wrong with the payload: then it is the caller's to nack.
    ///
    /// # Errors
    /// As [`Subscription::next`].
    pub async fn next(&mut self) -> Result<TypedDelivery<T>, Error> {
        let delivery = self.subscription.next().await?;
        Ok(TypedDelivery { payload: delivery.event().payload_as(), delivery })
    }
}

/// A delivery with its payload.
pub struct TypedDelivery<T> {
    /// The payload, or why it is not a `T`.
    pub payload: Result<T, serde_json::Error>,
    delivery: Delivery,
}

impl<T> Deref for TypedDelivery<T> {
    type Target = Delivery;
    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}
