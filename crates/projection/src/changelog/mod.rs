//! Changelogs: a table or collection that follows a keyed topic, row by row.
//!
//! The first run takes the latest event of every live key, then whatever comes: upserts, and deletes for tombstones. The
//! topic's group is the cursor: what was applied is acked, what was not comes again. A [`Table`] applies a change only
//! where it knows of no later one of that key, so that a change that comes twice, or late, makes no difference.
//!
//! That goes by the seq, which is good for one log. An event that the table has under another seq, or another event under
//! the seq of one that it has, is proof of another log: [`Renumbered`] stops it.
//!
//! Any number of instances may share the work: events of one key wait for each other.

#[cfg(feature = "mongo")]
mod mongo;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::collections::BTreeMap;

use promethean_event::{EventId, From, Millis, Ordered, Seq, SubscribeOptions};
use serde_json::value::RawValue;

#[cfg(feature = "mongo")]
pub use mongo::{MongoCollection, MongoError};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteError, SqliteTable};

/// Events applied at once.
const AT_ONCE: usize = 500;

/// The latest state of a key.
#[derive(Debug, Clone)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The event's place in the topic: a later one counts.
    pub seq: Seq,
    /// Its id.
    pub id: EventId,
    /// Its time.
    pub ts: Millis,
    /// The state; none: the key is gone.
    pub payload: Option<Box<RawValue>>,
}

/// The topic is not the log that the table was made of: changes would be taken for late ones, and left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key {key:?} is in the table as of another log: the event {id} is number {seq} of the topic, and the table says \
     otherwise (exported and imported?): changes would be left out; let another group write to another table, or move the \
     hub with `promethean backup`, which keeps the seqs"
)]
#[non_exhaustive]
pub struct Renumbered {
    /// The key.
    pub key: String,
    /// The event that shows it.
    pub id: EventId,
    /// Its place in the topic.
    pub seq: Seq,
}

impl Renumbered {
    #[cfg(any(feature = "sqlite", feature = "mongo"))]
    fn by(change: Change) -> Self {
        let Change { key, id, seq, .. } = change;
        Self { key, id, seq }
    }
}

/// What a changelog is written to.
pub trait Table: Send {
    /// Why it could not be.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Applies changes of different keys. **Returned ⇒ durable.** A change with a lower seq than one that was applied to
    /// its key before changes nothing.
    fn apply(&mut self, changes: Vec<Change>) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Why a changelog stopped. Run again, it goes on where it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped<E: std::error::Error + 'static> {
    /// The table could not be written.
    #[error("the table could not be written: {0}")]
    Table(#[source] E),
    /// The bus ended it.
    #[cfg(feature = "bus")]
    #[error(transparent)]
    Bus(#[from] promethean_bus::Error),
    /// The hub refused it, or the client was closed.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Client(#[from] promethean_client::Error),
    /// The client was closed.
    #[error("the connection was closed")]
    Closed,
}

/// Every live key first, each event until it is applied, events of a key one after another.
fn options() -> SubscribeOptions {
    SubscribeOptions {
        from: From::Snapshot,
        ordered: Ordered::Key,
        max_attempts: 0,
        max_in_flight: AT_ONCE * 2,
        ..SubscribeOptions::default()
    }
}

/// Of each key the last change; events without a key are nobody's state.
fn latest(changes: impl Iterator<Item = Option<Change>>) -> Vec<Change> {
    let mut by_key = BTreeMap::<String, Change>::new();
    for change in changes.flatten() {
        match by_key.get(&change.key) {
            Some(known) if known.seq >= change.seq => {}
            _ => drop(by_key.insert(change.key.clone(), change)),
        }
    }
    by_key.into_values().collect()
}

/// The number at `pointer` (`/version`) of a state.
#[cfg(any(feature = "sqlite", feature = "mongo"))]
fn version_of(change: &Change, pointer: Option<&str>) -> Option<i64> {
    let path = pointer?.strip_prefix('/')?.split('/').map(|part| part.replace("~1", "/").replace("~0", "~"));
    // Only what is on the way is read: the rest may be any JSON, also numbers that are none of Rust's.
    let mut at: &RawValue = change.payload.as_ref()?;
    for part in path {
        at = match serde_json::from_str::<std::collections::HashMap<String, &RawValue>>(at.get()) {
            Ok(members) => members.get(&part).copied()?,
            Err(_) => {
                serde_json::from_str::<Vec<&RawValue>>(at.get()).ok()?.get(part.parse::<usize>().ok()?).copied()?
            }
        };
    }
    serde_json::from_str(at.get()).ok()
}

/// Follows `topic` over a connection to a hub, as the group `group`, for as long as both sides go on.
///
/// # Errors
/// Why it stopped; what was not applied comes again with the next run.
#[cfg(feature = "client")]
pub async fn run<T: Table>(
    client: &promethean_client::Client,
    topic: &str,
    group: &str,
    table: &mut T,
) -> Result<std::convert::Infallible, Stopped<T::Error>> {
    use futures_util::FutureExt as _;
    let change = |delivery: &promethean_client::Delivery| {
        let event = delivery.event();
        let payload = Some(event.payload.clone()).filter(|payload| payload.get() != "null");
        Some(Change { key: event.key.clone()?, seq: event.seq, id: event.id, ts: event.ts, payload })
    };
    let mut events = client.subscribe(topic, Some(group), options().into()).await?;
    loop {
        let mut batch = vec![events.next().await?.ok_or(Stopped::Closed)?];
        while batch.len() < AT_ONCE
            && let Some(next) = events.next().now_or_never()
        {
            batch.push(next?.ok_or(Stopped::Closed)?);
        }
        table.apply(latest(batch.iter().map(change))).await.map_err(Stopped::Table)?;
        futures_util::future::try_join_all(batch.iter().map(promethean_client::Delivery::ack)).await?;
    }
}

/// Follows `topic` inside a program that has the bus, as the group `group`, for as long as both sides go on.
///
/// # Errors
/// As [`run`].
#[cfg(feature = "bus")]
pub async fn run_on_bus<T: Table>(
    bus: &promethean_bus::Bus,
    topic: &str,
    group: &str,
    table: &mut T,
) -> Result<std::convert::Infallible, Stopped<T::Error>> {
    let change = |delivery: &promethean_bus::Delivery| {
        let event = delivery.event();
        let payload = (!event.is_tombstone()).then(|| RawValue::from_string(event.payload().to_owned()).ok()).flatten();
        Some(Change { key: event.key()?.into_owned(), seq: event.seq, id: event.id, ts: event.ts, payload })
    };
    let group = promethean_bus::Group::parse(group).map_err(promethean_bus::Error::from)?;
    let mut events = bus.subscribe(topic, Some(group), options()).await?;
    loop {
        let batch = events.next_batch(AT_ONCE).await?;
        table.apply(latest(batch.iter().map(change))).await.map_err(Stopped::Table)?;
        events.ack_all(&batch).await?;
    }
}
