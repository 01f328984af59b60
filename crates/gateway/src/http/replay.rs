//! `GET /replay`: a page of a topic's events.
//!
//! A page that is read at once is answered whole; a larger one is streamed in constant memory, with `count` behind the
//! events. A failure on the way breaks the connection off, so that a part is never taken for the whole.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header;
use promethean_event::{EventId, From, Seq, Topic, json};
use promethean_store::{ReadMax, Store};

use super::{Caller, Query, json_text, place, unreadable};
use crate::Hub;
use crate::auth::Action;
use crate::rejection::Rejection;

const DEFAULT: usize = 100;
const MOST: usize = 10_000;
/// How much is read and sent at a time.
const AT_ONCE: ReadMax = ReadMax { events: 1_000, bytes: 256 * 1024 };

struct Page {
    store: Arc<dyn Store>,
    topic: Topic,
    next: Seq,
    last: Option<EventId>,
    count: usize,
    limit: usize,
    /// Bytes that the page may still have; a single event fits in any case.
    room: usize,
    ended: bool,
}

/// A page: as many events as asked for, or fewer where they are large; `next` says whether there are more.
pub(super) async fn replay(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let topic = query.topic()?;
    caller.may(Action::Subscribe, &topic)?;
    let limit = query.limit(DEFAULT, MOST)?;
    let next = match query.seq()? {
        Some(seq) => seq,
        None => place(&hub, &topic, query.from(From::Earliest, "seq")?).await?.done + 1,
    };
    let (store, room) = (Arc::clone(hub.bus.store()), hub.config.max_frame_bytes);
    let mut page = Page { store, topic, next, last: None, count: 0, limit, room, ended: false };
    let mut events = Vec::with_capacity(4 * 1024);
    page.read(&mut events).await.map_err(unreadable)?;
    let more = page.more().await.map_err(unreadable)?;
    let mut out = Vec::with_capacity(events.len() + page.topic.as_str().len() + 100);
    out.extend_from_slice(br#"{"topic":"#);
    json::write_string(&mut out, page.topic.as_str());
    if !page.is_full() && more {
        out.extend_from_slice(br#","events":["#);
        out.append(&mut events);
        let rest = stream::try_unfold(page, Page::chunk);
        let first = stream::iter([Ok::<_, promethean_store::Error>(Bytes::from(out))]);
        let body = Body::from_stream(futures_util::StreamExt::chain(first, rest));
        return Ok(
            ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
        );
    }
    out.extend_from_slice(br#","count":"#);
    json::write_number(&mut out, page.count as u64);
    out.extend_from_slice(br#","events":["#);
    out.append(&mut events);
    out.push(b']');
    page.close(&mut out, more);
    Ok(json_text(out))
}

impl Page {
    /// True if no more events belong to it.
    fn is_full(&self) -> bool {
        self.count >= self.limit || self.room == 0
    }

    /// Appends the next events, if there are any.
    async fn read(&mut self, out: &mut Vec<u8>) -> Result<(), promethean_store::Error> {
        let most =
            ReadMax { events: (self.limit - self.count).min(AT_ONCE.events), bytes: self.room.min(AT_ONCE.bytes) };
        let events = self.store.read(&self.topic, self.next, most).await?;
        let Some(end) = events.last() else {
            self.room = 0;
            return Ok(());
        };
        (self.next, self.last) = (end.seq + 1, Some(end.id));
        let before = out.len();
        for event in &events {
            if self.count > 0 {
                out.push(b',');
            }
            self.count += 1;
            event.write(out);
        }
        self.room = self.room.saturating_sub(out.len() - before);
        Ok(())
    }

    /// True if there are events behind it.
    async fn more(&self) -> Result<bool, promethean_store::Error> {
        Ok(!self.store.read(&self.topic, self.next, ReadMax::events(1)).await?.is_empty())
    }

    /// Writes `next`, if there are more events, and the end.
    fn close(&self, out: &mut Vec<u8>, more: bool) {
        if let Some(last) = self.last.filter(|_| more) {
            out.extend_from_slice(br#","next":"#);
            json::write_string(out, &last.to_string());
        }
        out.push(b'}');
    }

    /// The next piece; none at the end.
    async fn chunk(mut self) -> Result<Option<(Bytes, Self)>, promethean_store::Error> {
        if self.ended {
            return Ok(None);
        }
        let mut out = Vec::new();
        let written = self.write(&mut out).await;
        written.inspect_err(|error| {
            // The status was sent long ago: the client sees that the body is not whole, the reason is here.
            tracing::error!(topic = %self.topic, seq = self.next, %error, "a replay breaks off");
        })?;
        Ok(Some((out.into(), self)))
    }

    async fn write(&mut self, out: &mut Vec<u8>) -> Result<(), promethean_store::Error> {
        self.read(out).await?;
        if self.is_full() {
            out.extend_from_slice(br#"],"count":"#);
            json::write_number(out, self.count as u64);
            let more = self.more().await?;
            self.close(out, more);
            self.ended = true;
        }
        Ok(())
    }
}
