//! `GET /replay`: a page of a topic's events.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{From, json};
use promethean_store::ReadMax;

use super::{Caller, Query, json_text, place, unreadable};
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
        None => place(&hub, &topic, query.from(From::Earliest, "seq")?).await?.done + 1,
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
