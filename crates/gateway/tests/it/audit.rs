//! The audit log: who was let in or refused, what was forbidden, what operators changed; never a token.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::harness::{Served, Setup, jwt, token};
use futures_util::{SinkExt, StreamExt};
use http::Method;
use promethean_event::Millis;
use promethean_gateway::audit::Audit;
use promethean_gateway::ops::router_with_http;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

async fn hub(dir: &Path) -> (Served, PathBuf) {
    let path = dir.join("audit.ndjson");
    let audit = Audit::to_file(&path).expect("opened");
    (Setup { audit, ..Setup::with_jwt() }.start(router_with_http).await, path)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("written");
    text.lines().map(|line| serde_json::from_str(line).expect("NDJSON")).collect()
}

/// The lines with this action and outcome.
fn of<'a>(lines: &'a [Value], action: &str, outcome: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["action"] == action && line["outcome"] == outcome).collect()
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[tokio::test]
async fn authentications_refusals_and_changes_over_http_are_written_down() {
    let dir = tempfile::tempdir().expect("a directory");
    let (hub, path) = hub(dir.path()).await;
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let before = Millis::now();
    hub.get("/topics").await.refused(401, "no_token");
    hub.get_as("canary.canary.canary", "/topics").await.refused(401, "jwt_invalid");
    let expired = jwt(&json!({ "sub": "late", "exp": before.0 / 1000 - 60 }));
    hub.get_as(&expired, "/topics").await.refused(401, "token_expired");
    let low = token(&["subscribe:a"]);
    hub.send(Method::POST, "/publish/b", &[("authorization", &bearer(&low))], "1").await.refused(403, "forbidden");
    let admin = jwt(&json!({ "sub": "operator", "exp": before.0 / 1000 + 600, "scopes": ["*:**"] }));
    let settings = "/settings?topic=a";
    let put =
        async |body: &'static str| hub.send(Method::PUT, settings, &[("authorization", &bearer(&admin))], body).await;
    put(r#"{"maxEvents":7}"#).await.ok();
    put(r#"{"maxEvents":8}"#).await.ok();
    put(r#"{"maxEvents":0}"#).await.refused(400, "bad_request");
    let seek = |path: &'static str| hub.send(Method::PUT, path, &[], r#"{"from":"earliest"}"#);
    seek("/cursors?topic=a&group=g").await.refused(401, "no_token");

    let lines = lines(&path);
    let text = serde_json::to_string(&lines).expect("JSON");
    for secret in ["canary", low.as_str(), admin.as_str(), expired.as_str()] {
        assert!(!text.contains(secret), "{text}");
    }
    assert!(lines.iter().all(|line| line["ts"].as_u64().is_some_and(|ts| ts >= before.0)), "{text}");
    assert!(lines.iter().all(|line| line["via"] == "http"), "{text}");
    assert!(
        lines.iter().all(|line| line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:"))),
        "{text}"
    );
    let codes: Vec<&Value> = of(&lines, "auth", "refused").into_iter().map(|line| &line["code"]).collect();
    assert_eq!(codes, ["no_token", "jwt_invalid", "token_expired"], "{text}");
    let accepted: Vec<&Value> = of(&lines, "auth", "accepted").into_iter().map(|line| &line["sub"]).collect();
    assert_eq!(accepted, ["somebody", "operator"], "once for a client and its token, {text}");
    let [forbidden] = of(&lines, "access", "forbidden")[..] else { panic!("{text}") };
    assert_eq!((&forbidden["sub"], &forbidden["code"]), (&json!("somebody"), &json!("forbidden")));
    assert!(forbidden["reason"].as_str().is_some_and(|reason| reason.contains("publish on b")), "{forbidden}");
    let [first, second] = of(&lines, "PUT /settings", "done")[..] else { panic!("{text}") };
    assert_eq!((&first["sub"], &first["topic"]), (&json!("operator"), &json!("a")));
    assert_eq!((first["old"].get("maxEvents"), &first["new"]["maxEvents"]), (None, &json!(7)));
    assert_eq!((&second["old"]["maxEvents"], &second["new"]["maxEvents"]), (&json!(7), &json!(8)));
    let [failed] = of(&lines, "PUT /settings", "failed")[..] else { panic!("{text}") };
    assert_eq!(failed["code"], "bad_request");
    assert!(of(&lines, "PUT /cursors", "failed").is_empty(), "a stranger's change is a refused authentication, {text}");
}

#[tokio::test]
async fn moved_cursors_and_dry_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let (hub, path) = hub(dir.path()).await;
    hub.fill("a", 3).await;
    let admin = bearer(&token(&["*:**"]));
    for (query, body) in [("&dryRun=1", r#"{"from":"latest"}"#), ("", r#"{"from":"latest"}"#)] {
        let seek = format!("/cursors?topic=a&group=g{query}");
        hub.send(Method::PUT, &seek, &[("authorization", &admin)], body).await.ok();
    }
    hub.send(Method::DELETE, "/groups?topic=a&group=g", &[("authorization", &admin)], "").await.ok();
    assert_eq!(hub.send(Method::GET, "/backup", &[("authorization", &admin)], "").await.status, 200);
    let lines = lines(&path);
    let [moved] = of(&lines, "PUT /cursors", "done")[..] else { panic!("{lines:?}") };
    assert_eq!((&moved["old"]["seq"], &moved["new"]["seq"], &moved["group"]), (&json!(0), &json!(3), &json!("g")));
    assert_eq!(of(&lines, "DELETE /groups", "done").len(), 1, "{lines:?}");
    assert_eq!(of(&lines, "GET /backup", "done").len(), 1, "{lines:?}");
}

#[tokio::test]
async fn web_sockets_are_written_down_and_a_flood_of_refusals_is_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let (hub, path) = hub(dir.path()).await;
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/ws", hub.addr)).await.expect("a WebSocket");
    let mut ask = async |frame: Value| {
        socket.send(Message::text(frame.to_string())).await.expect("sent");
        let answer = crate::harness::patient("an answer", socket.next()).await.expect("open").expect("a frame");
        serde_json::from_str::<Value>(answer.to_text().expect("text")).expect("JSON")
    };
    for _ in 0..20 {
        assert_eq!(ask(json!({ "op": "AUTH", "token": "canary" })).await["code"], "jwt_invalid");
    }
    assert_eq!(ask(json!({ "op": "AUTH", "token": token(&["subscribe:a"]) })).await["op"], "OK");
    assert_eq!(ask(json!({ "op": "PUBLISH", "topic": "secret", "payload": 1 })).await["code"], "forbidden");
    assert_eq!(ask(json!({ "op": "SUBSCRIBE", "topic": "other", "group": "g" })).await["code"], "forbidden");
    let request = format!("ws://{}/ws", hub.addr);
    let mut request =
        tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(request).expect("good");
    request.headers_mut().insert("authorization", "Bearer canary".parse().expect("a header"));
    tokio_tungstenite::connect_async(request).await.expect_err("refused");
    let lines = lines(&path);
    assert!(!format!("{lines:?}").contains("canary"), "{lines:?}");
    let refused = of(&lines, "auth", "refused");
    // The upgrade's refusal is like the others; a slow machine may need more than a second.
    assert!((1..=10).contains(&refused.len()) && refused[0]["via"] == "ws", "{lines:?}");
    assert_eq!(of(&lines, "auth", "accepted")[0]["sub"], "somebody", "{lines:?}");
    let forbidden = of(&lines, "access", "forbidden");
    assert!(forbidden[0]["reason"].as_str().is_some_and(|reason| reason.contains("publish on secret")), "{lines:?}");
    assert_eq!(forbidden[0]["sub"], "somebody");
}

#[tokio::test]
async fn an_open_hub_writes_down_changes_and_no_authentication() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit.ndjson");
    let audit = Audit::to_file(&path).expect("opened");
    let hub = Setup { audit, ..Setup::default() }.start(router_with_http).await;
    hub.post("/publish/a", "1").await.ok();
    hub.send(Method::PUT, "/settings?topic=a", &[], r#"{"maxEvents":7}"#).await.ok();
    let lines = lines(&path);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((&lines[0]["action"], lines[0].get("sub")), (&json!("PUT /settings"), None));
}
