//! `GET /replay`: a page of a topic's events.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{Code, From, Topic, json};
use promethean_store::{ReadMax, Seek};

use super::{Caller, Query, json_text};
use crate::Hub;
use crate::auth::Action;
use crate::rejection::Rejection;

const DEFAULT: usize = 100;
const MOST: usize = 10_000;

/// A page: as many events as asked for, or fewer where they are large; `next` says whether there are more.
pub(super) async fn replay(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let topic = query.topic()?;
    caller.may(Action::Subscribe, &topic)?;
    let limit = query.limit(DEFAULT, MOST)?;
    let mut next = match query.seq()? {
        Some(seq) => seq,
        None => start(&hub, &topic, query.from(From::Earliest)?).await? + 1,
    };
    let store = hub.bus.store();
    let mut out = Vec::with_capacity(4 * 1024);
    out.extend_from_slice(br#","events":["#);
    let (mut count, mut last) = (0, None);
    // A page stays as small as the largest frame; a single event fits in any case.
    while count < limit && out.len() < hub.config.max_frame_bytes {
        let bytes = hub.config.max_frame_bytes - out.len();
        let events = store.read(&topic, next, ReadMax { events: (limit - count).min(1_000), bytes }).await;
        let events = events.map_err(unreadable)?;
        let Some(end) = events.last() else { break };
        (next, last) = (end.seq + 1, Some(end.id));
        for event in &events {
            if count > 0 {
                out.push(b',');
            }
            count += 1;
            event.write(&mut out);
        }
    }
    out.push(b']');
    let more = store.read(&topic, next, ReadMax::events(1)).await.map_err(unreadable)?;
    if let (Some(last), false) = (last, more.is_empty()) {
        out.extend_from_slice(br#","next":"#);
        json::write_string(&mut out, &last.to_string());
    }
    out.push(b'}');
    let mut body = Vec::with_capacity(out.len() + topic.as_str().len() + 40);
    body.extend_from_slice(br#"{"topic":"#);
    json::write_string(&mut body, topic.as_str());
    body.extend_from_slice(br#","count":"#);
    json::write_number(&mut body, count as u64);
    body.append(&mut out);
    Ok(json_text(body))
}

/// The last seq before the place.
pub(super) async fn start(hub: &Hub, topic: &Topic, from: From) -> Result<u64, Rejection> {
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
        (Some(start), _) => Ok(start.done),
        (None, From::AfterId(id)) => {
            Err(Rejection::new(Code::UnknownId, format!("afterId: no event of this topic has the id {id}")))
        }
        (None, _) => Ok(0),
    }
}

/// The store cannot be read.
pub(crate) fn unreadable(error: promethean_store::Error) -> Rejection {
    let code = match &error {
        promethean_store::Error::Closed(_) => Code::ShuttingDown,
        _ => Code::PublishFailed,
    };
    Rejection::new(code, format!("the store cannot be read: {error}"))
}
