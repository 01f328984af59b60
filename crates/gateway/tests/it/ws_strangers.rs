//! Clients that have not sent `AUTH`, and clients that never stop to send: what they may cost, and that others go on.

use std::time::Duration;

use crate::ws_support::{PATIENCE, Raw, Server, Setup, frame};
use promethean_gateway::EdgeConfig;
use promethean_gateway::auth::{AuthConfig, Secret};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TOKEN: &str = "a token for tests";

fn guarded(config: EdgeConfig) -> Setup {
    let auth = AuthConfig { static_token: Some(Secret::new(TOKEN)), ..AuthConfig::default() };
    Setup { config, auth, ..Setup::default() }
}

async fn auth_ok(raw: &mut Raw) {
    raw.send(&frame(0x81, json!({"op": "AUTH", "token": TOKEN}).to_string().as_bytes())).await;
    assert_eq!(raw.text().await["op"], "OK");
}

/// Writes as fast as the hub reads, until it hangs up.
fn flood(raw: Raw, bytes: Vec<u8>) -> (tokio::net::tcp::OwnedReadHalf, tokio::task::JoinHandle<()>) {
    let (read, mut write) = raw.tcp.into_split();
    (read, tokio::spawn(async move { while write.write_all(&bytes).await.is_ok() {} }))
}

#[tokio::test]
async fn before_auth_a_frame_over_128_kib_closes_with_1009_by_its_header_alone() {
    let server = Server::with(guarded(EdgeConfig::default())).await;
    for header in [frame(0x81, &[b' '; 128 * 1024 + 1]), frame(0x01, &[b' '; 200_000])] {
        let mut raw = server.raw().await;
        raw.send(&header[..14]).await;
        assert_eq!(raw.closed().await, 1009);
    }
    let mut raw = server.raw().await;
    raw.send(&frame(0x01, &[b' '; 100_000])).await;
    raw.send(&frame(0x00, &[b' '; 100_000])[..14]).await;
    assert_eq!(raw.closed().await, 1009, "fragments count together");
}

#[tokio::test]
async fn a_large_frame_right_behind_auth_waits_for_its_answer() {
    let server = Server::with(guarded(EdgeConfig::default())).await;
    let mut raw = server.raw().await;
    let publish = json!({"op": "PUBLISH", "topic": "a", "payload": "x".repeat(500_000)}).to_string();
    let auth = json!({"op": "AUTH", "token": TOKEN}).to_string();
    raw.send(&[frame(0x81, auth.as_bytes()), frame(0x81, publish.as_bytes())].concat()).await;
    assert_eq!((raw.text().await["op"].clone(), raw.text().await["seq"].clone()), (json!("OK"), json!(1)));
    let wrong = json!({"op": "AUTH", "token": "wrong"}).to_string();
    let mut raw = server.raw().await;
    raw.send(&[frame(0x81, wrong.as_bytes()), frame(0x81, publish.as_bytes())[..64].to_vec()].concat()).await;
    assert_eq!(raw.text().await["code"], "bad_token");
    assert_eq!(raw.closed().await, 1009);
}

#[tokio::test]
async fn a_flood_of_pings_or_pongs_ends_the_connection_before_auth_and_after_it() {
    let server = Server::with(guarded(EdgeConfig::default())).await;
    for (opcode, known) in [(0x89, false), (0x8a, false), (0x89, true), (0x8a, true)] {
        let mut raw = server.raw().await;
        if known {
            auth_ok(&mut raw).await;
        }
        let (read, flood) = flood(raw, frame(opcode, b"").repeat(4_000));
        let closed = closed(read).await;
        assert_eq!(closed, Some(1008), "{opcode:x} {known}");
        tokio::time::timeout(PATIENCE, flood).await.expect("the hub hangs up").expect("no panic");
    }
}

/// The code of the close frame, where it was seen.
async fn closed(mut read: tokio::net::tcp::OwnedReadHalf) -> Option<u16> {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, read.read_to_end(&mut all)).await.expect("the hub hangs up");
    let mut rest = all.as_slice();
    while let [first, len, after @ ..] = rest {
        let (payload, later) = after.split_at_checked(usize::from(*len))?;
        if *first == 0x88 {
            return payload.first_chunk().map(|code| u16::from_be_bytes(*code));
        }
        rest = later;
    }
    None
}

#[tokio::test]
async fn every_ping_is_answered() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let pings: Vec<u8> = (0..10_u8).flat_map(|n| frame(0x89, &[n])).collect();
    raw.send(&pings).await;
    for n in 0..10 {
        assert_eq!(raw.frame().await, (0xa, vec![n]));
    }
}

#[tokio::test]
async fn frames_before_auth_are_answered_one_by_one_and_slowly() {
    let server = Server::with(guarded(EdgeConfig::default())).await;
    let mut raw = server.raw().await;
    let publish = frame(0x81, br#"{"op":"PUBLISH","topic":"a","payload":1}"#);
    raw.send(&publish.repeat(70)).await;
    for _ in 0..70 {
        assert_eq!(raw.text().await["code"], "unauthorized");
    }
    auth_ok(&mut raw).await;
}

#[tokio::test]
async fn deadlines_hold_whatever_the_peer_sends() {
    let config = EdgeConfig { auth_deadline: Duration::from_millis(300), ..EdgeConfig::default() };
    let server = Server::with(guarded(config)).await;
    // Empty fragments are neither messages nor control frames.
    let mut raw = server.raw().await;
    raw.send(&frame(0x01, b"")).await;
    let (read, flood) = flood(raw, frame(0x00, b"").repeat(4_000));
    assert_eq!(closed(read).await, Some(4401));
    tokio::time::timeout(PATIENCE, flood).await.expect("the hub hangs up").expect("no panic");
}

#[tokio::test]
async fn the_shutdown_holds_whatever_the_peer_sends() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.send(&frame(0x01, b"")).await;
    let (read, flood) = flood(raw, frame(0x00, b"").repeat(4_000));
    server.hub.drain.begin();
    assert_eq!(closed(read).await, Some(1001));
    tokio::time::timeout(PATIENCE, flood).await.expect("the hub hangs up").expect("no panic");
}

#[tokio::test]
async fn the_hub_hangs_up_as_soon_as_the_peers_close_has_come_also_after_a_violation() {
    let server = Server::start().await;
    // Unmasked, a reserved bit, half a close code; each followed by the client's close frame.
    for wrong in [vec![0x81, 0x02, b'{', b'}'], frame(0xc1, b"{}"), frame(0x83, &[b'x'; 300])] {
        let mut raw = server.raw().await;
        raw.send(&wrong).await;
        assert_eq!(raw.closed().await, 1002);
        raw.send(&frame(0x81, b"on its way")).await;
        raw.send(&frame(0x88, &1002_u16.to_be_bytes())).await;
        let end = tokio::time::timeout(Duration::from_secs(3), raw.tcp.read_u8()).await;
        assert!(end.expect("well before the hub would by itself").is_err());
    }
    let mut raw = server.raw().await;
    raw.send(&frame(0x88, &[1])).await;
    assert_eq!(raw.closed().await, 1002);
    assert!(tokio::time::timeout(Duration::from_secs(3), raw.tcp.read_u8()).await.expect("at once").is_err());
}
