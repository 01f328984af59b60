//! Part 3: tokens and policies, ops, replay and export.

use promethean_e2e::promethean;

use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A hub that takes HS256 tokens.
fn guarded() -> Hub {
    Setup::memory().env("JWT_SECRET", SECRET).env("WS_TOKEN", "static").start()
}

fn token(args: &[&str]) -> String {
    let output = promethean(&[&["token", "--secret", SECRET][..], args].concat()).output().expect("it runs");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A connection with a token of these scopes.
async fn scoped(hub: &Hub, scopes: &[&str]) -> Wire {
    let args: Vec<&str> = scopes.iter().flat_map(|scope| ["--scope", scope]).collect();
    with_token(hub, &token(&args)).await
}

async fn with_token(hub: &Hub, token: &str) -> Wire {
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "AUTH", "token": token})).await;
    wire
}

/// `OK`, or the code of the refusal.
async fn answer(wire: &mut Wire, frame: Value) -> String {
    let answer = wire.call(frame).await;
    answer["code"].as_str().map_or_else(|| "OK".to_owned(), str::to_owned)
}

fn publish_to(topic: &str) -> Value {
    json!({"op": "PUBLISH", "topic": topic, "payload": 1})
}

fn subscribe_to(topic: &str, group: &str) -> Value {
    json!({"op": "SUBSCRIBE", "topic": topic, "group": group})
}

#[tokio::test]
async fn scopes_allow_what_they_name_and_nothing_else() {
    let hub = guarded();
    let mut wire = scoped(&hub, &["publish:heartbeat.*", "subscribe:process.**"]).await;
    for (frame, expected) in [
        (publish_to("heartbeat.received"), "OK"),
        (publish_to("heartbeat.a.b"), "forbidden"),
        (publish_to("process.state"), "forbidden"),
        (subscribe_to("process.state", "g"), "OK"),
        (subscribe_to("process", "g"), "OK"),
        (subscribe_to("heartbeat.received", "g"), "forbidden"),
    ] {
        assert_eq!(answer(&mut wire, frame.clone()).await, expected, "{frame}");
    }
    let mut nothing = scoped(&hub, &[]).await;
    assert_eq!(answer(&mut nothing, publish_to("t")).await, "forbidden", "no scopes: nothing");
}

#[tokio::test]
async fn of_a_policy_the_first_rule_that_matches_wins_and_none_is_deny() {
    let hub = guarded();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("policy.json");
    let rules = json!({"rules": [
        {"effect": "deny", "action": "publish", "topics": ["a.secret"], "groups": []},
        {"effect": "allow", "action": "publish", "topics": ["a.**"]},
        {"effect": "allow", "action": "subscribe", "topics": ["a.**"], "groups": ["ops"]},
        {"effect": "deny", "action": "subscribe", "topics": ["b"], "groups": []},
        {"effect": "allow", "action": "subscribe", "topics": ["b"]},
    ]});
    std::fs::write(&file, rules.to_string()).expect("written");
    let mut wire = with_token(&hub, &token(&["--policy", file.to_str().expect("a path")])).await;
    for (frame, expected) in [
        (publish_to("a.secret"), "forbidden"),
        (publish_to("a.b"), "OK"),
        (publish_to("b"), "forbidden"),
        (subscribe_to("a.b", "ops"), "OK"),
        (subscribe_to("a.b", "other"), "forbidden"),
        (subscribe_to("b", "ops"), "forbidden"),
    ] {
        assert_eq!(answer(&mut wire, frame.clone()).await, expected, "{frame}");
    }
}

#[tokio::test]
async fn tokens_are_refused_with_the_codes_of_the_documents_and_the_static_one_may_do_all() {
    let hub = guarded();
    let mut wire = Wire::connect(hub.ws).await;
    assert_eq!(wire.call(json!({"op": "AUTH"})).await["code"], "no_token");
    let foreign = promethean(&["token", "--secret", "another-secret-of-thirty-two-bytes"]).output().expect("it runs");
    let foreign = String::from_utf8(foreign.stdout).expect("text");
    assert_eq!(wire.call(json!({"op": "AUTH", "token": foreign.trim()})).await["code"], "jwt_invalid");
    wire.ok(json!({"op": "AUTH", "token": "static"})).await;
    wire.ok(publish_to("any.topic")).await;
}

#[tokio::test]
async fn the_ops_routes_answer_as_in_the_documents() {
    let (hub, mut wire) = hub().await;
    for (path, missing) in
        [("/cursors", "topic required"), ("/lag", "topic and group required"), ("/latest-by-key", "topic required")]
    {
        let refused = get(hub.ops, path).await;
        assert_eq!((refused.status, &refused.json()["error"]), (400, &json!(missing)), "{path}");
    }
    publish(&mut wire, "t", json!(1)).await;
    let unknown = ops(&hub, "/lag?topic=t&group=nobody").await;
    assert_eq!(
        (&unknown["lag"], &unknown["lagMs"], &unknown["lastCursor"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    put(&hub, "/cursors?topic=t&group=g", &json!({"from": "earliest"})).await;
    let lag = until(&hub, "/lag?topic=t&group=g", |lag| lag["lag"] == 1).await;
    assert!(lag["tail"].is_string() && lag["lagMs"].is_u64(), "{lag}");
    let metrics = get(hub.ops, "/metrics").await;
    assert!(metrics.head.to_lowercase().contains("text/plain; version=0.0.4"), "{}", metrics.head);
    assert!(hub.ready.starts_with("promethean ready ws="), "{}", hub.ready);
}

#[tokio::test]
async fn replay_and_export_bring_every_event() {
    let (hub, mut wire) = hub().await;
    for n in 1..=3 {
        publish(&mut wire, "t", json!(n)).await;
    }
    let page = get(hub.http, "/replay?topic=t&from=earliest&limit=2").await.json();
    assert_eq!((&page["count"], &page["events"][1]["payload"]), (&json!(2), &json!(2)));
    let next = page["next"].as_str().expect("a next page");
    let rest = get(hub.http, &format!("/replay?topic=t&from=afterId&afterId={next}")).await.json();
    assert_eq!((&rest["count"], &rest["events"][0]["payload"]), (&json!(1), &json!(3)));
    let lines = get(hub.http, "/export?topic=t&ndjson=1").await.text();
    let payloads: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["payload"].clone()).collect();
    assert_eq!(payloads, [1, 2, 3]);
}

#[tokio::test]
async fn a_topic_has_a_quota_and_another_may_have_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("promethean.toml");
    std::fs::write(&file, "topic_rate = 1\ntopic_burst = 1\n[topics.\"fast\"]\nrate = 1\nburst = 3\n")
        .expect("written");
    let hub = Setup::memory().arg("--config").arg(file.to_str().expect("a path")).start();
    // Three at once are more than the bucket of the one ever holds.
    for (topic, status) in [("slow", 429), ("fast", 200)] {
        let lines = [("content-type", "application/x-ndjson")];
        let answer = request(hub.http, "POST", &format!("/publish/{topic}"), &lines, b"1\n2\n3\n").await;
        assert_eq!(answer.status, status, "{topic}: {}", answer.text());
    }
}
