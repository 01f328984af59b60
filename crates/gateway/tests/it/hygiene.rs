//! Requests that a proxy in front could read in another way, and answers that a browser could: on every port.

use std::fmt::Write as _;

use axum::Router;
use promethean_gateway::{EdgeConfig, Hub, http, ops, ws};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Served, Setup, patient};

/// Makes the router of a port.
type Port = fn(Arc<Hub>) -> Router;

/// Sends a request as it is and returns the whole answer. `lines` are further lines of its head.
async fn raw(hub: &Served, first: &str, lines: &[&str], body: &str) -> String {
    let mut stream = TcpStream::connect(hub.addr).await.expect("connected");
    let mut text = format!("{first}\r\n");
    for line in lines {
        let _ = write!(text, "{line}\r\n");
    }
    let _ = write!(text, "connection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    let _ = patient(first, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

const PUBLISH: &str = "POST /publish/a HTTP/1.1";
const CHUNKED: &str = "1\r\n1\r\n0\r\n\r\n";

#[tokio::test]
async fn doubled_headers_and_other_codings_are_refused_and_nothing_is_stored() {
    let hub = Setup::default().start(http::router).await;
    for (lines, body, status) in [
        (&["host: hub", "host: hub", "content-length: 1"][..], "1", 400),
        (&["host: hub", "authorization: Bearer a", "authorization: Bearer b", "content-length: 1"], "1", 400),
        (&["host: hub", "transfer-encoding: gzip, chunked"], CHUNKED, 501),
        (&["host: hub", "transfer-encoding: chunked, chunked"], CHUNKED, 400),
        (&["host: hub", "transfer-encoding: gzip"], CHUNKED, 400),
        (&["host: hub", "content-encoding: br", "content-length: 1"], "1", 415),
        (&["host: hub", "content-encoding: identity, gzip", "content-length: 1"], "1", 415),
    ] {
        let answer = raw(&hub, PUBLISH, lines, body).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{lines:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{lines:?}: {answer}");
    }
    assert!(hub.stored("a").await.is_empty());
    for lines in [
        &["host: hub", "content-encoding: identity", "content-length: 1"][..],
        &["host: hub", "transfer-encoding: Chunked"],
    ] {
        let body = if lines.len() == 3 { "1" } else { CHUNKED };
        let answer = raw(&hub, PUBLISH, lines, body).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{lines:?}: {answer}");
    }
    assert_eq!(hub.stored("a").await.len(), 2);
}

#[tokio::test]
async fn every_answer_of_every_port_says_nosniff() {
    let ports: [(Port, &[&str]); 3] = [
        (http::router, &["/openapi.json", "/replay?topic=a", "/replay", "/none", "/healthz", "/events/a%00"]),
        (ops::router, &["/", "/topics", "/metrics", "/none", "/lag"]),
        (ws::router, &["/"]),
    ];
    for (router, paths) in ports {
        let hub = Setup::default().start(router).await;
        for path in paths {
            let answer = hub.get(path).await;
            assert_eq!(answer.headers.get_all("x-content-type-options").iter().count(), 1, "{path}");
            assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        }
        let refused = raw(&hub, "GET / HTTP/1.1", &["host: a", "host: b"], "").await;
        assert!(refused.contains("x-content-type-options: nosniff"), "{refused}");
    }
    let hub = Setup::default().start(ws::router).await;
    let mut stream = TcpStream::connect(hub.addr).await.expect("connected");
    let head = format!("GET / HTTP/1.1\r\nhost: hub\r\n{}\r\n\r\n", UPGRADE.join("\r\n"));
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = vec![0; 1024];
    let n = patient("the upgrade", stream.read(&mut answer)).await.expect("read");
    let answer = String::from_utf8_lossy(&answer[..n]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 101") && answer.contains("x-content-type-options: nosniff"), "{answer}");
}

const UPGRADE: [&str; 4] = [
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
];

#[tokio::test]
async fn an_upgrade_needs_http_1_1_one_key_and_no_body() {
    for router in [ws::router as Port, ops::router] {
        let hub = Setup::default().start(router).await;
        let with = |more: &[&'static str]| [&["host: hub"][..], &UPGRADE, more].concat();
        for (first, lines, body) in [
            ("GET /ws HTTP/1.0", with(&[]), ""),
            ("GET /ws HTTP/1.1", with(&["sec-websocket-key: eGhlIHNhbXBsZSBub25jZQ=="]), ""),
            ("GET /ws HTTP/1.1", with(&["content-length: 1"]), "1"),
            ("GET /ws HTTP/1.1", with(&["transfer-encoding: chunked"]), CHUNKED),
        ] {
            let answer = raw(&hub, first, &lines, body).await;
            assert!(answer.contains(" 400 "), "{first} {lines:?}: {answer}");
        }
    }
}

const CROSS: (&str, &str) = ("sec-fetch-site", "cross-site");

#[tokio::test]
async fn without_auth_a_page_of_another_site_gets_the_dashboard_and_healthz_only() {
    let edge = EdgeConfig { allowed_origins: vec!["https://app.example".to_owned()], ..EdgeConfig::default() };
    let get = http_method();
    for (router, paths) in [
        (ops::router as Port, &["/topics", "/backup", "/readyz", "/causality?id=x", "/openapi.json"][..]),
        (http::router, &["/replay?topic=a", "/readyz", "/openapi.json"]),
    ] {
        let hub = Setup { edge: edge.clone(), ..Setup::default() }.start(router).await;
        for path in paths {
            hub.send(get.clone(), path, &[CROSS], "").await.refused(403, "forbidden");
            hub.send(get.clone(), path, &[CROSS, ("origin", "https://evil.example")], "")
                .await
                .refused(403, "forbidden");
            for allowed in [&[CROSS, ("origin", "https://app.example")][..], &[("sec-fetch-site", "same-origin")]] {
                assert_ne!(hub.send(get.clone(), path, allowed, "").await.status, 403, "{path} {allowed:?}");
            }
        }
        assert_eq!(hub.send(get.clone(), "/healthz", &[CROSS], "").await.status, 200);
    }
    let hub = Setup { edge: edge.clone(), ..Setup::default() }.start(ops::router).await;
    assert_eq!(hub.send(get.clone(), "/", &[CROSS], "").await.status, 200);
    let lines = [&["host: hub", "sec-fetch-site: cross-site"][..], &UPGRADE].concat();
    assert!(raw(&hub, "GET /ws HTTP/1.1", &lines, "").await.starts_with("HTTP/1.1 403"));
    let hub = Setup { edge, ..Setup::with_jwt() }.start(ops::router).await;
    hub.send(get, "/topics", &[CROSS], "").await.refused(401, "no_token");
}

fn http_method() -> ::http::Method {
    ::http::Method::GET
}
