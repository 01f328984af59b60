//! Part 2: frames, leases, the HTTP publisher, the smoke test.

use std::time::Duration;

use promethean_testmongo::Scratch;

use super::*;

#[tokio::test]
async fn a_connection_begins_with_auth() {
    let hub = Setup::memory().env("WS_TOKEN", "devtoken").start();
    let mut wire = Wire::connect(hub.ws).await;
    let publish = json!({"op": "PUBLISH", "topic": "t", "payload": 1});
    assert_eq!(wire.call(publish.clone()).await["code"], "unauthorized");
    let refused = wire.call(json!({"op": "AUTH", "token": "wrong"})).await;
    assert!(refused["code"] == "bad_token" && refused["msg"].is_string() && refused["corr"].is_u64(), "{refused}");
    wire.ok(json!({"op": "AUTH", "token": "devtoken"})).await;
    assert!(wire.ok(publish).await["id"].is_string());
}

#[tokio::test]
async fn a_delivery_has_the_shape_of_the_documents() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({})).await;
    publish(&mut wire, "t", json!(1)).await;
    let given = wire.expect("EVENT").await;
    assert_eq!((&given["topic"], &given["group"], &given["event"]["payload"]), (&json!("t"), &json!("g"), &json!(1)));
    assert!(given["ctx"]["attempt"].is_u64() && given["ctx"]["ack_deadline_ms"].is_u64(), "{given}");
}

#[tokio::test]
async fn errors_have_the_codes_of_the_documents() {
    let (_hub, mut wire) = hub().await;
    wire.send(&json!("no object")).await.expect("sent");
    assert_eq!(wire.expect("ERR").await["code"], "bad_json");
    let subscribe = json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"});
    wire.ok(subscribe.clone()).await;
    assert_eq!(wire.call(subscribe).await["code"], "already_subscribed");
    let none = json!({"op": "ACK", "topic": "t", "group": "none", "id": UNKNOWN});
    assert_eq!(wire.call(none).await["code"], "not_subscribed");
    let modack = json!({"op": "MODACK", "topic": "t", "group": "g", "id": UNKNOWN, "extend_ms": 5_000});
    assert_eq!(wire.call(modack).await["code"], "unknown_id");
    for op in ["ACK", "NACK"] {
        wire.ok(json!({"op": op, "topic": "t", "group": "g", "id": UNKNOWN})).await;
    }
    wire.ok(json!({"op": "UNSUBSCRIBE", "topic": "t", "group": "g"})).await;
}

#[tokio::test]
async fn an_ack_of_a_finished_event_is_ok() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({})).await;
    publish(&mut wire, "t", json!(1)).await;
    let given = wire.expect("EVENT").await;
    for op in ["ACK", "ACK", "NACK"] {
        wire.ok(about(op, &given)).await;
    }
    assert!(wire.is_quiet(Duration::from_millis(200)).await);
}

#[tokio::test]
async fn an_expired_lease_is_redelivered_and_modack_keeps_it() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({"ackTimeoutMs": 300})).await;
    publish(&mut wire, "t", json!(1)).await;
    let given = wire.expect("EVENT").await;
    let mut modack = about("MODACK", &given);
    modack["extend_ms"] = json!(1);
    wire.ok(modack).await;
    assert!(wire.is_quiet(Duration::from_millis(600)).await, "at least a second");
    assert_eq!(wire.expect("EVENT").await["ctx"]["attempt"], 2);
    // Without a time: the lease of the subscription.
    wire.ok(about("MODACK", &given)).await;
}

#[tokio::test]
async fn over_the_limit_events_wait_and_none_is_lost() {
    let (_hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({"maxInFlight": 5})).await;
    let events: Vec<Value> = (0..20).map(|n| json!({"payload": n})).collect();
    wire.ok(json!({"op": "PUBLISH", "topic": "t", "events": events})).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(wire.expect("EVENT").await);
    }
    assert!(wire.is_quiet(Duration::from_millis(200)).await, "five of twenty");
    for n in 0..20 {
        let given = held.remove(0);
        assert_eq!(given["event"]["payload"], n, "in order, each once");
        wire.ok(about("ACK", &given)).await;
        if n < 15 {
            held.push(wire.expect("EVENT").await);
        }
    }
}

#[tokio::test]
async fn events_of_a_closed_connection_go_to_the_others() {
    let (hub, mut one) = hub().await;
    subscribe(&mut one, "t", "g", json!({})).await;
    publish(&mut one, "t", json!(1)).await;
    one.expect("EVENT").await;
    let mut other = Wire::connect(hub.ws).await;
    subscribe(&mut other, "t", "g", json!({})).await;
    drop(one);
    let given = other.expect("EVENT").await;
    assert_eq!((&given["event"]["payload"], &given["ctx"]["attempt"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn the_http_publisher_answers_with_the_id_and_keeps_no_secrets() {
    let (hub, mut wire) = hub().await;
    subscribe(&mut wire, "t", "g", json!({})).await;
    let headers =
        [("content-type", "application/json"), ("x-trace", "1"), ("cookie", "secret"), ("authorization", "Bearer x")];
    let answer = request(hub.http, "POST", "/publish/t", &headers, b"{\"a\": 1}").await;
    let event = wire.expect("EVENT").await["event"].take();
    assert_eq!((answer.status, &answer.json()["id"]), (200, &event["id"]));
    assert_eq!((&event["headers"]["x-trace"], event["headers"].get("cookie")), (&json!("1"), None));
    assert_eq!(event["headers"].get("authorization"), None);
    let large = format!("\"{}\"", "x".repeat(2 << 20));
    assert_eq!(post(&hub, "/publish/t", &large).await.status, 413);
    let bad = post(&hub, "/publish/t", "{").await;
    assert!(bad.status == 400 && bad.json()["error"].is_string(), "{}", bad.text());
}

#[tokio::test]
async fn ten_events_of_the_smoke_test_are_all_acked() {
    let (hub, mut wire) = hub().await;
    subscribe(&mut wire, "heartbeat.received", "smoke", json!({"from": "earliest"})).await;
    for n in 1..=10 {
        publish(&mut wire, "heartbeat.received", json!(n)).await;
    }
    for n in 1..=10 {
        let given = wire.expect("EVENT").await;
        assert_eq!(given["event"]["payload"], n);
        wire.ok(about("ACK", &given)).await;
    }
    assert_eq!(ops(&hub, "/lag?topic=heartbeat.received&group=smoke").await["lag"], 0);
    let text = get(hub.ops, "/metrics").await.text();
    assert!(text.contains("events_acked_total{topic=\"heartbeat.received\",group=\"smoke\"} 10\n"), "{text}");
}

const BURST: usize = 5_000;

/// Publishes a burst, looks at the lag over HTTP, consumes everything, looks again.
async fn burst(setup: Setup) {
    let hub = setup.start();
    let mut wire = Wire::connect(hub.ws).await;
    put(&hub, "/cursors?topic=t&group=g", &json!({"from": "earliest"})).await;
    let frame = |n: usize| json!({"op": "PUBLISH", "topic": "t", "payload": n, "corr": n});
    for n in 0..BURST {
        wire.send(&frame(n)).await.expect("sent");
    }
    for _ in 0..BURST {
        wire.expect("OK").await;
    }
    let lag = ops(&hub, "/lag?topic=t&group=g").await;
    assert!(lag["lag"] == BURST && lag["tail"].is_string() && lag["lagMs"].is_u64(), "{lag}");
    subscribe(&mut wire, "t", "g", json!({"maxInFlight": 1_000})).await;
    for n in 0..BURST {
        let given = wire.expect("EVENT").await;
        assert_eq!(given["event"]["payload"], n, "in order, each once");
        wire.send(&about("ACK", &given)).await.expect("sent");
    }
    for _ in 0..BURST {
        wire.expect("OK").await;
    }
    let lag = ops(&hub, "/lag?topic=t&group=g").await;
    assert_eq!((&lag["lag"], &lag["lagMs"]), (&json!(0), &json!(0)), "{lag}");
    assert_eq!(lag["lastCursor"]["lastId"], lag["tail"], "{lag}");
}

#[tokio::test]
async fn after_a_burst_the_lag_is_exact_and_then_0_in_memory() {
    burst(Setup::memory()).await;
}

#[tokio::test]
async fn after_a_burst_the_lag_is_exact_and_then_0_on_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    burst(Setup::log(dir.path())).await;
}

#[tokio::test]
async fn after_a_burst_the_lag_is_exact_and_then_0_on_mongodb() {
    let scratch = Scratch::new();
    burst(Setup::mongo(scratch.url())).await;
}
