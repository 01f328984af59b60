//! The rows' life in a MongoDB collection.
//!
//! A claim is a transaction of three round trips, however many rows it takes: read what is due, update it, commit. Its
//! snapshot makes a key whole: a drainer that sees an earlier row of the key as free and finds it taken at the update
//! loses, and tries again. Rows are read as of the majority: an event whose business write could still be rolled back
//! is not published. Time is the server's (`$$NOW`).
//!
//! Order: `ord` is the time at which the row was added, in milliseconds, or one more than the largest of its key's
//! rows; ids decide between equals. Transactions that write the same key one after another, as those do that change
//! the same document, see each other's rows, and so their order holds whatever their clocks say.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{
    Acknowledgment, CollectionOptions, IndexOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};
use mongodb::{Client, ClientSession, Collection, Database, IndexModel};
use promethean_event::{EventId, Millis};
use tokio::sync::Notify;

use super::{TRIES, jitter, lost, require_transactions, row};
use crate::{Claim, Error, Failed, List, NewRow, Next, OutboxStore, Pending, Result, Row, Stats, Status, Which};

/// An outbox in a MongoDB collection: [`add`](MongoOutbox::add) in your own session, [drain](crate::drain) it from
/// anywhere. Needs a replica set.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use mongodb::bson::{Document, doc};
/// use promethean_outbox::{MongoOutbox, NewRow};
///
/// let client = mongodb::Client::with_uri_str("mongodb://127.0.0.1/?replicaSet=rs0").await?;
/// let shop = client.database("shop");
/// let outbox = MongoOutbox::open(&shop, "outbox").await?;
///
/// let mut session = client.start_session().await?;
/// session.start_transaction().await?;
/// shop.collection::<Document>("orders").insert_one(doc! {"_id": 42, "item": "tea"}).session(&mut session).await?;
/// outbox.add(&mut session, &NewRow::new("orders.created", &serde_json::json!({"order": 42}))?.key("42")).await?;
/// outbox.commit(&mut session).await?; // both, or neither
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MongoOutbox {
    rows: Collection<Document>,
    added: Arc<Notify>,
    /// The last claim found nothing: the next one looks first, with one query.
    idle: Arc<AtomicBool>,
}

impl std::fmt::Debug for MongoOutbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MongoOutbox").field("collection", &self.rows.namespace().to_string()).finish_non_exhaustive()
    }
}

/// The server's clock in epoch milliseconds.
fn server_now() -> Document {
    doc! {"$toLong": "$$NOW"}
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl MongoOutbox {
    /// The outbox in `collection` of `db`; collection and indexes are made where they are missing.
    ///
    /// # Errors
    /// MongoDB is no replica set, cannot be reached, or does not let this user make an index.
    pub async fn open(db: &Database, collection: &str) -> Result<Self> {
        let outbox = Self::over(db, collection)?;
        require_transactions(db).await?;
        let index = |keys: Document| IndexModel::builder().keys(keys).options(IndexOptions::default()).build();
        let made = outbox.rows.create_indexes([
            // Those of the first version.
            index(doc! {"status": 1, "lease_until": 1}),
            index(doc! {"ts": 1}),
            // What is due, in order; what holds a key back; the last row of a key.
            index(doc! {"status": 1, "ord": 1, "_id": 1}),
            index(doc! {"key": 1, "lease_until": 1}),
            index(doc! {"key": 1, "ord": -1}),
        ]);
        made.await.map_err(|error| {
            let indexes = "{status: 1, lease_until: 1}, {ts: 1}, {status: 1, ord: 1, _id: 1}, {key: 1, lease_until: 1} \
                           and {key: 1, ord: -1}";
            Error::Schema(format!("cannot make the indexes of {collection}: {error}; make them by hand: {indexes}"))
        })?;
        Ok(outbox)
    }

    /// Connects to `url`, which names the database, and opens `collection`.
    ///
    /// # Errors
    /// As [`MongoOutbox::open`]; the address names no database.
    pub async fn connect(url: &str, collection: &str) -> Result<Self> {
        let client = Client::with_uri_str(url).await?;
        let db = client.default_database().ok_or_else(|| {
            Error::Schema("the address names no database; write mongodb://HOST/DATABASE?replicaSet=NAME".into())
        })?;
        Self::open(&db, collection).await
    }

    fn over(db: &Database, collection: &str) -> Result<Self> {
        let majority = WriteConcern::builder().w(Acknowledgment::Majority).w_timeout(Duration::from_secs(10)).build();
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(majority)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let rows = db.collection_with_options(crate::error::name(collection)?, options);
        Ok(Self { rows, added: Arc::default(), idle: Arc::default() })
    }

    /// Adds a row in the caller's transaction: the event is published if that commits, and only then. Returns the
    /// event's id.
    ///
    /// # Errors
    /// What the contract refuses, with the field; MongoDB failed, or has a row with this id. An error aborts the
    /// transaction; one with the label `TransientTransactionError` asks to try the whole of it again.
    pub async fn add(&self, session: &mut ClientSession, row: &NewRow) -> Result<EventId> {
        let now = Millis::now();
        let (id, ts) = row.seal(now)?;
        let mut ord = now.0.cast_signed();
        if let Some(key) = row.options.key.as_deref() {
            let last = self.rows.find_one(doc! {"key": key}).sort(doc! {"key": 1, "ord": -1});
            let last = last.projection(doc! {"ord": 1}).session(&mut *session).await?;
            let last = last.as_ref().and_then(|last| last.get("ord")).and_then(row::number);
            ord = last.map_or(ord, |last| ord.max(last.saturating_add(1)));
        }
        self.rows.insert_one(row::document(row, id, ts, ord)).session(session).await?;
        self.wake();
        Ok(id)
    }

    /// Commits the caller's transaction, also when an answer is lost, and tells a drainer of this process.
    ///
    /// # Errors
    /// As [`ClientSession::commit_transaction`].
    pub async fn commit(&self, session: &mut ClientSession) -> Result<()> {
        super::commit(session).await?;
        self.wake();
        Ok(())
    }

    /// Tells a drainer of this process that there may be rows.
    pub fn wake(&self) {
        self.added.notify_one();
    }

    /// One try to claim; `None`: another drainer was quicker.
    async fn try_claim(&self, claim: &Claim<'_>) -> Result<Option<Vec<Row>>> {
        let mut session = self.rows.client().start_session().await?;
        let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
        session.start_transaction().read_concern(ReadConcern::snapshot()).write_concern(majority).await?;
        match self.claim_in(&mut session, claim).await {
            Ok(rows) if rows.is_empty() => {
                let _ = session.abort_transaction().await;
                Ok(Some(rows))
            }
            Ok(rows) => match super::commit(&mut session).await {
                Ok(()) => Ok(Some(rows)),
                Err(error) if lost(&error) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Err(error) => {
                let _ = session.abort_transaction().await;
                if lost(&error) { Ok(None) } else { Err(error.into()) }
            }
        }
    }

    async fn claim_in(&self, session: &mut ClientSession, claim: &Claim<'_>) -> mongodb::error::Result<Vec<Row>> {
        let limit = i64::try_from(claim.rows).unwrap_or(i64::MAX);
        let held = doc! {"$or": [{"status": "claimed"}, {"$expr": {"$gt": ["$lease_until", server_now()]}}]};
        let pipeline = [
            // Marks go by the id as text: a row with another kind of id could never be marked.
            doc! {"$match": {
                "status": "pending", "_id": {"$type": "string"},
                "$expr": {"$lte": [{"$ifNull": ["$lease_until", 0]}, server_now()]},
            }},
            doc! {"$sort": {"ord": 1, "_id": 1}},
            // A row without a key is held back by nobody: no key is another row's id.
            doc! {"$set": {"_order": {"$ifNull": ["$key", {"$concat": ["\u{0}", "$_id"]}]}}},
            doc! {"$lookup": {
                "from": self.rows.name(), "localField": "_order", "foreignField": "key", "as": "_held",
                "pipeline": [
                    {"$match": {"lease_until": {"$gt": 0}, "$and": [held]}}, {"$limit": 1}, {"$project": {"_id": 1}},
                ],
            }},
            doc! {"$match": {"_held": {"$size": 0}}},
            doc! {"$limit": limit},
            doc! {"$set": {"_until": {"$add": [server_now(), millis(claim.lease)]}}},
        ];
        let batch = u32::try_from(claim.rows).unwrap_or(u32::MAX);
        let mut cursor = self.rows.aggregate(pipeline).batch_size(batch).session(&mut *session).await?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut until = 0;
        while bytes < claim.bytes
            && let Some(document) = cursor.next(&mut *session).await
        {
            let document = document?;
            let mut row = row::read(&document);
            bytes += row.payload.len();
            until = document.get("_until").and_then(row::number).unwrap_or(0);
            row.status = Status::Claimed;
            row.claimed_by = Some(claim.worker.to_owned());
            row.lease_until = Some(Millis(until.unsigned_abs()));
            row.attempts = row.attempts.saturating_add(1);
            rows.push(row);
        }
        drop(cursor);
        if rows.is_empty() {
            return Ok(rows);
        }
        let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        let update = doc! {
            "$set": {"status": "claimed", "claimed_by": claim.worker, "lease_until": until}, "$inc": {"attempts": 1},
        };
        self.rows.update_many(doc! {"_id": {"$in": ids}}, update).session(session).await?;
        Ok(rows)
    }
}

/// The last word on a row that was not published, as one statement of an `update` command.
fn not_sent(failed: &Failed, worker: &str) -> Document {
    let (status, back) = match failed.next {
        Next::Park => (Status::Error, 0),
        Next::Later(_) => (Status::Pending, 0),
        Next::Release => (Status::Pending, 1),
    };
    let attempts = doc! {"$max": [0, {"$subtract": [{"$ifNull": ["$attempts", 0]}, back]}]};
    let mut set = doc! {"status": status.as_str(), "attempts": attempts};
    if let Some(err) = &failed.err {
        set.insert("last_err", doc! {"$literal": err});
    }
    let mut unset = vec!["claimed_by"];
    match failed.next {
        Next::Later(wait) => drop(set.insert("lease_until", doc! {"$add": [server_now(), millis(wait)]})),
        Next::Park | Next::Release => unset.push("lease_until"),
    }
    doc! {
        "q": {"_id": &failed.id, "status": "claimed", "claimed_by": worker},
        "u": [{"$set": set}, {"$unset": unset}],
    }
}

impl OutboxStore for MongoOutbox {
    fn claim_batch<'a>(&'a self, claim: Claim<'a>) -> Pending<'a, Vec<Row>> {
        Box::pin(async move {
            if self.idle.load(Relaxed) {
                let due =
                    doc! {"status": "pending", "$expr": {"$lte": [{"$ifNull": ["$lease_until", 0]}, server_now()]}};
                if self.rows.find_one(due).projection(doc! {"_id": 1}).await?.is_none() {
                    return Ok(Vec::new());
                }
            }
            for attempt in 0..TRIES {
                if let Some(rows) = self.try_claim(&claim).await? {
                    self.idle.store(rows.is_empty(), Relaxed);
                    return Ok(rows);
                }
                jitter(attempt).await;
            }
            // Others are at it all the time: nothing for this one now.
            Ok(Vec::new())
        })
    }

    fn extend<'a>(&'a self, ids: &'a [String], worker: &'a str, lease: Duration) -> Pending<'a, ()> {
        Box::pin(async move {
            let held = doc! {"_id": {"$in": ids}, "status": "claimed", "claimed_by": worker};
            let until = doc! {"$set": {"lease_until": {"$add": [server_now(), millis(lease)]}}};
            self.rows.update_many(held, vec![until]).await?;
            Ok(())
        })
    }

    fn mark_sent<'a>(&'a self, ids: &'a [String]) -> Pending<'a, ()> {
        Box::pin(async move {
            let these = doc! {"_id": {"$in": ids}, "status": {"$ne": "sent"}};
            let sent = doc! {"$set": {"status": "sent"}, "$unset": {"claimed_by": "", "lease_until": ""}};
            self.rows.update_many(these, sent).await?;
            Ok(())
        })
    }

    fn mark_error<'a>(&'a self, failed: &'a [Failed], worker: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let updates: Vec<Document> = failed.iter().map(|failed| not_sent(failed, worker)).collect();
            let db = self.rows.client().database(&self.rows.namespace().db);
            let command = doc! {
                "update": self.rows.name(), "updates": updates, "writeConcern": {"w": "majority"}, "ordered": false,
            };
            let done = db.run_command(command).await?;
            match done.get_array("writeErrors") {
                Ok(errors) if !errors.is_empty() => {
                    Err(Error::Aborted(format!("{} rows could not be marked: {}", errors.len(), errors[0])))
                }
                _ => Ok(()),
            }
        })
    }

    fn requeue_expired(&self) -> Pending<'_, u64> {
        Box::pin(async move {
            let expired = doc! {"status": "claimed", "$expr": {"$lt": ["$lease_until", server_now()]}};
            let pending = doc! {"$set": {"status": "pending"}, "$unset": {"claimed_by": "", "lease_until": ""}};
            Ok(self.rows.update_many(expired, pending).await?.modified_count)
        })
    }

    fn purge_sent(&self, age: Duration, most: usize) -> Pending<'_, u64> {
        Box::pin(async move {
            let before = Millis::now().0.cast_signed().saturating_sub(millis(age));
            let old = self.rows.find(doc! {"ts": {"$lt": before}, "status": "sent"}).sort(doc! {"ts": 1});
            let mut old = old.limit(i64::try_from(most).unwrap_or(i64::MAX)).projection(doc! {"_id": 1}).await?;
            let mut ids: Vec<Bson> = Vec::new();
            while old.advance().await? {
                ids.extend(old.deserialize_current()?.remove("_id"));
            }
            if ids.is_empty() {
                return Ok(0);
            }
            Ok(self.rows.delete_many(doc! {"_id": {"$in": ids}, "status": "sent"}).await?.deleted_count)
        })
    }

    fn stats(&self) -> Pending<'_, Stats> {
        Box::pin(async move {
            let pipeline = [
                doc! {"$match": {"status": {"$in": ["pending", "claimed", "error"]}}},
                doc! {"$group": {
                    "_id": "$status", "count": {"$sum": 1}, "oldest": {"$min": {"$ifNull": ["$ord", "$ts"]}},
                    "now": {"$first": server_now()},
                }},
            ];
            let mut found = self.rows.aggregate(pipeline).await?;
            let mut stats = Stats::default();
            while found.advance().await? {
                let of = found.deserialize_current()?;
                let field = |name: &str| of.get(name).and_then(row::number).unwrap_or(0);
                let count = field("count").unsigned_abs();
                let age = Millis(field("now").unsigned_abs()).since(Millis(field("oldest").unsigned_abs()));
                match of.get_str("_id").ok().and_then(Status::parse) {
                    Some(Status::Pending) => stats.pending = count,
                    Some(Status::Claimed) => stats.claimed = count,
                    _ => {
                        stats.parked = count;
                        continue;
                    }
                }
                stats.oldest = stats.oldest.max(Some(age));
            }
            Ok(stats)
        })
    }

    fn list(&self, list: List) -> Pending<'_, Vec<Row>> {
        Box::pin(async move {
            let filter = list.status.map_or_else(Document::new, |status| doc! {"status": status.as_str()});
            let found = self.rows.find(filter).sort(doc! {"ord": 1, "_id": 1});
            let mut found = found.limit(i64::try_from(list.limit).unwrap_or(i64::MAX)).await?;
            let mut rows = Vec::new();
            while found.advance().await? {
                rows.push(row::read(&found.deserialize_current()?));
            }
            Ok(rows)
        })
    }

    fn retry<'a>(&'a self, which: &'a Which) -> Pending<'a, u64> {
        Box::pin(async move {
            let mut parked = doc! {"status": "error"};
            if let Which::Ids(ids) = which {
                parked.insert("_id", doc! {"$in": ids});
            }
            let pending = doc! {
                "$set": {"status": "pending", "attempts": 0}, "$unset": {"claimed_by": "", "lease_until": ""},
            };
            let retried = self.rows.update_many(parked, pending).await?.modified_count;
            self.wake();
            Ok(retried)
        })
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.added.notified())
    }
}
