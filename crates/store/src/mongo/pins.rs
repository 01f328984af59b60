//! Pins: while a reader holds one, no hub compacts. They end by the server's clock, so a dead hub's do too.
//!
//! The pin is written before the reader looks where topics end, and a removal by compaction looks for pins in its own
//! transaction: what it removes was replaced before the reader began.

use std::time::{Duration, Instant};

use mongodb::ClientSession;
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::fault::{limited, words};
use super::{Mongo, Shared};
use crate::pins::{LONGEST, too_slow};
use crate::{Error, Pin, Result};

const PINS: &str = "pins";
/// The reader gives up this long before the server does.
const EARLY: Duration = Duration::from_secs(60);

struct Guard {
    mongo: Mongo,
    id: ObjectId,
    until: Instant,
}

/// Pins all topics.
pub(super) async fn hold(mongo: Mongo) -> Result<Box<dyn Pin>> {
    mongo.shared.open()?;
    let until = Instant::now() + LONGEST.saturating_sub(EARLY);
    let id = ObjectId::new();
    let longest = i64::try_from(LONGEST.as_millis()).unwrap_or(i64::MAX);
    let pins = mongo.shared.database.collection::<Document>(PINS);
    let ends = vec![doc! { "$set": { "until": { "$add": ["$$NOW", longest] } } }];
    let written = pins.update_one(doc! { "_id": id }, ends).upsert(true);
    limited(written).await.map_err(|fault| Error::Refused(format!("a pin: MongoDB says: {}", words(&fault))))?;
    Ok(Box::new(Guard { mongo, id, until }))
}

/// True if a reader holds a pin; also forgets those that are over.
pub(super) async fn any(shared: &Shared) -> Result<bool> {
    let pins = shared.database.collection::<Document>(PINS);
    let over = doc! { "$expr": { "$lte": ["$until", "$$NOW"] } };
    let refused = |fault: mongodb::error::Error| Error::Refused(words(&fault));
    limited(pins.delete_many(over)).await.map_err(refused)?;
    Ok(limited(pins.find_one(doc! {})).await.map_err(refused)?.is_some())
}

/// The same as the transaction sees it.
pub(super) async fn any_in(shared: &Shared, session: &mut ClientSession) -> mongodb::error::Result<bool> {
    let live = doc! { "$expr": { "$gt": ["$until", "$$NOW"] } };
    let pins = shared.database.collection::<Document>(PINS);
    Ok(limited(pins.find_one(live).session(session)).await?.is_some())
}

impl Pin for Guard {
    fn check(&self) -> Result<()> {
        if Instant::now() < self.until { Ok(()) } else { Err(too_slow(LONGEST.saturating_sub(EARLY))) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (mongo, id) = (self.mongo.clone(), self.id);
        // Without a runtime the process ends, and the server's clock ends the pin.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let pins = mongo.shared.database.collection::<Document>(PINS);
                if let Err(fault) = limited(pins.delete_one(doc! { "_id": id })).await {
                    tracing::debug!(error = %words(&fault), "a pin stays until its time is over");
                }
            });
        }
    }
}
