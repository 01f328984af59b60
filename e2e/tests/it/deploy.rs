//! The example configurations of `deploy/`, with a real hub on those of one node and of a cluster. That with TLS needs a
//! certificate and a provider of keys; that its settings are read is tested in `crates/promethean/src/docs/deploy.rs`.

use promethean_e2e::{Setup, get, request};
use promethean_testmongo::Scratch;

/// With an example, a token, and loopback in place of every address.
fn with(setup: Setup, example: &str) -> Setup {
    let file = format!("{}/../deploy/{example}", env!("CARGO_MANIFEST_DIR"));
    setup.arg("--config").arg(&file).env("PROMETHEAN_BIND", "127.0.0.1").env("WS_TOKEN", "secret")
}

const TOKEN: &[(&str, &str)] = &[("authorization", "Bearer secret")];

#[tokio::test]
async fn the_example_of_one_node_runs_with_its_topics_and_public_metrics() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut hub = with(Setup::log(&dir.path().join("data")), "single-node.toml").start();
    assert_eq!(get(hub.ops, "/metrics").await.status, 200);
    assert_eq!(get(hub.ops, "/topics").await.status, 401);
    let settings = request(hub.ops, "GET", "/settings?topic=heartbeat.received", TOKEN, b"").await.json();
    assert_eq!(settings["maxAgeMs"], 3 * 86_400_000, "{settings}");
    assert!(hub.terminate().success());
}

#[tokio::test]
async fn the_example_of_a_cluster_runs_on_mongodb_and_not_without() {
    let scratch = Scratch::new();
    let hub = with(Setup::mongo(scratch.url()), "cluster.toml").env("PROMETHEAN_CLUSTER_SECRET", "s").start();
    assert!(hub.ready.ends_with("store=mongo"), "{}", hub.ready);
    let settings = request(hub.ops, "GET", "/settings?topic=process.state", TOKEN, b"").await.json();
    assert_eq!(settings["snapshotTopic"], "process.state.snapshot", "{settings}");
    let alone = with(Setup::default(), "cluster.toml").command().output().expect("the binary runs");
    assert_eq!(alone.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("MONGO_URL"), "{alone:?}");
}
