//! Which hubs are alive: this one's heartbeat, and the look at the others.

use std::sync::{Arc, Weak};

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Inner, LOOK, Life, MOST_HUBS, REQUEST, failed};
use crate::mongo::import::IMPORT;
use crate::mongo::{META, OpenError, fault};
use crate::{Beat, Duty, Error, Fence, Heartbeat, Peer, Result, Terms};

/// Tells that this hub is alive, until it leaves.
pub(super) async fn keep_alive(inner: Weak<Inner>, mut left: watch::Receiver<bool>, terms: Terms) {
    let asked = Instant::now();
    let mut heartbeat = Heartbeat::new(terms, asked);
    heartbeat.on_beat(Beat::Granted, asked, asked);
    let mut taken = true;
    loop {
        let now = Instant::now();
        let wait = match heartbeat.duty(now) {
            Duty::Wait(until) => until,
            Duty::Renew | Duty::Register => now,
        };
        tokio::select! {
            // A hub that has left must not enter itself anew.
            biased;
            _ = left.wait_for(|left| *left) => return,
            () = tokio::time::sleep_until(wait) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        let asked = Instant::now();
        let beat = match heartbeat.duty(asked) {
            Duty::Wait(_) => continue,
            Duty::Renew => inner.renew().await,
            Duty::Register => inner.register().await,
        };
        let now = Instant::now();
        let until = heartbeat.on_beat(beat, asked, now);
        let life = inner.life.lock().clone();
        match until {
            Some(until) if beat == Beat::Granted => life.fence.extend(until),
            Some(_) => {}
            None => life.fence.end(),
        }
        // Once when it begins, once when it is over: an outage has many beats.
        match (taken, beat == Beat::Granted) {
            (true, false) => {
                let why = inner.trouble.lock().clone();
                tracing::warn!(hub = %life.id, ?beat, why, "the heartbeat was not taken");
            }
            (false, true) => {
                *inner.trouble.lock() = None;
                tracing::info!(hub = %life.id, "the heartbeat is taken again");
            }
            _ => {}
        }
        taken = beat == Beat::Granted;
    }
}

/// Looks which other hubs are alive, until this one leaves.
pub(super) async fn keep_looking(inner: Weak<Inner>, mut left: watch::Receiver<bool>) {
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            if let Err(error) = inner.look().await {
                tracing::debug!(%error, "the other hubs cannot be looked at");
            }
        }
        tokio::select! {
            _ = left.wait_for(|left| *left) => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

impl Inner {
    /// `$$NOW` and so many milliseconds.
    fn expires(&self) -> Document {
        let ttl = i64::try_from(self.terms.ttl.as_millis()).unwrap_or(i64::MAX);
        doc! { "$add": ["$$NOW", ttl] }
    }

    pub(super) async fn first_registration(&self) -> Result<()> {
        let asked = Instant::now();
        let id = Arc::clone(&self.life.lock().id);
        self.enter(&id).await?;
        *self.life.lock() = Life { id, fence: Fence::new(self.terms.until(asked)) };
        self.look().await
    }

    /// Enters a name, except while an import fills the database.
    async fn enter(&self, id: &str) -> Result<()> {
        let set = doc! {
            "address": { "$literal": &self.address }, "version": { "$literal": &self.version },
            "app": { "$literal": &self.shared.app },
            "started": "$$NOW", "expires": self.expires(),
        };
        let entered = self.hubs.update_one(doc! { "_id": id }, vec![doc! { "$set": set }]).upsert(true);
        let meta = self.shared.database.collection::<Document>(META);
        // After it is entered it is looked for an import: one that begins now finds this hub.
        let import = limited(async {
            let mut session = self.shared.session().await?;
            entered.session(&mut session).await?;
            self.shared.heard(&session);
            meta.find_one(doc! { "_id": IMPORT }).session(&mut session).await
        });
        if import.await?.is_some() {
            self.bury(id).await?;
            let name = self.shared.database.name().to_owned();
            return Err(Error::Refused(OpenError::HalfImported(name).to_string()));
        }
        Ok(())
    }

    /// Prolongs the life of the current name, if nobody has declared it dead.
    async fn renew(&self) -> Beat {
        let id = Arc::clone(&self.life.lock().id);
        let alive = doc! { "_id": &*id, "dead": { "$ne": true }, "$expr": { "$gt": ["$expires", "$$NOW"] } };
        let renewed = self.hubs.update_one(alive, vec![doc! { "$set": { "expires": self.expires() } }]);
        match limited(renewed).await {
            Ok(renewed) if renewed.matched_count == 1 => Beat::Granted,
            Ok(_) => {
                *self.trouble.lock() = Some("others have declared this hub dead".to_owned());
                Beat::Refused
            }
            Err(error) => {
                tracing::debug!(%error, "no heartbeat");
                *self.trouble.lock() = Some(error.to_string());
                Beat::Failed
            }
        }
    }

    /// Comes back under another name. What the old one owned is free.
    async fn register(&self) -> Beat {
        let old = self.life.lock().clone();
        old.fence.end();
        let asked = Instant::now();
        let new = Life::new();
        let entered = async {
            self.bury(&old.id).await?;
            self.enter(&new.id).await
        };
        match entered.await {
            Ok(()) => {
                tracing::info!(old = %old.id, new = %new.id, "this hub has a place among the hubs again");
                *self.life.lock() = Life { id: new.id, fence: Fence::new(self.terms.until(asked)) };
                Beat::Granted
            }
            Err(error) => {
                tracing::debug!(%error, "not registered");
                *self.trouble.lock() = Some(error.to_string());
                Beat::Failed
            }
        }
    }

    /// Declares a name dead for ever.
    pub(super) async fn bury(&self, id: &str) -> Result<()> {
        limited(self.hubs.update_one(doc! { "_id": id }, doc! { "$set": { "dead": true } })).await.map(drop)
    }

    /// Declares a name dead whose time is over; whether it is dead.
    pub(super) async fn bury_expired(&self, id: &str) -> Result<bool> {
        let over = doc! { "_id": id, "$or": [{ "dead": true }, { "$expr": { "$lte": ["$expires", "$$NOW"] } }] };
        let buried = self.hubs.find_one_and_update(over, doc! { "$set": { "dead": true } });
        let Some(before) = limited(buried).await? else { return Ok(false) };
        if !before.get_bool("dead").unwrap_or(false)
            && let Ok(app) = before.get_str("app")
            && let Err(fault) = self.shared.end_transactions(app).await
        {
            let error = fault::words(&fault);
            tracing::warn!(hub = id, error, "what the dead hub was about to write may block others for a minute");
        }
        self.forget(id);
        Ok(true)
    }

    /// Looks at all hubs, declares dead whose time is over, and forgets those that were long ago.
    async fn look(&self) -> Result<()> {
        let over = doc! { "$lte": ["$expires", "$$NOW"] };
        let old = doc! { "$lte": ["$expires", { "$subtract": ["$$NOW", 3_600_000_i64] }] };
        let look = self.hubs.aggregate(vec![
            doc! { "$match": { "dead": { "$ne": true } } },
            doc! { "$sort": { "_id": 1 } },
            doc! { "$limit": MOST_HUBS },
            doc! { "$project": { "address": 1, "over": over } },
        ]);
        let found: Vec<Document> = limited(async { look.await?.try_collect().await }).await?;
        let me = Arc::clone(&self.life.lock().id);
        let mut alive = Vec::new();
        for hub in &found {
            let (Ok(id), Ok(address)) = (hub.get_str("_id"), hub.get_str("address")) else { continue };
            if id == &*me {
                continue;
            }
            // Until it is declared dead, with a majority, it counts as alive.
            if hub.get_bool("over").unwrap_or(false) && self.bury_expired(id).await? {
                tracing::info!(hub = id, "a hub has missed its time and is declared dead");
                limited(self.hubs.delete_many(doc! { "dead": true, "$expr": &old })).await?;
                continue;
            }
            alive.push(Peer { id: id.into(), address: address.into() });
        }
        self.alive.send_if_modified(|known| {
            let changed = *known != alive;
            *known = alive;
            changed
        });
        Ok(())
    }

    /// A hub as it is now; none: it is dead.
    pub(super) async fn find(&self, id: &str) -> Result<Option<Peer>> {
        if let Some(known) = self.alive.borrow().iter().find(|peer| *peer.id == *id) {
            return Ok(Some(known.clone()));
        }
        if self.bury_expired(id).await? {
            return Ok(None);
        }
        let found = limited(self.hubs.find_one(doc! { "_id": id, "dead": { "$ne": true } })).await?;
        let Some(found) = found else { return Ok(None) };
        let peer = Peer { id: id.into(), address: found.get_str("address").unwrap_or_default().into() };
        self.alive.send_modify(|alive| alive.push(peer.clone()));
        Ok(Some(peer))
    }

    fn forget(&self, id: &str) {
        self.alive.send_if_modified(|alive| {
            let before = alive.len();
            alive.retain(|peer| *peer.id != *id);
            alive.len() != before
        });
    }
}

/// One request about hubs, with its time limit.
pub(super) async fn limited<T>(request: impl IntoFuture<Output = mongodb::error::Result<T>>) -> Result<T> {
    fault::within(REQUEST, request).await.map_err(|error| failed(&error))
}
