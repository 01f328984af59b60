//! `GET /events/{topic}`: Server-Sent Events, the ephemeral tail of a topic or pattern.
//!
//! `id` is the event's id, or where there may be several topics the place on all of them; `data` is the event's JSON. The events of a snapshot start have no `id`: whoever loses the
//! connection within it gets a whole snapshot again, not a part. A comment says that one begins: what the client had of
//! another is obsolete. After the last one an `id` alone says where to go on. Nothing is buffered here: a client
//! that does not read is read for no further.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::{HeaderMap, header};
use promethean_bus::{Given, Inbox, InboxOptions, Membership, Request};
use promethean_event::{Code, EventId, From, Millis, Selector, SubscribeOptions};
use tokio::time::{Instant, sleep_until};

use super::publish::text_of;
use super::{Caller, Query};
use crate::Hub;
use crate::auth::{Action, Identity};
use crate::drain::Draining;
use crate::rejection::Rejection;

/// How much is sent at a time.
const EVENTS_AT_ONCE: usize = 500;
const BYTES_AT_ONCE: usize = 256 * 1024;

struct Tail {
    hub: Arc<Hub>,
    inbox: Inbox,
    /// The subscription lives as long as this.
    _membership: Membership,
    draining: Draining,
    /// When the token ends.
    deadline: Option<Instant>,
    first: Option<Vec<u8>>,
    ids: Ids,
    ended: bool,
}

/// The `id` lines of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// Of one topic.
    Events,
    /// Of several topics.
    Places,
    /// Of several topics one may be live while the snapshot of another is on its way: a place would skip the rest of it.
    None,
}

/// Streams events from now on, or from where the request says.
pub(super) async fn events(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let selector = Selector::parse(&text_of(path)?)?;
    if !caller.identity.policy.allows_selector(Action::Subscribe, &selector, None) {
        return Err(Rejection::forbidden(Action::Subscribe, selector.as_str()));
    }
    let from = query.from(From::Latest, "snapshot")?;
    let mut first = b"retry: 1000\n: promethean\n\n".to_vec();
    let options = InboxOptions {
        bytes: hub.config.max_connection_bytes,
        connection: true,
        patience: Some(hub.config.stall_deadline),
    };
    let inbox = Inbox::with(options);
    let last =
        headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().trim()).filter(|id| !id.is_empty());
    let resumed = match last {
        None => Some(subscribe(&hub, &caller.identity, &selector, from, None, &inbox).await?),
        Some(last) => {
            let (from, place) = match EventId::parse(last) {
                Ok(id) => (From::AfterId(id), None),
                Err(_) => (From::Latest, Some(last)),
            };
            match subscribe(&hub, &caller.identity, &selector, from, place, &inbox).await {
                Err(rejection) if matches!(rejection.code, Code::UnknownId | Code::BadRequest) => None,
                resumed => Some(resumed?),
            }
        }
    };
    let mut snapshot = from == From::Snapshot;
    let membership = match resumed {
        Some(membership) => {
            snapshot &= last.is_none();
            membership
        }
        None => {
            // Whoever asked for the state needs it as a whole again: compaction has taken the event it was at.
            let (again, said) = match from {
                From::Snapshot => (From::Snapshot, "the snapshot begins again"),
                _ => (From::Latest, "this starts at the live end"),
            };
            first.extend_from_slice(format!(": the Last-Event-ID is unknown here; {said}\n\n").as_bytes());
            subscribe(&hub, &caller.identity, &selector, again, None, &inbox).await?
        }
    };
    if snapshot {
        first.extend_from_slice(b": a snapshot begins\n\n");
    }
    let ids = match selector {
        Selector::Topic(_) => Ids::Events,
        Selector::Pattern(_) if from == From::Snapshot => Ids::None,
        Selector::Pattern(_) => Ids::Places,
    };
    let left = caller.identity.deadline().map(|deadline| deadline.since(Millis::now()));
    let tail = Tail {
        inbox,
        _membership: membership,
        draining: hub.drain.watch(),
        deadline: left.map(|left| Instant::now() + left),
        first: Some(first),
        ids,
        ended: false,
        hub,
    };
    let body = Body::from_stream(stream::unfold(tail, Tail::chunk));
    let head = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        (header::CACHE_CONTROL.as_str(), "no-cache"),
        // Or a proxy holds events back.
        ("x-accel-buffering", "no"),
    ];
    Ok((head, body).into_response())
}

async fn subscribe(
    hub: &Hub,
    identity: &Identity,
    selector: &Selector,
    from: From,
    resume: Option<&str>,
    inbox: &Inbox,
) -> Result<Membership, Rejection> {
    let policy = Arc::clone(&identity.policy);
    let gate: promethean_bus::TopicGate = Arc::new(move |topic| policy.allows(Action::Subscribe, topic, None));
    let options = SubscribeOptions { from, resume: resume.map(Into::into), ..SubscribeOptions::default() };
    let (membership, _) = hub
        .bus
        .attach(Request { topic: selector.clone(), group: None, options, gate: Some(gate), relayed: None }, inbox)
        .await?;
    membership.open();
    Ok(membership)
}

/// Why a stream ends, where nothing is wrong with it.
const SHUTTING_DOWN: &str = "shutting_down: connect again in a moment";
const TOKEN_EXPIRED: &str = "token_expired: connect again with a new token";

impl Tail {
    /// The next piece; none at the end.
    async fn chunk(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.ended {
            return None;
        }
        let out = match self.first.take() {
            Some(first) => first,
            None => self.next().await,
        };
        Some((Ok(out.into()), self))
    }

    async fn next(&mut self) -> Vec<u8> {
        let mut given = Vec::new();
        // The last piece is written.
        self.inbox.set_sending(0);
        loop {
            // Also where there is always something to send: a reader may be slower than the log.
            if self.draining.has_begun() {
                return self.end(SHUTTING_DOWN);
            }
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return self.end(TOKEN_EXPIRED);
            }
            self.inbox.take(EVENTS_AT_ONCE, BYTES_AT_ONCE, self.hub.bus.now(), &mut given);
            if !given.is_empty() {
                return text(&given, self.ids);
            }
            if let Some((_, error)) = self.inbox.take_ended().pop() {
                return self.end(&format!("{}: {}", error.code, error.message));
            }
            let keep_alive = Instant::now() + self.hub.config.ping_every;
            let alarm = self.deadline.unwrap_or(keep_alive).min(keep_alive);
            tokio::select! {
                () = self.inbox.ready() => {}
                () = self.draining.begun() => return self.end(SHUTTING_DOWN),
                () = sleep_until(alarm) => {
                    if self.deadline == Some(alarm) {
                        return self.end(TOKEN_EXPIRED);
                    }
                    return b": keep-alive\n\n".to_vec();
                }
            }
        }
    }

    /// The last words: a comment that says why.
    fn end(&mut self, why: &str) -> Vec<u8> {
        self.ended = true;
        format!(": {}\n\n", why.replace(['\r', '\n'], " ")).into_bytes()
    }
}

fn text(given: &[Given], ids: Ids) -> Vec<u8> {
    let mut out = Vec::new();
    let mut whole = Vec::new();
    for one in given {
        match (ids, &one.resume) {
            (Ids::Events, _) if !one.snapshot => write_id(&mut out, one.event.id.encode(&mut [0; 36])),
            (Ids::Places, Some(place)) => write_id(&mut out, place),
            _ => {}
        }
        whole.clear();
        one.event.write(&mut whole);
        write_data(&mut out, &whole);
        out.push(b'\n');
        if let Some(cut) = one.cut.filter(|_| ids == Ids::Events) {
            // Without data it is no event to the client, only where it goes on.
            write_id(&mut out, cut.encode(&mut [0; 36]));
            out.push(b'\n');
        }
    }
    out
}

fn write_id(out: &mut Vec<u8>, id: &str) {
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(id.as_bytes());
    out.push(b'\n');
}

/// An event of several lines is several `data` lines, which the client puts together again: `\r\n`, `\r` and `\n` each end
/// one.
fn write_data(out: &mut Vec<u8>, event: &[u8]) {
    let mut rest = event;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
        rest = match after {
            [] => return,
            [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
        };
    }
}
