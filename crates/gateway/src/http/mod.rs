//! The HTTP API: publish, replay, export, Server-Sent Events, health.
//!
//! A request's way: [`router`] (built from `ROUTES`, which also is what `/openapi.json` shows) → `Caller` (drain,
//! quota, token) → a handler → the bus or the store. What goes wrong is a [`Rejection`](crate::rejection::Rejection).
//! Nothing a request asks for is held in memory whole, except what it publishes, which is bounded.

mod answer;
mod body;
mod caller;
mod cloud_event;
mod consume;
pub(crate) mod cors;
mod drafts;
mod events;
mod export;
mod health;
mod lookup;
mod openapi;
mod publish;
mod query;
mod replay;
mod route;
mod shapes;

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, get, post};

use crate::Hub;

pub(crate) use answer::{json_body, json_text};
pub(crate) use body::{SMALL, parse_json, read as read_body};
pub(crate) use caller::{Caller, Changer, bearer};
pub(crate) use health::{healthz, readyz};
pub(crate) use lookup::{event_at, place, unreadable};
pub(crate) use openapi::document;
pub(crate) use query::Query;
pub(crate) use route::{Param, Route, build, with_routes};

/// The routes of the HTTP port.
pub fn router(hub: Arc<Hub>) -> Router {
    build(ROUTES, hub)
}

/// What `/openapi.json` of the HTTP port says.
async fn openapi_json() -> axum::response::Response {
    json_body(&document("Promethean HTTP API", ROUTES))
}

/// What `/asyncapi.json` of the HTTP port says.
async fn asyncapi_json() -> axum::response::Response {
    json_body(&crate::ws::asyncapi())
}

/// The routes that the ops port serves too, so that the page there needs one origin only.
pub(crate) fn shared_routes() -> impl Iterator<Item = &'static Route> {
    const SHARED: [&str; 7] = [
        "/publish/{topic}",
        "/consume/{topic}/{group}",
        "/ack/{topic}/{group}",
        "/nack/{topic}/{group}",
        "/extend/{topic}/{group}",
        "/replay",
        "/export",
    ];
    ROUTES.iter().filter(|route| SHARED.contains(&route.path))
}

const TOPIC: Param = Param::required("topic", "The topic.");
const TOPIC_IN_PATH: Param = Param::path("topic", "The topic.");
const FROM: Param = Param::optional("from", "Where to start: earliest, latest, ts, afterId or seq.");
const TS: Param = Param::optional("ts", "For from=ts: epoch milliseconds.");
const AFTER_ID: Param = Param::optional("afterId", "For from=afterId: the id of an event of the topic.");

const NAME_IN_PATH: Param = Param::path("topic", "The topic or pattern.");
const GROUP_IN_PATH: Param = Param::path("group", "The group.");
/// An answer to deliveries of `/consume`.
const fn answers(path: &'static str, about: &'static str, handler: fn() -> MethodRouter<Arc<Hub>>) -> Route {
    Route {
        method: "POST",
        path,
        about,
        params: &[NAME_IN_PATH, GROUP_IN_PATH],
        body: &["application/json"],
        content: "application/json",
        schema: "Answered",
        errors: &[400, 401, 403, 404, 413, 429, 500, 503],
        open: false,
        handler,
    }
}

/// Every route of the HTTP port.
pub(crate) static ROUTES: &[Route] = &[
    Route {
        method: "POST",
        path: "/publish/{topic}",
        about: "Publishes the body: JSON, NDJSON (one payload a line, all or none) or CloudEvents 1.0 (binary, \
                structured, batch).",
        params: &[
            TOPIC_IN_PATH,
            Param::optional("id", "The event's id, a UUID; the same id again is not stored again."),
            Param::optional("key", "The event's key."),
            Param::optional("ts", "The event's time, epoch milliseconds."),
            Param::optional("sid", "The publisher's session."),
            Param::many("tag", "A tag."),
            Param::many("caused_by", "The id of an event that this one follows from."),
            Param::header("Idempotency-Key", "The same as id."),
        ],
        body: &[
            "application/json",
            "application/x-ndjson",
            "application/cloudevents+json",
            "application/cloudevents-batch+json",
        ],
        content: "application/json",
        schema: "Published",
        errors: &[400, 401, 403, 409, 413, 429, 500, 503],
        open: false,
        handler: || post(publish::publish),
    },
    Route {
        method: "POST",
        path: "/consume/{topic}/{group}",
        about: "Leases events to the caller as to a member of the group. The fields are in a JSON body or in the query.",
        params: &[
            NAME_IN_PATH,
            GROUP_IN_PATH,
            Param::optional("max", "Most events, 1 to 1,000; 100 if left out."),
            Param::optional("waitMs", "Longest wait for the first event, up to 60,000; 0 if left out."),
            Param::optional(
                "from",
                "Where a group without a position starts: latest (default), earliest, ts or afterId.",
            ),
            TS,
            AFTER_ID,
            Param::optional(
                "ackTimeoutMs",
                "How long the events are leased; the hub's ack_timeout if left out, lowered to its max_ack_timeout.",
            ),
            Param::optional("maxAttempts", "Deliveries before a dead letter; 5 if left out, 0: no limit."),
            Param::optional("ordered", "none (default), key or topic."),
            Param::optional("filter", "JSON: which events the group wants."),
            Param::optional("autoAck", "1: the events are acked before they are answered."),
        ],
        body: &["application/json"],
        content: "application/json",
        schema: "Consumed",
        errors: &[400, 401, 403, 404, 413, 429, 500, 503],
        open: false,
        handler: || post(consume::consume),
    },
    answers("/ack/{topic}/{group}", "Acks events, or with upTo one and all before it.", || post(consume::ack)),
    answers("/nack/{topic}/{group}", "Gives events back after a failure.", || post(consume::nack)),
    answers("/extend/{topic}/{group}", "Extends the leases of events.", || post(consume::extend)),
    Route {
        method: "GET",
        path: "/replay",
        about: "Events of a topic, page by page: next is the value for afterId, left out at the end.",
        params: &[
            TOPIC,
            FROM,
            TS,
            AFTER_ID,
            Param::optional("seq", "For from=seq: the first event's seq."),
            Param::optional("limit", "Most events, 1 to 10,000; 100 if left out."),
        ],
        body: &[],
        content: "application/json",
        schema: "Replay",
        errors: &[400, 401, 403, 404, 429, 503],
        open: false,
        handler: || get(replay::replay),
    },
    Route {
        method: "GET",
        path: "/export",
        about: "Streams the events of a topic as NDJSON, or as a JSON array with ndjson=0.",
        params: &[
            TOPIC,
            Param::optional("fromTs", "Only events with ts at or after it, epoch milliseconds."),
            Param::optional("toTs", "Only events with ts at or before it, epoch milliseconds."),
            Param::optional("fromSeq", "Only events with this seq or a later one."),
            Param::optional("toSeq", "Only events with this seq or an earlier one."),
            Param::optional("afterId", "Only events after the one with this id."),
            Param::optional("ndjson", "1 (one event a line, the default) or 0 (a JSON array)."),
            Param::optional("exact", "1: a line whose payload lost line breaks carries it as payloadText too."),
        ],
        body: &[],
        content: "application/x-ndjson",
        schema: "Event",
        errors: &[400, 401, 403, 404, 429, 503],
        open: false,
        handler: || get(export::export),
    },
    Route {
        method: "GET",
        path: "/events/{topic}",
        about: "Server-Sent Events: the live tail of a topic or pattern; Last-Event-ID resumes.",
        params: &[
            TOPIC_IN_PATH,
            Param::optional("from", "Where to start: latest (default), earliest, ts, afterId or snapshot."),
            TS,
            AFTER_ID,
            Param::header("Last-Event-ID", "Resumes after this event; an unknown one starts at the live end."),
        ],
        body: &[],
        content: "text/event-stream",
        schema: "Event",
        errors: &[400, 401, 403, 404, 429, 503],
        open: false,
        handler: || get(events::events),
    },
    Route {
        method: "GET",
        path: "/healthz",
        about: "Whether the hub lives.",
        params: &[],
        body: &[],
        content: "application/json",
        schema: "Status",
        errors: &[],
        open: true,
        handler: || get(healthz),
    },
    Route {
        method: "GET",
        path: "/readyz",
        about: "Whether the hub takes requests: the store writes, tokens can be checked, it is not draining.",
        params: &[],
        body: &[],
        content: "application/json",
        schema: "Status",
        errors: &[503],
        open: true,
        handler: || get(readyz),
    },
    Route {
        method: "GET",
        path: "/openapi.json",
        about: "This document.",
        params: &[],
        body: &[],
        content: "application/json",
        schema: "Document",
        errors: &[],
        open: true,
        handler: || get(openapi_json),
    },
    Route {
        method: "GET",
        path: "/asyncapi.json",
        about: "The AsyncAPI document of the WebSocket protocol.",
        params: &[],
        body: &[],
        content: "application/json",
        schema: "Document",
        errors: &[],
        open: true,
        handler: || get(asyncapi_json),
    },
];
