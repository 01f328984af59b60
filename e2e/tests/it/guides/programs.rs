//! The Rust programs of the guides, as a reader would run them: compiled as they stand there (`build.rs`), against a real
//! hub, until what they are for has happened.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use promethean_e2e::{Hub, Response, Setup, get, request};
use promethean_testmongo::Scratch;
use serde_json::{Value, json};

include!(concat!(env!("OUT_DIR"), "/guides.rs"));

/// What stands for what the pages name.
static PLACES: OnceLock<HashMap<&str, String>> = OnceLock::new();

fn place(name: &str) -> &'static str {
    PLACES.get().and_then(|places| places.get(name)).unwrap_or_else(|| panic!("no place for {name}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_programs_of_every_guide_do_what_they_are_for() {
    let (dir, mongo) = (tempfile::tempdir().expect("a directory"), Scratch::new());
    let hub = Setup::log(&dir.path().join("data")).start();
    let file = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(file("token"), "secret\n").expect("written");
    let places = [
        ("ws://127.0.0.1:8090", format!("ws://{}", hub.ws)),
        ("wss://hub.example:8090", format!("ws://{}", hub.ws)),
        ("/run/secrets/hub-token", file("token")),
        ("mongodb://127.0.0.1/?replicaSet=rs0", mongo.url().to_owned()),
        ("shop.db", file("shop.db")),
        ("state.db", file("state.db")),
    ];
    PLACES.set(places.into()).expect("set once");
    let shop = mongodb::Client::with_uri_str(mongo.url()).await.expect("connected").database("shop");
    shop.drop().await.expect("none of an earlier run");

    for name in PROGRAMS {
        let effect = async {
            match *name {
                "delivery_1" | "migrating_from_redis_streams_1" => handled(&hub, "orders.created", "billing").await,
                "migrating_from_nats_1" => handled(&hub, "orders.eu.created", "billing").await,
                "outbox_3" => handled(&hub, "orders.created", "mailer").await,
                "state_1" => subscribed(&hub, "process.state").await,
                "state_2" => {
                    publish(&hub, "orders.created?key=customer-7").await;
                    let path = "/latest-by-key?topic=customer.orders";
                    until(&hub, path, |state| state["entries"]["customer-7"]["payload"].as_u64() >= Some(1)).await;
                }
                "state_3" => {
                    publish(&hub, "process.state?key=dev:stt:1").await;
                    until(&hub, "/healthz", |_| rows(&file("state.db"), "processes") == 1).await;
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = effect => {}
            ended = run(name) => match *name {
                "outbox_1" => {
                    ended.expect(name);
                    let row = shop.collection::<Document>("outbox").count_documents(doc! {"status": "pending"}).await;
                    assert_eq!(row.expect("counted"), 1);
                }
                "outbox_2" => {
                    ended.expect(name);
                    assert_eq!(rows(&file("shop.db"), "outbox"), 0);
                }
                "security_1" => {
                    ended.expect(name);
                    let all = get(hub.http, "/replay?topic=orders.created&from=earliest&limit=1000").await.json();
                    let published = |event: &Value| event["payload"] == json!({"order": 1});
                    assert!(all["events"].as_array().is_some_and(|events| events.iter().any(published)), "{all}");
                }
                _ => panic!("{name} ended before it had done anything: {ended:?}"),
            },
            () = tokio::time::sleep(Duration::from_secs(30)) => panic!("in vain: the effect of {name}"),
        }
    }
    assert!(PROGRAMS.len() >= 10, "the programs of the guides were not found: {PROGRAMS:?}");
    shop.drop().await.expect("dropped");
}

async fn publish(hub: &Hub, to: &str) -> Response {
    let published = request(hub.http, "POST", &format!("/publish/{to}"), &[], br#"{"order": 7}"#).await;
    assert_eq!(published.status, 200, "{}", published.text());
    published
}

/// Asks until the answer is right.
async fn until(hub: &Hub, path: &str, is_right: impl Fn(&Value) -> bool) {
    loop {
        let answer = get(hub.ops, path).await;
        if answer.status == 200 && is_right(&serde_json::from_slice(&answer.body).unwrap_or_default()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The group has a member, gets an event and acks it.
async fn handled(hub: &Hub, topic: &str, group: &str) {
    publish(hub, topic).await;
    let path = format!("/groups?topic={topic}");
    let row = |groups: &Value, is_right: &dyn Fn(&Value) -> bool| {
        let rows = groups["groups"].as_array().cloned().unwrap_or_default();
        rows.iter().any(|row| row["group"] == group && is_right(row))
    };
    until(hub, &path, |groups| row(groups, &|row| row["members"].as_u64() >= Some(1))).await;
    publish(hub, topic).await;
    until(hub, &path, |groups| row(groups, &|row| row["lag"] == 0)).await;
}

/// Somebody has subscribed to the topic.
async fn subscribed(hub: &Hub, topic: &str) {
    publish(hub, &format!("{topic}?key=dev:stt:1")).await;
    let to_it = |connection: &Value| {
        connection["subscriptions"].as_array().is_some_and(|all| all.iter().any(|one| one["topic"] == topic))
    };
    until(hub, "/connections", |all| all["connections"].as_array().is_some_and(|all| all.iter().any(to_it))).await;
}

/// Rows of a table; 0 where there is none.
fn rows(file: &str, table: &str) -> i64 {
    if !Path::new(file).exists() {
        return 0;
    }
    let open = rusqlite::Connection::open(file).expect("opened");
    open.query_row(&format!("SELECT count(*) FROM {table}"), (), |row| row.get(0)).unwrap_or(0)
}
