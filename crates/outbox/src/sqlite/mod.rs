//! The outbox in a SQLite table, and marks of what a consumer has done.
//!
//! [`schema`] is the table, [`outbox`] the rows' life, [`connection`] how statements get to a thread that may block.

mod connection;
mod dedupe;
mod outbox;
mod row;
mod schema;

pub use dedupe::SqliteDedupe;
pub use outbox::SqliteOutbox;
