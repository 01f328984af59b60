//! `PUT /cursors`: moves a group's cursor, or says what that would do.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use promethean_event::{Code, Cursor, EventId, From, Group, Invalid, Millis, Topic, limits};
use promethean_store::Seek;
use serde::{Deserialize, Serialize};

use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, Query, json_body, read_body, unreadable};
use crate::rejection::Rejection;

/// Most bytes of a body that says what to do.
pub(super) const MOST: usize = 256 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    from: Option<String>,
    ts: Option<u64>,
    after_id: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ts: Option<Millis>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Moved {
    topic: Topic,
    group: Group,
    dry_run: bool,
    before: Place,
    after: Place,
    lag_before: u64,
    lag_after: u64,
}

pub(super) async fn seek(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: Query,
    body: Body,
) -> Result<Response, Rejection> {
    let (topic, group) = query.topic_and_group()?;
    caller.may(Action::Admin, &topic)?;
    let dry_run = query.flag("dryRun", false)?;
    let to = asked(&read_body(body, MOST).await?)?;
    let before = hub.bus.lag(&topic, &group).await?;
    let (after, lag_after) = if dry_run {
        target(&hub, &topic, to).await?
    } else {
        let cursor = hub.bus.set_cursor(&topic, &group, to).await?;
        let lag = hub.bus.lag(&topic, &group).await?.events;
        (place(Some(cursor)), lag)
    };
    let (lag_before, before) = (before.events, place(before.cursor));
    Ok(json_body(&Moved { topic, group, dry_run, before, after, lag_before, lag_after }))
}

fn place(cursor: Option<Cursor>) -> Place {
    let (seq, last_id, last_ts) = cursor.map_or((0, None, None), |cursor| (cursor.seq, cursor.last_id, cursor.last_ts));
    Place { seq, last_id, last_ts }
}

/// Where a seek would go, and how many events would lie after it.
async fn target(hub: &Hub, topic: &Topic, to: From) -> Result<(Place, u64), Rejection> {
    let seek = match to {
        From::Earliest => Seek::Earliest,
        From::Ts(ts) => Seek::Ts(ts),
        From::AfterId(id) => Seek::AfterId(id),
        From::Latest | From::Snapshot => Seek::Latest,
    };
    let store = hub.bus.store();
    let start = match (store.seek(topic, seek).await.map_err(unreadable)?, to) {
        (Some(start), _) => start,
        (None, From::AfterId(id)) => {
            return Err(Rejection::new(Code::UnknownId, format!("afterId: no event of this topic has the id {id}")));
        }
        (None, _) => promethean_store::Start::default(),
    };
    let tail = store.info(topic).await.map_err(unreadable)?.map_or(0, |info| info.last_seq);
    let (last_id, last_ts) = (start.last.map(|(id, _)| id), start.last.map(|(_, ts)| ts));
    Ok((Place { seq: start.done, last_id, last_ts }, tail.saturating_sub(start.done)))
}

fn asked(body: &[u8]) -> Result<From, Rejection> {
    let asked: Asked = parse(body)?;
    let required = |name: &str| Rejection::new(Code::BadRequest, format!("{name} required"));
    match asked.from.as_deref() {
        Some("earliest") => Ok(From::Earliest),
        Some("latest") => Ok(From::Latest),
        Some("ts") => match asked.ts.ok_or_else(|| required("ts"))? {
            ts if ts <= limits::MAX_SAFE_INTEGER => Ok(From::Ts(Millis(ts))),
            _ => Err(Invalid::request("ts", "must be epoch milliseconds below 2^53").into()),
        },
        Some("afterId") => {
            let text = asked.after_id.ok_or_else(|| required("afterId"))?;
            let id = EventId::parse(&text).map_err(|invalid| Invalid { field: "afterId".to_owned(), ..invalid })?;
            Ok(From::AfterId(id))
        }
        Some(_) => Err(Rejection::new(Code::BadRequest, "from: must be earliest, latest, ts or afterId")),
        None => Err(required("from")),
    }
}

/// A body that is a JSON object of known shape.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Rejection> {
    serde_json::from_slice(body).map_err(|error| {
        let code = if error.is_data() { Code::BadRequest } else { Code::BadJson };
        Rejection::new(code, format!("the body: {error}"))
    })
}
