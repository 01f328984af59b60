//! Consumers that are killed with `kill -9` between their effect and the ack, two hundred times: every effect is there
//! once.
//!
//! The program starts itself as the consumer of a hub that runs in the parent. A consumer says when the transaction of
//! an event that it got for the first time has committed, and waits instead of sending the ack: there the parent kills
//! it. The next one gets the same event again, passes over it, acks it, and comes to the next.

#[path = "../examples/support/hub.rs"]
mod hub;

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use promethean_bus::{Bus, Group, Topic};
use promethean_client::{Client, Delivery, From, SubscribeOptions};
use promethean_outbox::{Handled, Identified as _, MongoDedupe, SqliteDedupe};
use promethean_testmongo::Scratch;
use rusqlite::Connection;

/// Says to this program that it is the consumer: the hub's address, and the database's.
const VICTIM: &str = "PROMETHEAN_TEST_VICTIM";
const COMMITTED: &str = "committed";
const KILLS: usize = 200;
/// As many as show that a session works the same: starting one with MongoDB takes longer.
const KILLS_ON_MONGODB: usize = 20;

/// Consumes until it is killed.
async fn consume<E: Debug>(hub: &str, charge: impl Fn(Arc<Delivery>) -> Handled<E>) {
    let client = Client::builder(hub).connect().await.expect("connected");
    // One at a time: the kill hits the event that was just done.
    let options =
        SubscribeOptions { from: From::Earliest, max_in_flight: 1, max_attempts: 0, ..SubscribeOptions::default() };
    let mut events = client.subscribe("orders", Some("billing"), options).await.expect("subscribed");
    while let Some(delivery) = events.next().await.expect("the hub is there") {
        let delivery = Arc::new(delivery);
        charge(Arc::clone(&delivery)).await.expect("charged");
        if delivery.context().attempt == 1 {
            let mut out = std::io::stdout();
            writeln!(out, "{COMMITTED}").and_then(|()| out.flush()).expect("the parent listens");
            std::future::pending::<()>().await;
        }
        delivery.ack().await.expect("acked");
    }
}

async fn victim(hub: &str, database: &str) {
    if !database.starts_with("mongodb:") {
        let marks = SqliteDedupe::open(database, "billing").expect("opened");
        let charge = marks.transactional(|tx, delivery: &Arc<Delivery>| {
            tx.execute("INSERT INTO charges (event) VALUES (?1)", [delivery.event_id().to_string()]).map(drop)
        });
        return consume(hub, charge).await;
    }
    let db = mongodb::Client::with_uri_str(database).await.expect("connected").default_database().expect("named");
    let marks = MongoDedupe::open(&db, "billing").await.expect("opened");
    let charges = db.collection::<Document>("charges");
    let charge = marks.transactional(move |session, delivery: &Arc<Delivery>| {
        let (charges, event) = (charges.clone(), delivery.event_id().to_string());
        Box::pin(async move { charges.insert_one(doc! {"event": event}).session(session).await.map(drop) })
    });
    consume(hub, charge).await;
}

fn start(hub: &str, database: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.env(VICTIM, format!("{hub} {database}")).stdout(Stdio::piped());
    command.spawn().expect("the consumer starts")
}

fn kill(mut consumer: Child) {
    consumer.kill().expect("killed");
    let status = consumer.wait().expect("ended");
    assert_eq!(status.code(), None, "the consumer ended by itself: {status}");
}

/// Publishes an event for each kill, and kills a consumer at each event. Everything is acked in the end.
async fn kill_between_effect_and_ack(database: &str, kills: usize) {
    let (bus, url) = hub::start().await.expect("a hub");
    let (topic, group) = (Topic::parse("orders").expect("a topic"), Group::parse("billing").expect("a group"));
    for number in 0..kills {
        bus.publish_value(&topic, &number).await.expect("published");
    }
    for kill_number in 0..kills {
        let mut consumer = start(&url, database);
        let mut out = BufReader::new(consumer.stdout.take().expect("piped"));
        let said = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            out.read_line(&mut line).map(|_| line)
        });
        let said = said.await.expect("no panic").expect("read");
        assert_eq!(said.trim_end(), COMMITTED, "consumer {kill_number} ended before its effect");
        kill(consumer);
    }
    // The last event was done and not acked: it comes once more.
    let last = start(&url, database);
    acked(&bus, &topic, &group).await;
    kill(last);
}

async fn acked(bus: &Bus, topic: &Topic, group: &Group) {
    let started = Instant::now();
    while bus.lag(topic, group).await.expect("read").events > 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "the last event is not acked within a minute");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn on_sqlite(path: &Path) -> (usize, usize) {
    let billing = Connection::open(path).expect("opened");
    billing.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE charges (event TEXT)").expect("made");
    kill_between_effect_and_ack(&path.display().to_string(), KILLS).await;
    let count = "SELECT count(*), count(DISTINCT event) FROM charges";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, u32>(0)? as usize, row.get::<_, u32>(1)? as usize));
    billing.query_row(count, (), read).expect("counted")
}

async fn on_mongodb() -> (usize, usize) {
    let scratch = tokio::task::spawn_blocking(Scratch::new).await.expect("a database");
    let db = mongodb::Client::with_uri_str(scratch.url()).await.expect("connected").database(scratch.name());
    db.create_collection("charges").await.expect("made");
    kill_between_effect_and_ack(scratch.url(), KILLS_ON_MONGODB).await;
    let charges = db.collection::<Document>("charges");
    let effects = charges.count_documents(doc! {}).await.expect("counted") as usize;
    (effects, charges.distinct("event", doc! {}).await.expect("counted").len())
}

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    if let Ok(text) = std::env::var(VICTIM) {
        let (hub, database) = text.split_once(' ').expect("two addresses");
        return runtime.block_on(victim(hub, database));
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (database, kills) in [("sqlite", KILLS), ("mongodb", KILLS_ON_MONGODB)] {
        let started = Instant::now();
        let effects = match database {
            "sqlite" => runtime.block_on(on_sqlite(&dir.path().join("billing.db"))),
            _ => runtime.block_on(on_mongodb()),
        };
        assert_eq!(effects, (kills, kills), "{database}: as many effects as events, each for another one");
        println!(
            "test a_consumer_on_{database}_killed_between_effect_and_ack_has_every_effect_once ({kills} kills, {:?}) ... ok",
            started.elapsed()
        );
    }
}
