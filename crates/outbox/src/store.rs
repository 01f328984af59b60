//! The contract of an outbox, as the drainer sees it. `add` is not part of it: it takes the caller's own transaction or
//! session, and so belongs to each implementation.
//!
//! ```text
//!            add                claim_batch               mark_sent
//!   (nothing) ─► pending ────────────────────► claimed ───────────────► sent ─► gone (purge_sent)
//!                  ▲   ▲                         │ │
//!                  │   └── mark_error: Later, ───┘ └── mark_error: Park ──► error ─► pending (retry)
//!                  │       Release, Wait; requeue_expired                    │
//!                  └─────────────────────────────────────────────────────────┘
//! ```
//!
//! What every implementation keeps:
//! - Time is the store's: the database server's where there is one. Drainers on machines whose clocks differ agree.
//! - A row is claimed by one worker at a time, in the order in which rows were added, and a row of a key only when every
//!   earlier unfinished row of that key is in the same batch. `lease_until` says until when nobody else may take it: a
//!   claimed row until its drainer is taken for dead, a pending one until it is tried again.
//! - Returned ⇒ visible to every drainer.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::{Result, Row, Status};

/// What a store gives back.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// What to claim.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Most rows.
    pub rows: usize,
    /// Most bytes of payload; at least one row is claimed where there is one.
    pub bytes: usize,
    /// For how long.
    pub lease: Duration,
    /// By whom: unique among drainers.
    pub worker: &'a str,
}

/// A claimed row that was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub id: String,
    /// Why; `None` leaves what was written there before.
    pub err: Option<String>,
    /// What is to become of it.
    pub next: Next,
}

/// What is to become of a row that was not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is given up: `error`.
    Park,
    /// It is tried again, not before this time from now.
    Later(Duration),
    /// It is tried again, not before this time from now; the attempt does not count.
    Wait(Duration),
    /// It is given back; the attempt does not count.
    Release,
}

/// Longest claim, and longest wait of a row. A store that goes by the machine's clock takes a later `lease_until` for one
/// that was written while the clock was wrong, and frees the row.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(600);

/// How an outbox stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Rows that wait.
    pub pending: u64,
    /// Rows that a drainer has.
    pub claimed: u64,
    /// Rows that were given up.
    pub parked: u64,
    /// How long the oldest row that is pending or claimed has been there.
    pub oldest: Option<Duration>,
}

/// Which rows to list.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// Of this status; `None`: all.
    pub status: Option<Status>,
    /// Most rows, the oldest first.
    pub limit: usize,
}

/// Which parked rows to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Those with these ids.
    Ids(Vec<String>),
}

/// What to do where the table or collection is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// Make it.
    Create,
    /// Say so.
    Require,
}

/// An outbox that can be drained. Every call is one statement or command for a whole batch, except where an
/// implementation says otherwise.
pub trait OutboxStore: Send + Sync + 'static {
    /// Claims rows that are due, in the order they were added.
    fn claim_batch<'a>(&'a self, claim: Claim<'a>) -> Pending<'a, Vec<Row>>;

    /// How many rows the store has parked by itself since the last call, because no mark could name them: they are not
    /// among what a claim gives.
    fn take_parked(&self) -> u64 {
        0
    }

    /// Prolongs the leases that `worker` still has to `lease` from now.
    fn extend<'a>(&'a self, ids: &'a [String], worker: &'a str, lease: Duration) -> Pending<'a, ()>;

    /// These are in the log, whoever has them claimed by now.
    fn mark_sent<'a>(&'a self, ids: &'a [String]) -> Pending<'a, ()>;

    /// These are not, where `worker` still has them; others are left alone.
    fn mark_error<'a>(&'a self, failed: &'a [Failed], worker: &'a str) -> Pending<'a, ()>;

    /// Claimed rows whose lease has run out, or lies further ahead than any may, are pending again. How many.
    fn requeue_expired(&self) -> Pending<'_, u64>;

    /// Takes away rows that are `sent` and whose event is older than `age`, at most `most`. How many.
    fn purge_sent(&self, age: Duration, most: usize) -> Pending<'_, u64>;

    /// How the outbox stands.
    fn stats(&self) -> Pending<'_, Stats>;

    /// Rows, the oldest first.
    fn list(&self, list: List) -> Pending<'_, Vec<Row>>;

    /// Parked rows are pending again with their attempts counted anew. How many.
    fn retry<'a>(&'a self, which: &'a Which) -> Pending<'a, u64>;

    /// Resolves when this process may have added a row since the last call. Never resolving is allowed: then the
    /// drainer polls.
    fn woken(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}
