//! No secret in logs, metrics, stored events or errors: canaries are searched for in all of them.

use promethean_e2e::{Setup, Wire, get, request};
use serde_json::json;

const STATIC: &str = "canary-static-7f3a";
const SECRET: &str = "canary-jwt-secret-91bc-canary-jwt-secret";
const WRONG: &str = "canary-wrong-token-55d1";

#[tokio::test]
async fn tokens_and_secrets_appear_nowhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = Setup::log(dir.path()).env("WS_TOKEN", STATIC).env("JWT_SECRET", SECRET).env("PROMETHEAN_LOG", "trace");
    let mut hub = setup.start();
    let bearer = format!("Bearer {STATIC}");
    let wrong = format!("Bearer {WRONG}");
    let mut seen = String::new();

    let mut wire = Wire::connect(hub.ws).await;
    seen += &wire.call(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await.to_string();
    seen += &wire.call(json!({"op": "AUTH", "token": WRONG})).await.to_string();
    seen += &wire.call(json!({"op": "AUTH", "token": STATIC})).await.to_string();
    seen += &wire.call(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await.to_string();

    let cookie = ("cookie", "session=canary-cookie-11aa");
    let headers = [("authorization", bearer.as_str()), cookie, ("x-kept", "yes"), ("content-type", "application/json")];
    let published = request(hub.http, "POST", "/publish/t", &headers, b"2").await;
    assert_eq!(published.status, 200, "{}", published.text());
    for path in ["/replay?topic=t&from=earliest", "/export?topic=t&ndjson=1", "/openapi.json"] {
        let answer = request(hub.http, "GET", path, &[("authorization", bearer.as_str())], b"").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        seen += &answer.text();
    }
    for path in ["/topics", "/connections", "/metrics", "/groups?topic=t"] {
        seen += &request(hub.ops, "GET", path, &[("authorization", bearer.as_str())], b"").await.text();
    }
    let refused = request(hub.http, "POST", "/publish/t", &[("authorization", wrong.as_str())], b"3").await;
    assert_eq!(refused.status, 401);
    seen += &refused.text();
    seen += &get(hub.ops, "/topics").await.text();
    assert!(seen.contains("x-kept"), "the headers of the allow-list are kept");

    assert!(hub.terminate().success());
    seen += &hub.log();
    for entry in files(dir.path()) {
        seen += &String::from_utf8_lossy(&std::fs::read(entry).expect("readable"));
    }
    for canary in [STATIC, SECRET, WRONG, "canary-cookie-11aa"] {
        assert!(!seen.contains(canary), "{canary} leaked");
    }
}

fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path()) {
        if entry.is_dir() { found.extend(files(&entry)) } else { found.push(entry) }
    }
    found
}
