//! The transaction of an append or an import: events at their seqs, then the counters of their topics, the last write.
//!
//! A counter moves only from where it was thought to be. So of two that write to a topic at once one finds a conflict,
//! and what is committed is a prefix for whoever reads.

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::{ReadConcern, TransactionOptions};

use super::connect::write_concern;
use super::document::signed;
use super::fault::{self, is_duplicate, limited};
use super::plan::Growth;
use super::{COUNTERS, EVENTS, Shared};

/// Begins one.
pub(super) async fn begin(shared: &Shared) -> mongodb::error::Result<ClientSession> {
    let options = TransactionOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(write_concern())
        .max_commit_time(fault::REQUEST)
        .build();
    let mut session = limited(shared.client.start_session()).await?;
    session.start_transaction().with_options(options).await?;
    Ok(session)
}

/// Ends one without a trace.
pub(super) async fn abort(mut session: ClientSession) {
    let _ = limited(session.abort_transaction()).await;
}

/// Everything up to the commit; `None`: a counter is not where it was thought to be. Without a session nothing was
/// stored.
pub(super) async fn write(
    shared: &Shared,
    documents: Vec<&RawDocumentBuf>,
    growth: &[Growth],
) -> mongodb::error::Result<Option<ClientSession>> {
    let mut session = begin(shared).await?;
    match fill(shared, &mut session, documents, growth).await {
        Ok(true) => Ok(Some(session)),
        Ok(false) => {
            abort(session).await;
            Ok(None)
        }
        Err(fault) => {
            abort(session).await;
            Err(fault)
        }
    }
}

async fn fill(
    shared: &Shared,
    session: &mut ClientSession,
    documents: Vec<&RawDocumentBuf>,
    growth: &[Growth],
) -> mongodb::error::Result<bool> {
    let events = shared.database.collection::<RawDocumentBuf>(EVENTS);
    limited(events.insert_many(documents).session(&mut *session)).await?;
    let counters = shared.database.collection::<Document>(COUNTERS);
    for growth in growth {
        let (filter, update) = counter(growth);
        let moved = counters.update_one(filter, update).upsert(growth.from == 0).session(&mut *session);
        match limited(moved).await {
            Ok(done) if done.matched_count == 1 || done.upserted_id.is_some() => {}
            Ok(_) => return Ok(false),
            Err(fault) if is_duplicate(&fault) => return Ok(false),
            Err(fault) => return Err(fault),
        }
    }
    Ok(true)
}

/// A counter's step.
fn counter(growth: &Growth) -> (Document, Document) {
    let at = if growth.from == 0 {
        doc! { "$in": [0_i64, Bson::Null] }
    } else {
        doc! { "$eq": signed(growth.from) }
    };
    let (id, ts) = growth.last;
    let update = doc! {
        "$set": { "next": signed(growth.to), "lastId": id.to_string(), "lastTs": signed(ts.0) },
        "$inc": { "events": signed(growth.events), "bytes": signed(growth.bytes) },
    };
    (doc! { "_id": growth.topic.as_str(), "next": at }, update)
}
