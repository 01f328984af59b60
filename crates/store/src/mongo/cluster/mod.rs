//! Several hubs over one MongoDB: who is alive, and who owns which group.
//!
//! ```text
//! hubs    { _id: "6917…", address: "ws://10.0.0.5:8090", started, expires, version, dead: true? }
//! cursors { _id: "orders::billing", owner: "6917…", epoch: 4, leases: …, version: …, state: … }
//! ```
//!
//! One heartbeat a hub, however many groups it owns. Times are the server's (`$$NOW`). A hub that missed its time is
//! declared dead by whoever finds it so, with a majority; from then on its heartbeats match nothing, for ever: it comes
//! back under another name. So "its owner is dead" cannot become untrue between looking and claiming.
//! A claim raises `version`, and with it makes every save of an owner before match nothing.

mod claims;
mod hubs;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mongodb::Collection;
use mongodb::bson::{Document, doc, oid::ObjectId};
use mongodb::options::ReturnDocument;
use parking_lot::Mutex;
use promethean_event::{Group, Topic};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{HUBS, META, Mongo, Shared, fault};
use crate::{Claim, Error, Fence, Ownership, Peer, Pending, Result, Terms};

/// How often a hub looks which others are alive.
const LOOK: Duration = Duration::from_secs(1);
/// How long a heartbeat, or a look, may take: a lost one must leave time for the next.
const REQUEST: Duration = Duration::from_secs(2);
/// Most hubs that are told apart; more are not looked at.
const MOST_HUBS: i64 = 1_000;

/// A hub's place in the cluster.
pub struct Cluster(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    hubs: Collection<Document>,
    address: String,
    version: String,
    terms: Terms,
    life: Mutex<Life>,
    /// Why the last heartbeat was not taken, while none is.
    trouble: Mutex<Option<String>>,
    /// Others that are alive, as far as this hub knows; oldest first.
    alive: watch::Sender<Vec<Peer>>,
    left: watch::Sender<bool>,
}

/// A hub lives under one name until it misses its time.
#[derive(Debug, Clone)]
struct Life {
    id: Arc<str>,
    fence: Fence,
}

impl Life {
    /// One that has not been granted yet.
    fn new() -> Self {
        let fence = Fence::new(Instant::now());
        fence.end();
        Self { id: ObjectId::new().to_hex().into(), fence }
    }
}

impl Cluster {
    /// Takes a place among the hubs of a database: other hubs reach this one at `address`. Returns when the hub is
    /// registered, and keeps it so until [`Ownership::leave`] or until this is dropped.
    ///
    /// # Errors
    /// MongoDB does not take the registration.
    pub async fn join(store: &Mongo, address: &str, version: &str, terms: Terms) -> Result<Self> {
        let inner = Arc::new(Inner {
            shared: Arc::clone(&store.shared),
            hubs: store.database().collection(HUBS),
            address: address.to_owned(),
            version: version.to_owned(),
            terms,
            life: Mutex::new(Life::new()),
            trouble: Mutex::new(None),
            alive: watch::channel(Vec::new()).0,
            left: watch::channel(false).0,
        });
        inner.first_registration().await?;
        tokio::spawn(hubs::keep_alive(Arc::downgrade(&inner), inner.left.subscribe(), terms));
        tokio::spawn(hubs::keep_looking(Arc::downgrade(&inner), inner.left.subscribe()));
        Ok(Self(inner))
    }

    /// The secret that the hubs of this database share: `made` where they have none yet. Whoever can read it there can
    /// read every event too.
    ///
    /// # Errors
    /// MongoDB does not answer.
    pub async fn secret(store: &Mongo, made: &str) -> Result<String> {
        let cluster: Collection<Document> = store.database().collection(META);
        let found = cluster
            .find_one_and_update(doc! { "_id": "cluster" }, doc! { "$setOnInsert": { "secret": made } })
            .upsert(true)
            .return_document(ReturnDocument::After);
        let found = fault::limited(found).await.map_err(|error| failed(&error))?;
        let value = found.as_ref().and_then(|found| found.get_str("secret").ok()).map(str::to_owned);
        value.ok_or_else(|| Error::Damaged("meta: the document \"cluster\" has no secret; remove it".to_owned()))
    }

    /// The hub's name at the moment; a new one after it has missed its time.
    pub fn id(&self) -> Arc<str> {
        Arc::clone(&self.0.life.lock().id)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.0.left.send_replace(true);
    }
}

impl Ownership for Cluster {
    fn claim<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Claim> {
        Box::pin(self.0.claim(topic, group))
    }

    fn release<'a>(&'a self, topic: &'a Topic, group: &'a Group, epoch: u64) -> Pending<'a, ()> {
        Box::pin(self.0.release(topic, group, epoch))
    }

    fn owner<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<Peer>> {
        Box::pin(self.0.owner(topic, group))
    }

    fn gone<'a>(&'a self, peer: &'a Peer) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let mut alive = self.0.alive.subscribe();
        Box::pin(async move {
            let _ = alive.wait_for(|alive| !alive.iter().any(|one| one.id == peer.id)).await;
        })
    }

    fn leads(&self) -> bool {
        // Names begin with the time: the oldest hub.
        let life = self.0.life.lock().clone();
        life.fence.holds() && self.0.alive.borrow().iter().all(|peer| *life.id < *peer.id)
    }

    fn ready(&self) -> Result<()> {
        if self.0.life.lock().fence.holds() {
            return Ok(());
        }
        let why = self.0.trouble.lock().clone().unwrap_or_else(|| "MongoDB is away: no answer yet".to_owned());
        let message = "the heartbeat was not taken in time, this hub has no place among the others";
        Err(Error::Refused(format!("{why}; {message}")))
    }

    fn leave(&self) -> Pending<'_, ()> {
        Box::pin(async move {
            self.0.left.send_replace(true);
            let life = self.0.life.lock().clone();
            life.fence.end();
            self.0.bury(&life.id).await
        })
    }
}

fn failed(error: &mongodb::error::Error) -> Error {
    let away = if fault::is_away(error) { " is away" } else { "" };
    Error::Refused(format!("MongoDB{away}: {}", fault::words(error)))
}
