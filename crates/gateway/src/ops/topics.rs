//! `GET /topics`, `DELETE /topics` and `POST /purge`. `PUT /topics` is in `settings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use promethean_bus::{Purge, TopicSize, is_hidden};
use promethean_event::{Code, EventId, Millis, Seq, Topic};
use serde::{Deserialize, Serialize};

use super::page::Page;
use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, Changer, Query, SMALL, json_body, parse_json, read_body, unreadable};
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Deleted {
    topic: Topic,
    events: u64,
    bytes: u64,
    groups: usize,
    /// The dead letters that go along.
    #[serde(skip_serializing_if = "Option::is_none")]
    dlq: Option<Box<Deleted>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

impl Deleted {
    fn of(topic: Topic, size: TopicSize) -> Self {
        let TopicSize { events, bytes, groups } = size;
        Self { topic, events, bytes, groups, dlq: None, dry_run: false }
    }
}

/// Deletes a topic, or says what would go with it.
pub(super) async fn delete(
    State(hub): State<Arc<Hub>>,
    Changer { topic, caller }: Changer,
    query: Query,
) -> Result<Response, Rejection> {
    let (with_letters, dry_run) = (query.flag("dlq", false)?, query.flag("dryRun", false)?);
    let (letters, mut topics) = (topic.dead_letter(), vec![topic.clone()]);
    let mut deleted = Deleted { dry_run, ..Deleted::of(topic.clone(), hub.bus.topic_size(&topic).await?) };
    if with_letters && letters != topic {
        caller.may(Action::Admin, &letters)?;
        match hub.bus.topic_size(&letters).await {
            Ok(size) => {
                topics.push(letters.clone());
                deleted.dlq = Some(Box::new(Deleted::of(letters, size)));
            }
            Err(error) if error.code == Code::UnknownTopic => {}
            Err(error) => return Err(error.into()),
        }
    }
    if dry_run {
        caller.audit.changes_nothing();
        return Ok(json_body(&deleted));
    }
    hub.bus.delete_topics(&topics).await?;
    caller.audit.changed(&deleted, ());
    let (events, bytes, groups) = (deleted.events, deleted.bytes, deleted.groups);
    tracing::info!(%topic, events, bytes, groups, sub = caller.identity.sub.as_deref(), "the topic was deleted");
    Ok(json_body(&deleted))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    before_seq: Option<Seq>,
    before_ts: Option<u64>,
    keys: Option<Vec<String>>,
}

impl Asked {
    fn purge(self) -> Result<Purge, Rejection> {
        match (self.before_seq, self.before_ts, self.keys) {
            (Some(seq), None, None) => Ok(Purge::BeforeSeq(seq)),
            (None, Some(ts), None) => Ok(Purge::BeforeTs(Millis(ts))),
            (None, None, Some(keys)) => Ok(Purge::Keys(keys.into_iter().collect())),
            _ => {
                let message = "beforeSeq, beforeTs, keys: exactly one of the three is needed";
                Err(Rejection::new(Code::BadRequest, message))
            }
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Purged {
    topic: Topic,
    events: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

/// Removes events of a topic, or says how many would go.
pub(super) async fn purge(
    State(hub): State<Arc<Hub>>,
    Changer { topic, caller }: Changer,
    query: Query,
    body: Body,
) -> Result<Response, Rejection> {
    let dry_run = query.flag("dryRun", false)?;
    let asked: Asked = parse_json(&read_body(body, SMALL).await?)?;
    let what = asked.purge()?;
    let TopicSize { events, bytes, .. } = hub.bus.purge_topic(&topic, &what, dry_run).await?;
    let purged = Purged { topic, events, bytes, dry_run };
    if dry_run {
        caller.audit.changes_nothing();
    } else {
        caller.audit.changed(&purged, ());
        let (topic, sub) = (&purged.topic, caller.identity.sub.as_deref());
        tracing::info!(%topic, events, bytes, sub, "events of the topic were removed");
    }
    Ok(json_body(&purged))
}
