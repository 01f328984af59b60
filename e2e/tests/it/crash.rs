//! `kill -9` under load, with a ledger of what was `OK`ed. What was not answered is unknown: either is right.

use std::time::Duration;

use promethean_e2e::{Ledger, Setup, Wire, get};
use serde_json::json;

const CYCLES: usize = 12;
const PUBLISHERS: usize = 3;
const WINDOW: usize = 64;
const TOPIC: &str = "crash.load";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_oked_is_lost_and_nothing_acked_comes_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let ledger = Ledger::default();
    for cycle in 0..CYCLES {
        let mut hub = Setup::log(dir.path()).start();
        ledger.check(hub.http, TOPIC).await;
        let mut clients = tokio::task::JoinSet::new();
        for publisher in 0..PUBLISHERS {
            clients.spawn(publish(hub.ws, format!("{cycle}-{publisher}"), ledger.clone()));
        }
        clients.spawn(consume(hub.ws, ledger.clone()));
        // Killed at another moment each time.
        tokio::time::sleep(Duration::from_millis(150 + (cycle as u64 * 97) % 400)).await;
        hub.kill();
        while clients.join_next().await.is_some() {}
    }
    let hub = Setup::log(dir.path()).start();
    ledger.check(hub.http, TOPIC).await;
    let ledger = ledger.entries();
    assert!(ledger.published.len() > CYCLES * 100, "too little was published: {}", ledger.published.len());
    assert!(ledger.acked.len() > CYCLES * 20, "too little was acked: {}", ledger.acked.len());
}

/// Publishes with a window until the connection is gone; notes what was answered.
async fn publish(at: std::net::SocketAddr, name: String, ledger: Ledger) {
    let mut wire = Wire::connect(at).await;
    let mut unanswered = std::collections::VecDeque::new();
    for number in 0.. {
        let payload = format!("{name}-{number}");
        ledger.entries().sent.insert(payload.clone());
        let frame = json!({"op": "PUBLISH", "topic": TOPIC, "payload": payload, "opts": {"key": name}});
        if wire.send(&frame).await.is_err() {
            return;
        }
        unanswered.push_back(payload);
        while unanswered.len() >= WINDOW {
            let Some(answer) = wire.next().await else { return };
            assert_eq!(answer["op"], "OK", "{answer}");
            let payload = unanswered.pop_front().expect("as many answers as frames");
            ledger.entries().published.insert(payload, answer["seq"].as_u64().expect("a seq"));
        }
    }
}

/// Acks what comes until the connection is gone; notes which acks were answered.
async fn consume(at: std::net::SocketAddr, ledger: Ledger) {
    let mut wire = Wire::connect(at).await;
    let subscribe =
        json!({"op": "SUBSCRIBE", "topic": TOPIC, "group": "g", "opts": {"from": "earliest", "maxInFlight": 50}});
    wire.ok(subscribe).await;
    let mut unanswered = std::collections::VecDeque::new();
    while let Some(frame) = wire.next().await {
        if frame["op"] == "EVENT" {
            let id = ledger.delivered(&frame["event"]);
            let ack = json!({"op": "ACK", "topic": TOPIC, "group": "g", "id": id});
            if wire.send(&ack).await.is_err() {
                return;
            }
            unanswered.push_back(id);
        } else {
            assert_eq!(frame["op"], "OK", "{frame}");
            let id = unanswered.pop_front().expect("as many answers as acks");
            ledger.entries().acked.insert(id);
        }
    }
}

/// An `fdatasync` that fails as long as there is the file that `FAIL_SYNC` names.
const SHIM: &str = r#"
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fdatasync(int fd) {
    if (access(getenv("FAIL_SYNC"), F_OK) == 0) { errno = EIO; return -1; }
    return syscall(SYS_fdatasync, fd);
}
"#;

/// In memory, where a write is never durable by itself, so that the hub has to sync.
#[tokio::test]
async fn a_failed_fdatasync_is_no_ok_and_the_process_says_why_and_ends() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let [source, shim, fail, data] = ["shim.c", "shim.so", "fail", "data"].map(|name| dir.path().join(name));
    std::fs::write(&source, SHIM).expect("written");
    let built = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&shim, &source]).status();
    assert!(built.expect("a C compiler, which Rust links with").success());
    let setup = Setup::log(&data).env("FAIL_SYNC", &fail.display().to_string());
    let mut hub = setup.env("LD_PRELOAD", &shim.display().to_string()).start();
    let mut wire = Wire::connect(hub.ws).await;
    let publish = |n: u32| json!({"op": "PUBLISH", "topic": TOPIC, "payload": n, "corr": n});
    wire.send(&publish(1)).await.expect("open");
    assert_eq!(wire.next().await.expect("an answer")["op"], "OK");

    std::fs::write(&fail, "").expect("written");
    for n in 2..4 {
        // By the second one it may be gone.
        let _ = wire.send(&publish(n)).await;
    }
    while let Some(answer) = wire.next().await {
        assert_eq!((answer["op"].as_str(), answer["code"].as_str()), (Some("ERR"), Some("publish_failed")), "{answer}");
    }
    let status = hub.wait();
    assert!(!status.success() && status.code().is_some(), "{status}: it ends by itself");
    assert!(hub.log().contains("Input/output error"), "{}", hub.log());

    // The disk is whole again: what was answered is there, and what was not may be.
    let hub = Setup::log(&data).start();
    let page = get(hub.http, &format!("/replay?topic={TOPIC}&from=earliest")).await.json();
    let payloads: Vec<_> = page["events"].as_array().expect("events").iter().map(|event| &event["payload"]).collect();
    assert!(payloads.iter().copied().eq((1..=payloads.len()).map(|n| json!(n)).collect::<Vec<_>>().iter()), "{page}");
    assert!((1..=3).contains(&payloads.len()), "{page}");
}
