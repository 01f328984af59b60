//! A real MongoDB for tests: never a look-alike, never skipped.
//!
//! [`Scratch::new`] is what most tests want: a database of its own on a single-member replica set. That set is the one
//! of `PROMETHEAN_TEST_MONGO_URL` (`make test` starts one for all tests, see `with-mongo`), else of `MONGO_URL`, else
//! one that this process starts and that ends with it. [`Replica`] is a set of its own for tests that kill members.
//!
//! MongoDB's build for Windows under Wine ends with an access violation when two connections make the same collection at
//! the same time (seen with `create`, and with the first insert): tests open the first hub of a database alone.
//!
//! Everything here blocks, and panics with the reason where there is no MongoDB: a test gets one or fails.
//! A mongod ends with the process that started it, whatever way that one ends: it runs under `scripts/mongo.sh run`,
//! which reads a pipe that the system closes.

mod admin;
mod member;
mod replica;
mod scratch;

pub use member::free_port;
pub use replica::{Replica, Setup};
pub use scratch::{Scratch, shared_url};

/// The variable with the address of a set that somebody started for all tests of a run.
pub const SHARED: &str = "PROMETHEAN_TEST_MONGO_URL";
