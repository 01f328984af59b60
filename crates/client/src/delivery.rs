//! A delivered event and its answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use promethean_event::frame::DeliveryContext;
use promethean_event::frame::ask::GiveBack;
use promethean_event::{EventId, Identified, Millis};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::Error;
use crate::driver::Command;
use crate::mailbox::Mailbox;
use crate::settlement::{How, Settlement};

/// An event as it came.
#[derive(Debug, Clone, Deserialize)]
pub struct Received {
    /// The id.
    pub id: EventId,
    /// The place in its topic.
    pub seq: u64,
    /// Its time.
    pub ts: Millis,
    /// The concrete topic.
    pub topic: String,
    /// The key.
    pub key: Option<String>,
    /// The partition.
    #[serde(default)]
    pub partition: u32,
    /// The publisher's session.
    pub sid: Option<String>,
    /// Names and values.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The events this one follows from.
    #[serde(default)]
    pub caused_by: Vec<EventId>,
    /// Free words.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The payload, byte for byte.
    pub payload: Box<RawValue>,
}

impl Received {
    /// The payload as a `T`.
    ///
    /// # Errors
    /// It is not one.
    pub fn payload_as<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.payload.get())
    }
}

impl Identified for Received {
    fn event_id(&self) -> EventId {
        self.id
    }
}

/// An event given to this subscriber. Dropping it sends nothing: the event comes again when its lease runs out.
#[derive(Debug)]
pub struct Delivery {
    pub(crate) event: Received,
    pub(crate) json: Arc<str>,
    pub(crate) context: DeliveryContext,
    pub(crate) restarted: bool,
    pub(crate) subscription: u64,
    pub(crate) arrived: Instant,
    /// The number of the newest lease of the event.
    pub(crate) lease: AtomicU64,
    /// When its lease runs out, unless it is extended.
    pub(crate) leased_until: Instant,
    pub(crate) mailbox: Mailbox,
}

impl Delivery {
    /// The event.
    pub fn event(&self) -> &Received {
        &self.event
    }

    /// The event's JSON, as it came.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// What the hub says about the delivery.
    pub fn context(&self) -> DeliveryContext {
        self.context.clone()
    }

    /// A tail's snapshot has begun again with this delivery, since the connection was lost before the first snapshot was whole,
    /// or for so long that the place to go on at is gone from the log. The new one has every live key, but nothing of those
    /// that went meanwhile: forget the state that came before. Where no key is left, the next live event says it.
    pub fn restarted(&self) -> bool {
        self.restarted
    }

    /// It is done. **Returned ⇒ as durable as the hub's store says.** Nothing to do on an ephemeral tail.
    ///
    /// # Errors
    /// The hub could not save it, or the client is closed.
    pub async fn ack(&self) -> Result<(), Error> {
        self.settle(How::Ack).await
    }

    /// It is done, if nobody else has got it meanwhile.
    ///
    /// # Errors
    /// `lease_lost`: it was given out again. [`Error::Lost`]: the connection was lost, and nobody knows.
    pub async fn ack_fenced(&self) -> Result<(), Error> {
        self.settle(How::Fenced(self.lease())).await
    }

    /// It failed: comes back as `how` says.
    ///
    /// # Errors
    /// The client is closed.
    pub async fn nack(&self, how: GiveBack) -> Result<(), Error> {
        self.settle(How::Nack(how, Some(self.lease()))).await
    }

    /// The lease lasts until `by` from now.
    ///
    /// # Errors
    /// `unknown_id`: the lease is lost; or the connection was.
    pub async fn extend(&self, by: Duration) -> Result<(), Error> {
        self.settle(How::Extend(by, Some(self.lease()))).await
    }

    /// How long the hub leases it, from the delivery or an extension on.
    pub(crate) fn lease_time(&self) -> Duration {
        Duration::from_millis(self.context.ack_deadline_ms)
    }

    /// How long after a delivery or an extension its lease is extended.
    pub(crate) fn keep_in(&self) -> Duration {
        (self.lease_time() / 3).max(Duration::from_millis(50))
    }

    fn lease(&self) -> u64 {
        self.lease.load(Ordering::Relaxed)
    }

    /// The hub has delivered the event again to the same subscriber, which still works on it.
    pub(crate) fn delivered_again(&self, newer: &Delivery) {
        self.lease.store(newer.context.lease, Ordering::Relaxed);
    }

    /// Its lease has run out: the hub gives the event out again, or has done so. A tail's have none.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.context.lease != 0 && self.leased_until <= now
    }

    async fn settle(&self, how: How) -> Result<(), Error> {
        if self.context.lease == 0 {
            return Ok(());
        }
        let (subscription, id) = (self.subscription, self.event.id);
        self.mailbox.ask(|reply| Command::Settle(Settlement::new(subscription, how, id, reply))).await
    }
}

impl Identified for Delivery {
    fn event_id(&self) -> EventId {
        self.event.id
    }
}
