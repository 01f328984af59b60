//! `GET /topics`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_bus::is_hidden;
use promethean_event::{EventId, Millis, Topic};
use serde::Serialize;

use super::page::Page;
use crate::Hub;
use crate::http::{Caller, Query, json_body, unreadable};
use crate::rejection::Rejection;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    topic: Topic,
    events: u64,
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ts: Option<Millis>,
    publish_rate: f64,
    groups: usize,
}

#[derive(Serialize)]
struct Topics {
    topics: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

pub(super) async fn topics(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let mut topics = Vec::new();
    let store = hub.bus.store();
    let page = Page::of(&query)?;
    let mut wanted = match query.one("topic")? {
        None => visible(&hub, &caller).await?,
        Some(text) => {
            let topic = Topic::parse(text)?;
            caller.must_see(&topic)?;
            vec![topic]
        }
    };
    let after = |topic: &Topic| page.after.as_deref().is_none_or(|after| topic.as_str() > after);
    wanted.retain(|topic| after(topic) && page.wants(&[topic.as_str()]));
    wanted.sort_unstable();
    let next = page.cut(&mut wanted, Topic::to_string);
    for topic in wanted {
        let Some(info) = store.info(&topic).await.map_err(unreadable)? else { continue };
        let groups = store.groups(&topic).await.map_err(unreadable)?;
        topics.push(Row {
            events: info.events,
            bytes: info.bytes,
            first_seq: info.first_seq,
            last_seq: info.last_seq,
            last_id: info.last.map(|(id, _)| id),
            last_ts: info.last.map(|(_, ts)| ts),
            publish_rate: hub.samples.publish_rate(&topic),
            groups: groups.iter().filter(|(group, _)| !is_hidden(group)).count(),
            topic,
        });
    }
    Ok(json_body(&Topics { topics, next }))
}

/// The topics that the caller may see, sorted.
pub(super) async fn visible(hub: &Hub, caller: &Caller) -> Result<Vec<Topic>, Rejection> {
    let mut topics = hub.bus.store().topics().await.map_err(unreadable)?;
    topics.retain(|topic| caller.sees(topic));
    Ok(topics)
}
