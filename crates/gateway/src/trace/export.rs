//! Spans as OTLP JSON.

use std::time::SystemTime;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Operation, Span};

/// The body of a request with these spans.
pub(super) fn json(spans: &[Span]) -> Bytes {
    let service = [attribute("service.name", json!({ "stringValue": "promethean" }))];
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": service },
        "scopeSpans": [{
            "scope": { "name": "promethean", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }] });
    Bytes::from(body.to_string())
}

fn span(span: &Span) -> Value {
    let (name, kind, operation) = match span.operation {
        Operation::Publish => ("publish", PRODUCER, "send"),
        Operation::Deliver => ("deliver", CONSUMER, "receive"),
        Operation::Ack => ("ack", CONSUMER, "settle"),
        Operation::Nack => ("nack", CONSUMER, "settle"),
    };
    let text = |value: &str| json!({ "stringValue": value });
    // Numbers of 64 bits are text in OTLP's JSON.
    let number = |value: u64| json!({ "intValue": value.to_string() });
    let mut attributes = vec![
        attribute("messaging.system", text("promethean")),
        attribute("messaging.operation.name", text(name)),
        attribute("messaging.operation.type", text(operation)),
        attribute("messaging.destination.name", text(span.topic.as_str())),
    ];
    let more = [
        span.id.map(|id| attribute("messaging.message.id", text(&id.to_string()))),
        span.group.as_ref().map(|group| attribute("messaging.consumer.group.name", text(group.as_str()))),
        span.seq.map(|seq| attribute("promethean.seq", number(seq))),
        span.attempt.map(|attempt| attribute("promethean.attempt", number(attempt.into()))),
        span.failed.map(|code| attribute("error.type", text(code.as_str()))),
    ];
    attributes.extend(more.into_iter().flatten());
    let status = match span.failed {
        Some(code) => json!({ "code": 2, "message": code.as_str() }),
        None => json!({}),
    };
    json!({
        "traceId": hex(&span.at.trace),
        "spanId": hex(&span.at.span),
        "parentSpanId": hex(&span.parent),
        "name": format!("{name} {}", span.topic),
        "kind": kind,
        "startTimeUnixNano": nanos(span.start),
        "endTimeUnixNano": nanos(span.end),
        "attributes": attributes,
        "status": status,
    })
}

const PRODUCER: u8 = 4;
const CONSUMER: u8 = 5;

fn attribute(key: &str, value: Value) -> Value {
    json!({ "key": key, "value": value })
}

fn nanos(at: SystemTime) -> String {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
