//! Single looks into the store, which the HTTP and the ops API share.

use std::time::Instant;

use promethean_event::{Code, Event, From, Seq, Topic};
use promethean_store::{ReadMax, Seek, Start};

use crate::Hub;
use crate::rejection::Rejection;
use crate::seldom::Seldom;

/// Where `from` is in a topic; one that has no events yet begins at its first.
pub(crate) async fn place(hub: &Hub, topic: &Topic, from: From) -> Result<Start, Rejection> {
    let seek = match from {
        From::Earliest => Seek::Earliest,
        From::Latest => Seek::Latest,
        From::Ts(ts) => Seek::Ts(ts),
        From::AfterId(id) => Seek::AfterId(id),
        From::Snapshot => {
            return Err(Rejection::new(Code::BadRequest, "from: must be earliest, latest, ts, afterId or seq"));
        }
    };
    match (hub.bus.store().seek(topic, seek).await.map_err(unreadable)?, from) {
        (Some(start), _) => Ok(start),
        (None, From::AfterId(id)) => {
            Err(Rejection::new(Code::UnknownId, format!("afterId: no event of this topic has the id {id}")))
        }
        (None, _) => Ok(Start::default()),
    }
}

/// The event at `seq`; none where there is none, or not any more.
pub(crate) async fn event_at(hub: &Hub, topic: &Topic, seq: Seq) -> Result<Option<Event>, Rejection> {
    let read = hub.bus.store().read(topic, seq, ReadMax::events(1)).await.map_err(unreadable)?;
    Ok(read.into_iter().next().filter(|event| event.seq == seq))
}

/// The store cannot be read. Of damage the operator learns too, not only who asked.
pub(crate) fn unreadable(error: promethean_store::Error) -> Rejection {
    static TOLD: Seldom = Seldom::new();
    let code = match &error {
        promethean_store::Error::Closed(_) => Code::ShuttingDown,
        promethean_store::Error::Damaged(_) => {
            if TOLD.may(Instant::now()) {
                tracing::error!(%error, "what was asked for over HTTP cannot be read");
            }
            Code::PublishFailed
        }
        _ => Code::PublishFailed,
    };
    Rejection::new(code, format!("the store cannot be read: {error}"))
}
