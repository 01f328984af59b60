//! Marks in a SQLite table, beside the effects: the `transactional` form commits both together.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use promethean_event::{EventId, Identified, Millis};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::connection::Own;
use crate::once::{DEFAULT_TTL, Handled};
use crate::{DedupeStore, Error, Once, Pending, Result};

const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS dedupe (
  consumer TEXT NOT NULL,
  id TEXT NOT NULL,
  expires INTEGER NOT NULL,
  PRIMARY KEY (consumer, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS dedupe_expires ON dedupe (expires);
";
/// Every so many marks, those that ran out are taken away, so many at a time: the table does not grow without bound.
const PURGE_EVERY: u32 = 256;
const PURGE_ROWS: u32 = 1_024;

/// Marks in the table `dedupe` of a SQLite database. Clones share one connection.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(async {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let path = dir.path().join("billing.db");
/// # rusqlite::Connection::open(&path)?.execute_batch("CREATE TABLE charges (event TEXT)")?;
/// use promethean_outbox::{EventId, SqliteDedupe};
///
/// let marks = SqliteDedupe::open(&path, "billing")?;
/// // The handler's statements and the mark are one transaction.
/// let charge = marks.transactional(|tx, id: &EventId| {
///     tx.execute("INSERT INTO charges (event) VALUES (?1)", [id.to_string()]).map(drop)
/// });
/// let id = EventId::parse("0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d")?;
/// charge(id).await?;
/// charge(id).await?; // delivered again: passed over
/// # let charges: u32 = rusqlite::Connection::open(&path)?.query_row("SELECT count(*) FROM charges", (), |row| row.get(0))?;
/// # assert_eq!(charges, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).expect("works");
/// ```
#[derive(Clone)]
pub struct SqliteDedupe {
    own: Own,
    consumer: Arc<str>,
    marked: Arc<AtomicU32>,
    ttl: Duration,
}

impl std::fmt::Debug for SqliteDedupe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteDedupe").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

impl SqliteDedupe {
    /// The marks of `consumer` (a group's name, say) in the database at `path`; the table is made where it is missing.
    ///
    /// # Errors
    /// The file cannot be opened or written.
    pub fn open(path: impl AsRef<Path>, consumer: &str) -> Result<Self> {
        Self::over(Own::open(path.as_ref(), true)?, consumer)
    }

    /// The same over a connection that becomes its own.
    ///
    /// # Errors
    /// The table cannot be made.
    pub fn with_connection(connection: Connection, consumer: &str) -> Result<Self> {
        Self::over(Own::over(connection)?, consumer)
    }

    fn over(own: Own, consumer: &str) -> Result<Self> {
        own.now(|connection| {
            // Marks stand for effects: they are as durable as SQLite makes them.
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.execute_batch(CREATE).map_err(|error| {
                Error::Schema(format!("cannot make the table dedupe: {error}; make it by hand:\n{CREATE}"))
            })
        })?;
        Ok(Self { own, consumer: consumer.into(), marked: Arc::default(), ttl: DEFAULT_TTL })
    }

    /// The same with marks that are kept for `ttl`: longer than an event may be redelivered.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Records the event in the caller's own transaction. `false`: it was done before; roll back, or do nothing more.
    ///
    /// # Errors
    /// The database failed.
    pub fn record(&self, tx: &Transaction<'_>, id: EventId) -> Result<bool> {
        self.insert(tx, id, self.ttl)
    }

    /// Runs `handler` in a transaction that also records the event: effect and mark commit together, or neither does.
    /// An event that was recorded before is passed over. Transactions run one after another, on this store's
    /// connection, on a thread that may block.
    pub fn transactional<D, F, E>(&self, handler: F) -> impl Fn(D) -> Handled<E> + Send + Sync + 'static
    where
        D: Identified + Send + 'static,
        F: Fn(&Transaction<'_>, &D) -> std::result::Result<(), E> + Send + Sync + 'static,
        E: Send + 'static,
    {
        let (store, handler) = (self.clone(), Arc::new(handler));
        move |delivery: D| {
            let (store, handler) = (store.clone(), Arc::clone(&handler));
            Box::pin(async move {
                let inner = store.clone();
                let done = store.own.run(move |connection| {
                    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    if !inner.record(&tx, delivery.event_id())? {
                        return Ok(Ok(()));
                    }
                    // An error rolls back, the mark with it.
                    if let Err(error) = handler(&tx, &delivery) {
                        return Ok(Err(error));
                    }
                    tx.commit()?;
                    Ok(Ok(()))
                });
                done.await.map_err(Once::Store)?.map_err(Once::Handler)
            })
        }
    }

    fn insert(&self, connection: &Connection, id: EventId, ttl: Duration) -> Result<bool> {
        let now = Millis::now();
        let (now, expires) = (now.0.cast_signed(), (now + ttl).0.min(i64::MAX as u64).cast_signed());
        if self.marked.fetch_add(1, Relaxed).is_multiple_of(PURGE_EVERY) {
            let purge = "DELETE FROM dedupe WHERE (consumer, id) IN \
                (SELECT consumer, id FROM dedupe WHERE expires <= ?1 ORDER BY expires LIMIT ?2)";
            connection.prepare_cached(purge)?.execute((now, PURGE_ROWS))?;
        }
        // A mark that ran out counts as none.
        let insert = "INSERT INTO dedupe (consumer, id, expires) VALUES (?1, ?2, ?3) \
            ON CONFLICT (consumer, id) DO UPDATE SET expires = excluded.expires WHERE dedupe.expires <= ?4";
        let mut text = [0; 36];
        let changed =
            connection.prepare_cached(insert)?.execute((&*self.consumer, id.encode(&mut text), expires, now))?;
        Ok(changed > 0)
    }
}

impl DedupeStore for SqliteDedupe {
    fn seen(&self, id: EventId) -> Pending<'_, bool> {
        let consumer = Arc::clone(&self.consumer);
        self.own.run(move |connection| {
            let select = "SELECT EXISTS (SELECT 1 FROM dedupe WHERE consumer = ?1 AND id = ?2 AND expires > ?3)";
            let params = (&*consumer, id.to_string(), Millis::now().0.cast_signed());
            Ok(connection.prepare_cached(select)?.query_row(params, |row| row.get(0))?)
        })
    }

    fn mark(&self, id: EventId, ttl: Duration) -> Pending<'_, ()> {
        let store = self.clone();
        self.own.run(move |connection| store.insert(connection, id, ttl).map(drop))
    }

    fn keeps(&self) -> Duration {
        self.ttl
    }
}
