//! `POST /publish/{topic}`: one event, or all of a batch or none.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use http::HeaderMap;
use promethean_bus::{Placed, Published};
use promethean_event::limits::Around;
use promethean_event::{Code, Topic};
use serde::Serialize;

use super::drafts::{self, Format};
use super::{Caller, Query, json_body, read_body};
use crate::Hub;
use crate::auth::Action;
use crate::rejection::Rejection;
use crate::trace::Traces;

#[derive(Serialize)]
struct One {
    id: promethean_event::EventId,
    seq: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
}

#[derive(Serialize)]
struct Many {
    ids: Vec<promethean_event::EventId>,
    count: usize,
}

/// Stores the body's events. An answer of 200 means: as durable as the store's setting says.
pub(super) async fn publish(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Rejection> {
    let topic = topic_of(path)?;
    caller.may(Action::Publish, &topic)?;
    let format = Format::of(&headers);
    let single = hub.config.max_event_bytes.saturating_add(Around::of(topic.as_str()).bytes);
    let most = if format.is_batch() { hub.config.max_frame_bytes } else { single };
    let body = read_body(body, most).await?;
    let batch = format.is_batch();
    let mut burst = hub.bus.burst();
    let traces = Traces::new(hub.tracer.as_ref());
    let span;
    {
        let drafts = drafts::read(format, &topic, &query, &headers, &body)?;
        hub.quotas.take_topic(&topic, drafts.len())?;
        span = drafts.iter().find_map(|draft| traces.begin(&topic, &draft.options.headers));
        match (batch, drafts.as_slice()) {
            (false, [draft]) => burst.add(draft)?,
            _ => burst.add_batch(drafts)?,
        }
    }
    let published = hub.bus.commit(burst).await.pop().unwrap_or_else(|| Err(promethean_bus::Error::shutting_down()));
    let first = |placed: &Placed| placed.iter().next().map(|one| (one.id, one.seq));
    traces.published(span, published.as_ref().map(first).map_err(|error| error.code));
    let published = published?;
    Ok(match &*published {
        [Published { id, seq, duplicate }] if !batch => json_body(&One { id: *id, seq: *seq, duplicate: *duplicate }),
        all => json_body(&Many { ids: all.iter().map(|one| one.id).collect(), count: all.len() }),
    })
}

/// The topic of the path.
pub(super) fn topic_of(path: Result<Path<String>, PathRejection>) -> Result<Topic, Rejection> {
    Ok(Topic::parse(&text_of(path)?)?)
}

/// The path's one parameter.
pub(super) fn text_of(path: Result<Path<String>, PathRejection>) -> Result<String, Rejection> {
    path.map(|Path(text)| text).map_err(|_| Rejection::new(Code::BadTopic, "topic: the path is not UTF-8"))
}
