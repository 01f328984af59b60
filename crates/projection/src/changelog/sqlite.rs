//! A SQLite table that follows a topic.
//!
//! A batch is one transaction. What was deleted is remembered for a day, so that a change of before it that comes late
//! does not bring the row back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use promethean_event::Millis;
use rusqlite::{Connection, params};

use super::{Change, Renumbered, Table, version_of};

/// How long a deletion is remembered: longer than any lease.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// Why a table could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteError {
    /// The name is none.
    #[error("{0:?} is no name for a table: write letters, digits and _, not beginning with a digit")]
    Name(String),
    /// The topic is not the log that the table was made of. Nothing was written.
    #[error(transparent)]
    Renumbered(#[from] Renumbered),
    /// SQLite says no.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The write was interrupted; it may or may not have happened.
    #[error("the write was interrupted")]
    Interrupted,
}

/// A table with the columns `key`, `payload` (JSON), `ts`, `seq`, `id` and `version`.
#[derive(Debug)]
pub struct SqliteTable {
    connection: Arc<Mutex<Connection>>,
    name: String,
    version: Option<String>,
}

impl SqliteTable {
    /// The table `name`, which is made where it does not exist, and `name_gone` beside it.
    ///
    /// # Errors
    /// A name that is none, or SQLite's.
    pub fn open(connection: Connection, name: &str) -> Result<Self, SqliteError> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(good) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(SqliteError::Name(name.to_owned()));
        }
        connection.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {name} (key TEXT PRIMARY KEY, payload TEXT NOT NULL, ts INTEGER NOT NULL,
               seq INTEGER NOT NULL, id TEXT NOT NULL, version INTEGER) WITHOUT ROWID;
             CREATE TABLE IF NOT EXISTS {name}_gone (key TEXT PRIMARY KEY, seq INTEGER NOT NULL, at INTEGER NOT NULL)
               WITHOUT ROWID;
             CREATE INDEX IF NOT EXISTS {name}_gone_at ON {name}_gone (at);"
        ))?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), name: name.to_owned(), version: None })
    }

    /// Rows change only to a greater version: the whole number at `pointer` in the payload (`/version`). A state without
    /// one replaces only rows without one.
    #[must_use]
    pub fn with_version(mut self, pointer: &str) -> Self {
        self.version = Some(pointer.to_owned());
        self
    }
}

impl Table for SqliteTable {
    type Error = SqliteError;

    async fn apply(&mut self, changes: Vec<Change>) -> Result<(), SqliteError> {
        let (connection, name, version) = (Arc::clone(&self.connection), self.name.clone(), self.version.clone());
        let write = move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            write(&mut connection, &name, version.as_deref(), changes)
        };
        tokio::task::spawn_blocking(write).await.map_err(|_| SqliteError::Interrupted)?
    }
}

fn write(
    connection: &mut Connection,
    name: &str,
    pointer: Option<&str>,
    changes: Vec<Change>,
) -> Result<(), SqliteError> {
    let now = Millis::now();
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let transaction = connection.transaction()?;
    {
        let mut upsert = transaction.prepare_cached(&format!(
            "INSERT INTO {name} (key, payload, ts, seq, id, version) SELECT ?1, ?2, ?3, ?4, ?5, ?6
               WHERE NOT EXISTS (SELECT 1 FROM {name}_gone WHERE key = ?1 AND seq >= ?4)
             ON CONFLICT (key) DO UPDATE SET payload = excluded.payload, ts = excluded.ts, seq = excluded.seq,
               id = excluded.id, version = excluded.version
             WHERE excluded.seq > {name}.seq
               AND (NOT ?7 OR {name}.version IS NULL OR excluded.version > {name}.version)"
        ))?;
        let mut delete = transaction.prepare_cached(&format!("DELETE FROM {name} WHERE key = ?1 AND seq < ?2"))?;
        let mut remember = transaction.prepare_cached(&format!(
            "INSERT INTO {name}_gone (key, seq, at) VALUES (?1, ?2, ?3)
             ON CONFLICT (key) DO UPDATE SET seq = max(seq, excluded.seq), at = excluded.at"
        ))?;
        // One event has one seq, and a tombstone is no row: anything else is another log.
        let mut other_log = transaction.prepare_cached(&format!(
            "SELECT EXISTS (SELECT 1 FROM {name} WHERE key = ?1 AND ((seq = ?2) <> (id = ?3) OR ?4 AND seq = ?2))
               OR NOT ?4 AND EXISTS (SELECT 1 FROM {name}_gone WHERE key = ?1 AND seq = ?2)"
        ))?;
        for change in changes {
            let (seq, id) = (number(change.seq), change.id.to_string());
            let applied = match &change.payload {
                Some(payload) => {
                    let (ts, version) = (number(change.ts.0), version_of(&change, pointer));
                    upsert.execute(params![change.key, payload.get(), ts, seq, id, version, pointer.is_some()])?
                }
                None => {
                    remember.execute(params![change.key, seq, number(now.0)])?;
                    delete.execute(params![change.key, seq])?
                }
            };
            // What comes after all that the table knows of the key is right in any log.
            let is_tombstone = change.payload.is_none();
            let seen = params![change.key, seq, id, is_tombstone];
            if applied == 0 && other_log.query_row(seen, |row| row.get(0))? {
                return Err(Renumbered::by(change).into());
            }
        }
        let old = now.0.saturating_sub(u64::try_from(REMEMBERED.as_millis()).unwrap_or(u64::MAX));
        transaction.execute(&format!("DELETE FROM {name}_gone WHERE at < ?1"), params![number(old)])?;
    }
    Ok(transaction.commit()?)
}
