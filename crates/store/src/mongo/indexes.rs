//! The collections and indexes that the hub needs, made where they are missing, beside those of others.
//!
//! What is partial or sparse on fields that the seed indexes too has a name of its own: the seed's `ensureIndexes` asks for
//! a plain one under MongoDB's name for the fields, and MongoDB refuses a second one of that name with other options.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::Error as Fault;
use mongodb::options::IndexOptions;
use mongodb::{Collection, Database, IndexModel};

use super::connect::{OpenError, refusal};
use super::fault::{self, code};
use super::{COUNTERS, CURSORS, EVENTS, HUBS, TRIMS};

/// How long making indexes may take: of a collection that is large already, minutes.
const INDEXING: Duration = Duration::from_secs(3_600);

/// How long the look for an event without a number may take. In a collection of the seed the first one is such a one; in
/// one of a hub that has lost its indexes there is none, and the index is made without having looked at all of it.
const LOOKING: Duration = Duration::from_secs(5);

/// Makes the collections and indexes that are missing. Mostly none is: then it only looks, so that hubs that start at
/// the same time do not disturb each other, nor the server.
pub(super) async fn ensure(database: &Database) -> Result<(), OpenError> {
    let refusal = |fault: Fault| refusal(&fault, database.name());
    let events = database.collection::<Document>(EVENTS);
    let collections = fault::limited(database.list_collection_names()).await.map_err(refusal)?;
    let is_there = |name: &str| collections.iter().any(|one| one == name);
    let mut there: Vec<IndexModel> = Vec::new();
    if is_there(EVENTS) {
        there = fault::limited(async { events.list_indexes().await?.try_collect().await }).await.map_err(refusal)?;
    }
    // One on the same fields with other options is the seed's or the operator's own: it serves as well.
    let mut missing = wanted();
    missing.retain(|one| !there.iter().any(|index| is_alike(&index.keys, &one.keys)));
    if is_there(EVENTS) && missing.iter().any(|one| is_alike(&one.keys, &by_seq())) && unnumbered(&events).await {
        return Err(OpenError::Unnumbered(database.name().to_owned()));
    }
    for name in [EVENTS, COUNTERS, TRIMS, CURSORS, HUBS].into_iter().filter(|name| !is_there(name)) {
        match fault::limited(database.create_collection(name)).await {
            Err(fault) if code(&fault) != Some(48) => return Err(refusal(fault)), // 48: another hub was faster
            _ => {}
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    tracing::info!(count = missing.len(), "making indexes of events; where there are many events, this takes a while");
    fault::within(INDEXING, events.create_indexes(missing)).await.map(drop).map_err(refusal)
}

/// True if there is an event without a number, as far as a short look finds one. What goes wrong with it, or is found too
/// late, making the index tells.
async fn unnumbered(events: &Collection<Document>) -> bool {
    let asked = events.find_one(doc! { "seq": { "$exists": false } }).projection(doc! { "_id": 1 }).max_time(LOOKING);
    matches!(fault::limited(asked).await, Ok(Some(_)))
}

pub(super) fn by_seq() -> Document {
    doc! { "topic": 1, "seq": 1 }
}

/// The index of times.
pub(super) fn by_ts() -> Document {
    doc! { "topic": 1, "ts": 1, "id": 1 }
}

/// The indexes of the seed, and those that the hub's own questions need.
fn wanted() -> Vec<IndexModel> {
    let index = |keys: Document, options: IndexOptions| IndexModel::builder().keys(keys).options(options).build();
    let plain = || IndexOptions::builder().build();
    let unique = || IndexOptions::builder().unique(true).build();
    let only = |filter: Document| IndexOptions::builder().partial_filter_expression(filter).build();
    let with_key = || only(doc! { "key": { "$exists": true } });
    let sparse = || IndexOptions::builder().sparse(true).build();
    let named = |name: &str, mut options: IndexOptions| {
        options.name = Some(name.to_owned());
        options
    };
    vec![
        index(by_seq(), unique()),
        index(doc! { "id": 1 }, unique()),
        index(by_ts(), plain()),
        index(doc! { "topic": 1, "key": 1, "ts": -1 }, named("promethean_topic_key_ts", with_key())),
        index(doc! { "topic": 1, "key": 1, "seq": -1 }, with_key()),
        index(doc! { "headers.correlationId": 1 }, named("promethean_correlation", sparse())),
        index(doc! { "topic": 1, "appended": 1 }, only(doc! { "tombstone": true })),
    ]
}

/// The same fields in the same order and direction, whatever type of number says which.
fn is_alike(one: &Document, other: &Document) -> bool {
    let down = |way: &Bson| match way {
        Bson::Int32(number) => Some(*number < 0),
        Bson::Int64(number) => Some(*number < 0),
        Bson::Double(number) => Some(*number < 0.0),
        _ => None, // "hashed" and others
    };
    let fields = |keys: &Document| keys.iter().map(|(name, way)| (name.clone(), down(way))).collect::<Vec<_>>();
    fields(one) == fields(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_known_by_its_fields_whoever_made_it() {
        let ours = doc! { "topic": 1, "key": 1, "ts": -1 };
        assert!(is_alike(&ours, &doc! { "topic": 1.0, "key": 1_i64, "ts": -1.0 }));
        assert!(!is_alike(&doc! { "id": 1 }, &doc! { "id": "hashed" }));
        assert!(!is_alike(&ours, &doc! { "topic": 1, "key": 1, "ts": 1 }));
        assert!(!is_alike(&ours, &doc! { "key": 1, "topic": 1, "ts": -1 }));
        assert!(!is_alike(&ours, &doc! { "topic": 1, "key": 1 }));
    }
}
