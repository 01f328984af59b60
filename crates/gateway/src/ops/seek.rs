//! `PUT /cursors`: moves a group's cursor, or says what that would do.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use promethean_bus::SeekTo;
use promethean_event::{Code, Cursor, EventId, From, Group, Invalid, Millis, Seq, Topic, limits};
use promethean_store::{Done, GroupState, Start, TopicInfo};
use serde::{Deserialize, Serialize};

use crate::Hub;
use crate::auth::Action;
use crate::http::{self, Caller, Query, SMALL, event_at, json_body, parse_json, read_body, unreadable};
use crate::rejection::{Rejection, not_the_hubs_own};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    from: Option<String>,
    ts: Option<u64>,
    after_id: Option<String>,
    seq: Option<u64>,
}

/// Where to.
#[derive(Clone, Copy)]
enum To {
    From(From),
    /// The event with this seq comes next, or the first one after it.
    Seq(Seq),
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
    /// Events that were done and come again.
    again: u64,
    /// Events that were not done and are passed over.
    skipped: u64,
    /// The group had no cursor.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    new: bool,
}

pub(super) async fn seek(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: Query,
    body: Body,
) -> Result<Response, Rejection> {
    let (topic, group) = query.topic_and_group()?;
    caller.may(Action::Admin, &topic)?;
    not_the_hubs_own(&group)?;
    let dry_run = query.flag("dryRun", false)?;
    let to = asked(&read_body(body, SMALL).await?)?;
    let before = hub.bus.lag(&topic, &group).await?;
    let state = hub.bus.store().load(&topic, &group).await.map_err(unreadable)?.map(|(state, _)| state);
    let info = hub.bus.store().info(&topic).await.map_err(unreadable)?;
    let after = match (dry_run, to) {
        (true, to) => target(&hub, &topic, to).await?,
        (false, To::From(from)) => place(Some(hub.bus.set_cursor(&topic, &group, from).await?)),
        (false, To::Seq(next)) => place(Some(hub.bus.set_cursor(&topic, &group, SeekTo::next(next)).await?)),
    };
    let lag_after = match (dry_run, &info) {
        (false, _) => hub.bus.lag(&topic, &group).await?.events,
        (true, info) => info.as_ref().map_or(0, |info| info.left(after.seq, &Done::default())),
    };
    let new = state.is_none();
    let (again, skipped) = state.zip(info).map_or((0, 0), |(state, info)| difference(&state, &info, after.seq));
    let (lag_before, before) = (before.events, place(before.cursor));
    if dry_run {
        caller.audit.changes_nothing();
    } else {
        caller.audit.changed(&before, &after);
        let (from, to, sub) = (before.seq, after.seq, caller.identity.sub.as_deref());
        tracing::info!(%topic, %group, from, to, sub, "the group's cursor was moved");
    }
    Ok(json_body(&Moved { topic, group, dry_run, before, after, lag_before, lag_after, again, skipped, new }))
}

/// Of the events that are there, how many that were done come again after a move to `after`, and how many that were not
/// are passed over. As with lag, compaction's holes may make it too many, never more than are in the log.
fn difference(state: &GroupState, info: &TopicInfo, after: Seq) -> (u64, u64) {
    let gone = info.first_seq.saturating_sub(1);
    let (floor, after) = (state.floor.max(gone), after.max(gone));
    let again = floor.saturating_sub(after) + state.done.count_from(floor.max(after) + 1);
    let done_between = state.done.count_from(floor + 1).saturating_sub(state.done.count_from(after + 1));
    let skipped = after.saturating_sub(floor).saturating_sub(done_between);
    (again.min(info.events), skipped.min(info.events))
}

fn place(cursor: Option<Cursor>) -> Place {
    let (seq, last_id, last_ts) = cursor.map_or((0, None, None), |cursor| (cursor.seq, cursor.last_id, cursor.last_ts));
    Place { seq, last_id, last_ts }
}

/// Where a seek would go.
async fn target(hub: &Hub, topic: &Topic, to: To) -> Result<Place, Rejection> {
    let next = match to {
        To::Seq(next) => next,
        To::From(from) => {
            let Start { done: seq, last, .. } = http::place(hub, topic, from).await?;
            return Ok(Place { seq, last_id: last.map(|(id, _)| id), last_ts: last.map(|(_, ts)| ts) });
        }
    };
    let info = hub.bus.store().info(topic).await.map_err(unreadable)?;
    let (first, last) = info.map_or((1, 0), |info| (info.first_seq, info.last_seq));
    let seq = next.saturating_sub(1).max(first.saturating_sub(1)).min(last);
    let event = event_at(hub, topic, seq).await?;
    Ok(Place { seq, last_id: event.as_ref().map(|event| event.id), last_ts: event.map(|event| event.ts) })
}

fn asked(body: &[u8]) -> Result<To, Rejection> {
    let asked: Asked = parse_json(body)?;
    let required = |name: &str| Rejection::new(Code::BadRequest, format!("{name} required"));
    match asked.from.as_deref() {
        Some("earliest") => Ok(To::From(From::Earliest)),
        Some("latest") => Ok(To::From(From::Latest)),
        Some("ts") => match asked.ts.ok_or_else(|| required("ts"))? {
            ts if ts <= limits::MAX_SAFE_INTEGER => Ok(To::From(From::Ts(Millis(ts)))),
            _ => Err(Invalid::request("ts", "must be epoch milliseconds below 2^53").into()),
        },
        Some("afterId") => {
            let text = asked.after_id.ok_or_else(|| required("afterId"))?;
            let id = EventId::parse(&text).map_err(|invalid| Invalid { field: "afterId".to_owned(), ..invalid })?;
            Ok(To::From(From::AfterId(id)))
        }
        Some("seq") => asked.seq.map(To::Seq).ok_or_else(|| required("seq")),
        Some(_) => Err(Rejection::new(Code::BadRequest, "from: must be earliest, latest, ts, afterId or seq")),
        None => Err(required("from")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_says_what_comes_again_and_what_is_passed_over() {
        let mut state = GroupState { floor: 4, ..GroupState::default() };
        state.done.insert(6, 7, None);
        // Done: 1 to 4, 6, 7. Not done: 5, 8, 9, 10.
        let whole = [(0, 6, 0), (3, 3, 0), (4, 2, 0), (5, 2, 1), (6, 1, 1), (7, 0, 1), (9, 0, 3), (10, 0, 4)];
        let from_three = [(0, 4, 0), (3, 3, 0), (4, 2, 0), (10, 0, 4)];
        let from_seven = [(0, 1, 0), (6, 1, 0), (7, 0, 0), (10, 0, 3)];
        for (first_seq, moves) in [(1, &whole[..]), (3, &from_three), (7, &from_seven), (11, &[(0, 0, 0), (10, 0, 0)])]
        {
            let topic = Topic::parse("t").expect("a topic");
            let info = TopicInfo { topic, events: 11 - first_seq, bytes: 0, first_seq, last_seq: 10, last: None };
            for &(after, again, skipped) in moves {
                assert_eq!(difference(&state, &info, after), (again, skipped), "{after}, from {first_seq}");
            }
        }
    }
}
