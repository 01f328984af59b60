//! Replay, export, Server-Sent Events, health and the OpenAPI document over a real port.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Served, Setup, jwt, patient, token};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use promethean_event::{Draft, Millis, PublishOptions, Topic};
use promethean_gateway::EdgeConfig;
use promethean_gateway::http::router;
use serde_json::value::RawValue;
use serde_json::{Value, json};

async fn open_hub() -> Served {
    Setup::default().start(router).await
}

fn ids(events: &Value) -> Vec<&str> {
    events.as_array().expect("a list").iter().map(|event| event["id"].as_str().expect("an id")).collect()
}

async fn publish(hub: &Served, topic: &str, payload: &str, options: PublishOptions<'_>) -> String {
    let payload = std::borrow::Cow::Owned(RawValue::from_string(payload.to_owned()).expect("JSON"));
    let draft = Draft { topic: Topic::parse(topic).expect("a topic"), payload, options };
    hub.hub.bus.publish(&draft).await.expect("published").id.to_string()
}

async fn at(hub: &Served, topic: &str, ts: u64) -> String {
    publish(hub, topic, "1", PublishOptions { ts: Some(Millis(ts)), ..PublishOptions::default() }).await
}

#[tokio::test]
async fn replay_goes_page_by_page_until_there_is_no_next() {
    let hub = open_hub().await;
    let published = hub.fill("a", 25).await;
    let (mut path, mut seen, mut pages) = ("/replay?topic=a&limit=10".to_owned(), Vec::new(), 0);
    loop {
        let page = hub.get(&path).await.ok();
        assert_eq!((&page["topic"], &page["count"]), (&json!("a"), &json!(ids(&page["events"]).len())));
        seen.extend(ids(&page["events"]).into_iter().map(str::to_owned));
        pages += 1;
        match page.get("next") {
            Some(next) => {
                path = format!("/replay?topic=a&limit=10&from=afterId&afterId={}", next.as_str().expect("an id"))
            }
            None => break,
        }
    }
    assert_eq!((seen, pages), (published, 3));
    let exact = hub.get("/replay?topic=a&limit=25").await.ok();
    assert_eq!((&exact["count"], exact.get("next")), (&json!(25), None), "the last page says that it is");
}

#[tokio::test]
async fn replay_starts_where_it_is_told_to() {
    let hub = open_hub().await;
    let all = [at(&hub, "a", 10).await, at(&hub, "a", 20).await, at(&hub, "a", 5).await, at(&hub, "a", 30).await];
    for (query, first) in [
        ("", 0),
        ("&from=earliest", 0),
        ("&from=ts&ts=11", 1),
        ("&ts=20", 1),
        ("&from=ts&ts=25", 3),
        ("&from=ts&ts=31", 4),
        ("&from=latest", 4),
    ] {
        let page = hub.get(&format!("/replay?topic=a{query}")).await.ok();
        assert_eq!(ids(&page["events"]), all[first..], "{query}");
    }
    let after = hub.get(&format!("/replay?topic=a&afterId={}", all[2].to_uppercase())).await.ok();
    assert_eq!(ids(&after["events"]), all[3..]);
    assert_eq!(hub.get("/replay?topic=unknown").await.ok(), json!({ "topic": "unknown", "count": 0, "events": [] }));
}

#[tokio::test]
async fn a_page_of_large_events_is_cut_at_the_frame_limit() {
    let edge = EdgeConfig { max_frame_bytes: 10_000, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    let payload = format!("\"{}\"", "x".repeat(4_000));
    for _ in 0..5 {
        publish(&hub, "a", &payload, PublishOptions::default()).await;
    }
    let mut count = 0;
    let mut path = "/replay?topic=a".to_owned();
    for _ in 0..5 {
        let answer = hub.get(&path).await;
        assert!(answer.body.len() < 20_000, "{} bytes", answer.body.len());
        let page = answer.ok();
        count += page["count"].as_u64().expect("a number");
        match page.get("next") {
            Some(next) => path = format!("/replay?topic=a&afterId={}", next.as_str().expect("an id")),
            None => break,
        }
    }
    assert_eq!(count, 5);
}

#[tokio::test]
async fn bad_parameters_are_refused() {
    let hub = open_hub().await;
    hub.fill("a", 1).await;
    let unknown = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    for (path, status, code) in [
        ("/replay", 400, "bad_request"),
        ("/replay?topic=", 400, "bad_request"),
        ("/replay?topic=a..b", 400, "bad_topic"),
        ("/replay?topic=a.*", 400, "bad_topic"),
        ("/replay?topic=a&from=sometime", 400, "bad_request"),
        ("/replay?topic=a&from=snapshot", 400, "bad_request"),
        ("/replay?topic=a&from=ts", 400, "bad_request"),
        ("/replay?topic=a&from=afterId", 400, "bad_request"),
        ("/replay?topic=a&from=afterId&afterId=7", 400, "bad_id"),
        (&format!("/replay?topic=a&afterId={unknown}"), 404, "unknown_id"),
        ("/replay?topic=a&limit=0", 400, "bad_request"),
        ("/replay?topic=a&limit=10001", 400, "bad_request"),
        ("/replay?topic=a&limit=many", 400, "bad_request"),
        ("/export", 400, "bad_request"),
        ("/export?topic=a%20b", 400, "bad_topic"),
        ("/export?topic=a&fromTs=x", 400, "bad_request"),
        ("/export?topic=a&toTs=1.5", 400, "bad_request"),
        ("/export?topic=a&ndjson=2", 400, "bad_request"),
        ("/events/a..b", 400, "bad_topic"),
        ("/events/a*", 400, "bad_topic"),
        ("/events/a?from=nowhere", 400, "bad_request"),
        (&format!("/events/a?from=afterId&afterId={unknown}"), 404, "unknown_id"),
    ] {
        hub.get(path).await.refused(status, code);
    }
    assert_eq!(hub.get("/replay").await.refused(400, "bad_request"), "topic required");
    // The words that this route takes, and no others.
    for (path, words) in [
        ("/replay?topic=a&from=sometime", "earliest, latest, ts, afterId or seq"),
        ("/replay?topic=a&from=snapshot", "earliest, latest, ts, afterId or seq"),
        ("/events/a?from=sometime", "earliest, latest, ts, afterId or snapshot"),
        ("/events/a?from=seq", "earliest, latest, ts, afterId or snapshot"),
    ] {
        let said = hub.get(path).await.json();
        assert_eq!(said["error"], format!("from: must be {words}"), "{path}");
    }
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_have_codes_of_their_own() {
    let hub = open_hub().await;
    hub.get("/nowhere").await.refused(404, "not_found");
    hub.get("/publish").await.refused(404, "not_found");
    let wrong = hub.get("/publish/a").await;
    wrong.refused(405, "method_not_allowed");
    assert_eq!(wrong.header("allow"), "POST");
    hub.post("/replay?topic=a", "").await.refused(405, "method_not_allowed");
    let wrong = hub.send(Method::DELETE, "/events/a", &[], "").await;
    wrong.refused(405, "method_not_allowed");
    assert_eq!(wrong.header("allow"), "GET,HEAD");
}

#[tokio::test]
async fn an_unknown_parameter_is_refused_by_its_name() {
    let hub = open_hub().await;
    for (path, message) in [
        ("/replay?topic=a&limitt=1", "limitt: not a parameter of GET /replay; did you mean limit?"),
        ("/replay?topic=a&after_id=x", "after_id: not a parameter of GET /replay; did you mean afterId?"),
        ("/events/a?zzz", "zzz: not a parameter of GET /events/{topic}"),
        ("/healthz?deep=1", "deep: not a parameter of GET /healthz"),
    ] {
        assert_eq!(hub.get(path).await.refused(400, "bad_request"), message, "{path}");
    }
    let refused = hub.post("/publish/a?keys=x", "1").await.refused(400, "bad_request");
    assert_eq!(refused, "keys: not a parameter of POST /publish/{topic}; did you mean key?");
    assert_eq!(hub.get("/replay?topic=a").await.ok()["count"], 0, "nothing was stored");
    hub.post("/ack/a/g", r#"{"idz": []}"#).await.refused(400, "bad_request");
}

#[tokio::test]
async fn reading_needs_subscribe_on_the_topic() {
    let hub = Setup::with_jwt().start(router).await;
    let (reader, writer) = (token(&["subscribe:a.*"]), token(&["publish:**"]));
    for path in ["/replay?topic=a.b", "/export?topic=a.b", "/events/a.b"] {
        hub.get(path).await.refused(401, "no_token");
        hub.get_as(&writer, path).await.refused(403, "forbidden");
        hub.get_as(&reader, &path.replace("a.b", "secret")).await.refused(403, "forbidden");
        hub.get_as(&reader, &path.replace("a.b", "dlq.a.b")).await.refused(403, "forbidden");
    }
    hub.get_as(&reader, "/replay?topic=a.b").await.ok();
    assert_eq!(hub.get_as(&reader, "/export?topic=a.b").await.status, 200);
    for path in ["/healthz", "/readyz", "/openapi.json", "/asyncapi.json"] {
        hub.get(path).await.ok();
    }
}

#[tokio::test]
async fn an_export_is_one_event_a_line_with_payloads_on_one_line() {
    let hub = open_hub().await;
    publish(&hub, "a", "{\n \"a\":\r\n [1,\t2],\"b\":\"x\\ny\"}", PublishOptions::default()).await;
    publish(&hub, "a", "2", PublishOptions::default()).await;
    let answer = hub.get("/export?topic=a").await;
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    let lines: Vec<&str> = answer.text().lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].ends_with("\"payload\":{ \"a\": [1,\t2],\"b\":\"x\\ny\"}}"), "{}", lines[0]);
    assert_eq!(hub.get("/export?topic=a&ndjson=1").await.body, answer.body);

    let array = hub.get("/export?topic=a&ndjson=0").await;
    assert_eq!(array.header("content-type"), "application/json");
    assert_eq!(
        array.ok(),
        json!(lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>())
    );
    assert!(array.text().contains("{\n \"a\":\r\n [1,\t2]"), "bytes are kept where they may be");
    assert_eq!(hub.get("/export?topic=none&ndjson=0").await.ok(), json!([]));
    assert_eq!(hub.get("/export?topic=none").await.text(), "");
}

#[tokio::test]
async fn an_export_finds_times_whatever_their_order_and_to_is_inclusive() {
    let hub = open_hub().await;
    for ts in [10, 30, 20, 5, 40, 15] {
        at(&hub, "a", ts).await;
    }
    for (query, expected) in [
        ("", vec![10, 30, 20, 5, 40, 15]),
        ("&fromTs=15", vec![30, 20, 40, 15]),
        ("&toTs=20", vec![10, 20, 5, 15]),
        ("&fromTs=15&toTs=30", vec![30, 20, 15]),
        ("&fromTs=41", vec![]),
    ] {
        let events = hub.get(&format!("/export?topic=a&ndjson=0{query}")).await.ok();
        let times: Vec<u64> =
            events.as_array().expect("a list").iter().filter_map(|event| event["ts"].as_u64()).collect();
        assert_eq!(times, expected, "{query}");
    }
}

#[tokio::test]
async fn an_export_ends_where_the_topic_ended_when_it_began() {
    let hub = open_hub().await;
    hub.fill("a", 3_000).await;
    let mut answer = hub.open(Method::GET, "/export?topic=a", &[], "").await;
    hub.fill("a", 50).await;
    let body = patient("the export", answer.body_mut().collect()).await.expect("a body").to_bytes();
    assert_eq!(body.iter().filter(|byte| **byte == b'\n').count(), 3_000);
}

/// Reads a stream of events piece by piece.
struct Sse {
    body: Incoming,
    text: String,
}

impl Sse {
    async fn open(hub: &Served, path: &str, headers: &[(&str, &str)]) -> Self {
        let answer = hub.open(Method::GET, path, headers, Bytes::new()).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut sse = Self { body: answer.into_body(), text: String::new() };
        let first = sse.block().await.expect("a beginning");
        assert!(first.starts_with("retry: "), "{first}");
        sse
    }

    /// The next block; none at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let rest = self.text.split_off(end + 2);
                return Some(std::mem::replace(&mut self.text, rest));
            }
            let frame = patient("a piece of the stream", self.body.frame()).await?;
            let data = frame.expect("no error").into_data().expect("data");
            self.text.push_str(std::str::from_utf8(&data).expect("text"));
        }
    }

    /// The next event: its `id` field and its JSON.
    async fn event(&mut self) -> (Option<String>, Value) {
        let block = loop {
            let block = self.block().await.expect("the stream goes on");
            // As a browser does: nothing without data.
            if block.contains("data: ") {
                break block;
            }
        };
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let data: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        (field("id: "), serde_json::from_str(&data.join("\n")).expect("JSON"))
    }
}

#[tokio::test]
async fn the_live_tail_begins_now_and_has_an_event_a_block() {
    let hub = open_hub().await;
    hub.fill("a", 3).await;
    let mut sse = Sse::open(&hub, "/events/a", &[]).await;
    let id =
        publish(&hub, "a", "{\"a\":\n1}", PublishOptions { key: Some("k".into()), ..PublishOptions::default() }).await;
    let (field, event) = sse.event().await;
    assert_eq!((field.as_deref(), event["id"].as_str()), (Some(id.as_str()), Some(id.as_str())));
    assert_eq!((&event["seq"], &event["key"], &event["payload"]), (&json!(4), &json!("k"), &json!({ "a": 1 })));
}

#[tokio::test]
async fn line_breaks_of_a_payload_are_lines_of_data() {
    let hub = open_hub().await;
    let mut sse = Sse::open(&hub, "/events/a", &[]).await;
    for payload in ["{\n \"a\":\r\n [1,\r2],\n\r\n\"b\":\"x\\ny\"}", "[\r\r\n]", "1"] {
        publish(&hub, "a", payload, PublishOptions::default()).await;
        let block = sse.block().await.expect("an event");
        assert!(!block.contains('\r'), "{block:?}");
        let lines = block.strip_suffix("\n\n").expect("an empty line at the end").lines().skip(1);
        let data: Vec<&str> = lines.map(|line| line.strip_prefix("data: ").expect("data")).collect();
        let expected = payload.replace("\r\n", "\n").replace('\r', "\n");
        let text = data.join("\n");
        assert!(text.ends_with(&format!("\"payload\":{expected}}}")), "{text:?}");
    }
}

#[tokio::test]
async fn last_event_id_resumes_without_a_gap_or_a_duplicate() {
    let hub = open_hub().await;
    let published = hub.fill("a", 5).await;
    let mut sse = Sse::open(&hub, "/events/a?from=earliest", &[("last-event-id", &published[1])]).await;
    let live = hub.fill("a", 1).await;
    for expected in published[2..].iter().chain(&live) {
        assert_eq!(sse.event().await.0.as_ref(), Some(expected));
    }
}

/// The first event of the stream may be of a topic that is at its end, while another one is far behind.
#[tokio::test]
async fn last_event_id_of_a_pattern_skips_nothing_on_any_topic() {
    let hub = open_hub().await;
    hub.fill("w.b", 200).await;
    let mut sse = Sse::open(&hub, "/events/w.*?from=earliest", &[]).await;
    let (first, _) = sse.event().await;
    let late = at(&hub, "w.a", 10).await;
    drop(sse);
    let place = first.expect("an id");
    let mut sse = Sse::open(&hub, "/events/w.*", &[("last-event-id", &place)]).await;
    let mut seen = Vec::new();
    for _ in 0..200 {
        seen.push(sse.event().await.1);
    }
    let of = |topic: &str| seen.iter().filter(|event| event["topic"] == topic).count();
    assert_eq!((of("w.a"), of("w.b")), (1, 199));
    assert!(seen.iter().any(|event| event["id"] == late.as_str()));
}

#[tokio::test]
async fn an_unknown_last_event_id_starts_at_the_live_end_and_says_so() {
    let hub = open_hub().await;
    hub.fill("a", 5).await;
    for unknown in ["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d", "17"] {
        let mut sse = Sse::open(&hub, "/events/a", &[("last-event-id", unknown)]).await;
        let comment = sse.block().await.expect("a comment");
        assert!(comment.starts_with(": ") && comment.contains("Last-Event-ID"), "{comment}");
        let live = hub.fill("a", 1).await;
        assert_eq!(sse.event().await.0.as_ref(), Some(&live[0]));
    }
}

/// The event it was at may have been compacted away: the state is whole again, where the live end would have a gap.
#[tokio::test]
async fn a_snapshot_begins_again_after_an_unknown_last_event_id() {
    let hub = open_hub().await;
    let keyed = |key: &'static str| PublishOptions { key: Some(key.into()), ..PublishOptions::default() };
    for (key, payload) in [("a", "1"), ("b", "1"), ("a", "2"), ("b", "null")] {
        publish(&hub, "s", payload, keyed(key)).await;
    }
    let unknown = [("last-event-id", "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d")];
    let mut sse = Sse::open(&hub, "/events/s?from=snapshot", &unknown).await;
    let comment = sse.block().await.expect("a comment");
    assert!(comment.contains("the snapshot begins again"), "{comment}");
    let (_, event) = sse.event().await;
    assert_eq!((&event["key"], &event["payload"]), (&json!("a"), &json!(2)));
    let live = publish(&hub, "s", "3", keyed("b")).await;
    assert_eq!(sse.event().await.0, Some(live));
}

#[tokio::test]
async fn the_tail_starts_where_the_query_says() {
    let hub = open_hub().await;
    let all = [at(&hub, "a", 10).await, at(&hub, "a", 20).await, at(&hub, "a", 30).await];
    for (query, first) in [
        ("from=earliest".to_owned(), 0),
        ("from=ts&ts=15".to_owned(), 1),
        (format!("from=afterId&afterId={}", all[1]), 2),
    ] {
        let mut sse = Sse::open(&hub, &format!("/events/a?{query}"), &[]).await;
        for expected in &all[first..] {
            assert_eq!(sse.event().await.0.as_ref(), Some(expected), "{query}");
        }
    }
}

#[tokio::test]
async fn a_snapshot_start_has_every_live_key_and_then_what_comes() {
    let hub = open_hub().await;
    let keyed = |key: &'static str| PublishOptions { key: Some(key.into()), ..PublishOptions::default() };
    for (key, payload) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", "null")] {
        publish(&hub, "s", payload, keyed(key)).await;
    }
    let mut sse = Sse::open(&hub, "/events/s?from=snapshot", &[]).await;
    let live = publish(&hub, "s", "3", keyed("a")).await;
    for (key, payload) in [("a", 2), ("b", 1)] {
        let (id, event) = sse.event().await;
        assert_eq!((&event["key"], &event["payload"]), (&json!(key), &json!(payload)));
        assert_eq!(id, None, "a reconnect begins the snapshot again");
    }
    assert_eq!(sse.event().await.0, Some(live));
}

/// What a browser sends as `Last-Event-ID` after a whole snapshot leads to every change since, deletions too.
#[tokio::test]
async fn a_whole_snapshot_is_gone_on_after_and_one_that_begins_says_so() {
    let hub = open_hub().await;
    let keyed = |key: &'static str| PublishOptions { key: Some(key.into()), ..PublishOptions::default() };
    for (key, payload) in [("a", "1"), ("b", "1")] {
        publish(&hub, "s", payload, keyed(key)).await;
    }
    let cut = publish(&hub, "s", "null", keyed("c")).await;
    let mut sse = Sse::open(&hub, "/events/s?from=snapshot", &[]).await;
    assert_eq!(sse.block().await.as_deref(), Some(": a snapshot begins\n\n"));
    for key in ["a", "b"] {
        assert_eq!(sse.event().await.1["key"], key);
    }
    assert_eq!(sse.block().await, Some(format!("id: {cut}\n\n")));
    drop(sse);
    let gone = publish(&hub, "s", "null", keyed("b")).await;
    let mut again = Sse::open(&hub, "/events/s?from=snapshot", &[("last-event-id", &cut)]).await;
    let block = again.block().await.expect("an event");
    assert!(block.starts_with(&format!("id: {gone}\n")), "no snapshot again: {block}");

    // One id cannot stand for several topics, some of which may be in their snapshot.
    let mut pattern = Sse::open(&hub, "/events/*?from=snapshot", &[]).await;
    assert_eq!(pattern.event().await.1["key"], "a");
    publish(&hub, "s", "2", keyed("a")).await;
    let (id, event) = pattern.event().await;
    assert_eq!((id, &event["payload"]), (None, &json!(2)));
}

#[tokio::test]
async fn a_pattern_is_tailed_over_the_topics_that_the_policy_allows() {
    let hub = Setup::with_jwt().start(router).await;
    let bearer = format!("Bearer {}", token(&["subscribe:a.b", "subscribe:a.c"]));
    let mut sse = Sse::open(&hub, "/events/a.*", &[("authorization", &bearer)]).await;
    for topic in ["a.secret", "a.b", "a.secret", "a.c"] {
        hub.fill(topic, 1).await;
    }
    let mut topics = vec![sse.event().await.1["topic"].clone(), sse.event().await.1["topic"].clone()];
    topics.sort_by_key(ToString::to_string);
    assert_eq!(topics, ["a.b", "a.c"]);
}

#[tokio::test]
async fn a_quiet_tail_is_kept_alive_by_comments() {
    let edge = EdgeConfig { ping_every: Duration::from_millis(50), ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    let mut sse = Sse::open(&hub, "/events/a", &[]).await;
    for _ in 0..3 {
        assert_eq!(sse.block().await.as_deref(), Some(": keep-alive\n\n"));
    }
    let live = hub.fill("a", 1).await;
    assert_eq!(sse.event().await.0.as_ref(), Some(&live[0]));
}

#[tokio::test]
async fn a_tail_ends_with_its_token() {
    let hub = Setup::with_jwt().start(router).await;
    // Within the leeway: good for one or two seconds more.
    let claims = json!({ "exp": Millis::now().0 / 1000 - 3, "scopes": ["subscribe:**"] });
    let bearer = format!("Bearer {}", jwt(&claims));
    let mut sse = Sse::open(&hub, "/events/a", &[("authorization", &bearer)]).await;
    let last = sse.block().await.expect("last words");
    assert!(last.starts_with(": token_expired"), "{last}");
    assert_eq!(sse.block().await, None);
}

#[tokio::test]
async fn the_drain_ends_tails_and_refuses_requests() {
    let hub = open_hub().await;
    let mut sse = Sse::open(&hub, "/events/a", &[]).await;
    let mut kept = hub.connect().await;
    let ready = crate::harness::request(Method::GET, "/readyz", &[], "");
    assert_eq!(kept.send_request(ready).await.expect("an answer").status(), 200);
    let drained = {
        let drain = hub.hub.drain.clone();
        hub.hub.drain.begin();
        tokio::spawn(async move { drain.drained().await })
    };
    let last = sse.block().await.expect("last words");
    assert!(last.starts_with(": shutting_down"), "{last}");
    assert_eq!(sse.block().await, None);
    drop(kept);
    patient("the drain", drained).await.expect("drained");
}

#[tokio::test]
async fn the_drain_ends_a_tail_that_still_has_much_to_send() {
    const EVENTS: usize = 2_000;
    let hub = open_hub().await;
    let payload = format!("\"{}\"", "x".repeat(20_000));
    for _ in 0..EVENTS {
        publish(&hub, "a", &payload, PublishOptions::default()).await;
    }
    let mut sse = Sse::open(&hub, "/events/a?from=earliest", &[]).await;
    hub.hub.drain.begin();
    let (mut sent, mut last) = (0, String::new());
    while let Some(block) = sse.block().await {
        sent += usize::from(block.contains("data: "));
        last = block;
    }
    assert!(last.starts_with(": shutting_down"), "{} events, then {:.80}", sent, last);
    assert!(sent < EVENTS, "it was all sent first");
}

#[tokio::test]
async fn a_tail_whose_client_has_gone_is_gone_too() {
    let edge = EdgeConfig { ping_every: Duration::from_millis(20), ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    let sse = Sse::open(&hub, "/events/a", &[]).await;
    assert!(Arc::strong_count(&hub.hub) > 2);
    let with_tail = Arc::strong_count(&hub.hub);
    drop(sse);
    patient("the tail to end", async {
        while Arc::strong_count(&hub.hub) >= with_tail {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn readiness_says_why_not() {
    let hub = open_hub().await;
    assert_eq!(hub.get("/healthz").await.ok(), json!({ "status": "ok" }));
    assert_eq!(hub.get("/readyz").await.ok(), json!({ "status": "ready" }));
    hub.hub.bus.store().close().await.expect("closed");
    let message = hub.get("/readyz").await.refused(503, "publish_failed");
    assert!(message.contains("store"), "{message}");
    hub.get("/healthz").await.ok();

    let mut setup = Setup::default();
    // Nobody listens on the discard port of loopback.
    setup.auth.jwks_url = Some("http://127.0.0.1:9/keys".to_owned());
    let hub = setup.start(router).await;
    hub.get("/readyz").await.refused(503, "jwt_invalid");
}

#[tokio::test]
async fn the_openapi_document_has_every_route_and_every_route_answers() {
    let hub = open_hub().await;
    hub.fill("t", 1).await;
    let document = hub.get("/openapi.json").await.ok();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    let mut listed: Vec<&str> = paths.keys().map(String::as_str).collect();
    listed.sort_unstable();
    let contract = [
        "/ack/{topic}/{group}",
        "/asyncapi.json",
        "/consume/{topic}/{group}",
        "/events/{topic}",
        "/export",
        "/extend/{topic}/{group}",
        "/healthz",
        "/nack/{topic}/{group}",
        "/openapi.json",
        "/publish/{topic}",
        "/readyz",
        "/replay",
    ];
    assert_eq!(listed, contract);
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            let method: Method = method.to_uppercase().parse().expect("a method");
            let body = match path.split('/').nth(1) {
                Some("consume") => "{}",
                Some("ack" | "nack" | "extend") => r#"{"ids":["0199d1c0-0000-7000-8000-000000000000"]}"#,
                _ => "1",
            };
            let query = if matches!(&**path, "/replay" | "/export") { "?topic=t" } else { "" };
            let path = format!("{}{query}", path.replace("{topic}", "t").replace("{group}", "g"));
            let answer = hub.open(method, &path, &[], body).await;
            assert_eq!(answer.status(), 200, "{path}");
            let content = answer.headers()["content-type"].to_str().expect("text").to_owned();
            assert!(operation["responses"]["200"]["content"].get(&content).is_some(), "{path}: {content}");
            for parameter in operation["parameters"].as_array().expect("a list") {
                assert!(parameter["name"].is_string() && parameter["in"].is_string(), "{parameter}");
            }
        }
    }
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(document["components"]["schemas"].get(name).is_some(), "{name} is referred to and not there");
    }
}

#[tokio::test]
async fn replay_and_export_go_by_seq_too() {
    let hub = open_hub().await;
    let published = hub.fill("a", 10).await;
    let page = hub.get("/replay?topic=a&from=seq&seq=8").await.ok();
    assert_eq!(ids(&page["events"]), published[7..]);
    assert_eq!(hub.get("/replay?topic=a&from=seq&seq=99").await.ok()["count"], 0);
    assert_eq!(hub.get("/replay?topic=a&from=seq").await.refused(400, "bad_request"), "seq required");

    for (range, expected) in [
        ("", 0..10),
        ("&fromSeq=3", 2..10),
        ("&fromSeq=3&toSeq=5", 2..5),
        ("&toSeq=99", 0..10),
        ("&fromSeq=11", 10..10),
        (&format!("&afterId={}&toSeq=9", published[5]), 6..9),
    ] {
        let answer = hub.get(&format!("/export?topic=a{range}")).await;
        let lines: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(ids(&json!(lines)), published[expected.clone()], "{range}");
        if !expected.is_empty() {
            assert_eq!(answer.header("x-promethean-first-seq"), (expected.start + 1).to_string(), "{range}");
            assert_eq!(answer.header("x-promethean-last-seq"), expected.end.to_string(), "{range}");
        }
    }
    let unknown = "/export?topic=a&afterId=0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    hub.get(unknown).await.refused(404, "unknown_id");
}

#[tokio::test]
async fn an_exact_export_loses_no_line_break_of_a_payload() {
    let hub = open_hub().await;
    let payloads = ["{\n  \"a\": 1,\r\n\t\"b\\n\": [ ]\n}", r#"{"a" : 1}"#];
    for payload in payloads {
        publish(&hub, "a", payload, PublishOptions::default()).await;
    }
    let plain = hub.get("/export?topic=a").await;
    assert!(!plain.text().contains("payloadText"));
    let exact = hub.get("/export?topic=a&exact=1").await;
    let lines: Vec<Value> = exact.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines.len(), &lines[0]["payload"]), (2, &json!({ "a": 1, "b\n": [] })));
    assert_eq!((lines[0]["payloadText"].as_str(), lines[1].get("payloadText")), (Some(payloads[0]), None));
}
