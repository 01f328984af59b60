//! Topics that are created and deleted. A deletion is one transaction over counters, trims and cursors; from its commit on
//! no read sees an event up to `counters.deleted`. The events themselves are removed after it, by this hub or, if it dies,
//! by the maintenance of any.

use mongodb::bson::{Document, RawDocumentBuf, doc};
use promethean_event::{Seq, Topic};

use super::document::{signed, unsigned};
use super::fault::{is_away, limited, patiently, pause, words};
use super::read::count;
use super::{COUNTERS, CURSORS, EVENTS, Shared, TRIMS, transaction};
use crate::{Error, Result, TopicSettings};

/// Events removed at once.
const PIECE: usize = 1_000;
/// Attempts at one deletion.
const ATTEMPTS: u32 = 10;

/// The history of a topic's name, as its counter has it. Each number only grows, so that late news change nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct History {
    /// The number of deletions when the topic was last created, and one.
    pub(super) created: u64,
    pub(super) deleted: Seq,
    pub(super) deletions: u64,
}

impl History {
    pub(super) fn of(counter: &Document) -> Self {
        let (created, deleted) = (count(counter, "created"), count(counter, "deleted"));
        Self { created, deleted, deletions: count(counter, "deletions") }
    }

    pub(super) fn exists(self, last_seq: Seq) -> bool {
        self.created > self.deletions || last_seq > self.deleted
    }

    pub(super) fn learn(&mut self, other: Self) {
        self.created = self.created.max(other.created);
        self.deleted = self.deleted.max(other.deleted);
        self.deletions = self.deletions.max(other.deletions);
    }
}

pub(super) async fn create(shared: &Shared, topic: &Topic) -> Result<()> {
    shared.open()?;
    let counters = shared.database.collection::<Document>(COUNTERS);
    let created = doc! { "$add": [{ "$ifNull": ["$deletions", 0_i64] }, 1_i64] };
    patiently("creating a topic", || async {
        let set = vec![doc! { "$set": { "created": created.clone() } }];
        counters.update_one(doc! { "_id": topic.as_str() }, set).upsert(true).await
    })
    .await?;
    if let Some(counter) = shared.by_id(COUNTERS, topic.as_str()).await? {
        shared.tails.learn(topic, count(&counter, "next"), History::of(&counter));
    }
    Ok(())
}

pub(super) async fn delete(shared: &Shared, topics: &[Topic]) -> Result<()> {
    shared.open()?;
    let mut unknown = false;
    for round in 0..ATTEMPTS {
        match deleted(shared, topics).await {
            Ok(all) => {
                for (topic, next, history) in all {
                    shared.tails.set_settings(&topic, TopicSettings::default());
                    shared.tails.learn(&topic, next, history);
                    // The topic is deleted; what is left of its events is removed by the next maintenance.
                    if let Err(error) = sweep(shared, &topic, history.deleted).await {
                        tracing::warn!(%topic, %error, "the events of a deleted topic are removed later");
                    }
                }
                return Ok(());
            }
            Err(fault) if is_away(&fault) => unknown = true,
            Err(fault) => return Err(Error::Refused(format!("deleting a topic: MongoDB says: {}", words(&fault)))),
        }
        pause(round).await;
    }
    let why = "deleting a topic: MongoDB does not take it now; retry";
    Err(if unknown { Error::Unknown(why.to_owned()) } else { Error::Refused(why.to_owned()) })
}

async fn deleted(shared: &Shared, topics: &[Topic]) -> mongodb::error::Result<Vec<(Topic, Seq, History)>> {
    let mut session = transaction::begin(shared).await?;
    let collection = |name| shared.database.collection::<Document>(name);
    let plain = serde_json::to_string(&TopicSettings::default()).unwrap_or_default();
    let mut all = Vec::with_capacity(topics.len());
    for topic in topics {
        let name = doc! { "_id": topic.as_str() };
        let counter = limited(collection(COUNTERS).find_one(name.clone()).session(&mut session)).await?;
        let counter = counter.unwrap_or_default();
        let (next, mut history) = (count(&counter, "next"), History::of(&counter));
        (history.deleted, history.deletions) = (next, history.deletions + 1);
        let update = doc! {
            "$set": {
                "deleted": signed(next), "deletions": signed(history.deletions), "settings": &plain, "sweep": true,
                "events": 0_i64, "bytes": 0_i64,
            },
            "$unset": { "lastId": "", "lastTs": "" },
        };
        limited(collection(COUNTERS).update_one(name.clone(), update).upsert(true).session(&mut session)).await?;
        limited(collection(TRIMS).delete_one(name).session(&mut session)).await?;
        // A topic's name has no colon: its cursors are those between these two.
        let cursors = doc! { "_id": { "$gte": format!("{topic}::"), "$lt": format!("{topic}:;") } };
        limited(collection(CURSORS).delete_many(cursors).session(&mut session)).await?;
        all.push((topic.clone(), next, history));
    }
    limited(session.commit_transaction()).await?;
    shared.heard(&session);
    Ok(all)
}

/// Removes the events of deleted topics that a hub which died has left.
pub(super) async fn sweep_all(shared: &Shared) -> Result<()> {
    let counters = shared.database.collection::<Document>(COUNTERS);
    let left = patiently("looking for deleted topics", || async {
        let mut cursor = counters.find(doc! { "sweep": true }).await?;
        let mut found = Vec::new();
        while cursor.advance().await? {
            found.push(cursor.deserialize_current()?);
        }
        Ok(found)
    })
    .await?;
    for counter in left {
        if let Some(topic) = counter.get_str("_id").ok().and_then(|name| Topic::parse(name).ok()) {
            sweep(shared, &topic, count(&counter, "deleted")).await?;
        }
    }
    Ok(())
}

/// Removes events up to `deleted`, the oldest first. They are counted nowhere any more.
async fn sweep(shared: &Shared, topic: &Topic, deleted: Seq) -> Result<()> {
    let (events, counters) =
        (shared.database.collection::<Document>(EVENTS), shared.database.collection::<Document>(COUNTERS));
    loop {
        let filter = doc! { "topic": topic.as_str(), "seq": { "$lte": signed(deleted) } };
        let fields = Some(doc! { "_id": 0, "seq": 1 });
        let found = shared.find(filter, doc! { "seq": 1 }, PIECE, fields).await?;
        let seq = |document: &RawDocumentBuf| unsigned(document.get("seq").ok().flatten());
        let Some(last) = found.last().and_then(seq) else { break };
        let piece = doc! { "topic": topic.as_str(), "seq": { "$lte": signed(last) } };
        patiently("removing the events of a deleted topic", || async { events.delete_many(piece.clone()).await })
            .await?;
    }
    let done = doc! { "_id": topic.as_str(), "deleted": signed(deleted) };
    patiently("removing the events of a deleted topic", || async {
        counters.update_one(done.clone(), doc! { "$unset": { "sweep": "" } }).await
    })
    .await
    .map(drop)
}
