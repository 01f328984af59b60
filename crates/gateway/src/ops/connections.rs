//! `GET /connections`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{Group, Millis, Selector};
use serde::Serialize;

use super::holders::{self, Holdings};
use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, json_body};
use crate::rejection::Rejection;
use crate::ws::Held;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    since: Millis,
    subscriptions: Vec<Subscription>,
    buffered_bytes: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Subscription {
    topic: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<Group>,
    inflight: usize,
    max_in_flight: usize,
    paused: bool,
}

#[derive(Serialize)]
struct Connections {
    connections: Vec<Row>,
}

pub(super) async fn connections(State(hub): State<Arc<Hub>>, caller: Caller) -> Result<Response, Rejection> {
    let mut holdings = Holdings::default();
    let mut connections = Vec::new();
    for connection in hub.connections.list() {
        let mut subscriptions = Vec::new();
        for held in connection.subscriptions() {
            if sees(&caller, &held) {
                subscriptions.extend(subscription(&hub, held, &mut holdings).await?);
            }
        }
        connections.push(Row {
            id: holders::name(connection.id),
            peer: connection.peer.to_string(),
            sub: connection.sub(),
            since: connection.since,
            subscriptions,
            buffered_bytes: connection.buffered_bytes(),
        });
    }
    Ok(json_body(&Connections { connections }))
}

/// A pattern may name topics that the caller must not learn of: it is for those who see everything or administer.
fn sees(caller: &Caller, held: &Held) -> bool {
    match (Selector::parse(&held.topic), &held.group) {
        (Ok(Selector::Topic(topic)), Some(group)) => caller.sees_group(&topic, group),
        (Ok(Selector::Topic(topic)), None) => caller.sees(&topic),
        _ => caller.identity.policy.allows_somewhere(Action::Admin),
    }
}

async fn subscription(hub: &Hub, held: Held, holdings: &mut Holdings) -> Result<Option<Subscription>, Rejection> {
    let Some(membership) = held.membership.upgrade() else { return Ok(None) };
    let mut inflight = 0;
    if let Some(group) = &held.group {
        for topic in membership.topics() {
            inflight += holdings.of(hub, topic, group, held.id).await?;
        }
    }
    let paused = membership.is_paused();
    Ok(Some(Subscription { topic: held.topic, group: held.group, inflight, max_in_flight: held.max_in_flight, paused }))
}
