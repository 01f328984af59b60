//! The AsyncAPI 3 document of the WebSocket protocol, from what the frames' Rust types tell (`event::frame::shape`).
//!
//! It is written from the hub's side: the hub *receives* what clients ask, replies, and *sends* deliveries. Made when
//! somebody asks for it; `docs/asyncapi.json` is the same, kept in step by a test.

use promethean_event::frame::shape::{ASKED, SAID, Shape, parts};
use serde_json::{Map, Value, json};

use crate::schema;

/// What `/asyncapi.json` says.
pub(crate) fn document() -> Value {
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Promethean WebSocket protocol",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "One JSON object a text frame. Every frame of a client gets exactly one OK or ERR; answers to one \
                connection's frames of one kind keep their order, deliveries come in between. Fields that are not \
                listed are ignored.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "defaultContentType": "application/json",
        "servers": {
            "hub": {
                "host": "{address}",
                "protocol": "ws",
                "description": "WS_PORT; any path. Subprotocol promethean.v1 is echoed where it is offered.",
                "variables": { "address": { "default": "127.0.0.1:8090", "description": "Host and port." } },
                "security": [{ "$ref": "#/components/securitySchemes/bearer" }],
            },
        },
        "channels": { "hub": channel() },
        "operations": operations(),
        "components": {
            "messages": messages(),
            "schemas": parts().map(|part| (part.name.to_owned(), schema::part(part))).collect::<Map<_, _>>(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "On the upgrade, or as the token of an AUTH frame. An open hub needs none.",
                },
            },
        },
    })
}

/// Every message with whether clients send it. A client's and a hub's frame may have the same name.
fn frames() -> impl Iterator<Item = (&'static Shape, bool)> {
    ASKED.iter().map(|shape| (shape, true)).chain(SAID.iter().map(|shape| (shape, false)))
}

/// `publish` of a client, `ok.published` of the hub.
fn id(shape: &Shape) -> String {
    match shape.op {
        "OK" => format!("ok.{}", shape.name),
        _ => shape.name.to_owned(),
    }
}

fn channel() -> Value {
    let messages: Map<String, Value> = frames()
        .map(|(shape, _)| (id(shape), json!({ "$ref": format!("#/components/messages/{}", id(shape)) })))
        .collect();
    json!({
        "address": "/",
        "description": "A connection. The hub closes it with 4401 (not authenticated within 10 s, or the token ran out), 4408 \
            (no pong for 60 s), 4429 (the client does not read), 1001 (shutdown), 1007 (text that is not UTF-8), 1008 (too many pings or pongs), 1009 \
            (a frame over the limit).",
        "messages": messages,
        "bindings": { "ws": { "method": "GET", "bindingVersion": "0.1.0" } },
    })
}

fn messages() -> Map<String, Value> {
    let message = |(shape, asked): (&Shape, bool)| {
        let example: Value = serde_json::from_str(shape.example).unwrap_or_default();
        let message = json!({
            "name": id(shape),
            "title": shape.op,
            "summary": shape.about,
            "payload": schema::frame(shape, asked),
            "examples": [{ "payload": example }],
        });
        (id(shape), message)
    };
    frames().map(message).collect()
}

fn operations() -> Map<String, Value> {
    let channel = || json!({ "$ref": "#/channels/hub" });
    let message = |id: &str| json!({ "$ref": format!("#/channels/hub/messages/{id}") });
    let mut operations: Map<String, Value> = ASKED
        .iter()
        .map(|shape| {
            let operation = json!({
                "action": "receive",
                "channel": channel(),
                "summary": shape.about,
                "messages": [message(&id(shape))],
                "reply": {
                    "channel": channel(),
                    "messages": [message(&format!("ok.{}", shape.answer)), message("refused")],
                },
            });
            (shape.name.to_owned(), operation)
        })
        .collect();
    let mut sends = |name: &str, about: &str, messages: &[&str]| {
        let messages: Vec<Value> = messages.iter().map(|id| message(id)).collect();
        let operation = json!({ "action": "send", "channel": channel(), "summary": about, "messages": messages });
        operations.insert(name.to_owned(), operation);
    };
    sends("deliver", "Deliveries to the connection's subscriptions.", &["event", "events"]);
    sends("warn", "What the hub says by itself: a token that ran out, a subscription that ended.", &["refused"]);
    operations
}
