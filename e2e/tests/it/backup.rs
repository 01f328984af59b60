//! A backup of a busy hub, and the hub that is made of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use promethean_e2e::{Setup, Wire, get, run};
use serde_json::{Value, json};

/// Publishes until it is told to stop; what was answered `OK`, by id.
async fn publisher(at: std::net::SocketAddr, topic: String, stop: Arc<AtomicBool>) -> BTreeMap<String, u64> {
    let (mut wire, mut stored, mut n) = (Wire::connect(at).await, BTreeMap::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let opts = json!({ "key": format!("k{}", n % 7) });
        let ok = wire.ok(json!({"op": "PUBLISH", "topic": topic, "payload": {"n": n}, "opts": opts})).await;
        stored.insert(ok["id"].as_str().expect("an id").to_owned(), ok["seq"].as_u64().expect("a seq"));
    }
    stored
}

async fn events(at: std::net::SocketAddr, topic: &str) -> BTreeMap<String, u64> {
    let exported = get(at, &format!("/export?topic={topic}")).await.text();
    let lines = exported.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.map(|one| (one["id"].as_str().expect("an id").to_owned(), one["seq"].as_u64().expect("a seq"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_has_everything_that_was_ok_before_it_and_groups_go_on_from_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let hub = Setup::log(&dir.path().join("one")).start();
    // Before it: events, a group that has acked some, one that it gave up, settings.
    let mut wire = Wire::connect(hub.ws).await;
    for n in 0..20 {
        wire.ok(json!({"op": "PUBLISH", "topic": "a", "payload": n})).await;
    }
    let opts = json!({"from": "earliest", "maxAttempts": 1, "maxInFlight": 20});
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts})).await;
    for n in 0..20 {
        let id = wire.expect("EVENT").await["event"]["id"].clone();
        let op = if n == 3 { "NACK" } else { "ACK" };
        if n != 9 {
            wire.ok(json!({"op": op, "topic": "a", "group": "g", "id": id})).await;
        }
    }
    while get(hub.ops, "/dlq").await.json()["topics"] == json!([]) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let path = "/settings?topic=a";
    promethean_e2e::request(hub.ops, "PUT", path, &[("content-type", "application/json")], br#"{"partitions": 4}"#)
        .await;
    wire.ok(json!({"op": "PUBLISH", "topic": "b.c", "payload": 0, "opts": {"key": "k1"}})).await;
    let before = events(hub.http, "a").await;
    let (stop, mut publishers) = (Arc::new(AtomicBool::new(false)), Vec::new());
    for topic in ["a", "b.c"] {
        publishers.push(tokio::spawn(publisher(hub.ws, topic.to_owned(), Arc::clone(&stop))));
    }

    let (file, two) = (dir.path().join("hub.backup"), dir.path().join("two"));
    let (file, two) = (file.to_str().expect("text").to_owned(), two.to_str().expect("text").to_owned());
    let server = format!("http://{}", hub.ops);
    let command = {
        let (file, server) = (file.clone(), server.clone());
        tokio::task::spawn_blocking(move || run(&["backup", &file, "--server", &server, "--json"]))
    };
    let output = command.await.expect("ended");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    stop.store(true, Ordering::Relaxed);
    let mut published = Vec::new();
    for publisher in publishers {
        published.push(publisher.await.expect("published"));
    }
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["groups"], 1, "{said}");
    assert_eq!(run(&["backup", &file, "--server", &server]).status.code(), Some(2), "a backup is never overwritten");
    drop((wire, hub));

    let output = run(&["restore", &file, &two]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(run(&["restore", &file, &two]).status.code(), Some(1), "only into an empty directory");
    let sound = run(&["doctor", &two]);
    assert!(sound.status.success(), "{}", String::from_utf8_lossy(&sound.stdout));
    let hub = Setup::log(two.as_ref()).start();
    let after = events(hub.http, "a").await;
    for (id, seq) in &before {
        assert_eq!(after.get(id), Some(seq), "{id} was OK before the backup began");
    }
    // What came meanwhile is there up to some point, at its place, without holes.
    for (topic, stored) in ["a", "b.c"].into_iter().zip(&published) {
        let restored = events(hub.http, topic).await;
        let last = restored.values().max().copied().unwrap_or(0);
        for (id, seq) in stored.iter().filter(|(_, seq)| **seq <= last) {
            assert_eq!(restored.get(id), Some(seq), "{topic}");
        }
        assert_eq!(restored.len() as u64, last, "{topic}");
    }
    assert_eq!(get(hub.ops, path).await.json()["partitions"], 4);
    assert_eq!(get(hub.ops, "/dlq").await.json()["topics"][0]["letters"], 1);

    // The group goes on: the one that it held comes, nothing that it had done; new events get new places and old ids are known.
    let mut wire = Wire::connect(hub.ws).await;
    let first = wire
        .call(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": {"maxAttempts": 1, "maxInFlight": 1}}))
        .await;
    assert_eq!(first["cursor"]["seq"], 9, "{first}");
    let event = wire.expect("EVENT").await["event"].clone();
    assert_eq!(event["payload"], 9);
    wire.ok(json!({"op": "ACK", "topic": "a", "group": "g", "id": event["id"]})).await;
    let again = json!({"op": "PUBLISH", "topic": "a", "payload": 9, "opts": {"id": event["id"]}});
    assert_eq!(wire.ok(again).await["duplicate"], true);
    let last = after.values().max().expect("events");
    assert_eq!(wire.ok(json!({"op": "PUBLISH", "topic": "a", "payload": "new"})).await["seq"], last + 1);
    let key = get(hub.ops, "/latest-by-key?topic=b.c&key=k1").await.json();
    assert!(key["seq"].is_u64(), "keys are found: {key}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_has_the_settings_and_the_groups_of_topics_where_nobody_has_published_yet() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, two) = (dir.path().join("hub.backup"), dir.path().join("two"));
    let (file, two) = (file.to_str().expect("text").to_owned(), two.to_str().expect("text").to_owned());
    let hub = Setup::log(&dir.path().join("one")).start();
    let settings = br#"{"partitions": 4}"#;
    promethean_e2e::request(hub.ops, "PUT", "/settings?topic=set", &[("content-type", "application/json")], settings)
        .await;
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "quiet", "group": "waits"})).await;
    let server = format!("http://{}", hub.ops);
    let told = tokio::task::spawn_blocking({
        let file = file.clone();
        move || run(&["backup", &file, "--server", &server, "--json"])
    });
    let told: Value = serde_json::from_slice(&told.await.expect("ended").stdout).expect("JSON");
    assert_eq!((&told["topics"], &told["groups"]), (&json!(2), &json!(1)), "{told}");
    drop((wire, hub));

    assert!(run(&["restore", &file, &two]).status.success());
    assert!(run(&["doctor", &two]).status.success());
    let hub = Setup::log(two.as_ref()).start();
    assert_eq!(get(hub.ops, "/settings?topic=set").await.json()["partitions"], 4);
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "PUBLISH", "topic": "quiet", "payload": "for who waits"})).await;
    // `latest` counts only for a group that has no place yet.
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "quiet", "group": "waits"})).await;
    assert_eq!(wire.expect("EVENT").await["event"]["payload"], "for who waits");
}
