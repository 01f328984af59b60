//! The listener over real sockets: deadlines, the bound on connections, TLS with reload, the drain.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use hyper_util::rt::TokioIo;
use promethean_gateway::drain::Drain;
use promethean_gateway::listener::{Intake, Listener, Peer, Stream};
use promethean_gateway::tls::Tls;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const PATIENCE: Duration = Duration::from_secs(20);

async fn patient<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// Serves `/` (hello), `/slow` (answers once the drain has begun) and `/upgrade` (echoes bytes).
async fn start(intake: Intake) -> (SocketAddr, Drain) {
    let drain = Drain::new();
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
    let addr = listener.local_addr();
    let slow = drain.clone();
    let router = Router::new()
        .route("/", get(|peer: axum::Extension<Peer>| async move { format!("hello {}", peer.0.0.ip()) }))
        .route(
            "/slow",
            get(move || async move {
                let mut begun = slow.watch();
                drop(slow);
                begun.begun().await;
                "finished"
            }),
        )
        .route("/upgrade", get(echo));
    tokio::spawn(listener.serve(router, intake, drain.watch()));
    (addr, drain)
}

async fn echo(request: axum::extract::Request) -> http::Response<axum::body::Body> {
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(request).await.expect("upgraded");
        let parts = upgraded.downcast::<TokioIo<Stream>>().expect("the listener's own stream");
        let mut stream = parts.io.into_inner();
        stream.write_all(&parts.read_buf).await.expect("written");
        let mut buf = [0; 64];
        while let Ok(n @ 1..) = stream.read(&mut buf).await {
            stream.write_all(&buf[..n]).await.expect("written");
        }
    });
    let mut response = http::Response::new(axum::body::Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("connection", "upgrade".parse().expect("a value"));
    response.headers_mut().insert("upgrade", "echo".parse().expect("a value"));
    response
}

async fn request(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    let text = format!("GET {path} HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.expect("written");
    let mut answer = String::new();
    let _ = patient("an answer", stream.read_to_string(&mut answer)).await;
    answer
}

/// Connects and reads, and sends nothing: a request on its way while the hub hangs up would cost the answer.
async fn turned_away(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    let mut answer = String::new();
    patient("the answer", stream.read_to_string(&mut answer)).await.expect("read");
    answer
}

async fn upgraded(addr: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    let head = "GET /upgrade HTTP/1.1\r\nhost: hub\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nearly";
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut seen = String::new();
    while !seen.ends_with("early") {
        let mut buf = [0; 512];
        let n = patient("the upgrade", stream.read(&mut buf)).await.expect("read");
        assert_ne!(n, 0, "closed after {seen:?}");
        seen.push_str(std::str::from_utf8(&buf[..n]).expect("text"));
    }
    assert!(seen.starts_with("HTTP/1.1 101"), "{seen}");
    stream
}

#[tokio::test]
async fn requests_are_answered_and_know_their_peer() {
    let (addr, _drain) = start(Intake::new(10, None)).await;
    let answer = request(addr, "/").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello 127.0.0.1"), "{answer}");
}

#[tokio::test]
async fn a_slow_handshake_is_cut_off_and_others_notice_nothing() {
    let (addr, _drain) = start(Intake::new(10, None).header_deadline(Duration::from_millis(300))).await;
    let mut silent = TcpStream::connect(addr).await.expect("connected");
    let mut dripping = TcpStream::connect(addr).await.expect("connected");
    let dripped = tokio::spawn(async move {
        // A byte now and then keeps no connection alive: the deadline is for the whole head.
        let (mut read, mut write) = dripping.split();
        let mut rest = Vec::new();
        tokio::select! {
            _ = read.read_to_end(&mut rest) => {}
            () = async { loop {
                if write.write_all(b"G").await.is_err() { std::future::pending::<()>().await; }
                tokio::time::sleep(Duration::from_millis(50)).await;
            } } => {}
        }
    });
    assert!(request(addr, "/").await.contains("hello"));
    let mut rest = Vec::new();
    let _ = patient("the silent one to be closed", silent.read_to_end(&mut rest)).await;
    patient("the dripping one to be closed", dripped).await.expect("no panic");
    assert!(request(addr, "/").await.contains("hello"));
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let (addr, _drain) = start(Intake::new(10, None)).await;
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    let text = format!("GET / HTTP/1.1\r\nhost: hub\r\nx-big: {}\r\n\r\n", "x".repeat(200_000));
    let _ = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = patient("an answer", stream.read_to_end(&mut answer)).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    assert!(request(addr, "/").await.contains("hello"));
}

#[tokio::test]
async fn over_the_bound_connections_are_turned_away_and_an_upgraded_one_keeps_its_slot() {
    let (addr, _drain) = start(Intake::new(2, None)).await;
    let (one, mut two) = (upgraded(addr).await, upgraded(addr).await);
    two.write_all(b"still here").await.expect("written");
    let mut echoed = [0; 10];
    patient("the echo", two.read_exact(&mut echoed)).await.expect("read");
    let answer = turned_away(addr).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 503") && head.contains(&format!("content-length: {}", body.len())), "{answer}");
    assert!(body.contains("max_connections"), "{body}");
    drop(one);
    patient("a free slot", async {
        while !request(addr, "/").await.contains("hello") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_listener_with_slots_of_its_own_answers_when_the_shared_ones_are_used_up() {
    let shared = Intake::new(1, None);
    let (addr, _drain) = start(shared.clone()).await;
    let (ops, _ops_drain) = start(shared.reserve(1)).await;
    let _held = upgraded(addr).await;
    assert!(turned_away(addr).await.contains("max_connections"));
    let _own = upgraded(ops).await;
    assert!(turned_away(ops).await.contains("max_connections"), "it has a bound too");
}

#[tokio::test]
async fn the_drain_finishes_what_is_under_way_closes_the_idle_and_accepts_no_more() {
    let (addr, drain) = start(Intake::new(10, None)).await;
    let under_way = tokio::spawn(async move { request(addr, "/slow").await });
    let mut idle = TcpStream::connect(addr).await.expect("connected");
    idle.write_all(b"GET / HTTP/1.1\r\nhost: hub\r\n\r\n").await.expect("written");
    let mut buf = [0; 1024];
    assert_ne!(patient("the first answer", idle.read(&mut buf)).await.expect("read"), 0);
    tokio::time::sleep(Duration::from_millis(100)).await;
    drain.begin();
    assert!(patient("the slow answer", under_way).await.expect("no panic").ends_with("finished"));
    let mut rest = Vec::new();
    patient("the idle one to be closed", idle.read_to_end(&mut rest)).await.expect("closed cleanly");
    patient("everybody to be gone", drain.drained()).await;
    assert!(TcpStream::connect(addr).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn the_drain_waits_for_upgraded_connections() {
    let (addr, drain) = start(Intake::new(10, None)).await;
    let upgraded = upgraded(addr).await;
    drain.begin();
    let early = tokio::time::timeout(Duration::from_millis(200), drain.drained()).await;
    assert!(early.is_err(), "the upgraded connection is still open");
    drop(upgraded);
    patient("everybody to be gone", drain.drained()).await;
}

fn write_certificate(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).expect("written");
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
    made.cert.der().clone()
}

async fn tls_hello(addr: SocketAddr, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).expect("a root");
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(addr).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    Ok(answer)
}

#[tokio::test]
async fn tls_serves_and_a_reload_changes_the_certificate_of_new_connections() {
    let dir = tempfile::tempdir().expect("a directory");
    let old = write_certificate(dir.path());
    let tls = Tls::open(&dir.path().join("cert.pem"), &dir.path().join("key.pem")).expect("a certificate");
    let (addr, _drain) = start(Intake::new(10, Some(tls.clone()))).await;
    assert!(tls_hello(addr, &old).await.expect("trusted").contains("hello"));

    std::fs::write(dir.path().join("cert.pem"), "half a fi").expect("written");
    let failed = tls.reload().expect_err("not a certificate").to_string();
    assert!(failed.contains("cert.pem"), "{failed}");
    assert!(tls_hello(addr, &old).await.expect("the old one goes on").contains("hello"));

    let new = write_certificate(dir.path());
    tls.reload().expect("a certificate");
    assert!(tls_hello(addr, &new).await.expect("the new one").contains("hello"));
    assert!(tls_hello(addr, &old).await.is_err(), "the old one is gone");
}

#[tokio::test]
async fn a_silent_tls_handshake_and_plain_http_on_a_tls_port_are_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let trusted = write_certificate(dir.path());
    let tls = Tls::open(&dir.path().join("cert.pem"), &dir.path().join("key.pem")).expect("a certificate");
    let (addr, _drain) = start(Intake::new(10, Some(tls)).header_deadline(Duration::from_millis(500))).await;
    let mut silent = TcpStream::connect(addr).await.expect("connected");
    let mut rest = Vec::new();
    let _ = patient("the silent one to be closed", silent.read_to_end(&mut rest)).await;
    assert!(!request(addr, "/").await.contains("hello"));
    assert!(tls_hello(addr, &trusted).await.expect("trusted").contains("hello"));
}

#[test]
fn a_key_that_does_not_go_with_the_certificate_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    write_certificate(dir.path());
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = dir.path().join("other.pem");
    std::fs::write(&key, other.signing_key.serialize_pem()).expect("written");
    let refused = Tls::open(&dir.path().join("cert.pem"), &key).expect_err("another key").to_string();
    assert!(refused.contains("other.pem"), "{refused}");
    assert!(Tls::open(&dir.path().join("none.pem"), &key).expect_err("no file").to_string().contains("none.pem"));
}
