//! The contract's promises to a group whose members are on two hubs: one owns it, the other relays.

use std::collections::BTreeSet;
use std::time::Duration;

use promethean_e2e::{Setup, get, request};
use serde_json::{Value, json};

use crate::pair::{Pair, ack, event, publish, subscribe};

const MOMENT: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_on_two_hubs_share_a_group_and_a_seek_and_the_ops_api_work_from_both() {
    let pair = Pair::start().await;
    let (mut a, mut b) = pair.connect().await;
    let one = json!({"from": "earliest", "maxInFlight": 1});
    subscribe(&mut a, "share.t", "g", one.clone()).await;
    let answer = subscribe(&mut b, "share.t", "g", one).await;
    assert_eq!(answer["cursor"]["seq"], 0, "{answer}");
    for n in 0..6 {
        publish(&mut b, "share.t", json!(n)).await;
    }
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        for wire in [&mut a, &mut b] {
            let (payload, id, ctx) = event(wire).await;
            assert_eq!((&ctx["attempt"], &ctx["maxAttempts"]), (&json!(1), &json!(5)));
            ack(wire, "share.t", "g", &id).await;
            assert!(seen.insert(payload.as_u64()), "{payload} came twice");
        }
    }
    assert_eq!(seen.len(), 6);
    for hub in [&pair.a, &pair.b] {
        let groups = get(hub.ops, "/groups?topic=share.t").await.json();
        let row = &groups["groups"][0];
        assert_eq!((&row["members"], &row["lag"], &row["seq"]), (&json!(2), &json!(0), &json!(6)), "{groups}");
        let lag = get(hub.ops, "/lag?topic=share.t&group=g").await.json();
        assert_eq!((&lag["lag"], &lag["lastCursor"]["seq"]), (&json!(0), &json!(6)), "{lag}");
        assert_eq!(get(hub.ops, "/cursors?topic=share.t").await.json()["cursors"][0]["seq"], 6);
        assert_eq!(get(hub.ops, "/explain?topic=share.t&group=g").await.json()["reasons"][0]["code"], "caught_up");
        assert_eq!(get(hub.http, "/readyz").await.status, 200);
    }
    // The cursor is moved from the hub that does not own the group: everything comes again.
    let back = request(pair.b.ops, "PUT", "/cursors?topic=share.t&group=g", &[], br#"{"from":"earliest"}"#).await;
    assert_eq!((back.status, &back.json()["after"]["seq"]), (200, &json!(0)), "{}", back.text());
    let (first, second) = (event(&mut a).await, event(&mut b).await);
    assert_eq!(BTreeSet::from([first.0.as_u64(), second.0.as_u64()]), BTreeSet::from([Some(0), Some(1)]));
}

/// A group that `a` owns and only `b` is served of.
async fn served_at_b(pair: &Pair, topic: &str, opts: Value) -> (promethean_e2e::Wire, promethean_e2e::Wire) {
    let (mut a, mut b) = pair.connect().await;
    subscribe(&mut a, topic, "g", opts.clone()).await;
    a.ok(json!({"op": "PAUSE", "topic": topic, "group": "g"})).await;
    subscribe(&mut b, topic, "g", opts).await;
    (a, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_leases_pauses_and_refusals_are_the_owners_through_the_relay() {
    let pair = Pair::start().await;
    let (mut a, mut b) = served_at_b(&pair, "rel.t", json!({"from": "earliest", "ackTimeoutMs": 1500})).await;
    publish(&mut b, "rel.t", json!("x")).await;
    let (_, id, first) = event(&mut b).await;
    let of = |op: &str, more: Value| {
        let mut frame = json!({"op": op, "topic": "rel.t", "group": "g", "id": id});
        frame.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        frame
    };
    b.ok(of("NACK", json!({"reason": "no"}))).await;
    let (_, again, second) = event(&mut b).await;
    assert_eq!((&again, &second["attempt"]), (&id, &json!(2)));
    let old = b.call(of("ACK", json!({"lease": first["lease"]}))).await;
    assert_eq!(old["code"], "lease_lost", "{old}");
    // The lease runs out: it comes again by itself, and later than MODACK says.
    let before = std::time::Instant::now();
    b.ok(of("MODACK", json!({"extend_ms": 2500, "lease": second["lease"]}))).await;
    let (_, _, third) = event(&mut b).await;
    assert!(before.elapsed() >= Duration::from_millis(2400), "{:?}", before.elapsed());
    assert_eq!(third["attempt"], 3);
    b.ok(of("ACK", json!({"lease": third["lease"]}))).await;
    b.ok(of("ACK", json!({}))).await;
    let done = b.call(of("MODACK", json!({"extend_ms": 1000}))).await;
    assert_eq!(done["code"], "unknown_id", "{done}");

    b.ok(json!({"op": "PAUSE", "topic": "rel.t", "group": "g"})).await;
    tokio::time::sleep(MOMENT).await;
    publish(&mut a, "rel.t", json!("paused")).await;
    assert!(b.is_quiet(MOMENT).await);
    b.ok(json!({"op": "RESUME", "topic": "rel.t", "group": "g"})).await;
    let (payload, held, _) = event(&mut b).await;
    assert_eq!(payload, "paused");

    // What the subscriber holds goes to others when its connection does.
    a.ok(json!({"op": "RESUME", "topic": "rel.t", "group": "g"})).await;
    drop(b);
    let (_, back, ctx) = event(&mut a).await;
    assert_eq!((back, &ctx["attempt"]), (held, &json!(2)));

    let mut other = promethean_e2e::Wire::connect(pair.b.ws).await;
    let refused =
        other.call(json!({"op": "SUBSCRIBE", "topic": "rel.t", "group": "g", "opts": {"ordered": "key"}})).await;
    assert_eq!(refused["code"], "bad_request", "{refused}");
    assert!(refused["msg"].as_str().is_some_and(|msg| msg.contains("ordered")), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_patterns_snapshots_dead_letters_and_up_to_work_through_the_relay() {
    let pair = Pair::start().await;
    let opts = json!({"from": "earliest", "ordered": "key", "maxAttempts": 1});
    let (mut a, mut b) = served_at_b(&pair, "ord.t", opts).await;
    for n in 0..3 {
        a.ok(json!({"op": "PUBLISH", "topic": "ord.t", "payload": n, "opts": {"key": "k"}})).await;
    }
    let (zero, first, _) = event(&mut b).await;
    assert_eq!(zero, 0);
    assert!(b.is_quiet(MOMENT).await, "one after another");
    b.ok(json!({"op": "NACK", "topic": "ord.t", "group": "g", "id": first, "reason": "bad"})).await;
    let (one, _, _) = event(&mut b).await;
    assert_eq!(one, 1);
    let letters = get(pair.b.ops, "/dlq?topic=ord.t").await.json();
    assert_eq!((&letters["letters"], &letters["entries"][0]["err"]), (&json!(1), &json!("bad")), "{letters}");
    let redriven = request(pair.b.ops, "POST", "/dlq/redrive?topic=ord.t", &[], b"{}").await;
    assert_eq!(redriven.json()["redriven"], 1, "{}", redriven.text());

    // A pattern: one topic is owned by a, one by whoever comes first, one comes later.
    subscribe(&mut a, "pat.x", "p", json!({"from": "earliest"})).await;
    a.ok(json!({"op": "PAUSE", "topic": "pat.x", "group": "p"})).await;
    for topic in ["pat.x", "pat.y"] {
        publish(&mut a, topic, json!(topic)).await;
    }
    subscribe(&mut b, "pat.*", "p", json!({"from": "earliest", "maxInFlight": 10})).await;
    let mut seen = BTreeSet::new();
    for topic in ["", "pat.z"] {
        if !topic.is_empty() {
            publish(&mut a, topic, json!(topic)).await;
        }
        while seen.len() < if topic.is_empty() { 2 } else { 3 } {
            let (payload, id, _) = event(&mut b).await;
            ack(&mut b, "pat.*", "p", &id).await;
            seen.insert(payload.as_str().expect("a topic").to_owned());
        }
    }
    assert_eq!(seen, BTreeSet::from(["pat.x".to_owned(), "pat.y".to_owned(), "pat.z".to_owned()]));

    // A snapshot start: the latest of each key, then what comes after.
    for (key, n) in [("k", 1), ("l", 2), ("k", 3)] {
        a.ok(json!({"op": "PUBLISH", "topic": "snap.t", "payload": n, "opts": {"key": key}})).await;
    }
    let (mut a, mut b) = served_at_b(&pair, "snap.t", json!({"from": "snapshot"})).await;
    publish(&mut a, "snap.t", json!(4)).await;
    let mut came = Vec::new();
    for _ in 0..3 {
        let (payload, _, ctx) = event(&mut b).await;
        came.push((payload.as_u64(), ctx["snapshot"] == true));
    }
    came.sort_unstable();
    assert_eq!(came, [(Some(2), true), (Some(3), true), (Some(4), false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_is_told_to_end_hands_its_groups_over_at_once_and_without_a_counted_attempt() {
    let mut pair = Pair::start().await;
    let (mut a, mut b) = pair.connect().await;
    subscribe(&mut a, "end.t", "g", json!({"from": "earliest"})).await;
    publish(&mut b, "end.t", json!(1)).await;
    let (_, id, _) = event(&mut a).await;
    subscribe(&mut b, "end.t", "g", json!({"from": "earliest"})).await;
    let began = std::time::Instant::now();
    let ended = tokio::task::spawn_blocking(move || {
        let status = pair.a.terminate();
        (status, pair)
    });
    let (_, again, ctx) = event(&mut b).await;
    assert_eq!((again, &ctx["attempt"]), (id, &json!(1)));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}: it waited for the lease", began.elapsed());
    let (status, _pair) = ended.await.expect("ended");
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hubs_with_different_secrets_say_so_in_their_logs() {
    let scratch = promethean_testmongo::Scratch::new();
    let hub = |secret: &str| Setup::mongo(scratch.url()).env("PROMETHEAN_CLUSTER_SECRET", secret).start();
    let (a, b) = (hub("one"), hub("two"));
    let subscribe = json!({"op": "SUBSCRIBE", "topic": "orders", "group": "g"});
    let mut at_a = promethean_e2e::Wire::connect(a.ws).await;
    at_a.ok(subscribe.clone()).await;
    let mut at_b = promethean_e2e::Wire::connect(b.ws).await;
    assert_eq!(at_b.call(subscribe).await["op"], "ERR", "the owner does not let this hub in");
    let said = b.log().matches("give all the same cluster_secret").count();
    assert_eq!(said, 1, "{}", b.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_the_clusters_secret_is_no_hub() {
    let pair = Pair::start().await;
    for headers in [
        &[("promethean-relay", "somebody/1")][..],
        &[("promethean-relay", "somebody/1"), ("authorization", "Bearer guessed")],
    ] {
        let refused = promethean_e2e::Wire::try_connect(pair.a.ws, headers).await.expect_err("refused").to_string();
        assert!(refused.contains("401"), "{refused}");
    }
}
