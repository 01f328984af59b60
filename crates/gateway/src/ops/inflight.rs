//! `GET /inflight`: who holds which events of a group, and which wait for their time.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_bus::{Holding, HoldingState};
use promethean_event::{EventId, Group, Millis, Topic};
use serde::Serialize;

use super::holders::{self, Holder};
use crate::Hub;
use crate::http::{Caller, Query, event_at, json_body};
use crate::rejection::Rejection;

#[derive(Serialize)]
struct Held {
    id: EventId,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    attempt: u32,
    lease: Option<u64>,
    since: Option<Millis>,
    deadline: Option<Millis>,
}

#[derive(Serialize)]
struct Waiting {
    id: EventId,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    attempt: u32,
    until: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Box<str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InFlight {
    topic: Topic,
    group: Group,
    now: Millis,
    total: usize,
    waiting_total: usize,
    max_attempts: u32,
    inflight: Vec<Held>,
    waiting: Vec<Waiting>,
}

pub(super) async fn inflight(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let (topic, group) = query.topic_and_group()?;
    caller.must_see_group(&topic, &group)?;
    let limit = query.limit(100, 1_000)?;
    let mut shown = InFlight {
        topic: topic.clone(),
        group: group.clone(),
        now: hub.bus.now(),
        total: 0,
        waiting_total: 0,
        max_attempts: 0,
        inflight: Vec::new(),
        waiting: Vec::new(),
    };
    let Some(status) = hub.bus.group_status(&topic, &group).await? else { return Ok(json_body(&shown)) };
    (shown.total, shown.waiting_total) = (status.in_flight, status.waiting);
    shown.max_attempts = status.max_attempts;
    let holders = holders::all(&hub);
    for one in status.unfinished {
        match one.state {
            HoldingState::Held if shown.inflight.len() < limit => {
                let holder = one.member.and_then(|member| holders.get(&member));
                shown.inflight.push(held(&hub, &topic, one, holder).await?);
            }
            HoldingState::Backoff if shown.waiting.len() < limit => {
                let key = key(&hub, &topic, one.seq).await?;
                let Holding { id, seq, attempts: attempt, until, reason, .. } = one;
                shown.waiting.push(Waiting { id, seq, key, attempt, until, reason });
            }
            _ => {}
        }
    }
    Ok(json_body(&shown))
}

async fn held(hub: &Hub, topic: &Topic, one: Holding, holder: Option<&Holder>) -> Result<Held, Rejection> {
    Ok(Held {
        key: key(hub, topic, one.seq).await?,
        id: one.id,
        seq: one.seq,
        connection: holder.map(|holder| holder.connection.clone()),
        sub: holder.and_then(|holder| holder.sub.clone()),
        attempt: one.attempts,
        lease: one.lease,
        since: one.since,
        deadline: one.until,
    })
}

/// The key of the event at `seq`.
pub(super) async fn key(hub: &Hub, topic: &Topic, seq: u64) -> Result<Option<String>, Rejection> {
    let event = event_at(hub, topic, seq).await?;
    Ok(event.and_then(|event| event.key().map(std::borrow::Cow::into_owned)))
}
