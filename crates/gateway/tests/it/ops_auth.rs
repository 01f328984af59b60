//! Who may see and change what on the ops port. That every route asks for a token is in `ops_routes.rs`.

use crate::harness::{Served, Setup, jwt, token};
use futures_util::{SinkExt, StreamExt};
use http::Method;
use promethean_bus::{From, Group, Topic};
use promethean_event::Millis;
use promethean_gateway::EdgeConfig;
use promethean_gateway::ops::router;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

const READS: &[&str] = &[
    "/topics",
    "/groups",
    "/connections",
    "/hub",
    "/cursors?topic=a.b",
    "/lag?topic=a.b&group=g",
    "/latest-by-key?topic=a.b&key=k",
    "/dlq",
    "/samples",
    "/inflight?topic=a.b&group=g",
    "/explain?topic=a.b&group=g",
    "/metrics",
    "/replay?topic=a.b",
    "/export?topic=a.b",
];

async fn hub() -> Served {
    let hub = Setup::with_jwt().start(router).await;
    for topic in ["a.b", "secret", "dlq.a.b"] {
        hub.fill(topic, 2).await;
        for group in ["g", "h"] {
            let (topic, group) = (Topic::parse(topic).expect("a topic"), Group::parse(group).expect("a group"));
            hub.hub.bus.set_cursor(&topic, &group, From::Earliest).await.expect("made");
        }
    }
    hub
}

async fn change(hub: &Served, token: &str, method: Method, path: &str, body: &'static str) -> crate::harness::Answer {
    hub.send(method, path, &[("authorization", &format!("Bearer {token}"))], body).await
}

fn names<'a>(rows: &'a Value, field: &str) -> Vec<&'a str> {
    rows.as_array().expect("a list").iter().map(|row| row[field].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn a_valid_token_sees_what_it_may_subscribe_to() {
    let hub = hub().await;
    let reader = token(&["subscribe:a.*"]);
    for path in READS {
        assert_eq!(hub.get_as(&reader, path).await.status, 200, "{path}");
    }
    assert_eq!(names(&hub.get_as(&reader, "/topics").await.ok()["topics"], "topic"), ["a.b"]);
    assert_eq!(names(&hub.get_as(&reader, "/groups").await.ok()["groups"], "topic"), ["a.b", "a.b"]);
    assert_eq!(hub.get_as(&reader, "/dlq").await.ok()["topics"], json!([]));
    for path in [
        "/groups?topic=secret",
        "/cursors?topic=secret",
        "/cursors?topic=dlq.a.b",
        "/lag?topic=secret&group=g",
        "/latest-by-key?topic=secret",
        "/inflight?topic=secret&group=g",
        "/explain?topic=secret&group=g",
        "/samples?topic=secret",
        "/samples?topic=secret&group=g",
        "/dlq?topic=secret",
        "/dlq?topic=a.b",
        "/replay?topic=secret",
    ] {
        hub.get_as(&reader, path).await.refused(403, "forbidden");
    }
    let hidden = hub.stored("secret").await[0].id;
    hub.get_as(&reader, &format!("/event?id={hidden}")).await.refused(404, "unknown_id");
    let shown = hub.stored("a.b").await[0].id;
    hub.get_as(&reader, &format!("/event?id={shown}")).await.ok();
    assert_eq!(names(&hub.get_as(&token(&["publish:**"]), "/topics").await.ok()["topics"], "topic"), [""; 0]);
    let about = hub.get_as(&reader, "/hub").await.ok();
    assert_eq!((&about["auth"], &about["sub"], &about["admin"]), (&json!(true), &json!("somebody"), &json!(false)));
}

#[tokio::test]
async fn a_policy_for_some_groups_shows_those_groups() {
    let hub = hub().await;
    let rule = json!({ "effect": "allow", "action": "subscribe", "topics": ["a.b"], "groups": ["h"] });
    let limited = jwt(&json!({ "exp": Millis::now().0 / 1000 + 600, "policy": { "rules": [rule] } }));
    assert_eq!(names(&hub.get_as(&limited, "/topics").await.ok()["topics"], "topic"), ["a.b"]);
    assert_eq!(names(&hub.get_as(&limited, "/groups?topic=a.b").await.ok()["groups"], "group"), ["h"]);
    assert_eq!(names(&hub.get_as(&limited, "/cursors?topic=a.b").await.ok()["cursors"], "group"), ["h"]);
    hub.get_as(&limited, "/lag?topic=a.b&group=h").await.ok();
    hub.get_as(&limited, "/lag?topic=a.b&group=g").await.refused(403, "forbidden");
    hub.get_as(&limited, "/explain?topic=a.b&group=g").await.refused(403, "forbidden");
}

/// A valid token with these rules.
fn policy(rules: &Value) -> String {
    jwt(&json!({ "exp": Millis::now().0 / 1000 + 600, "policy": { "rules": rules } }))
}

#[tokio::test]
async fn a_rule_that_names_groups_shows_no_payloads() {
    let hub = hub().await;
    let id = hub.stored("a.b").await[0].id;
    let paths = [
        "/latest-by-key?topic=a.b".to_owned(),
        "/latest-by-key?topic=a.b&key=k".to_owned(),
        "/latest-by-key?topic=a.b&at=1".to_owned(),
        format!("/event?id={id}"),
        format!("/causality?id={id}"),
        "/replay?topic=a.b".to_owned(),
    ];
    let mine = json!({ "effect": "allow", "action": "subscribe", "topics": ["a.b"], "groups": ["g"] });
    let all = json!({ "effect": "allow", "action": "subscribe", "topics": ["a.b"], "groups": ["*"] });
    let admin = json!({ "effect": "allow", "action": "admin", "topics": ["a.b"] });
    for path in &paths {
        hub.get_as(&policy(&json!([mine])), path).await.refused(403, "forbidden");
        hub.get_as(&policy(&json!([mine, all])), path).await.ok();
        if !path.starts_with("/replay") {
            hub.get_as(&policy(&json!([mine, admin])), path).await.ok();
        }
    }
    hub.get_as(&policy(&json!([mine])), "/groups?topic=a.b").await.ok();
    let dead = json!({ "effect": "allow", "action": "subscribe", "topics": ["dlq.**"], "groups": ["g"] });
    hub.get_as(&policy(&json!([dead])), "/dlq?topic=a.b").await.refused(403, "forbidden");
}

#[tokio::test]
async fn causes_and_effects_on_topics_that_may_not_be_read_are_left_out() {
    let hub = hub().await;
    let root = hub.stored("a.b").await[0].id;
    hub.post(&format!("/publish/other?caused_by={root}"), "1").await.refused(401, "no_token");
    let caused = hub.hub.bus.store().topics().await.expect("readable").len();
    assert_eq!(caused, 3);
    let publisher = token(&["publish:**"]);
    let effect = change(&hub, &publisher, Method::POST, &format!("/publish/other?caused_by={root}"), "1").await.ok();
    let named = json!({ "effect": "allow", "action": "subscribe", "topics": ["other"], "groups": ["g"] });
    let read = json!({ "effect": "allow", "action": "subscribe", "topics": ["a.b"] });
    let shown = hub.get_as(&policy(&json!([named, read])), &format!("/causality?id={root}")).await.ok();
    assert_eq!(shown["events"].as_array().map(Vec::len), Some(1), "{shown}");
    let other = json!({ "effect": "allow", "action": "subscribe", "topics": ["other"] });
    let id = effect["id"].as_str().expect("an id");
    let shown = hub.get_as(&policy(&json!([other])), &format!("/causality?id={id}")).await.ok();
    assert_eq!(shown["missing"], json!([root]), "{shown}");
}

#[tokio::test]
async fn metrics_show_the_series_of_topics_and_groups_that_the_token_may_subscribe_to() {
    let hub = hub().await;
    let names = async |token: &str| {
        let metrics = hub.get_as(token, "/metrics").await;
        assert_eq!(metrics.status, 200);
        assert!(metrics.text().contains("ws_connections"), "sums are for every token");
        let series = metrics.text().lines().filter_map(|line| line.split_once("topic=\"")).map(|(_, rest)| rest);
        let named = series.map(|rest| {
            let (topic, rest) = rest.split_once('"').expect("a name");
            let group = rest.strip_prefix(",group=\"").and_then(|rest| rest.split('"').next());
            format!("{topic}/{}", group.unwrap_or("*"))
        });
        named.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let everything =
        ["a.b/*", "a.b/g", "a.b/h", "dlq.a.b/*", "dlq.a.b/g", "dlq.a.b/h", "secret/*", "secret/g", "secret/h"];
    assert_eq!(names(&token(&["admin:**"])).await, everything);
    assert_eq!(names(&token(&["subscribe:a.*"])).await, everything[..3]);
    assert_eq!(names(&token(&["admin:secret"])).await, everything[6..]);
    let mine = json!({ "effect": "allow", "action": "subscribe", "topics": ["secret"], "groups": ["g"] });
    assert_eq!(names(&policy(&json!([mine]))).await, everything[6..8]);
    assert_eq!(names(&token(&["publish:**"])).await, [""; 0]);
}

#[tokio::test]
async fn changing_needs_admin_on_the_topic() {
    let hub = hub().await;
    let (reader, admin) = (token(&["subscribe:**", "publish:**"]), token(&["admin:a.*"]));
    let seek = "/cursors?topic=a.b&group=g";
    for (path, method, body) in
        [(seek, Method::PUT, r#"{"from":"latest"}"#), ("/dlq/redrive?topic=a.b", Method::POST, "{}")]
    {
        change(&hub, &reader, method.clone(), path, body).await.refused(403, "forbidden");
        change(&hub, &admin, method.clone(), &path.replace("a.b", "secret"), body).await.refused(403, "forbidden");
        change(&hub, &admin, method, path, body).await.ok();
    }
    change(&hub, &reader, Method::PUT, &format!("{seek}&dryRun=1"), r#"{"from":"latest"}"#)
        .await
        .refused(403, "forbidden");
    assert_eq!(hub.get_as(&admin, "/hub").await.ok()["admin"], true);
    assert_eq!(
        names(&hub.get_as(&admin, "/topics").await.ok()["topics"], "topic"),
        ["a.b"],
        "an admin sees its topics"
    );
    hub.get_as(&admin, "/dlq?topic=a.b").await.ok();
}

/// Or whoever may change one topic could have the hub write to any.
#[tokio::test]
async fn a_snapshot_topic_that_is_named_needs_admin_too() {
    let hub = hub().await;
    let admin = token(&["admin:a.*"]);
    let set = async |body: &'static str| change(&hub, &admin, Method::PUT, "/settings?topic=a.b", body).await;
    set(r#"{"snapshotTopic":"secret"}"#).await.refused(403, "forbidden");
    set(r#"{"snapshotTopic":"a.c"}"#).await.ok();
    set(r#"{"snapshotTopic":null}"#).await.ok();
}

#[tokio::test]
async fn a_backup_needs_admin_also_where_there_is_nothing_to_back_up() {
    let hub = Setup::with_jwt().start(router).await;
    hub.get_as(&token(&["subscribe:**", "publish:**"]), "/backup").await.refused(403, "forbidden");
}

#[tokio::test]
async fn metrics_may_be_public() {
    let mut setup = Setup::with_jwt();
    setup.edge = EdgeConfig { metrics_public: true, ..EdgeConfig::default() };
    let hub = setup.start(router).await;
    assert_eq!(hub.get("/metrics").await.status, 200);
    hub.get("/topics").await.refused(401, "no_token");
}

#[tokio::test]
async fn a_draining_hub_refuses_but_says_that_it_lives() {
    let hub = hub().await;
    let reader = token(&["subscribe:**"]);
    let mut kept = hub.connect().await;
    kept.ready().await.expect("free");
    // Over a connection that was there before.
    let request = crate::harness::request(Method::GET, "/healthz", &[], "");
    assert_eq!(kept.send_request(request).await.expect("an answer").status(), 200);
    hub.hub.bus.drain().await;
    assert_eq!(hub.get_as(&reader, "/topics").await.status, 200, "reading goes on until the drain");
    change(&hub, &token(&["publish:**"]), Method::POST, "/publish/a.b", "1").await.refused(503, "shutting_down");
}

#[tokio::test]
async fn no_token_is_ever_shown() {
    let mut setup = Setup::with_jwt();
    setup.auth.static_token = Some(promethean_gateway::auth::Secret::new("canary-static"));
    let hub = setup.start(router).await;
    let secret = [("authorization", "Bearer canary-static"), ("cookie", "canary-cookie")];
    hub.send(Method::POST, "/publish/a.b", &secret, "1").await.ok();
    hub.send(Method::POST, "/publish/a..b", &secret, "1").await.refused(400, "bad_topic");
    let headers = [("authorization", "Bearer canary-wrong")];
    let routes = READS.iter().copied().chain(["/", "/openapi.json", "/nowhere", "/healthz", "/readyz"]);
    for path in routes {
        for headers in [&secret[..], &headers[..]] {
            let answer = hub.send(Method::GET, path, headers, "").await;
            assert!(!answer.text().contains("canary"), "{path}: {}", answer.text());
            assert!(!format!("{:?}", answer.headers).contains("canary"), "{path}: {:?}", answer.headers);
        }
    }
    assert!(!hub.stored("a.b").await[0].to_json().contains("canary"));
    assert!(!format!("{:?}", hub.hub).contains("canary"), "nor in what a log would print of the hub");
}

#[tokio::test]
async fn connections_name_whom_a_token_is_for_and_hide_what_the_asker_may_not_see() {
    let hub = hub().await;
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/ws", hub.addr)).await.expect("a WebSocket");
    let subscribe =
        |topic: &str| json!({ "op": "SUBSCRIBE", "topic": topic, "group": "g", "opts": { "from": "earliest" } });
    let auth = json!({ "op": "AUTH", "token": token(&["subscribe:**"]) });
    for frame in [auth, subscribe("a.b"), subscribe("secret"), subscribe("a.*")] {
        socket.send(Message::text(frame.to_string())).await.expect("sent");
        // Deliveries come in between.
        let answer = crate::harness::patient("an answer", async {
            loop {
                let frame = socket.next().await.expect("open").expect("a frame");
                let frame: Value = serde_json::from_str(frame.to_text().expect("text")).expect("JSON");
                if frame["op"] != "EVENT" {
                    break frame;
                }
            }
        });
        assert_eq!(answer.await["op"], "OK");
    }
    let seen = async |scopes: &[&str]| {
        let shown = hub.get_as(&token(scopes), "/connections").await.ok();
        assert_eq!(shown["connections"][0]["sub"], "somebody", "{shown}");
        names(&shown["connections"][0]["subscriptions"], "topic")
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(&["subscribe:a.*"]).await, ["a.b"]);
    assert_eq!(seen(&["subscribe:other"]).await, [""; 0]);
    assert_eq!(seen(&["admin:**"]).await, ["a.b", "secret", "a.*"]);
    let held = hub.get_as(&token(&["subscribe:**"]), "/inflight?topic=a.b&group=g").await.ok();
    assert_eq!((&held["inflight"][0]["sub"], &held["inflight"][0]["connection"]), (&json!("somebody"), &json!("c1")));
}
