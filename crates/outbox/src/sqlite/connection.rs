//! A connection of our own beside the caller's: statements run on a thread that may block.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::{Error, Pending, Result};

/// How long a statement waits for others to finish writing.
const BUSY: Duration = Duration::from_secs(5);

/// A connection that is used by one thread at a time.
#[derive(Clone)]
pub(super) struct Own(Arc<Mutex<Connection>>);

impl Own {
    /// Opens the file; `create`: also where there is none.
    pub(super) fn open(path: &Path, create: bool) -> Result<Self> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let opened = Connection::open_with_flags(path, flags).map_err(|error| {
            let missing = !create && !path.exists();
            let remedy = if missing { "there is no such file; check the path" } else { "check that it may be written" };
            Error::Schema(format!("cannot open {}: {error}; {remedy}", path.display()))
        })?;
        Self::over(opened)
    }

    /// Uses a connection that somebody opened.
    pub(super) fn over(connection: Connection) -> Result<Self> {
        connection.busy_timeout(BUSY)?;
        let mode: String = connection.query_row("PRAGMA journal_mode", (), |row| row.get(0))?;
        if mode.eq_ignore_ascii_case("wal") {
            // A claim or a mark that a power failure takes back is made again: the ids make that good. With a WAL this
            // setting cannot damage the file.
            connection.pragma_update(None, "synchronous", "NORMAL")?;
        }
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Runs `work` now, on this thread.
    pub(super) fn now<T>(&self, work: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `work` on a thread that may block.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Pending<'static, T> {
        let own = self.clone();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || own.now(work)).await;
            done.unwrap_or_else(|error| Err(Error::Aborted(error.to_string())))
        })
    }
}

/// SQLite opens a file that may only be read without a word, and every claim fails.
pub(super) fn writable(connection: &Connection) -> Result<()> {
    if !connection.is_readonly("main")? {
        return Ok(());
    }
    let path = connection.path().unwrap_or("the database");
    Err(Error::Schema(format!("{path} may not be written; check the rights of the file, its directory and this user")))
}
