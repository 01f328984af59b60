//! The life of the process: the start-up line, one hub a directory, the drain.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use promethean_e2e::{Setup, Wire, get};
use promethean_testmongo::free_port;
use serde_json::json;

#[tokio::test]
async fn the_start_up_line_says_where_it_listens_and_on_which_store() {
    let hub = Setup::memory().start();
    let expected = format!("promethean ready ws={} http={} ops={} store=memory", hub.ws, hub.http, hub.ops);
    assert_eq!(hub.ready, expected);
    assert_eq!(get(hub.http, "/healthz").await.status, 200);
    assert_eq!(get(hub.http, "/readyz").await.status, 200);
}

#[tokio::test]
async fn equal_ports_share_one_listener() {
    let port = free_port().to_string();
    let hub = Setup::memory().env("WS_PORT", &port).env("HTTP_PORT", &port).env("OPS_PORT", &port).start();
    assert_eq!((hub.ws, hub.http), (hub.http, hub.ops));
    Wire::connect(hub.ws).await.ok(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await;
    assert_eq!(get(hub.http, "/replay?topic=t&from=earliest").await.json()["count"], 1);
    assert_eq!(get(hub.ops, "/topics").await.json()["topics"][0]["topic"], "t");
}

#[tokio::test]
async fn sigterm_closes_with_1001_keeps_everything_and_exits_0() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut hub = Setup::log(dir.path()).start();
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": {"maxAttempts": 2}})).await;
    wire.ok(json!({"op": "PUBLISH", "topic": "t", "payload": {"n": 1}})).await;
    let given = wire.expect("EVENT").await;
    assert_eq!(given["ctx"]["attempt"], 1);
    // A tail, and a pattern that nothing matches, hold nothing that would have to be taken back.
    let mut tail = Wire::connect(hub.ws).await;
    tail.ok(json!({"op": "SUBSCRIBE", "topic": "t"})).await;
    tail.ok(json!({"op": "SUBSCRIBE", "topic": "nothing.**", "group": "g"})).await;
    hub.signal(rustix::process::Signal::TERM);
    assert_eq!(wire.close_code().await, Some(1001));
    assert_eq!(tail.close_code().await, Some(1001));
    drop((wire, tail));
    assert!(hub.wait().success(), "exit code after SIGTERM");
    assert!(!hub.log().contains("in time"), "nobody had to be cut off: {}", hub.log());

    let hub = Setup::log(dir.path()).start();
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": {"maxAttempts": 2}})).await;
    let again = wire.expect("EVENT").await;
    assert_eq!(again["event"], given["event"]);
    assert_eq!(again["ctx"]["attempt"], 1, "a hub's shutdown does not count as an attempt");
}

#[test]
fn a_hub_that_waits_for_its_store_ends_in_order_when_it_is_told_to() {
    // Takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("mongodb://{}/prom?replicaSet=rs0", silent.local_addr().expect("bound"));
    let mut child = Setup::mongo(&url).command().spawn().expect("the binary starts");
    let _connection = silent.accept().expect("the hub asks");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    let asked = Instant::now();
    while child.try_wait().expect("waitable").is_none() && asked.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let output = child.wait_with_output().expect("waitable");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    // The driver gives a server up after half a minute; the hub did not wait for that.
    assert!(asked.elapsed() < Duration::from_secs(20), "it took {:?}", asked.elapsed());
}

#[tokio::test]
async fn a_second_hub_on_the_same_directory_is_refused_and_harms_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let hub = Setup::log(dir.path()).start();
    let second = Setup::log(dir.path()).command().output().expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    assert!(said.contains("in use"), "{said}");
    assert!(second.stdout.is_empty(), "it must not say it is ready");
    Wire::connect(hub.ws).await.ok(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await;
}

#[tokio::test]
async fn another_address_without_auth_is_a_start_up_error() {
    let refused = Setup::memory().env("PROMETHEAN_BIND", "0.0.0.0").command().output().expect("it runs");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("WS_TOKEN") && said.contains("JWT"), "the remedy is named: {said}");
    let hub = Setup::memory().env("PROMETHEAN_BIND", "0.0.0.0").env("WS_TOKEN", "t0ken").start();
    assert!(hub.ws.ip().is_unspecified());
}

#[tokio::test]
async fn a_seek_and_a_new_groups_place_survive_kill_9() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut hub = Setup::log(dir.path()).start();
    let mut wire = Wire::connect(hub.ws).await;
    for n in 1..=3 {
        wire.ok(json!({"op": "PUBLISH", "topic": "t", "payload": n})).await;
    }
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "latest"})).await;
    let sought =
        promethean_e2e::request(hub.ops, "PUT", "/cursors?topic=t&group=sought", &[], br#"{"from":"earliest"}"#).await;
    assert_eq!(sought.status, 200, "{}", sought.text());
    hub.kill();

    let hub = Setup::log(dir.path()).start();
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "PUBLISH", "topic": "t", "payload": 4})).await;
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "latest"})).await;
    assert_eq!(wire.expect("EVENT").await["event"]["payload"], 4);
    wire.ok(json!({"op": "UNSUBSCRIBE", "topic": "t", "group": "latest"})).await;
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "sought"})).await;
    assert_eq!(wire.expect("EVENT").await["event"]["payload"], 1);
    assert!(!wire.is_quiet(Duration::from_millis(1)).await, "the others follow");
}
