//! What routes answer, as data: the schemas of the OpenAPI documents. `e2e/browser/openapi.test.ts` holds the answers of
//! a real hub to them.

use serde_json::{Map, Value, json};

/// Objects by name, each with its fields: `name: kind`, `name?: kind` for what may be left out. Kinds are `text`, `id`,
/// `n` (a whole number), `number`, `flag`, `any`, another object's name, `[kind]` for a list, `{kind}` for an object with
/// any names, and `kind|null`. Nothing else is in them.
const OBJECTS: &[(&str, &str)] = &[
    ("Error", "type: text, title: text, status: n, detail: text, code: text, error: text"),
    ("Status", "status: text"),
    ("OnePublished", "id: id, seq: n, duplicate?: flag"),
    ("ManyPublished", "ids: [id], count: n"),
    ("Consumed", "events: [Delivery], warnings?: [text]"),
    ("Delivery", "event: Event, ctx: Context"),
    ("Context", "attempt: n, maxAttempts: n, ack_deadline_ms: n, lease: n, snapshot?: flag, redriven?: flag"),
    ("Answered", "done: n, lost: [id], unknown: [id]"),
    ("Replay", "topic: text, count: n, events: [Event], next?: id"),
    (
        "Hub",
        "version: text, store: text, startedAt: n, now: n, ws: text, http: text, ops: text, auth: flag, sub?: text, \
         admin: flag, disk?: Disk",
    ),
    ("Disk", "used: n, free?: n"),
    ("Topics", "topics: [Topic], next?: text"),
    (
        "Topic",
        "topic: text, events: n, bytes: n, firstSeq: n, lastSeq: n, lastId?: id, lastTs?: n, publishRate: number, groups: n",
    ),
    (
        "Settings",
        "topic: text, partitions: n, maxAgeMs?: n, maxBytes?: n, maxEvents?: n, maxEventBytes?: n, keyPath?: text, compaction: flag, \
         tombstoneGraceMs?: n, snapshot: flag, snapshotTopic?: text, snapshotIntervalMs?: n, snapshotKeys?: [text]",
    ),
    ("Deleted", "topic: text, events: n, bytes: n, groups: n, dlq?: Deleted, dryRun?: flag"),
    ("Purged", "topic: text, events: n, bytes: n, dryRun?: flag"),
    ("Groups", "groups: [Group], next?: text"),
    (
        "Group",
        "topic: text, group: text, members: n, inflight: n, lag: n, lagMs: n, seq: n, lastId?: id, redelivered: n, \
         deadLettered: n, paused: flag",
    ),
    ("Forgotten", "topic: text, group: text, forgotten: flag"),
    ("Connections", "connections: [Connection], next?: text"),
    ("Connection", "id: text, peer: text, sub?: text, since: n, subscriptions: [Subscription], bufferedBytes: n"),
    ("Subscription", "topic: text, group?: text, inflight: n, maxInFlight: n, paused: flag"),
    ("Cursors", "topic: text, cursors: [GroupCursor]"),
    ("GroupCursor", "group: text, lastId?: id, lastTs?: n, seq: n"),
    ("Cursor", "topic: text, lastId?: id, lastTs?: n, seq: n"),
    ("Place", "seq: n, lastId?: id, lastTs?: n"),
    (
        "Moved",
        "topic: text, group: text, dryRun: flag, before: Place, after: Place, lagBefore: n, lagAfter: n, again: n, \
         skipped: n, new?: flag",
    ),
    ("Lag", "topic: text, group: text, lastCursor: Cursor|null, tail: id|null, lagMs: n|null, lag: n|null"),
    ("KeysPage", "topic: text, at?: n, complete?: flag, entries: {Event}, next?: text"),
    ("DeadTopics", "topics: [DeadTopic]"),
    ("DeadTopic", "topic: text, letters: n, lastTs?: n, groups?: [DeadGroup], foreign?: n, counted?: n"),
    ("DeadGroup", "group: text, letters: n"),
    (
        "DeadLetters",
        "topic: text, letters: n, groups: [DeadGroup], foreign?: n, counted?: n, reasons: [DeadReason], \
         entries: [DeadLetter], next?: id",
    ),
    ("DeadReason", "err: text, group?: text, count: n"),
    (
        "DeadLetter",
        "id: id, seq: n, ts: n, group: text, err: text, attempts: n, redriven: flag, foreign?: flag, original: any",
    ),
    ("Redrive", "redriven: n, remaining: n, gone: n, dryRun?: flag, refused?: n, refusals?: [RefusedLetter]"),
    ("RefusedLetter", "id: id, code: text, error: text"),
    (
        "HubSamples",
        "interval: n, t: [n], published: [n], delivered: [n], acked: [n], redelivered: [n], deadLettered: [n], \
         p50: [number|null], p99: [number|null], lag: [n], inflight: [n], connections: [n], bytes: [n]",
    ),
    ("TopicSamples", "interval: n, topic: text, t: [n], published: [n], bytes: [n]"),
    (
        "GroupSamples",
        "interval: n, topic: text, group: text, t: [n], delivered: [n], acked: [n], lag: [n], inflight: [n]",
    ),
    (
        "InFlight",
        "topic: text, group: text, now: n, total: n, waitingTotal: n, maxAttempts: n, inflight: [Held], waiting: [Waiting]",
    ),
    (
        "Held",
        "id: id, seq: n, key?: text, connection?: text, sub?: text, attempt: n, lease: n|null, since: n|null, \
         deadline: n|null",
    ),
    ("Waiting", "id: id, seq: n, key?: text, attempt: n, until: n|null, reason?: text"),
    ("Explanation", "topic: text, group: text, moving: flag, lag: n, inflight: n, reasons: [Reason]"),
    ("Reason", "code: text, text: text, connection?: text, id?: id, key?: text, until?: n"),
    ("Causality", "id: id, events: [Event], missing: [id], complete: flag"),
];

/// Answers that are no object with fields of their own, or have one of several forms.
const EITHER: &[(&str, &[&str])] = &[
    ("Document", &["{any}"]),
    ("Published", &["OnePublished", "ManyPublished"]),
    ("LatestByKey", &["Event|null", "KeysPage", "{Event|null}"]),
    ("Dead", &["DeadTopics", "DeadLetters"]),
    ("Samples", &["HubSamples", "TopicSamples", "GroupSamples"]),
];

/// The schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let objects = OBJECTS.iter().map(|(name, fields)| ((*name).to_owned(), object(fields)));
    let either = EITHER.iter().map(|(name, forms)| {
        let forms: Vec<Value> = forms.iter().map(|form| kind(form)).collect();
        ((*name).to_owned(), json!({ "anyOf": forms }))
    });
    objects.chain(either).collect()
}

fn object(fields: &str) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, of) in fields.split(", ").filter_map(|field| field.split_once(": ")) {
        match name.strip_suffix('?') {
            Some(name) => drop(properties.insert(name.to_owned(), kind(of))),
            None => {
                properties.insert(name.to_owned(), kind(of));
                required.push(name);
            }
        }
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn kind(text: &str) -> Value {
    let inside = |open: char, close: char| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    if let Some(of) = inside('[', ']') {
        return json!({ "type": "array", "items": kind(of) });
    }
    if let Some(of) = inside('{', '}') {
        return json!({ "type": "object", "additionalProperties": kind(of) });
    }
    if let Some(of) = text.strip_suffix("|null") {
        return json!({ "anyOf": [kind(of), { "type": "null" }] });
    }
    match text {
        "text" => json!({ "type": "string" }),
        "id" => json!({ "type": "string", "format": "uuid" }),
        "n" => json!({ "type": "integer", "minimum": 0 }),
        "number" => json!({ "type": "number" }),
        "flag" => json!({ "type": "boolean" }),
        "any" => json!({}),
        name => json!({ "$ref": format!("#/components/schemas/{name}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Route;

    #[test]
    fn fields_are_read_as_they_are_written() {
        let schema = object("a: text, b?: [n|null], c: {Event}");
        assert_eq!(schema["required"], json!(["a", "c"]));
        assert_eq!(schema["properties"]["b"]["items"]["anyOf"][0]["type"], "integer");
        assert_eq!(schema["properties"]["c"]["additionalProperties"]["$ref"], "#/components/schemas/Event");
        assert_eq!(schema["additionalProperties"], false);
    }

    #[test]
    fn every_name_that_is_used_is_there_and_every_route_of_json_has_one() {
        let document = crate::ops::openapi();
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let text = document.to_string();
        for used in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(schemas.contains_key(used), "{used}");
        }
        for name in schemas.keys() {
            assert!(text.contains(&format!("#/components/schemas/{name}\"")), "{name} is used by nobody");
        }
        let bare = |route: &&Route| route.content == "application/json" && route.schema.is_empty();
        let bare: Vec<_> =
            crate::ops::ROUTES.iter().chain(crate::http::ROUTES).filter(bare).map(|route| route.path).collect();
        assert!(bare.is_empty(), "no schema: {bare:?}");
    }
}
