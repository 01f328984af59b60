//! A MongoDB collection that follows a topic.
//!
//! A document is `{_id: key, payload, ts, seq, id, version?}`. Each write is conditioned on `seq`, so that what comes
//! twice or late changes nothing. What was deleted is remembered for a day in `<collection>.gone`, so that a change of
//! before it that comes late does not bring the document back.

use futures_util::StreamExt as _;
use futures_util::stream;
use mongodb::bson::{self, Bson, DateTime, Document, doc};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{CollectionOptions, IndexOptions, WriteConcern};
use mongodb::{Collection, Database, IndexModel};
use serde_json::Value;

use super::{Change, Renumbered, Table, version_of};

/// How long a deletion is remembered: longer than any lease.
const REMEMBERED: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// Writes under way at a time.
const AT_ONCE: usize = 16;
/// MongoDB's code for a key that exists.
const DUPLICATE: i32 = 11_000;
/// MongoDB's code for a collection that exists.
const NAMESPACE_EXISTS: i32 = 48;

/// The deepest payload that is a value: MongoDB takes 100 levels, the document and what else is around it their own.
const MAX_DEPTH: usize = 80;

/// Why a collection could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MongoError {
    /// The topic is not the log that the collection was made of.
    #[error(transparent)]
    Renumbered(#[from] Renumbered),
    /// MongoDB says no.
    #[error(transparent)]
    Mongo(#[from] Error),
}

/// A collection with documents `{_id: key, payload, ts, seq, id, version?}`.
#[derive(Debug, Clone)]
pub struct MongoCollection {
    documents: Collection<Document>,
    gone: Collection<Document>,
    version: Option<String>,
}

impl MongoCollection {
    /// The collection `name`, and `name.gone` beside it. Writes are confirmed by a majority.
    ///
    /// # Errors
    /// MongoDB's.
    pub async fn open(database: &Database, name: &str) -> Result<Self, Error> {
        // Made here, once: many first writes at a time would all try to.
        match database.create_collection(name).await {
            Err(error) if !is_there(&error) => return Err(error),
            _ => {}
        }
        let options = CollectionOptions::builder().write_concern(WriteConcern::majority()).build();
        let documents = database.collection_with_options(name, options.clone());
        let gone: Collection<Document> = database.collection_with_options(&format!("{name}.gone"), options);
        let expire = IndexOptions::builder().expire_after(REMEMBERED).build();
        gone.create_index(IndexModel::builder().keys(doc! {"at": 1}).options(expire).build()).await?;
        Ok(Self { documents, gone, version: None })
    }

    /// Documents change only to a greater version: the whole number at `pointer` in the payload (`/version`). A state
    /// without one replaces only documents without one.
    #[must_use]
    pub fn with_version(mut self, pointer: &str) -> Self {
        self.version = Some(pointer.to_owned());
        self
    }

    async fn write(&self, change: Change) -> Result<(), MongoError> {
        let seq = i64::try_from(change.seq).unwrap_or(i64::MAX);
        let Some(payload) = &change.payload else {
            let remember = doc! {"$max": {"seq": seq}, "$set": {"at": DateTime::now()}};
            self.gone.update_one(doc! {"_id": &change.key}, remember).upsert(true).await?;
            let deleted = self.documents.delete_one(doc! {"_id": &change.key, "seq": {"$lt": seq}}).await?;
            return if deleted.deleted_count == 0 { self.same_log(change, seq).await } else { Ok(()) };
        };
        if self.gone.find_one(doc! {"_id": &change.key, "seq": {"$gte": seq}}).await?.is_some() {
            return self.same_log(change, seq).await;
        }
        let mut filter = doc! {"_id": &change.key, "seq": {"$lt": seq}};
        let mut set = doc! {
            "payload": payload_of(payload.get()),
            "ts": i64::try_from(change.ts.0).unwrap_or(i64::MAX),
            "seq": seq,
            "id": change.id.to_string(),
        };
        if self.version.is_some() {
            let version = version_of(&change, self.version.as_deref());
            let older = version.map_or(Bson::Null, Bson::Int64);
            // A comparison with null matches nothing: only documents without a version are left.
            filter.insert("$or", vec![doc! {"version": Bson::Null}, doc! {"version": {"$lt": older}}]);
            set.insert("version", version);
        }
        match self.documents.update_one(filter, doc! {"$set": set}).upsert(true).await {
            // There is one that the filter does not match: a later one.
            Err(error) if is_duplicate(&error) => self.same_log(change, seq).await,
            written => Ok(written.map(drop)?),
        }
    }

    /// What was not applied is late, unless it shows another log: one event has one seq, and a tombstone is no document.
    async fn same_log(&self, change: Change, seq: i64) -> Result<(), MongoError> {
        let (id, is_tombstone) = (change.id.to_string(), change.payload.is_none());
        let known = self.documents.find_one(doc! {"_id": &change.key}).await?;
        let gone = self.gone.find_one(doc! {"_id": &change.key, "seq": seq}).await?;
        let (same_seq, same_id) = known.map_or((false, false), |known| {
            (known.get_i64("seq").is_ok_and(|known| known == seq), known.get_str("id").is_ok_and(|known| known == id))
        });
        let other = same_seq != same_id || is_tombstone && same_seq || !is_tombstone && gone.is_some();
        if other { Err(Renumbered::by(change).into()) } else { Ok(()) }
    }
}

/// The payload as BSON; as its JSON text where BSON has no such number or name, or MongoDB does not nest so deep.
fn payload_of(json: &str) -> Bson {
    let value = serde_json::from_str::<Value>(json).ok().filter(|value| is_storable(value, 0));
    value.and_then(|value| bson::serialize_to_bson(&value).ok()).unwrap_or_else(|| Bson::String(json.to_owned()))
}

fn is_storable(value: &Value, depth: usize) -> bool {
    let deeper = |value| is_storable(value, depth + 1);
    depth <= MAX_DEPTH
        && match value {
            Value::Array(items) => items.iter().all(deeper),
            Value::Object(members) => members.iter().all(|(name, value)| !name.contains('\0') && deeper(value)),
            _ => true,
        }
}

fn is_there(error: &Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Command(error) if error.code == NAMESPACE_EXISTS)
}

fn is_duplicate(error: &Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == DUPLICATE)
}

impl Table for MongoCollection {
    type Error = MongoError;

    async fn apply(&mut self, changes: Vec<Change>) -> Result<(), MongoError> {
        // They are of different keys: any order will do.
        let this = &*self;
        let mut writes = stream::iter(changes.into_iter().map(|change| this.write(change))).buffer_unordered(AT_ONCE);
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(())
    }
}
