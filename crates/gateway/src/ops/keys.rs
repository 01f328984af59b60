//! `GET /latest-by-key`: the state of a keyed topic, now or (`at`) as of a time.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{Event, Millis, Topic, json};

use super::as_of;
use crate::Hub;
use crate::http::{Caller, Query, event_at, json_body, json_text, unreadable};
use crate::rejection::Rejection;

const DEFAULT: usize = 1_000;
const MOST: usize = 10_000;
/// Keys read at a time.
const AT_ONCE: usize = 100;

pub(super) async fn latest_by_key(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: Query,
) -> Result<Response, Rejection> {
    let topic = query.topic()?;
    caller.must_see(&topic)?;
    let keys: Vec<String> = query.all("key")?.into_iter().filter(|key| !key.is_empty()).map(str::to_owned).collect();
    if let Some(at) = query.number("at")?.map(Millis) {
        return past(&hub, &topic, &keys, &query, at).await;
    }
    match keys.as_slice() {
        [] => page(&hub, &topic, query.one("after")?, query.limit(DEFAULT, MOST)?).await,
        keys => Ok(of_keys(keys, &hub.bus.store().latest_by_key(&topic, keys).await.map_err(unreadable)?)),
    }
}

/// One event or `null`; of several keys an object.
fn of_keys(keys: &[String], events: &[Option<Event>]) -> Response {
    match events {
        [event] => json_body(event),
        events => json_body(&keys.iter().zip(events).collect::<std::collections::BTreeMap<_, _>>()),
    }
}

/// The same as of a time; a header says whether the topic still has all of its past.
async fn past(hub: &Hub, topic: &Topic, keys: &[String], query: &Query, at: Millis) -> Result<Response, Rejection> {
    let info = hub.bus.store().info(topic).await.map_err(unreadable)?;
    let complete = as_of::is_complete(info.as_ref());
    let mut response = match keys {
        [] => past_page(hub, topic, query.one("after")?, query.limit(DEFAULT, MOST)?, at, complete).await?,
        keys => of_keys(keys, &as_of::of_keys(hub, topic, keys, at).await?),
    };
    let said = http::HeaderValue::from_static(if complete { "true" } else { "false" });
    response.headers_mut().insert("x-promethean-complete", said);
    Ok(response)
}

async fn past_page(
    hub: &Hub,
    topic: &Topic,
    after: Option<&str>,
    limit: usize,
    at: Millis,
    complete: bool,
) -> Result<Response, Rejection> {
    let as_of::Page { seqs, mut next } = as_of::page(hub, topic, after, limit, at).await?;
    let mut out = br#"{"topic":"#.to_vec();
    json::write_string(&mut out, topic.as_str());
    out.extend_from_slice(br#","at":"#);
    json::write_number(&mut out, at.0);
    out.extend_from_slice(if complete { br#","complete":true"# } else { br#","complete":false"# });
    out.extend_from_slice(br#","entries":{"#);
    let (mut first, mut last) = (true, None);
    for (key, seq) in seqs {
        if out.len() >= hub.config.max_frame_bytes {
            next = last;
            break;
        }
        if let Some(event) = event_at(hub, topic, seq).await? {
            entry(&mut out, &key, &event, first);
            first = false;
        }
        last = Some(key);
    }
    finish(&mut out, next.as_deref());
    Ok(json_text(out))
}

fn entry(out: &mut Vec<u8>, key: &str, event: &Event, first: bool) {
    if !first {
        out.push(b',');
    }
    json::write_string(out, key);
    out.push(b':');
    event.write(out);
}

/// Closes the entries and says where the next page begins.
fn finish(out: &mut Vec<u8>, next: Option<&str>) {
    out.push(b'}');
    if let Some(next) = next {
        out.extend_from_slice(br#","next":"#);
        json::write_string(out, next);
    }
    out.push(b'}');
}

/// The live keys after `after`: at most `limit`, or fewer where their events are large.
async fn page(hub: &Hub, topic: &Topic, after: Option<&str>, limit: usize) -> Result<Response, Rejection> {
    let mut out = br#"{"topic":"#.to_vec();
    json::write_string(&mut out, topic.as_str());
    out.extend_from_slice(br#","entries":{"#);
    let (mut count, mut after, mut more) = (0, after.map(str::to_owned), true);
    while more && count < limit && out.len() < hub.config.max_frame_bytes {
        let page = hub.bus.store().keys(topic, after.as_deref(), (limit - count).min(AT_ONCE)).await;
        let page = page.map_err(unreadable)?;
        more = page.more && !page.items.is_empty();
        for event in &page.items {
            let Some(key) = event.key() else { continue };
            entry(&mut out, &key, event, count == 0);
            count += 1;
            after = Some(key.into_owned());
        }
    }
    finish(&mut out, after.as_deref().filter(|_| more));
    Ok(json_text(out))
}
