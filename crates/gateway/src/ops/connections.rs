//! `GET /connections`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_bus::GroupStatus;
use promethean_event::{Group, Millis, Selector, Topic};
use serde::Serialize;

use super::holders;
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

/// How groups stand, each asked once.
type Asked = HashMap<(Topic, Group), Option<GroupStatus>>;

pub(super) async fn connections(State(hub): State<Arc<Hub>>, caller: Caller) -> Result<Response, Rejection> {
    let mut asked = Asked::new();
    let mut connections = Vec::new();
    for connection in hub.connections.list() {
        let mut subscriptions = Vec::new();
        for held in connection.subscriptions() {
            if sees(&caller, &held) {
                subscriptions.extend(subscription(&hub, held, &mut asked).await?);
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

async fn subscription(hub: &Hub, held: Held, asked: &mut Asked) -> Result<Option<Subscription>, Rejection> {
    let Some(membership) = held.membership.upgrade() else { return Ok(None) };
    let mut inflight = 0;
    if let Some(group) = &held.group {
        for topic in membership.topics() {
            let key = (topic, group.clone());
            if !asked.contains_key(&key) {
                let status = hub.bus.group_outline(&key.0, &key.1).await?;
                asked.insert(key.clone(), status);
            }
            let members = asked.get(&key).and_then(Option::as_ref).map(|status| status.members.as_slice());
            let member = members.unwrap_or_default().iter().find(|member| member.id == held.id);
            inflight += member.map_or(0, |member| member.in_flight);
        }
    }
    let paused = membership.is_paused();
    Ok(Some(Subscription { topic: held.topic, group: held.group, inflight, max_in_flight: held.max_in_flight, paused }))
}
