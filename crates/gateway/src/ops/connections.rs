//! `GET /connections`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_bus::Membership;
use promethean_event::{Group, Millis, Selector, Topic};
use serde::Serialize;

use super::holders::{self, Holdings};
use super::page::Page;
use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, Query, json_body};
use crate::rejection::Rejection;
use crate::ws::{Connection, Held};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

pub(super) async fn connections(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: Query,
) -> Result<Response, Rejection> {
    let page = Page::of(&query)?;
    // Names are numbers with a letter before: the longer one is the later one.
    let place = |name: &str| (name.len(), name.to_owned());
    let after = page.after.as_deref().map(place);
    let mut open = Vec::new();
    for connection in hub.connections.list() {
        let name = holders::name(connection.id);
        if after.as_ref().is_some_and(|after| place(&name) <= *after) {
            continue;
        }
        let (shown, peer, sub) = (shown(&caller, &connection), connection.peer.to_string(), connection.sub());
        let mut names = vec![&*name, &*peer, sub.as_deref().unwrap_or_default()];
        let held = shown.iter().map(|one| &one.held);
        names.extend(held.flat_map(|held| [&*held.topic, held.group.as_ref().map_or("", Group::as_str)]));
        if page.wants(&names) {
            open.push((shown, connection));
        }
        if open.len() > page.limit {
            break;
        }
    }
    let next = page.cut(&mut open, |(_, connection)| holders::name(connection.id));
    let groups = open.iter().flat_map(|(shown, _)| shown).flat_map(Shown::groups).collect();
    let holdings = Holdings::of(&hub, groups).await;
    let row = |(shown, connection): (Vec<Shown>, Arc<Connection>)| Row {
        id: holders::name(connection.id),
        peer: connection.peer.to_string(),
        sub: connection.sub(),
        since: connection.since,
        subscriptions: shown.into_iter().map(|shown| shown.row(&holdings)).collect(),
        buffered_bytes: connection.buffered_bytes(),
    };
    Ok(json_body(&Connections { connections: open.into_iter().map(row).collect(), next }))
}

/// A pattern may name topics that the caller must not learn of: it is for those who see everything or administer.
fn sees(caller: &Caller, held: &Held) -> bool {
    match (Selector::parse(&held.topic), &held.group) {
        (Ok(Selector::Topic(topic)), Some(group)) => caller.sees_group(&topic, group),
        (Ok(Selector::Topic(topic)), None) => caller.sees(&topic),
        _ => caller.identity.policy.allows_somewhere(Action::Admin),
    }
}

/// A subscription that the caller may see, while it lasts.
struct Shown {
    held: Held,
    membership: Arc<Membership>,
}

fn shown(caller: &Caller, connection: &Connection) -> Vec<Shown> {
    let seen = connection.subscriptions().into_iter().filter(|held| sees(caller, held));
    seen.filter_map(|held| Some(Shown { membership: held.membership.upgrade()?, held })).collect()
}

impl Shown {
    /// The group on each of its topics.
    fn groups(&self) -> Vec<(Topic, Group)> {
        let group = self.held.group.as_ref();
        let topics = group.map(|_| self.membership.topics()).unwrap_or_default();
        topics.into_iter().zip(group.into_iter().cycle().cloned()).collect()
    }

    /// What is not known is shown as nothing held.
    fn row(self, holdings: &Holdings) -> Subscription {
        let inflight = self.groups().iter().filter_map(|group| holdings.held(group, self.held.id)).sum();
        let paused = self.membership.is_paused();
        let Held { topic, group, max_in_flight, .. } = self.held;
        Subscription { topic, group, inflight, max_in_flight, paused }
    }
}
