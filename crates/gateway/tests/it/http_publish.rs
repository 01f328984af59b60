//! `POST /publish/{topic}` over a real port.

use std::num::NonZeroU32;

use crate::harness::{Served, Setup, jwt, request, token};
use http::Method;
use promethean_event::Millis;
use promethean_gateway::EdgeConfig;
use promethean_gateway::auth::{AuthConfig, Secret};
use promethean_gateway::limits::{Quotas, Rate};
use promethean_gateway::{Hub, http as api};
use serde_json::{Value, json};

const ID: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
const OTHER_ID: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5e";

fn router(hub: std::sync::Arc<Hub>) -> axum::Router {
    api::router(hub)
}

async fn open_hub() -> Served {
    Setup::default().start(router).await
}

/// Every stored event of `topic` as JSON.
async fn events(hub: &Served, topic: &str) -> Vec<Value> {
    hub.stored(topic).await.iter().map(|event| serde_json::from_str(&event.to_json()).expect("JSON")).collect()
}

#[tokio::test]
async fn the_body_is_the_payload_byte_for_byte() {
    let hub = open_hub().await;
    for (index, payload) in
        [r#"{"b": 1,"a":12345678901234567890123}"#, "1e400", r#""\ud800é\u00e9""#, "[1 ,\t2,\n3]", "null", "-0.0"]
            .into_iter()
            .enumerate()
    {
        let answer = hub.post("/publish/a.b", format!(" {payload}\n")).await.ok();
        assert_eq!(answer["seq"], index + 1);
        assert_eq!(answer.as_object().expect("an object").len(), 2, "{answer}");
        let stored = hub.stored("a.b").await.pop().expect("stored");
        assert_eq!(
            (stored.payload(), stored.id.to_string().as_str()),
            (payload, answer["id"].as_str().expect("an id"))
        );
    }
}

#[tokio::test]
async fn the_query_gives_the_optional_fields() {
    let hub = open_hub().await;
    let path = format!(
        "/publish/a?id={}&key=k%201&ts=5&sid=s&tag=%23x&tag=y&caused_by={OTHER_ID}&caused_by={ID}",
        ID.to_uppercase()
    );
    assert_eq!(hub.post(&path, "1").await.ok(), json!({ "id": ID, "seq": 1 }));
    let event = events(&hub, "a").await.remove(0);
    assert_eq!((&event["key"], &event["ts"], &event["sid"]), (&json!("k 1"), &json!(5), &json!("s")));
    assert_eq!((&event["tags"], &event["caused_by"]), (&json!(["#x", "y"]), &json!([OTHER_ID, ID])));
    hub.post("/publish/b?key=&sid=", "1").await.ok();
    let empty = events(&hub, "b").await.remove(0);
    assert_eq!((&empty["key"], empty.get("sid")), (&json!(""), None), "the empty key is a key like others");
}

#[tokio::test]
async fn only_listed_headers_are_stored_and_no_secret_is() {
    let hub = Setup {
        auth: AuthConfig { static_token: Some(Secret::new("canary-token")), ..AuthConfig::default() },
        ..Setup::default()
    };
    let hub = hub.start(router).await;
    let headers = [
        ("authorization", "Bearer canary-token"),
        ("cookie", "session=canary-cookie"),
        ("proxy-authorization", "Basic canary-proxy"),
        ("content-type", "application/json; charset=utf-8"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1"),
        ("X-Trace", "t1"),
        ("x-trace", "t2"),
        ("accept", "*/*"),
        ("ce-source", "no specversion"),
    ];
    hub.send(Method::POST, "/publish/a", &headers, "1").await.ok();
    let event = hub.stored("a").await.remove(0).to_json();
    assert!(!event.contains("canary"), "{event}");
    let event: Value = serde_json::from_str(&event).expect("JSON");
    let expected = json!({
        "content-type": "application/json; charset=utf-8", "x-trace": "t1, t2", "tracestate": "a=1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    });
    assert_eq!(event["headers"], expected);
}

#[tokio::test]
async fn the_same_id_again_is_answered_with_the_first_place_and_not_stored() {
    let hub = open_hub().await;
    hub.post("/publish/a", "0").await.ok();
    let first = hub.send(Method::POST, "/publish/a", &[("idempotency-key", ID)], "1").await.ok();
    assert_eq!(first, json!({ "id": ID, "seq": 2 }));
    let quoted = format!("\"{}\"", ID.to_uppercase());
    let again = hub.send(Method::POST, "/publish/a", &[("idempotency-key", &quoted)], "2").await.ok();
    assert_eq!(again, json!({ "id": ID, "seq": 2, "duplicate": true }));
    assert_eq!(hub.post(&format!("/publish/a?id={ID}"), "3").await.ok()["duplicate"], true);
    assert_eq!(hub.stored("a").await.len(), 2);
    let message = hub.post(&format!("/publish/b?id={ID}"), "4").await.refused(409, "duplicate_id");
    assert!(message.contains(ID), "{message}");
    let differs = hub.send(Method::POST, &format!("/publish/a?id={OTHER_ID}"), &[("idempotency-key", ID)], "5").await;
    differs.refused(400, "bad_request");
}

#[tokio::test]
async fn ndjson_is_one_payload_a_line_all_or_none() {
    let hub = open_hub().await;
    let ndjson = [("content-type", "application/x-ndjson")];
    let answer = hub.send(Method::POST, "/publish/a?key=k&tag=t", &ndjson, "{\"n\":1}\r\n\n 2 \n\"x\"").await.ok();
    let stored = hub.stored("a").await;
    assert_eq!(stored.iter().map(|event| event.payload()).collect::<Vec<_>>(), [r#"{"n":1}"#, "2", "\"x\""]);
    let ids: Vec<String> = stored.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(answer, json!({ "ids": ids, "count": 3 }));
    assert!(stored.iter().all(|event| event.key().as_deref() == Some("k")));

    let message = hub.send(Method::POST, "/publish/a", &ndjson, "1\n\n{oops}\n3").await.refused(400, "bad_json");
    assert!(message.starts_with("line 3 "), "{message}");
    hub.send(Method::POST, "/publish/a", &ndjson, "\n \n").await.refused(400, "bad_request");
    hub.send(Method::POST, "/publish/a", &ndjson, "1\n".repeat(10_001)).await.refused(400, "bad_request");
    hub.send(Method::POST, &format!("/publish/a?id={ID}"), &ndjson, "1\n2").await.refused(400, "bad_request");
    assert_eq!(hub.stored("a").await.len(), 3, "nothing of a refused batch is stored");
    assert_eq!(hub.send(Method::POST, "/publish/b", &ndjson, "1\n".repeat(10_000)).await.ok()["count"], 10_000);
    assert_eq!(hub.send(Method::POST, "/publish/c", &ndjson, "1").await.ok()["count"], 1);
}

#[tokio::test]
async fn one_event_over_the_limit_refuses_the_whole_batch() {
    let edge = EdgeConfig { max_event_bytes: 1_000, max_frame_bytes: 10_000, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    let ndjson = [("content-type", "application/x-ndjson")];
    let big = format!("1\n\"{}\"\n", "x".repeat(1_000));
    let message = hub.send(Method::POST, "/publish/a", &ndjson, big).await.refused(413, "too_large");
    assert!(message.contains("events[1]"), "{message}");
    hub.send(Method::POST, "/publish/a", &ndjson, "\"x\"\n".repeat(3_000)).await.refused(413, "too_large");
    assert!(hub.stored("a").await.is_empty());
}

#[tokio::test]
async fn a_body_over_the_limit_is_too_large_whether_its_length_is_told_or_not() {
    let edge = EdgeConfig { max_event_bytes: 1_000, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    hub.post("/publish/a", format!("\"{}\"", "x".repeat(700))).await.ok();
    hub.post("/publish/a", format!("\"{}\"", "x".repeat(990))).await.refused(413, "too_large");
    hub.post("/publish/a", format!("\"{}\"", "x".repeat(1_000))).await.refused(413, "too_large");

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut raw = tokio::net::TcpStream::connect(hub.addr).await.expect("connected");
    raw.write_all(b"POST /publish/a HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n")
        .await
        .expect("written");
    let chunk = format!("320\r\n{}\r\n", "1".repeat(0x320));
    raw.write_all(chunk.as_bytes()).await.expect("written");
    raw.write_all(chunk.as_bytes()).await.expect("written");
    let mut head = [0; 12];
    crate::harness::patient("the refusal", raw.read_exact(&mut head))
        .await
        .expect("an answer before the end of the body");
    assert_eq!(&head, b"HTTP/1.1 413");
    assert_eq!(hub.stored("a").await.len(), 1);
}

#[tokio::test]
async fn bad_input_is_refused_with_its_code_and_nothing_is_stored() {
    let hub = open_hub().await;
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let long_key = format!("/publish/a?key={}", "k".repeat(1_025));
    let long_topic = format!("/publish/{}", "t".repeat(256));
    let many_tags = format!("/publish/a?{}", "tag=x&".repeat(257));
    let cases: &[(&str, &[u8], u16, &str)] = &[
        ("/publish/a", b"", 400, "bad_json"),
        ("/publish/a", b"{", 400, "bad_json"),
        ("/publish/a", b"1 2", 400, "bad_json"),
        ("/publish/a", b"\xff", 400, "bad_json"),
        ("/publish/a", deep.as_bytes(), 400, "bad_json"),
        ("/publish/a..b", b"1", 400, "bad_topic"),
        ("/publish/a%2Fb", b"1", 400, "bad_topic"),
        ("/publish/%2e%2e", b"1", 400, "bad_topic"),
        ("/publish/%ff", b"1", 400, "bad_topic"),
        ("/publish/a.*", b"1", 400, "bad_topic"),
        (&long_topic, b"1", 400, "bad_topic"),
        ("/publish/a?id=1", b"1", 400, "bad_id"),
        ("/publish/a?caused_by=x", b"1", 400, "bad_id"),
        ("/publish/a?ts=yesterday", b"1", 400, "bad_request"),
        ("/publish/a?ts=-1", b"1", 400, "bad_request"),
        ("/publish/a?ts=9007199254740992", b"1", 400, "bad_request"),
        ("/publish/a?key=1&key=2", b"1", 400, "bad_request"),
        ("/publish/a?key=%ff", b"1", 400, "bad_request"),
        (&long_key, b"1", 400, "bad_request"),
        (&many_tags, b"1", 400, "bad_request"),
    ];
    for (path, body, status, code) in cases {
        hub.post(path, body.to_vec()).await.refused(*status, code);
    }
    for (name, value, code) in
        [("idempotency-key", "not a uuid".to_owned(), "bad_id"), ("x-big", "v".repeat(17 * 1024), "bad_request")]
    {
        hub.send(Method::POST, "/publish/a", &[(name, &value)], "1").await.refused(400, code);
    }
    let names: Vec<String> = (0..65).map(|n| format!("x-{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v")).collect();
    hub.send(Method::POST, "/publish/a", &many, "1").await.refused(400, "bad_request");
    let latin = http::HeaderValue::from_bytes(b"\xe9").expect("a value");
    let mut odd = request(Method::POST, "/publish/a", &[], "1");
    odd.headers_mut().insert("x-odd", latin);
    let odd = hub.connect().await.send_request(odd).await.expect("an answer");
    assert_eq!(odd.status(), 400);
    assert!(hub.hub.bus.store().topics().await.expect("readable").is_empty());
}

#[tokio::test]
async fn the_policy_says_who_may_publish_what() {
    let hub = Setup::with_jwt().start(router).await;
    hub.post("/publish/a.b", "1").await.refused(401, "no_token");
    let as_token = |token: String| ("authorization", format!("Bearer {token}"));
    let expired = jwt(&json!({ "exp": Millis::now().0 / 1000 - 60, "scopes": ["*:**"] }));
    for (token, path, status, code) in [
        ("nonsense".to_owned(), "/publish/a.b", 401, "jwt_invalid"),
        (expired, "/publish/a.b", 401, "token_expired"),
        (token(&["subscribe:**"]), "/publish/a.b", 403, "forbidden"),
        (token(&["publish:a.*"]), "/publish/b", 403, "forbidden"),
        (token(&["publish:a.*"]), "/publish/dlq.a.b", 403, "forbidden"),
        (token(&[]), "/publish/a.b", 403, "forbidden"),
    ] {
        let (name, value) = as_token(token);
        let answer = hub.send(Method::POST, path, &[(name, &value)], "1").await;
        let message = answer.refused(status, code);
        assert!(!message.contains(&value), "{message}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!(answer.header("www-authenticate"), if status == 401 { "Bearer" } else { "" });
    }
    let (name, value) = as_token(token(&["publish:a.*"]));
    hub.send(Method::POST, "/publish/a.b", &[(name, &value.replace("Bearer", "bearer"))], "1").await.ok();
    hub.send(Method::POST, "/publish/a.b", &[(name, &value.replace("Bearer", "Basic"))], "1")
        .await
        .refused(401, "no_token");
    assert_eq!(hub.stored("a.b").await.len(), 1);
}

#[tokio::test]
async fn in_open_mode_any_token_will_do() {
    let hub = open_hub().await;
    hub.send(Method::POST, "/publish/a", &[("authorization", "Bearer whatever")], "1").await.ok();
    hub.post("/publish/a", "1").await.ok();
}

#[tokio::test]
async fn over_the_quota_is_429_with_the_time_to_wait() {
    let some = |n| NonZeroU32::new(n).expect("not zero");
    let rate = |burst| Some(Rate { per_second: some(1), burst: some(burst) });
    let hub = Setup { quotas: Quotas::new(None, rate(2)), ..Setup::default() }.start(router).await;
    for _ in 0..2 {
        hub.post("/publish/a", "1").await.ok();
    }
    let limited = hub.post("/publish/a", "1").await;
    limited.refused(429, "rate_limited");
    assert_eq!(limited.header("retry-after"), "1");
    hub.post("/publish/b", "1").await.ok();
    let ndjson = [("content-type", "application/x-ndjson")];
    hub.send(Method::POST, "/publish/c", &ndjson, "1\n2\n3").await.refused(429, "rate_limited");
    assert_eq!((hub.stored("a").await.len(), hub.stored("c").await.len()), (2, 0));

    let hub = Setup { quotas: Quotas::new(rate(2), None), ..Setup::default() }.start(router).await;
    let mut one = hub.connect().await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        one.ready().await.expect("free");
        let answer = one.send_request(request(Method::POST, "/publish/a", &[], "1")).await.expect("an answer");
        statuses.push(answer.status().as_u16());
        http_body_util::BodyExt::collect(answer.into_body()).await.expect("a body");
    }
    assert_eq!(statuses, [200, 200, 429]);
    hub.post("/publish/a", "1").await.ok();
}

#[tokio::test]
async fn a_draining_hub_takes_nothing() {
    let hub = open_hub().await;
    let mut kept = hub.connect().await;
    kept.ready().await.expect("free");
    hub.hub.bus.drain().await;
    hub.post("/publish/a", "1").await.refused(503, "shutting_down");
    assert!(hub.stored("a").await.is_empty());
}

#[tokio::test]
async fn a_page_of_another_site_can_neither_publish_nor_read() {
    let edge = EdgeConfig { allowed_origins: vec!["https://app.example".to_owned()], ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    for origin in ["https://evil.example", "null", "http://app.example"] {
        let answer = hub.send(Method::POST, "/publish/a", &[("origin", origin)], "1").await;
        answer.refused(403, "forbidden");
        assert_eq!(answer.header("access-control-allow-origin"), "");
        hub.send(Method::GET, "/replay?topic=a", &[("origin", origin)], "").await.refused(403, "forbidden");
    }
    // A name that was pointed at this machine: the browser takes the hub for that page's own.
    let mut rebound = request(Method::GET, "/replay?topic=a", &[], "");
    rebound.headers_mut().insert("host", "rebound.example:8081".parse().expect("a value"));
    assert_eq!(hub.connect().await.send_request(rebound).await.expect("an answer").status(), 403);
    assert!(hub.stored("a").await.is_empty());

    for origin in ["https://app.example", "http://localhost:3000"] {
        let answer = hub.send(Method::POST, "/publish/a", &[("origin", origin)], "1").await;
        answer.ok();
        assert_eq!((answer.header("access-control-allow-origin"), answer.header("vary")), (origin, "origin"));
        let asked = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type"),
        ];
        let told = hub.send(Method::OPTIONS, "/publish/a", &asked, "").await;
        assert_eq!((told.status.as_u16(), told.header("access-control-allow-origin")), (204, origin));
        assert_eq!(told.header("access-control-allow-headers"), "authorization,content-type");
        let methods: Vec<&str> = told.header("access-control-allow-methods").split(", ").collect();
        assert_eq!(methods, ["GET", "HEAD", "POST", "PUT", "DELETE"], "all that a route takes");
        let readable: Vec<&str> = answer.header("access-control-expose-headers").split(", ").collect();
        for name in ["complete", "first-seq", "last-seq"] {
            assert!(readable.contains(&&*format!("x-promethean-{name}")), "{name} in {readable:?}");
        }
    }
    let foreign = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    let told = hub.send(Method::OPTIONS, "/publish/a", &foreign, "").await;
    assert_eq!(told.header("access-control-allow-origin"), "");
}

#[tokio::test]
async fn a_client_that_is_still_sending_hears_why_it_is_refused() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let hub = open_hub().await;
    let big = "x".repeat(12 << 20);
    // Written whole before anything is read, as many clients do.
    for (path, status) in [("/publish/a", "413"), ("/publish/..", "400"), ("/no/such/route", "404")] {
        let mut stream = tokio::net::TcpStream::connect(hub.addr).await.expect("connected");
        let head = format!("POST {path} HTTP/1.1\r\nhost: hub\r\ncontent-length: {}\r\n\r\n", big.len());
        stream.write_all(head.as_bytes()).await.expect("the head is taken");
        stream.write_all(big.as_bytes()).await.expect("the body is taken");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{path}");
    }
}
