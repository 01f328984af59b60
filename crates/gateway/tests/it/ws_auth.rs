//! Who may do what on a WebSocket, when a connection ends by itself, and how the hub says goodbye.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::ws_support::{Client, Server, Setup, id_of};
use promethean_event::Millis;
use promethean_gateway::EdgeConfig;
use promethean_gateway::auth::{AuthConfig, Secret};
use promethean_gateway::limits::{Quotas, Rate};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;

const SECRET: &str = "a secret of at least thirty-two bytes";

fn jwt(claims: &Value) -> String {
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), claims, &key).expect("a token")
}

fn token(scopes: &[&str]) -> String {
    jwt(&json!({"sub": "somebody", "exp": now() + 600, "scopes": scopes}))
}

fn now() -> u64 {
    Millis::now().0 / 1000
}

fn with_jwt(config: EdgeConfig) -> Setup {
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    let auth = AuthConfig { jwt_secret: Some(Secret::new(SECRET)), ..AuthConfig::default() };
    Setup { auth, config, ..Setup::default() }
}

async fn jwt_server() -> Server {
    Server::with(with_jwt(EdgeConfig::default())).await
}

async fn auth(client: &mut Client, token: &str) -> Value {
    client.ok(json!({"op": "AUTH", "token": token})).await
}

#[tokio::test]
async fn in_open_mode_auth_is_optional_and_any_token_is_ok() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.publish("a", json!(1)).await;
    assert_eq!(client.ask(json!({"op": "AUTH", "token": "whatever", "corr": 1})).await, json!({"op": "OK", "corr": 1}));
    client.ok(json!({"op": "AUTH"})).await;
}

#[tokio::test]
async fn before_auth_everything_is_unauthorized() {
    let server = jwt_server().await;
    let mut client = server.connect().await;
    for frame in [
        json!({"op": "PUBLISH", "topic": "a", "payload": 1}),
        json!({"op": "SUBSCRIBE", "topic": "a", "group": "g"}),
        json!({"op": "UNSUBSCRIBE", "topic": "a", "group": "g"}),
        json!({"op": "ACK", "topic": "a", "group": "g", "id": "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"}),
        json!({"op": "PAUSE", "topic": "a", "group": "g"}),
        json!({"op": "PING"}),
        json!({"op": "NOPE"}),
        json!({}),
        json!({"op": "PUBLISH", "topic": "a"}),
        json!({"op": "SUBSCRIBE", "topic": "a*", "group": "g"}),
        json!({"op": "PING", "corr": []}),
    ] {
        client.err(frame, "unauthorized").await;
    }
    let known = client.err(json!({"op": "PUBLISH", "topic": "a b", "corr": 7}), "unauthorized").await;
    assert_eq!(known["corr"], 7);
    client.err(json!([]), "bad_json").await;
    client.err(json!({"op": "AUTH", "token": 1}), "bad_request").await;
    client.err(json!({"op": "AUTH"}), "no_token").await;
    client.err(json!({"op": "AUTH", "token": "nonsense"}), "jwt_invalid").await;
    client.err(json!({"op": "AUTH", "token": jwt(&json!({"exp": now() - 60}))}), "token_expired").await;
    let answer = auth(&mut client, &token(&["publish:a"])).await;
    assert_eq!(answer["sub"], "somebody");
    assert!(answer["exp"].as_u64().is_some_and(|exp| exp > now()), "{answer}");
    client.publish("a", json!(1)).await;
}

#[tokio::test]
async fn a_static_token_may_do_everything_and_another_one_is_a_bad_token() {
    let auth = AuthConfig { static_token: Some(Secret::new("open sesame")), ..AuthConfig::default() };
    let server = Server::with_auth(auth).await;
    let mut client = server.connect().await;
    client.err(json!({"op": "AUTH", "token": "open barley"}), "bad_token").await;
    client.ok(json!({"op": "AUTH", "token": "open sesame"})).await;
    client.publish("a", json!(1)).await;
}

#[tokio::test]
async fn a_bearer_token_on_the_upgrade_counts_as_auth() {
    let server = jwt_server().await;
    let value = format!("Bearer {}", token(&["publish:a"]));
    let (mut client, _) = server.connect_with(&[("authorization", &value)]).await.expect("connected");
    client.publish("a", json!(1)).await;
    let refused = server.connect_with(&[("authorization", "Bearer nonsense")]).await.err().expect("refused");
    let tungstenite::Error::Http(response) = refused else { panic!("{refused}") };
    assert_eq!(response.status(), 401);
}

#[tokio::test]
async fn the_policy_says_no_with_forbidden() {
    let server = jwt_server().await;
    let mut client = server.connect().await;
    auth(&mut client, &token(&["publish:a.*", "subscribe:a.**"])).await;
    client.publish("a.b", json!(1)).await;
    client.err(json!({"op": "PUBLISH", "topic": "b", "payload": 1}), "forbidden").await;
    client.err(json!({"op": "PUBLISH", "topic": "b", "payload": 1}), "forbidden").await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "b", "group": "g"}), "forbidden").await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": {"topics": ["b"]}}), "forbidden").await;
    client.subscribe("a", "g").await;
}

#[tokio::test]
async fn a_pattern_wider_than_the_policy_delivers_only_what_the_policy_allows() {
    let server = jwt_server().await;
    let mut admin = server.connect().await;
    auth(&mut admin, &token(&["publish:**", "subscribe:**"])).await;
    admin.publish("secret.old", json!(0)).await;
    admin.publish("public.old", json!(0)).await;
    let mut client = server.connect().await;
    auth(&mut client, &token(&["subscribe:public.**"])).await;
    let frame = json!({"op": "SUBSCRIBE", "topic": "**", "group": "g", "opts": {"from": "earliest"}});
    let answer = client.ok(frame).await;
    assert!(!answer.to_string().contains("secret"), "not even named: {answer}");
    assert_eq!(client.event().await["event"]["topic"], "public.old");
    admin.publish("secret.new", json!(1)).await;
    admin.publish("public.new", json!(1)).await;
    assert_eq!(client.event().await["event"]["topic"], "public.new");
    client.assert_silent().await;
}

#[tokio::test]
async fn a_failed_renewal_leaves_the_old_identity() {
    let server = jwt_server().await;
    let mut client = server.connect().await;
    auth(&mut client, &token(&["publish:a"])).await;
    client.err(json!({"op": "AUTH", "token": "nonsense"}), "jwt_invalid").await;
    client.publish("a", json!(1)).await;
}

#[tokio::test]
async fn a_narrower_renewal_ends_what_it_no_longer_allows_and_names_it() {
    let server = jwt_server().await;
    let mut client = server.connect().await;
    auth(&mut client, &token(&["publish:**", "subscribe:**"])).await;
    client.subscribe("a", "g").await;
    client.subscribe("b", "g").await;
    client.subscribe("*", "p").await;
    client.publish("a", json!(0)).await;
    let mut other = server.connect().await;
    auth(&mut other, &token(&["publish:**", "subscribe:**"])).await;

    client.send(json!({"op": "AUTH", "token": token(&["subscribe:b"]), "corr": "renew"})).await;
    let ended = loop {
        let frame = client.recv().await;
        if frame["op"] == "ERR" {
            break frame;
        }
    };
    assert_eq!((&ended["code"], &ended["topic"], &ended["group"]), (&json!("forbidden"), &json!("a"), &json!("g")));
    assert!(ended.get("corr").is_none());
    client.err(json!({"op": "PUBLISH", "topic": "a", "payload": 1}), "forbidden").await;
    client.err(json!({"op": "UNSUBSCRIBE", "topic": "a", "group": "g"}), "not_subscribed").await;
    other.publish("a", json!(1)).await;
    other.publish("b", json!(2)).await;
    for _ in 0..2 {
        let event = client.event().await;
        assert_eq!(event["event"]["topic"], "b", "{event}");
    }
    client.assert_silent().await;
}

#[tokio::test]
async fn an_ack_of_what_a_narrower_renewal_took_out_of_reach_is_forbidden_and_does_not_count() {
    let server = jwt_server().await;
    let mut client = server.connect().await;
    auth(&mut client, &token(&["publish:**", "subscribe:**"])).await;
    client.subscribe("n.**", "g").await;
    client.publish("n.x", json!(1)).await;
    let id = client.event().await["event"]["id"].clone();
    auth(&mut client, &token(&["subscribe:n.y"])).await;
    client.err(json!({"op": "ACK", "topic": "n.**", "group": "g", "id": id}), "forbidden").await;
    client.err(json!({"op": "ACK", "topic": "n.**", "group": "g", "upTo": id}), "forbidden").await;
    let mut other = server.connect().await;
    auth(&mut other, &token(&["subscribe:n.x"])).await;
    other.subscribe("n.x", "g").await;
    assert_eq!(other.event().await["event"]["id"], id);
}

#[tokio::test]
async fn a_wider_renewal_lets_a_patterns_topics_in_from_then_on() {
    let server = jwt_server().await;
    let mut admin = server.connect().await;
    auth(&mut admin, &token(&["publish:**"])).await;
    admin.publish("w.private", json!(1)).await;
    for group in [json!("g"), Value::Null] {
        let mut client = server.connect().await;
        auth(&mut client, &token(&["subscribe:w.public"])).await;
        client.ok(json!({"op": "SUBSCRIBE", "topic": "w.*", "group": group})).await;
        admin.publish("w.private", json!(2)).await;
        for scopes in [["subscribe:w.*"], ["subscribe:w.public"], ["subscribe:w.*"]] {
            auth(&mut client, &token(&scopes)).await;
        }
        // The join is under way; what was before it never comes.
        let event = loop {
            admin.publish("w.private", json!(3)).await;
            client.send(json!({"op": "PING"})).await;
            let frame = client.recv().await;
            if frame["op"] == "EVENT" {
                break frame;
            }
        };
        assert_eq!(event["event"]["payload"], 3);
    }
}

#[tokio::test]
async fn what_was_held_back_at_a_pause_is_not_delivered_once_a_narrower_renewal_forbids_it() {
    let server = jwt_server().await;
    let wide = token(&["publish:**", "subscribe:**"]);
    let mut client = server.connect().await;
    auth(&mut client, &wide).await;
    for group in [json!("g"), Value::Null] {
        auth(&mut client, &wide).await;
        client.publish("a", json!(0)).await;
        client.publish("b", json!(0)).await;
        let opts = json!({"from": "earliest"});
        client.feed(json!({"op": "SUBSCRIBE", "topic": "*", "group": group, "opts": opts})).await;
        client.feed(json!({"op": "PAUSE", "topic": "*", "group": group, "corr": "paused"})).await;
        client.flush().await;
        while client.recv().await["corr"] != "paused" {}
        client.assert_silent().await;
        auth(&mut client, &token(&["subscribe:b"])).await;
        client.ok(json!({"op": "RESUME", "topic": "*", "group": group})).await;
        client.send(json!({"op": "UNSUBSCRIBE", "topic": "*", "group": group, "corr": "ended"})).await;
        loop {
            let frame = client.recv().await;
            assert_ne!(frame["event"]["topic"], "a", "{frame}");
            if frame["corr"] == "ended" {
                break;
            }
        }
    }
}

#[tokio::test]
async fn who_does_not_authenticate_in_time_is_closed_with_4401() {
    let config = EdgeConfig { auth_deadline: Duration::from_millis(200), ..EdgeConfig::default() };
    let server = Server::with(with_jwt(config)).await;
    let mut client = server.connect().await;
    assert_eq!(client.closed().await, 4401);
}

#[tokio::test]
async fn a_token_that_runs_out_on_a_live_connection_is_said_and_closed_with_4401() {
    let server = jwt_server().await;
    let mut client = server.connect().await;
    // Expired already, but within the leeway of 5 s: it runs out in a moment.
    let claims = json!({"sub": "s", "exp": now() - 3, "scopes": ["publish:**"]});
    auth(&mut client, &jwt(&claims)).await;
    let frame = client.recv().await;
    assert_eq!((&frame["op"], &frame["code"]), (&json!("ERR"), &json!("token_expired")));
    assert_eq!(client.closed().await, 4401);
}

#[tokio::test]
async fn a_renewal_in_time_keeps_the_connection() {
    let server = jwt_server().await;
    let mut client = server.connect().await;
    auth(&mut client, &jwt(&json!({"exp": now() - 3, "scopes": ["publish:**"]}))).await;
    auth(&mut client, &token(&["publish:**"])).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    client.publish("a", json!(1)).await;
}

#[tokio::test]
async fn who_sends_no_pong_is_closed_with_4408() {
    let config = EdgeConfig {
        ping_every: Duration::from_millis(50),
        pong_deadline: Duration::from_millis(400),
        ..EdgeConfig::default()
    };
    let server = Server::configured(config).await;
    let mut silent = server.raw().await;
    let (opcode, _) = silent.frame().await;
    assert_eq!(opcode, 0x9, "a ping");
    assert_eq!(silent.closed().await, 4408);
}

#[tokio::test]
async fn who_goes_away_gives_its_events_back_at_once() {
    let server = Server::start().await;
    let (mut one, mut two) = (server.connect().await, server.connect().await);
    one.subscribe("a", "g").await;
    one.publish("a", json!(1)).await;
    let event = one.event().await;
    two.subscribe("a", "g").await;
    two.assert_silent().await;
    drop(one);
    let again = two.event().await;
    assert_eq!((id_of(&again), &again["ctx"]["attempt"]), (id_of(&event), &json!(2)));
    assert_eq!(server.hub.connections.len(), 1);
}

#[tokio::test]
async fn at_shutdown_what_was_accepted_is_finished_and_the_connection_ends_with_1001() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    client.publish("a", json!(1)).await;
    client.event().await;
    let mut idle = server.connect().await;
    server.hub.bus.drain().await;
    server.hub.drain.begin();
    assert_eq!(client.closed().await, 1001);
    assert_eq!(idle.closed().await, 1001);
    tokio::time::timeout(crate::ws_support::PATIENCE, server.hub.drain.drained()).await.expect("everybody has left");
}

/// The lease would run out while the client waits for its quota.
#[tokio::test]
async fn answers_to_events_that_the_connection_holds_are_never_over_its_quota() {
    let one = |burst| Rate { per_second: NonZeroU32::MIN, burst: NonZeroU32::new(burst).expect("not zero") };
    let quotas = Quotas::new(Some(one(40)), None);
    let server = Server::with(Setup { quotas, ..Setup::default() }).await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    let events = vec![json!({"payload": 1}); 20];
    server.connect().await.ok(json!({"op": "PUBLISH", "topic": "a", "events": events})).await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(id_of(&client.event().await));
    }
    while client.ask(json!({"op": "PING"})).await["op"] == "OK" {}
    for id in &ids[..10] {
        let of =
            |op: &str| json!({"op": op, "topic": "a", "group": "g", "id": id, "extend_ms": 30_000, "delay_ms": 60_000});
        client.ok(of("MODACK")).await;
        client.ok(of("NACK")).await;
    }
    for id in &ids[10..] {
        client.ok(json!({"op": "ACK", "topic": "a", "group": "g", "ids": [id]})).await;
    }
    let unknown = json!({"op": "ACK", "topic": "a", "group": "g", "id": "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"});
    client.err(unknown, "rate_limited").await;
}

#[tokio::test]
async fn over_a_quota_is_rate_limited_and_says_when_to_come_back() {
    let rate = |per_second, burst| Rate {
        per_second: NonZeroU32::new(per_second).expect("not zero"),
        burst: NonZeroU32::new(burst).expect("not zero"),
    };
    let quotas = Quotas::new(Some(rate(1, 10)), Some(rate(1, 3)));
    let server = Server::with(Setup { quotas, ..Setup::default() }).await;
    let mut client = server.connect().await;
    let publish = |topic: &str, count: usize| json!({"op": "PUBLISH", "topic": topic, "events": vec![json!({"payload": 1}); count]});
    client.ok(publish("a", 3)).await;
    let limited = client.err(publish("a", 1), "rate_limited").await;
    assert!(limited["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{limited}");
    client.ok(publish("b", 3)).await;
    for _ in 0..20 {
        client.feed(json!({"op": "PING"})).await;
    }
    client.flush().await;
    let mut limited = 0;
    for _ in 0..20 {
        limited += usize::from(client.recv().await["code"] == "rate_limited");
    }
    assert!((10..20).contains(&limited), "{limited} of 20");
    server.connect().await.ok(json!({"op": "PING"})).await;
}
