//! The primary of three is killed with `kill -9` while a service writes and two drainers work: what is in the collection
//! is in the log, once and in order per key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use mongodb::Client;
use promethean_outbox::{List, MongoOutbox, OutboxStore as _, Schema, Settings, Status, drain};
use promethean_testmongo::{Replica, Setup};

use crate::fakes::{Log, by_key, numbered};

const KEYS: usize = 5;

/// Adds rows until it is told to end; a number whose commit failed is not tried again. Returns those that were
/// answered.
async fn write(url: String, ended: Arc<AtomicBool>) -> BTreeSet<usize> {
    let client = Client::with_uri_str(&url).await.expect("an address");
    let outbox = MongoOutbox::open(&client.default_database().expect("named"), "outbox").await.expect("opened");
    let mut answered = BTreeSet::new();
    for number in 0.. {
        if ended.load(SeqCst) {
            break;
        }
        let Ok(mut session) = client.start_session().await else { continue };
        if session.start_transaction().await.is_err() {
            continue;
        }
        let row = numbered("t", Some(&(number % KEYS).to_string()), number);
        if outbox.add(&mut session, &row).await.is_ok() && outbox.commit(&mut session).await.is_ok() {
            answered.insert(number);
        }
    }
    answered
}

/// Waits until so many more events are in the log.
async fn progress(log: &Log, more: usize) {
    let goal = log.events("t").await.len() + more;
    while log.events("t").await.len() < goal {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn kill_the_primary(mut replica: Replica) -> Replica {
    let killed = tokio::task::spawn_blocking(move || {
        let primary = replica.primary();
        replica.kill(primary);
        replica.restart(primary);
        replica
    });
    killed.await.expect("no panic")
}

async fn under_failover() {
    let replica = tokio::task::spawn_blocking(|| Setup::default().members(3).start()).await.expect("a set");
    let (url, log, ended) = (replica.url("outbox"), Log::new(), Arc::new(AtomicBool::new(false)));
    let outbox = MongoOutbox::connect(&url, "outbox", Schema::Create).await.expect("opened");
    let settings = || Settings { lease: Duration::from_secs(2), batch_rows: 20, ..Settings::default() };
    let mut drainers = Vec::new();
    for _ in 0..2 {
        // Each with a client of its own, as another process would have it.
        let store = Arc::new(MongoOutbox::connect(&url, "outbox", Schema::Create).await.expect("opened"));
        drainers.push(drain(store, log.publisher(), settings()));
    }
    let writer = tokio::spawn(write(url, Arc::clone(&ended)));
    let mut replica = replica;
    for _ in 0..2 {
        progress(&log, 30).await;
        replica = kill_the_primary(replica).await;
        progress(&log, 30).await;
    }
    ended.store(true, SeqCst);
    let answered = writer.await.expect("no panic");
    for drainer in drainers {
        drainer.stop().await;
    }
    let rest = Settings { until_empty: true, ..settings() };
    assert_eq!(drain(Arc::new(outbox.clone()), log.publisher(), rest).ended().await, None);

    let events = log.events("t").await;
    let published: BTreeSet<usize> = events.iter().map(|(_, number)| number.parse().expect("a number")).collect();
    assert_eq!(published.len(), events.len(), "none twice");
    for (key, numbers) in by_key(&events) {
        assert!(numbers.is_sorted(), "key {key}: {numbers:?}");
    }
    assert!(answered.is_subset(&published), "what was answered is there");
    let rows = outbox.list(List { status: None, limit: 100_000 }).await.expect("listed");
    assert!(rows.iter().all(|row| row.status == Status::Sent), "every row is marked");
    let committed: BTreeSet<usize> = rows.iter().map(|row| row.payload.parse().expect("a number")).collect();
    assert_eq!(published, committed, "an event for each row that outlived the failovers, and no other");
    drop(replica);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_killed_while_draining_loses_nothing_doubles_nothing_and_keeps_the_order() {
    tokio::time::timeout(Duration::from_secs(150), under_failover()).await.expect("within the time");
}
