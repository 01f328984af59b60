//! The rows' life in a MongoDB collection.
//!
//! A claim takes rows that were read, each only if it is still free: one round trip, however many rows. The read before
//! it tells what is due, and which keys are held, as of one moment; where many rows wait, one read serves the claims of
//! several batches (`ahead.rs`). No transaction: one whose drainer was killed would keep its rows from everybody for a
//! minute. What was read of a key are its first unfinished rows, without a gap; whoever gets only some of them, because
//! another drainer was at them too, keeps those before the first that it did not get and gives the others back. Rows are
//! read as of the majority: an event whose business write could still be rolled back is not published. Time is the
//! server's (`$$NOW`).
//!
//! Order: `ord` is the time at which the row was added, in milliseconds, or one more than the largest of its key's
//! rows. Transactions that write the same key one after another, as those do that change the same document, see each
//! other's rows, and so their order holds whatever their clocks say. Rows without `ord`, written by others, come first,
//! by `ts`, as in the first version of the hub.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{
    Acknowledgment, CollectionOptions, Hint, IndexOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};
use mongodb::{Client, ClientSession, Collection, Database, IndexModel};
use promethean_event::{EventId, Millis};
use tokio::sync::Notify;

use super::ahead::{Ahead, Batch, Reach, Read, Workers};
use super::{TRIES, jitter, require_transactions, row};
use crate::plan;
use crate::{
    Claim, Error, Failed, List, NewRow, Next, OutboxStore, Pending, Result, Row, Schema, Stats, Status, Which,
};

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
    /// What its drainers have read ahead: rows of the claims to come, free for others until then.
    ahead: Arc<Workers>,
    /// Rows that a claim has parked and nobody has asked about yet.
    parked: Arc<AtomicU64>,
}

impl std::fmt::Debug for MongoOutbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MongoOutbox").field("collection", &self.rows.namespace().to_string()).finish_non_exhaustive()
    }
}

/// How long a call may take: longer than an election, and than the driver looks for a primary.
const LIMIT: Duration = Duration::from_secs(60);

/// Most keys that a command names: each may have a kilobyte.
const MOST_LEFT_OUT: usize = 2_000;

/// The server's clock in epoch milliseconds.
fn server_now() -> Document {
    doc! {"$toLong": "$$NOW"}
}

/// The order in which rows are claimed and listed.
fn order() -> Document {
    doc! {"ord": 1, "ts": 1, "_id": 1}
}

/// Rows that are named by their ids are looked up by them. Left to itself, MongoDB at times goes through every row of a
/// status instead: it tries both ways, and sees no difference where the rows it wants come first there.
fn by_id() -> Hint {
    Hint::Keys(doc! {"_id": 1})
}

/// True if the time in `lease_until` has come, or it has none.
fn passed() -> Document {
    doc! {"$or": [{"$not": [{"$isNumber": "$lease_until"}]}, {"$lte": ["$lease_until", server_now()]}]}
}

/// `attempts`, as a number whatever somebody wrote there.
fn attempts() -> Document {
    doc! {"$cond": [{"$isNumber": "$attempts"}, "$attempts", 0]}
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
            index(doc! {"status": 1, "ord": 1, "ts": 1, "_id": 1}),
            index(doc! {"key": 1, "lease_until": 1}),
            index(doc! {"key": 1, "ord": -1}),
        ]);
        made.await.map_err(|error| {
            let indexes = "{status: 1, lease_until: 1}, {ts: 1}, {status: 1, ord: 1, ts: 1, _id: 1}, \
                           {key: 1, lease_until: 1} and {key: 1, ord: -1}";
            Error::Schema(format!("cannot make the indexes of {collection}: {error}; make them by hand: {indexes}"))
        })?;
        Ok(outbox)
    }

    /// Connects to `url`, which names the database, and opens `collection`.
    ///
    /// # Errors
    /// As [`MongoOutbox::open`]; the address names no database; with [`Schema::Require`], there is no such collection.
    pub async fn connect(url: &str, collection: &str, schema: Schema) -> Result<Self> {
        let client = Client::with_uri_str(url).await?;
        let db = client.default_database().ok_or_else(|| {
            Error::Schema("the address names no database; write mongodb://HOST/DATABASE?replicaSet=NAME".into())
        })?;
        if schema == Schema::Require {
            let outbox = Self::over(&db, collection)?;
            if db.list_collection_names().filter(doc! {"name": collection}).await?.is_empty() {
                return Err(Error::Schema(format!(
                    "there is no collection {collection} in {}; a service makes it with MongoOutbox::open, \
                     `promethean outbox drain` makes it too; or check the name",
                    db.name()
                )));
            }
            return Ok(outbox);
        }
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
        Ok(Self { rows, added: Arc::default(), ahead: Arc::default(), parked: Arc::default() })
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

    /// The next rows to take: those that were read ahead, else what is due now.
    async fn next(&self, claim: &Claim<'_>) -> Result<Batch> {
        let planned = self.ahead.of(claim.worker, |ahead| ahead.next(claim, Instant::now()));
        if let Some(batch) = planned {
            return Ok(batch);
        }
        let reach = self.ahead.of(claim.worker, |ahead| ahead.reach(claim));
        let read = self.due(reach).await?;
        Ok(self.ahead.of(claim.worker, |ahead| ahead.read(read, claim, Instant::now())))
    }

    /// What is due, in order, of keys that nobody holds.
    async fn due(&self, reach: Reach) -> Result<Read> {
        let look = self.look(reach, &[]).await?;
        if !look.read.rows.is_empty() || !look.read.full {
            return Ok(look.read);
        }
        // All that it saw waits for its keys: there may be others behind them.
        Ok(self.look(reach, &look.held).await?.read)
    }

    /// Looks at the first rows that are due, those of the keys `but` left out. Of each key it returns the first unfinished
    /// rows, without a gap: one command reads rows and keys as of one moment.
    async fn look(&self, reach: Reach, but: &[String]) -> Result<Look> {
        let asked = Instant::now();
        let waiting = doc! {"$expr": {"$gt": ["$lease_until", server_now()]}};
        let held = doc! {
            "status": {"$in": ["pending", "claimed"]}, "lease_until": {"$gt": 0}, "key": {"$type": "string"},
            "$or": [{"status": "claimed"}, waiting],
        };
        let mut due = doc! {"status": "pending", "$expr": passed()};
        if !but.is_empty() {
            due.insert("key", doc! {"$nin": but});
        }
        let limit = i64::try_from(reach.rows).unwrap_or(i64::MAX);
        let due = vec![
            doc! {"$match": due},
            doc! {"$sort": order()},
            doc! {"$limit": limit},
            doc! {"$set": {"_now": server_now()}},
        ];
        let pipeline = [
            doc! {"$match": held},
            doc! {"$group": {"_id": "$key"}},
            doc! {"$project": {"_id": 0, "_held": "$_id"}},
            doc! {"$unionWith": {"coll": self.rows.name(), "pipeline": due}},
        ];
        // Enough for all of it: nobody has to ask for the rest.
        let found = self.rows.aggregate(pipeline).batch_size(1 << 30).read_concern(ReadConcern::snapshot());
        let mut found = found.await?;
        let (mut rows, mut nameless, mut held, mut met) = (Vec::new(), Vec::new(), HashSet::new(), HashSet::new());
        let (mut seen, mut bytes, mut now) = (0, 0, Millis::now());
        while bytes < reach.bytes && found.advance().await? {
            let document = found.deserialize_current()?;
            let Some(id) = document.get("_id") else {
                held.extend(document.get_str("_held").ok().map(str::to_owned));
                continue;
            };
            seen += 1;
            if id.as_str().is_none() {
                nameless.push(id.clone());
                continue;
            }
            let mut row = row::read(&document);
            if let Some(key) = row.key.take_if(|key| held.contains(key.as_str())) {
                met.insert(key);
                continue;
            }
            bytes += row.payload.len();
            now = document.get("_now").and_then(row::number).map_or(now, |now| Millis(now.unsigned_abs()));
            rows.push(row);
        }
        if !nameless.is_empty() {
            self.park(&nameless).await?;
        }
        let held = met.iter().chain(held.difference(&met)).take(MOST_LEFT_OUT).cloned().collect();
        let full = seen >= reach.rows || bytes >= reach.bytes;
        Ok(Look { read: Read { rows, full, asked, now }, held })
    }

    /// Gives up rows whose `_id` is no text: marks go by it, and it could be no event's id.
    async fn park(&self, ids: &[Bson]) -> Result<()> {
        let reason = "bad_id: the _id is no text; add the row again with the event's id, a UUID, as text";
        tracing::warn!(ids = ?ids, reason, "rows of the outbox are parked");
        let parked = doc! {
            "$set": {"status": "error", "last_err": reason}, "$unset": {"claimed_by": "", "lease_until": ""},
        };
        let done = self.rows.update_many(doc! {"_id": {"$in": ids}, "status": "pending"}, parked).await?;
        self.parked.fetch_add(done.modified_count, Relaxed);
        Ok(())
    }

    /// Takes the rows of a batch, or those of them that this claim may keep.
    async fn claim(&self, batch: Batch, claim: &Claim<'_>) -> Result<Vec<Row>> {
        let (untried, (rows, rest)) = (batch.untried, batch.split());
        let (taken, rest) = match self.take(&rows, claim, untried).await {
            Ok(taken) => (taken, Some(rest)),
            // The answer was lost, or MongoDB has another primary by now: the rows may be taken or not.
            Err(error) => {
                tracing::debug!(%error, "a claim was not answered; asking again");
                self.ahead.of(claim.worker, Ahead::forget);
                (self.take(&rows, claim, untried).await?, None)
            }
        };
        if taken != rows.len() as u64 {
            self.ahead.of(claim.worker, Ahead::lost);
            return self.won(rows, claim).await;
        }
        if let Some(rest) = rest {
            self.ahead.of(claim.worker, |ahead| ahead.won(&rows, rest));
        }
        Ok(rows)
    }

    /// Takes rows that were read, each only if it is still free, and where asked for only if nobody has tried it before.
    /// Returns how many there are now that this claim has: asked again because an answer was lost, it takes nothing twice.
    async fn take(&self, rows: &[Row], claim: &Claim<'_>, untried: bool) -> mongodb::error::Result<u64> {
        let mut free = doc! {"status": "pending", "$expr": passed()};
        if untried {
            free =
                doc! {"status": "pending", "last_err": null, "$expr": {"$and": [passed(), {"$eq": [attempts(), 0]}]}};
        }
        let these = doc! {"_id": {"$in": ids(rows)}, "$or": [free, taken(rows, claim)]};
        let counted = doc! {"$add": [attempts(), {"$cond": [{"$eq": ["$status", "pending"]}, 1, 0]}]};
        let claimed = doc! {"$set": {
            "status": "claimed", "claimed_by": {"$literal": claim.worker}, "lease_until": until(rows),
            "attempts": counted,
        }};
        Ok(self.rows.update_many(these, vec![claimed]).hint(by_id()).await?.matched_count)
    }

    /// Of rows that another drainer was at too: those that this one may keep. The others are given back.
    async fn won(&self, rows: Vec<Row>, claim: &Claim<'_>) -> Result<Vec<Row>> {
        let mut ours = taken(&rows, claim);
        ours.insert("_id", doc! {"$in": ids(&rows)});
        let mut found = self.rows.find(ours).projection(doc! {"_id": 1}).hint(by_id()).await?;
        let mut won = HashSet::new();
        while found.advance().await? {
            won.extend(found.deserialize_current()?.get_str("_id").ok().map(str::to_owned));
        }
        let (won, given_back) = plan::unbroken(rows, |row| won.contains(&row.id));
        let given_back: Vec<Failed> =
            given_back.into_iter().map(|row| Failed { id: row.id, err: None, next: Next::Release }).collect();
        if !given_back.is_empty() {
            self.mark_error(&given_back, claim.worker).await?;
        }
        Ok(won)
    }
}

/// What a look at the outbox found.
struct Look {
    /// Rows that may be taken.
    read: Read,
    /// Keys whose rows may not, those that it met first; not all, where there are very many.
    held: Vec<String>,
}

fn ids(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

/// Until when these rows are claimed: the same moment for all.
fn until(rows: &[Row]) -> Option<i64> {
    rows.first().and_then(|row| row.lease_until).map(|until| until.0.min(i64::MAX as u64).cast_signed())
}

/// What a row looks like that this very claim has.
fn taken(rows: &[Row], claim: &Claim<'_>) -> Document {
    doc! {"status": "claimed", "claimed_by": claim.worker, "lease_until": until(rows)}
}

/// The last word on a row that was not published, as one statement of an `update` command.
fn not_sent(failed: &Failed, worker: &str) -> Document {
    let (status, back) = match failed.next {
        Next::Park => (Status::Error, 0),
        Next::Later(_) => (Status::Pending, 0),
        Next::Wait(_) | Next::Release => (Status::Pending, 1),
    };
    let attempts = doc! {"$max": [0, {"$subtract": [attempts(), back]}]};
    let mut set = doc! {"status": status.as_str(), "attempts": attempts};
    if let Some(err) = &failed.err {
        set.insert("last_err", doc! {"$literal": err});
    }
    let mut unset = vec!["claimed_by"];
    match failed.next {
        Next::Later(wait) | Next::Wait(wait) => {
            drop(set.insert("lease_until", doc! {"$add": [server_now(), millis(wait)]}))
        }
        Next::Park | Next::Release => unset.push("lease_until"),
    }
    doc! {
        "q": {"_id": &failed.id, "status": "claimed", "claimed_by": worker},
        "u": [{"$set": set}, {"$unset": unset}],
    }
}

/// No call waits for ever on a server that neither answers nor goes away.
fn within<'a, T>(work: impl Future<Output = Result<T>> + Send + 'a) -> Pending<'a, T> {
    Box::pin(async {
        let done = tokio::time::timeout(LIMIT, work).await;
        done.unwrap_or_else(|_| Err(Error::Aborted(format!("MongoDB has not answered within {LIMIT:?}"))))
    })
}

impl OutboxStore for MongoOutbox {
    fn claim_batch<'a>(&'a self, claim: Claim<'a>) -> Pending<'a, Vec<Row>> {
        within(async move {
            for attempt in 0..TRIES {
                let batch = self.next(&claim).await?;
                if batch.rows.is_empty() {
                    return Ok(batch.rows);
                }
                let won = self.claim(batch, &claim).await?;
                if !won.is_empty() {
                    return Ok(won);
                }
                jitter(attempt).await;
            }
            // Others are at it all the time: nothing for this one now.
            Ok(Vec::new())
        })
    }

    fn take_parked(&self) -> u64 {
        self.parked.swap(0, Relaxed)
    }

    fn extend<'a>(&'a self, ids: &'a [String], worker: &'a str, lease: Duration) -> Pending<'a, ()> {
        within(async move {
            let held = doc! {"_id": {"$in": ids}, "status": "claimed", "claimed_by": worker};
            let until = doc! {"$set": {"lease_until": {"$add": [server_now(), millis(lease)]}}};
            self.rows.update_many(held, vec![until]).hint(by_id()).await?;
            Ok(())
        })
    }

    fn mark_sent<'a>(&'a self, ids: &'a [String]) -> Pending<'a, ()> {
        within(async move {
            let these = doc! {"_id": {"$in": ids}, "status": {"$ne": "sent"}};
            let sent = doc! {"$set": {"status": "sent"}, "$unset": {"claimed_by": "", "lease_until": ""}};
            let done = self.rows.update_many(these, sent).hint(by_id()).await;
            let all = done.as_ref().is_ok_and(|done| done.matched_count == ids.len() as u64);
            self.ahead.each(|ahead| ahead.sent(ids, all));
            done?;
            Ok(())
        })
    }

    fn mark_error<'a>(&'a self, failed: &'a [Failed], worker: &'a str) -> Pending<'a, ()> {
        within(async move {
            self.ahead.of(worker, Ahead::forget);
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
        within(async move {
            let expired = doc! {"status": "claimed", "$expr": passed()};
            let pending = doc! {"$set": {"status": "pending"}, "$unset": {"claimed_by": "", "lease_until": ""}};
            let done = self.rows.update_many(expired, pending).await;
            if !done.as_ref().is_ok_and(|done| done.modified_count == 0) {
                self.ahead.each(Ahead::forget);
            }
            Ok(done?.modified_count)
        })
    }

    fn purge_sent(&self, age: Duration, most: usize) -> Pending<'_, u64> {
        within(async move {
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
            let these = doc! {"_id": {"$in": ids}, "status": "sent"};
            Ok(self.rows.delete_many(these).hint(by_id()).await?.deleted_count)
        })
    }

    fn stats(&self) -> Pending<'_, Stats> {
        within(async move {
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
        within(async move {
            let filter = list.status.map_or_else(Document::new, |status| doc! {"status": status.as_str()});
            let found = self.rows.find(filter).sort(order());
            let mut found = found.limit(i64::try_from(list.limit).unwrap_or(i64::MAX)).await?;
            let mut rows = Vec::new();
            while found.advance().await? {
                rows.push(row::read(&found.deserialize_current()?));
            }
            Ok(rows)
        })
    }

    fn retry<'a>(&'a self, which: &'a Which) -> Pending<'a, u64> {
        within(async move {
            let mut parked = doc! {"status": "error"};
            if let Which::Ids(ids) = which {
                parked.insert("_id", doc! {"$in": ids});
            }
            let pending = doc! {
                "$set": {"status": "pending", "attempts": 0}, "$unset": {"claimed_by": "", "lease_until": ""},
            };
            let retried = self.rows.update_many(parked, pending).await;
            // Rows that come before those that were read ahead may be pending now.
            self.ahead.each(Ahead::forget);
            let retried = retried?.modified_count;
            self.wake();
            Ok(retried)
        })
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.added.notified())
    }
}
