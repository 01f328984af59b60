//! `GET /latest-by-key`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{Topic, json};

use crate::Hub;
use crate::http::{Caller, Query, json_body, json_text, unreadable};
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
    match keys.as_slice() {
        [] => page(&hub, &topic, query.one("after")?, query.limit(DEFAULT, MOST)?).await,
        keys => {
            let events = hub.bus.store().latest_by_key(&topic, keys).await.map_err(unreadable)?;
            if let [event] = events.as_slice() {
                return Ok(json_body(event));
            }
            let by_key: std::collections::BTreeMap<_, _> = keys.iter().zip(&events).collect();
            Ok(json_body(&by_key))
        }
    }
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
            if count > 0 {
                out.push(b',');
            }
            json::write_string(&mut out, &key);
            out.push(b':');
            event.write(&mut out);
            count += 1;
            after = Some(key.into_owned());
        }
    }
    out.push(b'}');
    if let (Some(next), true) = (after, more) {
        out.extend_from_slice(br#","next":"#);
        json::write_string(&mut out, &next);
    }
    out.push(b'}');
    Ok(json_text(out))
}
