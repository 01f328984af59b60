//! `GET /latest-by-key`: the state of a keyed topic, now or (`at`) as of a time.
//!
//! An answer has at most `max_frame_bytes`, or one event. A page ends there and says where the next one begins; of keys
//! that were named all are wanted, so more than that is refused. Events are read few at a time.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{Code, Event, Millis, Topic, json};

use super::as_of;
use super::scan::Scan;
use crate::Hub;
use crate::http::{Caller, Query, event_at, json_body, json_text, unreadable};
use crate::rejection::Rejection;

const DEFAULT: usize = 1_000;
const MOST: usize = 10_000;
/// Keys that may be named at a time.
const MOST_NAMED: usize = 1_000;
/// Keys read at a time, as long as nothing is known of the size of their events.
pub(super) const FEW: usize = 16;
/// Most keys read at a time, where their events are small.
const MANY: usize = 100;
/// What an answer needs besides its entries: a key in `next` has at most 1 KiB, six times that where it is escaped.
const ROOM: usize = 8 * 1024;

pub(super) async fn latest_by_key(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: Query,
) -> Result<Response, Rejection> {
    let topic = query.topic()?;
    caller.must_read(&topic)?;
    // A key may be empty: what is given counts, also where it is the empty text.
    let (keys, after) = (query.all("key")?, query.once("after")?);
    if keys.len() > MOST_NAMED {
        let message = format!("key: at most {MOST_NAMED} at a time, here are {}: ask for the others later", keys.len());
        return Err(Rejection::new(Code::BadRequest, message));
    }
    let at = query.number("at")?.map(Millis);
    let limit = if keys.is_empty() { query.limit(DEFAULT, MOST)? } else { keys.len() };
    match (keys.as_slice(), at) {
        ([], None) => page(&hub, &topic, after, limit).await,
        // The event, or `null`.
        ([key], None) => Ok(json_body(&latest(&hub, &topic, &[(*key).to_owned()]).await?.pop().flatten())),
        (keys, None) => of_keys(&hub, &topic, &named(keys)).await,
        (keys, Some(at)) => past(&hub, &topic, keys, after, limit, at).await,
    }
}

/// Each key once, in their order.
fn named(keys: &[&str]) -> Vec<String> {
    keys.iter().copied().collect::<BTreeSet<_>>().into_iter().map(str::to_owned).collect()
}

async fn latest(hub: &Hub, topic: &Topic, keys: &[String]) -> Result<Vec<Option<Event>>, Rejection> {
    hub.bus.store().latest_by_key(topic, keys).await.map_err(unreadable)
}

/// An object of all of `keys`, with `null` where there is none.
async fn of_keys(hub: &Hub, topic: &Topic, keys: &[String]) -> Result<Response, Rejection> {
    let (mut entries, mut turn) = (Entries::new(hub, Vec::new()), Scan::begin().await);
    for some in keys.chunks(FEW) {
        for (key, event) in some.iter().zip(latest(hub, topic, some).await?) {
            entries.push_named(key, event.as_ref())?;
        }
        turn.rest(hub).await?;
    }
    Ok(json_text(entries.close()))
}

/// The same as of a time; a header says whether the topic still has all of its past.
async fn past(
    hub: &Hub,
    topic: &Topic,
    keys: &[&str],
    after: Option<&str>,
    limit: usize,
    at: Millis,
) -> Result<Response, Rejection> {
    let store = hub.bus.store();
    let _pin = store.pin(std::slice::from_ref(topic)).await.map_err(unreadable)?;
    let is_complete = async || {
        let info = store.info(topic).await.map_err(unreadable)?;
        Ok::<_, Rejection>(as_of::is_complete(info.as_ref()))
    };
    let mut complete = is_complete().await?;
    let mut response = match keys {
        [] => {
            let (entries, next) = past_page(hub, topic, after, limit, at).await?;
            // What went meanwhile may be missing.
            complete = complete && is_complete().await?;
            let mut out = br#"{"topic":"#.to_vec();
            json::write_string(&mut out, topic.as_str());
            out.extend_from_slice(br#","at":"#);
            json::write_number(&mut out, at.0);
            out.extend_from_slice(if complete { br#","complete":true"# } else { br#","complete":false"# });
            out.extend_from_slice(br#","entries":"#);
            out.extend_from_slice(&finish(entries, next.as_deref()));
            json_text(out)
        }
        keys => {
            let response = past_of_keys(hub, topic, keys, at).await?;
            complete = complete && is_complete().await?;
            response
        }
    };
    let said = http::HeaderValue::from_static(if complete { "true" } else { "false" });
    response.headers_mut().insert("x-promethean-complete", said);
    Ok(response)
}

async fn past_of_keys(hub: &Hub, topic: &Topic, given: &[&str], at: Millis) -> Result<Response, Rejection> {
    let keys = named(given);
    let seqs = as_of::of_keys(hub, topic, &keys, at).await?;
    let (mut entries, mut turn) = (Entries::new(hub, Vec::new()), Scan::begin().await);
    for (key, seq) in keys.iter().zip(seqs) {
        turn.rest(hub).await?;
        let event = match seq {
            Some(seq) => event_at(hub, topic, seq).await?,
            None => None,
        };
        if given.len() == 1 {
            return Ok(json_body(&event));
        }
        entries.push_named(key, event.as_ref())?;
    }
    Ok(json_text(entries.close()))
}

async fn past_page(
    hub: &Hub,
    topic: &Topic,
    after: Option<&str>,
    limit: usize,
    at: Millis,
) -> Result<(Entries, Option<String>), Rejection> {
    let as_of::Page { seqs, mut next } = as_of::page(hub, topic, after, limit, at).await?;
    let (mut entries, mut last, mut turn) = (Entries::new(hub, Vec::new()), None, Scan::begin().await);
    for (key, seq) in seqs {
        turn.rest(hub).await?;
        if let Some(event) = event_at(hub, topic, seq).await?
            && !entries.push(&key, Some(&event))
        {
            next = last;
            break;
        }
        last = Some(key);
    }
    Ok((entries, next))
}

/// The live keys after `after`: at most `limit`, or fewer where their events are large.
async fn page(hub: &Hub, topic: &Topic, after: Option<&str>, limit: usize) -> Result<Response, Rejection> {
    let mut out = br#"{"topic":"#.to_vec();
    json::write_string(&mut out, topic.as_str());
    out.extend_from_slice(br#","entries":"#);
    let (mut entries, mut turn) = (Entries::new(hub, out), Scan::begin().await);
    let (mut after, mut more) = (after.map(str::to_owned), true);
    'pages: while more && entries.count < limit {
        let page = hub.bus.store().keys(topic, after.as_deref(), (limit - entries.count).min(entries.at_once())).await;
        let page = page.map_err(unreadable)?;
        more = page.more && !page.items.is_empty();
        for event in &page.items {
            let Some(key) = event.key() else { continue };
            if !entries.push(&key, Some(event)) {
                more = true;
                break 'pages;
            }
            after = Some(key.into_owned());
        }
        turn.rest(hub).await?;
    }
    Ok(json_text(finish(entries, after.as_deref().filter(|_| more))))
}

/// Closes the entries and says where the next page begins.
fn finish(entries: Entries, next: Option<&str>) -> Vec<u8> {
    let mut out = entries.close();
    if let Some(next) = next {
        out.extend_from_slice(br#","next":"#);
        json::write_string(&mut out, next);
    }
    out.push(b'}');
    out
}

/// An object of keys and events that is being written, at most `most` bytes long or with one entry.
struct Entries {
    out: Vec<u8>,
    count: usize,
    most: usize,
    start: usize,
}

impl Entries {
    /// Begins it after what is in `out`.
    fn new(hub: &Hub, mut out: Vec<u8>) -> Self {
        out.push(b'{');
        Self { start: out.len(), out, count: 0, most: hub.config.max_frame_bytes.saturating_sub(ROOM) }
    }

    /// Adds an entry; `false`: it has no room, and is not there.
    fn push(&mut self, key: &str, event: Option<&Event>) -> bool {
        let before = self.out.len();
        if self.count > 0 {
            self.out.push(b',');
        }
        json::write_string(&mut self.out, key);
        self.out.push(b':');
        match event {
            Some(event) => event.write(&mut self.out),
            None => self.out.extend_from_slice(b"null"),
        }
        if self.count > 0 && self.out.len() > self.most {
            self.out.truncate(before);
            return false;
        }
        self.count += 1;
        true
    }

    /// Adds an entry that was asked for by its key.
    fn push_named(&mut self, key: &str, event: Option<&Event>) -> Result<(), Rejection> {
        if self.push(key, event) {
            return Ok(());
        }
        let message = format!(
            "key: the events of these keys are too large for one answer (max_frame_bytes): {} fit; ask for fewer at a time",
            self.count
        );
        Err(Rejection::new(Code::TooLarge, message))
    }

    /// How many to read next: as many as fit if they are like those before.
    fn at_once(&self) -> usize {
        let written = self.out.len() - self.start;
        match written.checked_div(self.count) {
            None => FEW,
            Some(mean) => (self.most.saturating_sub(self.out.len()) / mean.max(1)).clamp(1, MANY),
        }
    }

    fn close(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }
}
