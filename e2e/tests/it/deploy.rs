//! The example configurations of `deploy/`, each with a real hub: one node, TLS with the tokens of an identity provider, a
//! cluster.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use promethean_e2e::{Hub, Setup, get, promethean, request};
use promethean_testmongo::Scratch;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};

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

/// The first answer to `path` that `good` takes.
async fn until(hub: &Hub, path: &str, good: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let answer = request(hub.ops, "GET", path, TOKEN, b"").await;
        if answer.status == 200 && good(&answer.json()) {
            return answer.json();
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{path}: not within half a minute; {}", hub.log());
}

#[tokio::test]
async fn the_hub_of_the_source_documents_projects_drains_its_outbox_and_has_their_scopes() {
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("shop.db");
    let shop = rusqlite::Connection::open(&file).expect("opened");
    shop.busy_timeout(std::time::Duration::from_secs(10)).expect("set");
    shop.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE orders (id INTEGER PRIMARY KEY)").expect("made");
    let outbox = format!("sqlite:{}", file.display());
    let setup = Setup::log(&dir.path().join("data")).env("JWT_SECRET", SECRET).env("PROMETHEAN_OUTBOX_URL", &outbox);
    let mut hub = with(setup, "event-hub.toml").start();

    // A token without scopes has those of the file, and no more.
    let token = promethean(&["token"]).env("JWT_SECRET", SECRET).output().expect("it runs").stdout;
    let bearer = format!("Bearer {}", String::from_utf8(token).expect("text").trim());
    let own = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let beat = json!({"pid": 7, "name": "stt", "host": "dev", "cpu_pct": 1.0, "mem_mb": 2.0}).to_string();
    assert_eq!(request(hub.http, "POST", "/publish/heartbeat.received", &own, beat.as_bytes()).await.status, 200);
    assert_eq!(request(hub.http, "POST", "/publish/kv.set", &own, b"1").await.status, 403);

    let state = until(&hub, "/latest-by-key?topic=process.state&key=dev:stt:7", |event| event.is_object()).await;
    assert_eq!((&state["payload"]["status"], &state["payload"]["processId"]), (&json!("alive"), &json!("dev:stt:7")));

    let row = ("00000001-0000-4000-8000-000000000001", "kv.set", "a/path", "{\"v\": 1}");
    shop.execute("INSERT INTO outbox (id, topic, key, payload) VALUES (?1, ?2, ?3, ?4)", row).expect("added");
    let set = until(&hub, "/latest-by-key?topic=kv.set&key=a/path", |event| event.is_object()).await;
    assert_eq!((&set["id"], &set["payload"]), (&json!(row.0), &json!({"v": 1})));

    for (topic, field, value) in [
        ("heartbeat.received", "maxAgeMs", json!(3 * 86_400_000)),
        ("process.state", "compaction", json!(true)),
        ("process.state", "snapshotTopic", json!("process.state.snapshot")),
        ("kv.set", "compaction", json!(true)),
    ] {
        let settings = request(hub.ops, "GET", &format!("/settings?topic={topic}"), TOKEN, b"").await.json();
        assert_eq!(settings[field], value, "{topic}: {settings}");
    }
    assert!(hub.terminate().success());
}

/// An identity provider: where its key set is, and what makes a token.
fn provider() -> (String, impl Fn(Value) -> String) {
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key pair");
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": URL_SAFE_NO_PAD.encode(key.der_bytes())});
    let set = json!({ "keys": [jwk] }).to_string();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/jwks.json", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", set.len());
            let _ = stream.write_all((head + &set).as_bytes());
        }
    });
    let sign = move |claims: Value| {
        let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": "1"});
        let said = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = key.sign(said.as_bytes()).expect("signed");
        format!("{said}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    (url, sign)
}

/// How a command ends against the port of a hub that has `cert`.
fn ends(hub: &Hub, cert: &Path, token: &str, args: &[&str]) -> (Option<i32>, String) {
    let server = format!("https://localhost:{}", hub.ops.port());
    let mut command = promethean(args);
    command.args(["--server", &server]).env("SSL_CERT_FILE", cert);
    if !token.is_empty() {
        command.env("PROMETHEAN_TOKEN", token);
    }
    let output = command.output().expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_example_with_tls_runs_with_the_tokens_of_a_provider() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let (url, sign) = provider();
    let file = format!("{}/../deploy/tls.toml", env!("CARGO_MANIFEST_DIR"));
    let setup = Setup::log(&dir.path().join("data")).arg("--config").arg(&file).env("PROMETHEAN_BIND", "127.0.0.1");
    let setup = setup.arg("--tls-cert").arg(&cert.display().to_string()).arg("--tls-key");
    let mut hub = setup.arg(&key.display().to_string()).env("JWT_JWKS_URL", &url).start();

    let claims = |aud: &str| json!({"sub": "a", "iss": "https://login.example/", "aud": aud, "exp": 4_000_000_000_u64});
    let (plain, elsewhere) = (sign(claims("promethean")), sign(claims("another")));
    let mut scoped = claims("promethean");
    scoped["scopes"] = json!(["publish:orders"]);
    let scoped = sign(scoped);
    let publish = ["pub", "orders", "1"];
    assert_eq!(ends(&hub, &cert, "", &["health"]).0, Some(0));
    assert_eq!(ends(&hub, &cert, &scoped, &publish), (Some(0), String::new()));
    // A token without scopes may subscribe to the news, as the example says, and no more.
    let (news, orders) = (["tail", "news.today", "--timeout", "1s"], ["tail", "orders", "--timeout", "1s"]);
    for (token, args, code, said) in [
        (&plain, &publish[..], 4, "forbidden"),
        (&plain, &orders[..], 4, "forbidden"),
        (&plain, &news[..], 124, ""),
        (&elsewhere, &publish[..], 4, "audience"),
        (&String::new(), &publish[..], 4, "--token"),
    ] {
        let (ended, stderr) = ends(&hub, &cert, token, args);
        assert!(ended == Some(code) && stderr.contains(said), "{args:?}: {ended:?} {stderr}");
    }
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
