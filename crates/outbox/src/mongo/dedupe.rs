//! Marks in a MongoDB collection, beside the effects: the `transactional` form commits both together.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, IndexOptions, ReadConcern, WriteConcern};
use mongodb::{ClientSession, Collection, Database, IndexModel};
use promethean_event::{EventId, Identified, Millis};

use super::{TRIES, commit, jitter, lost, require_transactions};
use crate::once::{DEFAULT_TTL, Handled};
use crate::{DedupeStore, Error, Once, Pending, Result};

/// What a handler of [`MongoDedupe::transactional`] gives back.
pub(crate) type Effect<'a, E> = Pin<Box<dyn Future<Output = std::result::Result<(), E>> + Send + 'a>>;

/// Marks in the collection `dedupe` of a MongoDB database. MongoDB takes away those that ran out.
#[derive(Clone)]
pub struct MongoDedupe {
    marks: Collection<Document>,
    consumer: Arc<str>,
    ttl: Duration,
}

impl std::fmt::Debug for MongoDedupe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MongoDedupe").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

impl MongoDedupe {
    /// The marks of `consumer` (a group's name, say) in `db`; the collection and its index are made where they are
    /// missing.
    ///
    /// # Errors
    /// MongoDB is no replica set, cannot be reached, or does not let this user make an index.
    pub async fn open(db: &Database, consumer: &str) -> Result<Self> {
        require_transactions(db).await?;
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(WriteConcern::builder().w(Acknowledgment::Majority).build())
            .build();
        let marks = db.collection_with_options("dedupe", options);
        let expire = IndexOptions::builder().expire_after(Duration::ZERO).build();
        let index = IndexModel::builder().keys(doc! {"expires": 1}).options(expire).build();
        marks.create_index(index).await.map_err(|error| {
            let remedy = "db.dedupe.createIndex({expires: 1}, {expireAfterSeconds: 0})";
            Error::Schema(format!("cannot make the index of dedupe: {error}; make it by hand: {remedy}"))
        })?;
        Ok(Self { marks, consumer: consumer.into(), ttl: DEFAULT_TTL })
    }

    /// The same with marks that are kept for `ttl`: longer than an event may be redelivered.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    fn id(&self, id: EventId) -> String {
        format!("{}:{id}", self.consumer)
    }

    fn until(ttl: Duration) -> DateTime {
        DateTime::from_millis((Millis::now() + ttl).0.min(i64::MAX as u64).cast_signed())
    }

    /// Records the event in the caller's own transaction. `false`: it was done before; abort, or do nothing more.
    ///
    /// # Errors
    /// MongoDB failed; an error with the label `TransientTransactionError` asks to try the whole transaction again:
    /// another consumer is at the same event.
    pub async fn record(&self, session: &mut ClientSession, id: EventId) -> Result<bool> {
        Ok(self.try_record(session, id).await?)
    }

    async fn try_record(&self, session: &mut ClientSession, id: EventId) -> mongodb::error::Result<bool> {
        let this = doc! {"_id": self.id(id)};
        let found = self.marks.find_one(this.clone()).session(&mut *session).await?;
        // A mark that ran out counts as none, also before MongoDB has taken it away.
        if found.is_some_and(|mark| mark.get_datetime("expires").is_ok_and(|expires| *expires > DateTime::now())) {
            return Ok(false);
        }
        let mark = doc! {"$set": {"expires": Self::until(self.ttl)}};
        self.marks.update_one(this, mark).upsert(true).session(session).await?;
        Ok(true)
    }

    /// Runs `handler` in a transaction that also records the event: effect and mark commit together, or neither does.
    /// An event that was recorded before is passed over. Where the mark or the commit loses against another transaction,
    /// all of it is tried again; an error of the handler itself is given back as it is, whatever its cause.
    ///
    /// ```no_run
    /// # async fn example(db: mongodb::Database) -> Result<(), Box<dyn std::error::Error>> {
    /// use mongodb::bson::{Document, doc};
    /// use promethean_outbox::{EventId, MongoDedupe};
    ///
    /// let marks = MongoDedupe::open(&db, "billing").await?;
    /// let charges = db.collection::<Document>("charges");
    /// let charge = marks.transactional(move |session, id: &EventId| {
    ///     let (charges, event) = (charges.clone(), id.to_string());
    ///     Box::pin(async move { charges.insert_one(doc! {"event": event}).session(session).await.map(drop) })
    /// });
    /// charge(EventId::parse("0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d")?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn transactional<D, F, E>(&self, handler: F) -> impl Fn(D) -> Handled<E> + Send + Sync + 'static
    where
        D: Identified + Send + Sync + 'static,
        F: for<'a> Fn(&'a mut ClientSession, &'a D) -> Effect<'a, E> + Send + Sync + 'static,
        E: Send + 'static,
    {
        let (store, handler) = (self.clone(), Arc::new(handler));
        move |delivery: D| {
            let (store, handler) = (store.clone(), Arc::clone(&handler));
            Box::pin(async move {
                for attempt in 0..TRIES {
                    match store.once(&delivery, &*handler).await {
                        Err(Once::Store(Error::Mongo(error))) if lost(&error) => jitter(attempt).await,
                        done => return done,
                    }
                }
                store.once(&delivery, &*handler).await
            })
        }
    }

    async fn once<D, F, E>(&self, delivery: &D, handler: &F) -> std::result::Result<(), Once<E>>
    where
        D: Identified + Sync,
        F: for<'a> Fn(&'a mut ClientSession, &'a D) -> Effect<'a, E>,
    {
        let failed = |error: mongodb::error::Error| Once::Store(error.into());
        let mut session = self.marks.client().start_session().await.map_err(failed)?;
        let majority = WriteConcern::builder().w(Acknowledgment::Majority).build();
        let begun = session.start_transaction().read_concern(ReadConcern::snapshot()).write_concern(majority).await;
        begun.map_err(failed)?;
        if !self.try_record(&mut session, delivery.event_id()).await.map_err(failed)? {
            let _ = session.abort_transaction().await;
            return Ok(());
        }
        if let Err(error) = handler(&mut session, delivery).await {
            let _ = session.abort_transaction().await;
            return Err(Once::Handler(error));
        }
        commit(&mut session).await.map_err(failed)
    }
}

impl DedupeStore for MongoDedupe {
    fn seen(&self, id: EventId) -> Pending<'_, bool> {
        Box::pin(async move {
            let live = doc! {"_id": self.id(id), "expires": {"$gt": DateTime::now()}};
            Ok(self.marks.find_one(live).await?.is_some())
        })
    }

    fn mark(&self, id: EventId, ttl: Duration) -> Pending<'_, ()> {
        Box::pin(async move {
            let mark = doc! {"$set": {"expires": Self::until(ttl)}};
            self.marks.update_one(doc! {"_id": self.id(id)}, mark).upsert(true).await?;
            Ok(())
        })
    }

    fn keeps(&self) -> Duration {
        self.ttl
    }
}
