//! The rows' life in a SQLite table. Each call of the contract is one statement; `claim_batch` looks first, without the
//! lock of a writer, whether anything is due, so that an idle drainer keeps nobody from writing.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use promethean_event::{EventId, Millis};
use rusqlite::{Connection, Transaction, TransactionBehavior, named_params};
use tokio::sync::Notify;

use super::connection::{Own, writable};
use super::row;
use super::schema::Statements;
use crate::store::LONGEST_LEASE;
use crate::{Claim, Failed, List, NewRow, Next, OutboxStore, Pending, Result, Row, Schema, Stats, Status, Which};

/// An outbox in a SQLite table: [`add`](SqliteOutbox::add) in your own transaction, [drain](crate::drain) it from
/// anywhere. Clones share one connection, which is not the one that your transactions run on.
///
/// ```
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let path = dir.path().join("shop.db");
/// use promethean_outbox::{NewRow, SqliteOutbox};
///
/// let outbox = SqliteOutbox::open(&path)?;
/// let mut shop = rusqlite::Connection::open(&path)?;
/// shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")?;
///
/// let tx = shop.transaction()?;
/// tx.execute("INSERT INTO orders (id, item) VALUES (42, 'tea')", ())?;
/// outbox.add(&tx, &NewRow::new("orders.created", &serde_json::json!({"order": 42}))?.key("42"))?;
/// outbox.commit(tx)?; // both, or neither
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteOutbox {
    own: Own,
    sql: Arc<Statements>,
    added: Arc<Notify>,
    /// Rows that a claim has parked and nobody has asked about yet.
    parked: Arc<AtomicU64>,
}

impl std::fmt::Debug for SqliteOutbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOutbox").field("table", &self.sql.table).finish_non_exhaustive()
    }
}

impl SqliteOutbox {
    /// The outbox in the table `outbox` of the database at `path`; file, table and indexes are made where they are
    /// missing.
    ///
    /// # Errors
    /// The file cannot be opened, or has a table of that name that is no outbox.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::over(Own::open(path.as_ref(), true)?, "outbox", Schema::Create)
    }

    /// The outbox in `table` of the database at `path`, which must be there.
    ///
    /// # Errors
    /// As [`SqliteOutbox::open`]; there is no such file; with [`Schema::Require`], there is no such table.
    pub fn open_existing(path: impl AsRef<Path>, table: &str, schema: Schema) -> Result<Self> {
        Self::over(Own::open(path.as_ref(), false)?, table, schema)
    }

    /// The outbox in `table` of the database that `connection` is open on. It becomes the outbox's own.
    ///
    /// # Errors
    /// As [`SqliteOutbox::open`].
    pub fn with_connection(connection: Connection, table: &str) -> Result<Self> {
        Self::over(Own::over(connection)?, table, Schema::Create)
    }

    fn over(own: Own, table: &str, schema: Schema) -> Result<Self> {
        let sql = Statements::new(crate::error::name(table)?);
        own.now(|connection| {
            if schema == Schema::Create {
                writable(connection)?;
            }
            sql.prepare(connection, schema)
        })?;
        Ok(Self { own, sql: Arc::new(sql), added: Arc::default(), parked: Arc::default() })
    }

    /// Adds a row in the caller's transaction: the event is published if that commits, and only then. Returns the
    /// event's id.
    ///
    /// # Errors
    /// What the contract refuses, with the field; the database failed, or has a row with this id.
    pub fn add(&self, tx: &Transaction<'_>, row: &NewRow) -> Result<EventId> {
        let now = Millis::now();
        let (id, ts) = row.seal(now)?;
        let [headers, tags, caused_by] = row::columns(row);
        let mut text = [0; 36];
        tx.prepare_cached(&self.sql.add)?.execute((
            id.encode(&mut text),
            row.topic.as_str(),
            row.options.key.as_deref(),
            row.payload.get(),
            headers,
            tags,
            caused_by,
            row.options.sid.as_deref(),
            number(ts),
            number(now),
        ))?;
        self.wake();
        Ok(id)
    }

    /// Commits the caller's transaction and tells a drainer of this process, which otherwise looks by itself a little
    /// later.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit(&self, tx: Transaction<'_>) -> Result<()> {
        tx.commit()?;
        self.wake();
        Ok(())
    }

    /// Tells a drainer of this process that there may be rows.
    pub fn wake(&self) {
        self.added.notify_one();
    }
}

/// Epoch milliseconds as SQLite counts.
fn number(millis: Millis) -> i64 {
    i64::try_from(millis.0).unwrap_or(i64::MAX)
}

/// The end of a lease or wait that begins `now`.
fn until(now: Millis, time: Duration) -> i64 {
    number(now + time.min(LONGEST_LEASE))
}

fn rows_of(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl OutboxStore for SqliteOutbox {
    fn claim_batch<'a>(&'a self, claim: Claim<'a>) -> Pending<'a, Vec<Row>> {
        let (sql, worker) = (Arc::clone(&self.sql), claim.worker.to_owned());
        let Claim { rows, bytes, lease, .. } = claim;
        let parked = Arc::clone(&self.parked);
        self.own.run(move |connection| {
            let now = Millis::now();
            let due: bool = connection
                .prepare_cached(&sql.is_due)?
                .query_row(named_params! {":now": number(now)}, |is| is.get(0))?;
            if !due {
                return Ok(Vec::new());
            }
            let mut statement = connection.prepare_cached(&sql.claim)?;
            let claimed = statement.query_map(
                named_params! {
                    ":now": number(now), ":rows": rows_of(rows), ":bytes": rows_of(bytes),
                    ":worker": worker, ":until": until(now, lease),
                },
                row::read,
            )?;
            let claimed: Vec<row::Read> = claimed.collect::<rusqlite::Result<_>>()?;
            let (mut claimed, nameless): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|read| read.named);
            if !nameless.is_empty() {
                // Marks go by the id as text, and nothing else could be an event's id.
                let reason = "bad_id: the id is no text; add the row again with the event's id, a UUID, as text";
                let seqs: Vec<i64> = nameless.iter().map(|read| read.seq).collect();
                tracing::warn!(seqs = ?seqs, reason, "rows of the outbox are parked");
                let params = named_params! {":err": reason, ":seqs": row::list(&seqs)};
                parked.fetch_add(connection.prepare_cached(&sql.park)?.execute(params)? as u64, Relaxed);
            }
            let timeless: Vec<i64> = claimed.iter().filter(|read| !read.timed).map(|read| read.seq).collect();
            if !timeless.is_empty() {
                // A table that was made an outbox later: the time of the first claim is the event's, whenever it is sent.
                let params = named_params! {":now": number(now), ":seqs": row::list(&timeless)};
                connection.prepare_cached(&sql.date)?.execute(params)?;
                claimed.iter_mut().filter(|read| !read.timed).for_each(|read| read.row.ts = now);
            }
            // The order of RETURNING is not promised.
            claimed.sort_unstable_by_key(|read| read.seq);
            Ok(claimed.into_iter().map(|read| read.row).collect())
        })
    }

    fn take_parked(&self) -> u64 {
        self.parked.swap(0, Relaxed)
    }

    fn extend<'a>(&'a self, ids: &'a [String], worker: &'a str, lease: Duration) -> Pending<'a, ()> {
        let (sql, ids, worker) = (Arc::clone(&self.sql), row::list(ids), worker.to_owned());
        self.own.run(move |connection| {
            let params = named_params! {":until": until(Millis::now(), lease), ":ids": ids, ":worker": worker};
            connection.prepare_cached(&sql.extend)?.execute(params)?;
            Ok(())
        })
    }

    fn mark_sent<'a>(&'a self, ids: &'a [String]) -> Pending<'a, ()> {
        let (sql, ids) = (Arc::clone(&self.sql), row::list(ids));
        self.own.run(move |connection| {
            connection.prepare_cached(&sql.mark_sent)?.execute(named_params! {":ids": ids})?;
            Ok(())
        })
    }

    fn mark_error<'a>(&'a self, failed: &'a [Failed], worker: &'a str) -> Pending<'a, ()> {
        let (sql, failed, worker) = (Arc::clone(&self.sql), failed.to_vec(), worker.to_owned());
        self.own.run(move |connection| {
            let now = Millis::now();
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            {
                let mut statement = tx.prepare_cached(&sql.mark_error)?;
                for Failed { id, err, next } in &failed {
                    let (status, until, back) = match next {
                        Next::Park => (Status::Error, None, 0),
                        Next::Later(wait) => (Status::Pending, Some(until(now, *wait)), 0),
                        Next::Wait(wait) => (Status::Pending, Some(until(now, *wait)), 1),
                        Next::Release => (Status::Pending, None, 1),
                    };
                    statement.execute(named_params! {
                        ":id": id, ":status": status.as_str(), ":err": err, ":until": until, ":back": back,
                        ":worker": worker,
                    })?;
                }
            }
            Ok(tx.commit()?)
        })
    }

    fn requeue_expired(&self) -> Pending<'_, u64> {
        let sql = Arc::clone(&self.sql);
        self.own.run(move |connection| {
            let now = Millis::now();
            let params = named_params! {":now": number(now), ":far": until(now, LONGEST_LEASE)};
            Ok(connection.prepare_cached(&sql.requeue_expired)?.execute(params)? as u64)
        })
    }

    fn purge_sent(&self, age: Duration, most: usize) -> Pending<'_, u64> {
        let sql = Arc::clone(&self.sql);
        self.own.run(move |connection| {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            let before = number(Millis(Millis::now().0.saturating_sub(age)));
            let params = named_params! {":before": before, ":most": rows_of(most)};
            Ok(connection.prepare_cached(&sql.purge_sent)?.execute(params)? as u64)
        })
    }

    fn stats(&self) -> Pending<'_, Stats> {
        let sql = Arc::clone(&self.sql);
        self.own.run(move |connection| {
            let now = Millis::now();
            let stats = connection.prepare_cached(&sql.stats)?.query_row((), |row| {
                let count = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
                let (pending, claimed, parked) = (count(0)?, count(1)?, count(2)?);
                let oldest = row.get::<_, f64>(3)? as u64;
                let oldest = (pending + claimed > 0).then(|| now.since(Millis(oldest)));
                Ok(Stats { pending, claimed, parked, oldest })
            })?;
            Ok(stats)
        })
    }

    fn list(&self, list: List) -> Pending<'_, Vec<Row>> {
        let sql = Arc::clone(&self.sql);
        self.own.run(move |connection| {
            let mut statement = connection.prepare_cached(&sql.list)?;
            let params = named_params! {":status": list.status.map(Status::as_str), ":limit": rows_of(list.limit)};
            let rows = statement.query_map(params, |row| row::read(row).map(|read| read.row))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    fn retry<'a>(&'a self, which: &'a Which) -> Pending<'a, u64> {
        let sql = Arc::clone(&self.sql);
        let ids = match which {
            Which::All => None,
            Which::Ids(ids) => Some(row::list(ids)),
        };
        let wake = Arc::clone(&self.added);
        self.own.run(move |connection| {
            writable(connection)?;
            let retried = connection.prepare_cached(&sql.retry)?.execute(named_params! {":ids": ids})? as u64;
            wake.notify_one();
            Ok(retried)
        })
    }

    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.added.notified())
    }
}
