//! Part 1: events, groups, cursors, state by key.

use promethean_e2e::get;
use serde_json::{Value, json};

use super::*;

#[tokio::test]
async fn an_event_record_has_every_field_that_was_published() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({})).await;
    let opts = json!({"id": UNKNOWN, "ts": 1_731_650_000_000_u64, "key": "k", "headers": {"x-trace": "1"},
        "tags": ["#duck", "#stt"], "caused_by": [UNKNOWN], "sid": "s"});
    wire.ok(json!({"op": "PUBLISH", "topic": "t", "payload": {"a": 1}, "opts": opts})).await;
    let mut event = wire.expect("EVENT").await["event"].take();
    assert!(event["partition"].is_u64(), "{event}");
    event.as_object_mut().expect("an object").remove("partition");
    let mut expected = opts;
    (expected["topic"], expected["payload"], expected["seq"]) = (json!("t"), json!({"a": 1}), json!(1));
    assert_eq!(event, expected);
}

#[tokio::test]
async fn an_id_of_the_hub_is_a_uuid_of_version_7() {
    let (_hub, mut wire) = hub().await;
    let id = publish(&mut wire, "t", json!(1)).await["id"].as_str().expect("an id").to_owned();
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'7'), "{id}");
}

#[tokio::test]
async fn two_events_come_in_order_and_the_cursor_moves() {
    let (hub, mut wire) = hub().await;
    subscribe(&mut wire, "t.a", "g1", json!({"from": "earliest"})).await;
    for text in ["one", "two"] {
        publish(&mut wire, "t.a", json!(text)).await;
    }
    let mut last = Value::Null;
    for text in ["one", "two"] {
        let given = wire.expect("EVENT").await;
        assert_eq!(given["event"]["payload"], text);
        wire.ok(about("ACK", &given)).await;
        last = given["event"].clone();
    }
    let cursors = ops(&hub, "/cursors?topic=t.a").await;
    let expected = json!([{"group": "g1", "lastId": last["id"], "lastTs": last["ts"], "seq": 2}]);
    assert_eq!((&cursors["topic"], &cursors["cursors"]), (&json!("t.a"), &expected));
}

#[tokio::test]
async fn a_nack_is_retried_with_the_next_attempt() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "t.b", "g1", json!({"from": "earliest"})).await;
    publish(&mut wire, "t.b", json!("x")).await;
    let first = wire.expect("EVENT").await;
    let mut nack = about("NACK", &first);
    nack["reason"] = json!("boom");
    wire.ok(nack).await;
    let second = wire.expect("EVENT").await;
    assert_eq!((&first["ctx"]["attempt"], &second["ctx"]["attempt"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn every_start_of_the_documents_begins_where_it_says() {
    let (_hub, mut wire) = hub().await;
    let mut ids = Vec::new();
    for n in 1..=3 {
        let frame = json!({"op": "PUBLISH", "topic": "t", "payload": n, "opts": {"ts": n * 1_000}});
        ids.push(wire.ok(frame).await["id"].clone());
    }
    for (group, opts, first) in [
        ("earliest", json!({"from": "earliest"}), 1),
        ("ts", json!({"from": "ts", "ts": 2_000}), 2),
        ("afterId", json!({"from": "afterId", "afterId": ids[1]}), 3),
        ("latest", json!({}), 4),
    ] {
        subscribe(&mut wire, "t", group, opts).await;
        if first == 4 {
            publish(&mut wire, "t", json!(4)).await;
        }
        let given = loop {
            let given = wire.expect("EVENT").await;
            if given["group"] == group {
                break given;
            }
        };
        assert_eq!(given["event"]["payload"], first, "{group}");
    }
    let opts = json!({"from": "afterId", "afterId": UNKNOWN});
    let refused = wire.call(json!({"op": "SUBSCRIBE", "topic": "t", "group": "x", "opts": opts})).await;
    assert_eq!(refused["code"], "unknown_id");
}

#[tokio::test]
async fn a_subscription_has_the_defaults_of_the_documents() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({})).await;
    publish(&mut wire, "t", json!(1)).await;
    let ctx = wire.expect("EVENT").await["ctx"].take();
    assert_eq!((&ctx["attempt"], &ctx["maxAttempts"]), (&json!(1), &json!(5)));
    assert!((20_000..=30_000).contains(&ctx["ack_deadline_ms"].as_u64().expect("a number")), "{ctx}");
}

#[tokio::test]
async fn max_attempts_end_in_a_dead_letter() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "dlq.t", "letters", json!({})).await;
    subscribe(&mut wire, "t", "g", json!({"maxAttempts": 1})).await;
    publish(&mut wire, "t", json!({"n": 1})).await;
    let given = wire.expect("EVENT").await;
    wire.ok(about("NACK", &given)).await;
    let letter = wire.expect("EVENT").await["event"]["payload"].take();
    assert_eq!((&letter["topic"], &letter["group"], &letter["attempts"]), (&json!("t"), &json!("g"), &json!(1)));
    assert_eq!(letter["original"]["payload"], json!({"n": 1}));
}

#[tokio::test]
async fn several_topics_share_a_subscription() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "a", "g", json!({"topics": ["b.*"]})).await;
    for topic in ["a", "b.c", "d"] {
        publish(&mut wire, topic, json!(topic)).await;
    }
    let mut seen =
        [wire.expect("EVENT").await, wire.expect("EVENT").await].map(|given| given["event"]["topic"].clone());
    seen.sort_by_key(Value::to_string);
    assert_eq!(seen, ["a", "b.c"]);
}

#[tokio::test]
async fn an_event_that_the_filter_drops_is_done() {
    let (hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({"filter": {"tags": ["#duck"]}})).await;
    for (n, tag) in [(1, "#cat"), (2, "#duck")] {
        wire.ok(json!({"op": "PUBLISH", "topic": "t", "payload": n, "opts": {"tags": [tag]}})).await;
    }
    let given = wire.expect("EVENT").await;
    assert_eq!(given["event"]["payload"], 2);
    wire.ok(about("ACK", &given)).await;
    assert_eq!(ops(&hub, "/lag?topic=t&group=g").await["lag"], 0);
}

#[tokio::test]
async fn a_cursor_can_be_set() {
    let (hub, mut wire) = hub().await;
    for n in 1..=3 {
        publish(&mut wire, "t", json!(n)).await;
    }
    put(&hub, "/cursors?topic=t&group=g", &json!({"from": "earliest"})).await;
    assert_eq!(ops(&hub, "/lag?topic=t&group=g").await["lag"], 3);
    put(&hub, "/cursors?topic=t&group=g", &json!({"from": "latest"})).await;
    assert_eq!(ops(&hub, "/lag?topic=t&group=g").await["lag"], 0);
}

#[tokio::test]
async fn latest_by_key_is_the_last_event_of_each_key() {
    let (hub, mut wire) = hub().await;
    for (key, n) in [("a", 1), ("b", 2), ("a", 3)] {
        wire.ok(json!({"op": "PUBLISH", "topic": "kv.set", "payload": n, "opts": {"key": key}})).await;
    }
    assert_eq!(ops(&hub, "/latest-by-key?topic=kv.set&key=a").await["payload"], 3);
    let both = ops(&hub, "/latest-by-key?topic=kv.set&key=a&key=b").await;
    assert_eq!((&both["a"]["payload"], &both["b"]["payload"]), (&json!(3), &json!(2)));
    assert_eq!(ops(&hub, "/latest-by-key?topic=kv.set&key=none").await, Value::Null);
}

#[tokio::test]
async fn topics_take_the_settings_of_the_documents_and_the_compactor_writes_what_changed() {
    let (hub, mut wire) = hub().await;
    let set = put(&hub, "/settings?topic=heartbeat.received", &json!({"retentionDays": 3})).await;
    assert_eq!(set["maxAgeMs"], 3 * 86_400_000);
    let opts =
        json!({"compaction": true, "snapshotTopic": "process.state.snapshot", "intervalMs": 200, "batchKeys": ["k"]});
    let set = put(&hub, "/settings?topic=process.state", &opts).await;
    assert_eq!((&set["compaction"], &set["snapshotKeys"]), (&json!(true), &json!(["k"])));
    subscribe(&mut wire, "process.state.snapshot", "g", json!({})).await;
    for (key, n) in [("other", 1), ("k", 2)] {
        wire.ok(json!({"op": "PUBLISH", "topic": "process.state", "payload": n, "opts": {"key": key}})).await;
    }
    let entry = wire.expect("EVENT").await["event"].take();
    assert_eq!(
        (&entry["key"], &entry["payload"]["key"], &entry["payload"]["payload"]),
        (&json!("k"), &json!("k"), &json!(2))
    );
    assert!(entry["payload"]["ts"].is_u64(), "{entry}");
}

#[tokio::test]
async fn a_snapshot_consumer_warms_up_and_then_gets_what_is_new() {
    let (_hub, mut wire) = hub().await;
    for n in 1..=2 {
        wire.ok(json!({"op": "PUBLISH", "topic": "s", "payload": n, "opts": {"key": "k"}})).await;
    }
    subscribe(&mut wire, "s", "g", json!({"from": "snapshot"})).await;
    let state = wire.expect("EVENT").await;
    assert_eq!((&state["event"]["payload"], &state["ctx"]["snapshot"]), (&json!(2), &json!(true)));
    publish(&mut wire, "s", json!(3)).await;
    let live = wire.expect("EVENT").await;
    assert_eq!((&live["event"]["payload"], live["ctx"].get("snapshot")), (&json!(3), None));
}

#[tokio::test]
async fn the_metrics_have_the_names_and_labels_of_the_documents() {
    let (hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({})).await;
    publish(&mut wire, "t", json!(1)).await;
    let given = wire.expect("EVENT").await;
    wire.ok(about("NACK", &given)).await;
    let again = wire.expect("EVENT").await;
    wire.ok(about("ACK", &again)).await;
    let text = get(hub.ops, "/metrics").await.text();
    let of_group = r#"{topic="t",group="g"} "#;
    for line in [
        "events_published_total{topic=\"t\"} 1".to_owned(),
        format!("events_delivered_total{of_group}2"),
        format!("events_acked_total{of_group}1"),
        format!("events_nacked_total{of_group}1"),
        format!("events_inflight{of_group}0"),
        format!("ws_inflight{of_group}0"),
    ] {
        assert!(text.lines().any(|this| this == line), "{line} in {text}");
    }
    for histogram in ["subscribe_poll_duration_ms", "delivery_handler_duration_ms", "delivery_latency_ms"] {
        for le in ["5.0", "10.0", "25.0", "50.0", "100.0", "250.0", "500.0", "1000.0"] {
            let bucket = format!("{histogram}_bucket{{le=\"{le}\",topic=\"t\",group=\"g\"}}");
            assert!(text.contains(&bucket), "{bucket} in {text}");
        }
    }
}
