//! The outbox in a MongoDB collection, and marks of what a consumer has done. Field names, states and indexes are those
//! of the first version of the hub, so that its rows and scripts work.

mod ahead;
mod dedupe;
mod outbox;
mod row;

use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::{ClientSession, Database};

use crate::{Error, Result};

pub use dedupe::MongoDedupe;
pub use outbox::MongoOutbox;

/// How often what lost against another is tried again, a transaction or a claim, and a commit whose answer was lost.
const TRIES: u32 = 10;

/// Refuses a server that has no transactions, before anything depends on them.
async fn require_transactions(db: &Database) -> Result<()> {
    let hello = db.run_command(mongodb::bson::doc! {"hello": 1}).await?;
    if hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
        return Ok(());
    }
    Err(Error::Schema(
        "this MongoDB is no replica set, and so has no transactions; start it with --replSet and run rs.initiate()"
            .into(),
    ))
}

/// Commits, also when an answer is lost: committing again is safe.
async fn commit(session: &mut ClientSession) -> mongodb::error::Result<()> {
    for _ in 1..TRIES {
        match session.commit_transaction().await {
            Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {}
            done => return done,
        }
    }
    session.commit_transaction().await
}

/// True if the whole transaction may be tried again.
fn lost(error: &mongodb::error::Error) -> bool {
    error.contains_label(TRANSIENT_TRANSACTION_ERROR)
}

/// A short wait that differs from others': those who collided do not collide again.
async fn jitter(attempt: u32) {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::hash::RandomState::new().build_hasher().finish();
    let most = 1_000 << attempt.min(6);
    tokio::time::sleep(std::time::Duration::from_micros(random % most)).await;
}
