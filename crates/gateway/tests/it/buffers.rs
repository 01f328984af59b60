//! The account of buffered bytes, over WebSocket and HTTP alike, and peers that read nothing.

use std::time::Duration;

use crate::harness::{PATIENCE, Served, Setup, patient};
use crate::ws_support::{Server, frame};
use promethean_gateway::{EdgeConfig, http, ops};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const KIB: usize = 1024;

fn narrow() -> EdgeConfig {
    EdgeConfig { max_buffered_bytes: KIB * KIB, ..EdgeConfig::default() }
}

fn publish(payload: usize) -> Vec<u8> {
    frame(0x81, json!({"op": "PUBLISH", "topic": "a", "payload": "x".repeat(payload)}).to_string().as_bytes())
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    patient(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn over_the_bound_the_largest_half_read_frame_ends_with_1009_and_others_go_on() {
    let server = Server::configured(narrow()).await;
    let (mut large, mut small) = (server.raw().await, server.raw().await);
    large.send(&publish(900 * KIB)[..800 * KIB]).await;
    until("the large one to be read", async || server.hub.buffers.bytes() >= 800 * KIB).await;
    small.send(&publish(500 * KIB)).await;
    assert_eq!(small.text().await["op"], "OK");
    assert_eq!(large.closed().await, 1009);
    drop((large, small));
    until("the account to be empty", async || server.hub.buffers.bytes() == 0).await;
}

#[tokio::test]
async fn small_frames_go_on_while_the_account_is_full() {
    let server = Server::configured(narrow()).await;
    let (mut large, mut client) = (server.raw().await, server.connect().await);
    large.send(&publish(1000 * KIB)[..900 * KIB]).await;
    until("the large one to be read", async || server.hub.buffers.bytes() >= 900 * KIB).await;
    for n in 1..=100 {
        assert_eq!(client.publish("b", json!("x".repeat(8 * KIB))).await["seq"], n);
    }
    large.send(&publish(1000 * KIB)[900 * KIB..]).await;
    assert_eq!(large.text().await["op"], "OK");
}

/// Begins a publish whose body has `len` bytes and sends `sent` of them.
async fn begin_body(served: &Served, len: usize, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(served.addr).await.expect("connected");
    let head = format!(
        "POST /publish/a HTTP/1.1\r\nhost: hub\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n\""
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all("x".repeat(sent - 1).as_bytes()).await.expect("sent");
    stream
}

async fn status(stream: &mut TcpStream) -> String {
    let mut answer = [0; 12];
    patient("an answer", stream.read_exact(&mut answer)).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn over_the_bound_the_largest_half_read_body_ends_with_503_and_others_go_on() {
    let served = Setup { edge: narrow(), ..Setup::default() }.start(http::router).await;
    let mut large = begin_body(&served, 900 * KIB, 800 * KIB).await;
    until("the large one to be read", async || served.hub.buffers.bytes() >= 800 * KIB).await;
    let mut small = begin_body(&served, 500 * KIB, 499 * KIB).await;
    assert_eq!(status(&mut large).await, "HTTP/1.1 503");
    small.write_all(&[&[b'x'; KIB - 1][..], b"\""].concat()).await.expect("sent");
    assert_eq!(status(&mut small).await, "HTTP/1.1 200");
    until("the account to be empty", async || served.hub.buffers.bytes() == 0).await;
}

#[tokio::test]
async fn the_metric_and_the_list_of_connections_show_what_is_buffered() {
    let served = Setup::default().start(ops::router).await;
    let server = Server { hub: served.hub.clone(), addr: served.addr };
    let mut raw = server.raw().await;
    raw.send(&publish(500 * KIB)[..400 * KIB]).await;
    until("the frame to be read", async || served.hub.buffers.bytes() >= 400 * KIB).await;
    let listed = served.get("/connections").await.ok();
    assert!(listed["connections"][0]["bufferedBytes"].as_u64() >= Some(400 * KIB as u64), "{listed}");
    let metrics = served.get("/metrics").await;
    let line = metrics.text().lines().find_map(|line| line.strip_prefix("gateway_buffered_bytes "));
    let bytes: usize = line.and_then(|bytes| bytes.parse().ok()).expect("the gauge");
    assert!(bytes >= 400 * KIB, "{bytes}");
}

/// A socket that asks for `path` and reads nothing, and whose system buffers little for it.
async fn unread(served: &Served, path: &str) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 * KIB as u32).expect("a size");
    let mut stream = socket.connect(served.addr).await.expect("connected");
    let head = format!("GET {path} HTTP/1.1\r\nhost: hub\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

#[tokio::test]
async fn a_large_page_of_replay_is_streamed_and_says_how_many_and_what_is_next() {
    let served = Setup::default().start(http::router).await;
    let body = format!("\"{}\"", "x".repeat(900 * KIB));
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(served.post("/publish/big", body.clone()).await.ok()["id"].clone());
    }
    let page = served.get("/replay?topic=big&limit=3").await;
    assert_eq!((page.header("content-length"), page.header("content-type")), ("", "application/json"));
    let page = page.ok();
    assert_eq!((&page["count"], &page["next"], &page["topic"]), (&json!(3), &ids[2], &json!("big")));
    assert_eq!(page["events"].as_array().map(Vec::len), Some(3));
    let rest = served.get("/replay?topic=big").await.ok();
    assert_eq!((rest["count"].clone(), rest.get("next")), (json!(4), None));
    let _unread = unread(&served, "/replay?topic=big").await;
    until("the answer to begin", async || served.hub.buffers.bytes() > 0).await;
    assert!(served.hub.buffers.bytes() < 3 * 900 * KIB, "not the whole page");
}

#[tokio::test]
async fn an_http_peer_that_takes_no_byte_is_hung_up_on_and_what_waited_for_it_is_let_go() {
    let served =
        Setup::default().start_with(ops::router_with_http, |intake| intake.write_deadline(Duration::from_millis(500)));
    let served = served.await;
    let body = format!("\"{}\"", "x".repeat(900 * KIB));
    for _ in 0..12 {
        served.post("/publish/big", body.clone()).await.ok();
    }
    let paths = ["/replay?topic=big&limit=100", "/export?topic=big", "/events/big?from=earliest", "/backup"];
    let mut streams = Vec::new();
    for path in paths {
        streams.push(unread(&served, path).await);
    }
    until("the answers to be buffered", async || served.hub.buffers.bytes() > 2 * 900 * KIB).await;
    until("them to be let go", async || served.hub.buffers.bytes() == 0).await;
    for (stream, path) in streams.iter_mut().zip(paths) {
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect(path);
        assert!(rest.len() < 12 * 900 * KIB, "{path}: not the whole answer");
    }
    served.get("/healthz").await.ok();
}
