//! `GET /groups`, `DELETE /groups`, `GET /cursors` and `GET /lag`.
//!
//! The group by which the hub remembers what was redriven is its own and not shown.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use promethean_bus::metrics::GroupName;
use promethean_bus::{Error, is_hidden};
use promethean_event::{Cursor, EventId, Group, Millis, Topic};
use promethean_store::{Error as StoreError, GroupState};
use serde::Serialize;

use super::holders::ANSWERS;
use super::page::Page;
use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, Query, json_body, unreadable};
use crate::rejection::{Rejection, not_the_hubs_own};
use crate::seldom::Seldom;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    topic: Topic,
    group: Group,
    members: usize,
    inflight: usize,
    lag: u64,
    lag_ms: u64,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_id: Option<EventId>,
    redelivered: u64,
    dead_lettered: u64,
    /// It has members, and deliveries to all of them are stopped.
    paused: bool,
}

impl Row {
    /// Of a group that nothing else is known of.
    fn new(topic: &Topic, group: &Group) -> Self {
        Self {
            topic: topic.clone(),
            group: group.clone(),
            members: 0,
            inflight: 0,
            lag: 0,
            lag_ms: 0,
            seq: 0,
            last_id: None,
            redelivered: 0,
            dead_lettered: 0,
            paused: false,
        }
    }
}

#[derive(Serialize)]
struct Groups {
    groups: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

pub(super) async fn groups(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let page = Page::of(&query)?;
    // Neither name can hold the sign between them.
    let after = page.after.as_deref().unwrap_or_default();
    let (after_topic, after_group) = after.split_once('/').unwrap_or((after, ""));
    let mut topics = match query.one("topic")? {
        None => {
            let mut topics = hub.bus.store().topics_of_groups().await.map_err(unreadable)?;
            topics.retain(|topic| caller.sees(topic));
            topics
        }
        Some(text) => {
            let topic = Topic::parse(text)?;
            caller.must_see(&topic)?;
            vec![topic]
        }
    };
    topics.retain(|topic| topic.as_str() >= after_topic);
    topics.sort_unstable();
    let mut named = Vec::new();
    for topic in topics {
        let mut groups = hub.bus.store().groups(&topic).await.map_err(unreadable)?;
        groups.retain(|(group, _)| {
            !is_hidden(group)
                && caller.sees_group(&topic, group)
                && (topic.as_str(), group.as_str()) > (after_topic, after_group)
                && page.wants(&[topic.as_str(), group.as_str()])
        });
        groups.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        named.extend(groups.into_iter().map(|(group, state)| (topic.clone(), group, state)));
        if named.len() > page.limit {
            break;
        }
    }
    let next = page.cut(&mut named, |(topic, group, _)| format!("{topic}/{group}"));
    let counted: HashMap<GroupName, _> = hub.bus.metrics().groups().into_iter().collect();
    let mut groups = Vec::new();
    for (topic, group, state) in named {
        let mut row = match row(&hub, &topic, &group).await {
            Ok(row) => row,
            Err(error) => saved(&hub, &topic, &group, &state, error).await?,
        };
        if let Some(counts) = counted.get(&(topic.as_str().into(), group.as_str().into())) {
            row.redelivered = counts.redelivered.load(Relaxed);
            row.dead_lettered = counts.dead_lettered.load(Relaxed);
        }
        groups.push(row);
    }
    Ok(json_body(&Groups { groups, next }))
}

#[derive(Serialize)]
struct Forgotten {
    topic: Topic,
    group: Group,
    forgotten: bool,
}

/// Forgets a group that nobody is a member of.
pub(super) async fn forget(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let (topic, group) = query.topic_and_group()?;
    caller.may(Action::Admin, &topic)?;
    not_the_hubs_own(&group)?;
    let forgotten = hub.bus.forget_group(&topic, &group).await?;
    if forgotten {
        tracing::info!(%topic, %group, sub = caller.identity.sub.as_deref(), "the group was forgotten");
    }
    Ok(json_body(&Forgotten { topic, group, forgotten }))
}

async fn row(hub: &Hub, topic: &Topic, group: &Group) -> Result<Row, Error> {
    let mut row = Row::new(topic, group);
    let cursor = if (hub.bus.is_live(topic, group) || hub.bus.is_clustered())
        && let Some(status) = hub.bus.group_outline(topic, group).await?
    {
        row.members = status.members.len();
        row.inflight = status.in_flight;
        row.paused = !status.members.is_empty() && status.members.iter().all(|member| member.paused);
        (row.lag, row.lag_ms) = (status.lag, millis(status.lag_age));
        Some(status.cursor)
    } else {
        let lag = hub.bus.lag(topic, group).await?;
        (row.lag, row.lag_ms) = (lag.events, millis(lag.age));
        lag.cursor
    };
    if let Some(cursor) = cursor {
        (row.seq, row.last_id) = (cursor.seq, cursor.last_id);
    }
    Ok(row)
}

/// The row of a group that cannot be asked how it stands: by what was saved, as long as the store answers at all.
async fn saved(hub: &Hub, topic: &Topic, group: &Group, state: &GroupState, error: Error) -> Result<Row, Rejection> {
    static TOLD: Seldom = Seldom::new();
    let info = match tokio::time::timeout(ANSWERS, hub.bus.store().info(topic)).await {
        Ok(Ok(info)) => info,
        Ok(Err(StoreError::Damaged(_))) => None,
        Ok(Err(_)) | Err(_) => return Err(error.into()),
    };
    if TOLD.may(Instant::now()) {
        tracing::error!(%topic, %group, %error, "a group is shown as it was saved: it cannot be asked how it stands");
    }
    let mut row = Row::new(topic, group);
    (row.seq, row.last_id) = (state.floor, state.last.map(|(id, _)| id));
    row.lag = info.map_or(0, |info| state.lag(&info));
    Ok(row)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    group: Group,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ts: Option<Millis>,
    seq: u64,
}

#[derive(Serialize)]
struct Cursors {
    topic: Topic,
    cursors: Vec<Place>,
}

pub(super) async fn cursors(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let topic = query.topic()?;
    caller.must_see(&topic)?;
    let cursors = hub.bus.cursors(&topic).await?.into_iter();
    let cursors = cursors
        .filter(|(group, _)| !is_hidden(group) && caller.sees_group(&topic, group))
        .map(|(group, cursor)| Place { group, last_id: cursor.last_id, last_ts: cursor.last_ts, seq: cursor.seq })
        .collect();
    Ok(json_body(&Cursors { topic, cursors }))
}

/// Here `null` stands for what is not there, as in the seed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Lag {
    topic: Topic,
    group: Group,
    last_cursor: Option<Cursor>,
    tail: Option<EventId>,
    lag_ms: Option<u64>,
    lag: Option<u64>,
}

pub(super) async fn lag(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let (topic, group) = query.topic_and_group()?;
    caller.must_see_group(&topic, &group)?;
    let lag = hub.bus.lag(&topic, &group).await?;
    // Without a position on the topic there is nothing to be behind.
    let behind = lag.cursor.is_some().then_some((lag.events, millis(lag.age)));
    let (events, lag_ms) = behind.unzip();
    Ok(json_body(&Lag { topic, group, last_cursor: lag.cursor, tail: lag.tail, lag_ms, lag: events }))
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
