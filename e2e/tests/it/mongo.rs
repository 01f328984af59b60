//! The hub on MongoDB: what outlives it, what it says while MongoDB is away, and what it refuses to start on.

use std::time::{Duration, Instant};

use promethean_e2e::{Setup, Wire, get};
use promethean_testmongo::{Scratch, Setup as Mongo};
use serde_json::json;

fn on(url: &str) -> Setup {
    Setup::default().env("MONGO_URL", url)
}

#[tokio::test]
async fn events_and_acks_outlive_a_kill_of_the_hub() {
    let scratch = Scratch::new();
    let mut hub = on(scratch.url()).start();
    assert!(hub.ready.ends_with("store=mongo"), "{}", hub.ready);
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": {"from": "earliest"}})).await;
    let events: Vec<_> = (0..5).map(|n| json!({"payload": {"n": n}, "key": "k"})).collect();
    let published = wire.ok(json!({"op": "PUBLISH", "topic": "t", "events": events})).await;
    assert_eq!(published["seqs"], json!([1, 2, 3, 4, 5]));
    for seq in 1..=3 {
        let given = wire.expect("EVENT").await;
        assert_eq!(given["event"]["seq"], seq);
        wire.ok(json!({"op": "ACK", "topic": "t", "group": "g", "id": given["event"]["id"]})).await;
    }
    hub.kill();
    let hub = on(scratch.url()).start();
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"})).await;
    let given = wire.expect("EVENT").await;
    assert_eq!(given["event"]["seq"], 4, "what was acked does not come again");
    assert_eq!(get(hub.http, "/replay?topic=t&from=earliest").await.json()["count"], 5);
    let latest = get(hub.ops, "/latest-by-key?topic=t&key=k").await.json();
    assert_eq!(latest["payload"], json!({"n": 4}), "{latest}");
}

#[tokio::test]
async fn while_mongodb_is_away_the_hub_is_not_ready_and_a_publish_waits_for_it() {
    let mut mongo = Mongo::default().start();
    let hub = on(&mongo.url("prom")).start();
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await;
    assert_eq!(get(hub.http, "/readyz").await.status, 200);
    mongo.kill(0);
    let began = Instant::now();
    let said = loop {
        let ready = get(hub.http, "/readyz").await;
        if ready.status == 503 {
            break ready.text();
        }
        assert!(began.elapsed() < Duration::from_secs(20), "still ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(said.contains("MongoDB is away"), "{said}");
    assert_eq!(get(hub.http, "/healthz").await.status, 200, "the hub itself is well");
    wire.send(&json!({"op": "PUBLISH", "topic": "t", "payload": 2, "corr": "waits"})).await.expect("sent");
    mongo.restart(0);
    let answered = wire.expect("OK").await;
    assert_eq!((&answered["corr"], &answered["seq"]), (&json!("waits"), &json!(2)));
    while get(hub.http, "/readyz").await.status != 200 {
        assert!(began.elapsed() < Duration::from_secs(60), "not ready again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn what_the_hub_cannot_run_on_ends_it_at_once_with_the_remedy() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_url = format!("mongodb://secret:canary@{}/prom", silent.local_addr().expect("bound"));
    let cases = [
        ("nonsense", 2, "mongodb://HOST"),
        ("mongodb://127.0.0.1:1/prom", 3, "is it running"),
        (silent_url.as_str(), 3, "is it running"),
    ];
    for (url, code, remedy) in cases {
        let began = Instant::now();
        let output = on(url).command().output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{url}: {said}");
        assert!(said.contains(remedy), "{url}: {said}");
        assert!(!said.contains("canary"), "no secret is shown: {said}");
        assert!(began.elapsed() < Duration::from_secs(20), "{url} took {:?}", began.elapsed());
    }
}
