//! Which hub owns a group.

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReturnDocument;
use promethean_event::{Group, Topic};

use super::hubs::limited;
use super::{Inner, failed};
use crate::mongo::fault;
use crate::mongo::groups::cursor_id;
use crate::{Claim, Error, Owned, Peer, Result};

/// How often a claim is tried that others change the ground of.
const TRIES: usize = 8;

impl Inner {
    pub(super) async fn claim(&self, topic: &Topic, group: &Group) -> Result<Claim> {
        let life = self.life.lock().clone();
        if !life.fence.holds() {
            let message =
                "MongoDB has not taken this hub's heartbeat in time, it has no place among the hubs; try again";
            return Err(Error::Refused(message.to_owned()));
        }
        // Nobody's, or this hub's already.
        let mut whose = doc! { "$in": [Bson::Null, &*life.id] };
        for _ in 0..TRIES {
            match self.take(topic, group, &life.id, whose).await? {
                Some(found) => {
                    // Of a cursor that the seed wrote, the place; else the state. The version is the claim's.
                    let state = self.shared.state_of(topic, &found).await?.map(|(state, _)| state);
                    return Ok(Claim::Owned(Box::new(Owned {
                        epoch: number(&found, "epoch")?,
                        first_lease: number(&found, "leases")?,
                        state,
                        version: number(&found, "version")?,
                        fence: life.fence,
                    })));
                }
                None => match self.owner_name(topic, group).await? {
                    Some(owner) if *owner != *life.id => match self.find(&owner).await? {
                        Some(peer) => return Ok(Claim::Other(peer)),
                        // Dead for ever: it cannot come back between this and the claim.
                        None => whose = doc! { "$eq": owner },
                    },
                    _ => whose = doc! { "$in": [Bson::Null, &*life.id] },
                },
            }
        }
        Err(Error::Refused(format!("the group {group} on {topic} changes its owner all the time; try again")))
    }

    /// Takes a group over that is `whose`; none: it is somebody else's.
    async fn take(&self, topic: &Topic, group: &Group, id: &str, whose: Document) -> Result<Option<Document>> {
        let filter = doc! { "_id": cursor_id(topic, group), "owner": whose };
        // Numbers of deliveries go by the server's clock, in microseconds, and never back.
        let now = doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1_000_i64] };
        let after = doc! { "$add": [{ "$ifNull": ["$leases", 0_i64] }, 1_000_000_i64] };
        // As a save does: greater than the one before, and nobody else's.
        let by_chance = i64::try_from(1 + fault::random() % (1 << 24)).unwrap_or(1);
        let set = doc! {
            "owner": { "$literal": id },
            "epoch": { "$add": [{ "$ifNull": ["$epoch", 0_i64] }, 1_i64] },
            "version": { "$add": [{ "$ifNull": ["$version", now.clone()] }, by_chance] },
            "leases": { "$max": [now, after] },
            "topic": { "$literal": topic.as_str() }, "group": { "$literal": group.as_str() },
        };
        let cursors = self.shared.cursors();
        let taking = cursors
            .find_one_and_update(filter, vec![doc! { "$set": set }])
            .upsert(true)
            .return_document(ReturnDocument::After);
        // What the owner before had read, this one reads too: its state speaks of events that this hub has not heard of.
        let taken = fault::limited(async {
            let mut session = self.shared.session().await?;
            let taken = taking.session(&mut session).await;
            self.shared.heard(&session);
            taken
        });
        match taken.await {
            Ok(taken) => Ok(taken),
            // It exists, and the filter does not fit: it is somebody else's.
            Err(error) if fault::is_duplicate(&error) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    pub(super) async fn release(&self, topic: &Topic, group: &Group, epoch: u64) -> Result<()> {
        let filter = doc! { "_id": cursor_id(topic, group), "epoch": i64::try_from(epoch).unwrap_or(i64::MAX) };
        let cursors = self.shared.cursors();
        limited(cursors.update_one(filter, doc! { "$unset": { "owner": "" } })).await.map(drop)
    }

    pub(super) async fn owner(&self, topic: &Topic, group: &Group) -> Result<Option<Peer>> {
        let me = std::sync::Arc::clone(&self.life.lock().id);
        match self.owner_name(topic, group).await? {
            Some(owner) if *owner != *me => self.find(&owner).await,
            _ => Ok(None),
        }
    }

    async fn owner_name(&self, topic: &Topic, group: &Group) -> Result<Option<String>> {
        let cursors = self.shared.cursors();
        let found = cursors.find_one(doc! { "_id": cursor_id(topic, group) }).projection(doc! { "owner": 1 });
        let found = limited(found).await?;
        Ok(found.and_then(|found| found.get_str("owner").ok().map(str::to_owned)))
    }
}

fn number(found: &Document, name: &str) -> Result<u64> {
    let number = found.get_i64(name).ok().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| Error::Damaged(format!("a group's document has no {name}")))
}
