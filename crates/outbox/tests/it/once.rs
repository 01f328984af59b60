//! Consumers whose effect happens once: handlers that fail or panic, marks that run out. `tests/kill.rs` kills them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use promethean_bus::{Delivery, From, Group, Handling, SubscribeOptions, Topic};
use promethean_outbox::{DedupeStore, EventId, SqliteDedupe, exactly_once};

use crate::fakes::Log;
use crate::sqlite::connect;

const EVENTS: usize = 200;

async fn publish(log: &Log) {
    let topic = Topic::parse("orders").expect("a topic");
    for number in 0..EVENTS {
        log.bus.publish_value(&topic, &number).await.expect("published");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_is_cut_off_inside_its_transaction_leaves_no_effect_and_no_mark() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("billing.db");
    connect(&path).execute_batch("CREATE TABLE charges (event TEXT)").expect("made");
    let marks = SqliteDedupe::open(&path, "billing").expect("opened");
    let tries = Arc::new(AtomicUsize::new(0));
    let tried = Arc::clone(&tries);
    let charge = marks.transactional(move |tx, id: &EventId| {
        tx.execute("INSERT INTO charges (event) VALUES (?1)", [id.to_string()]).map_err(|error| error.to_string())?;
        match tried.fetch_add(1, SeqCst) {
            0 => Err("no money".to_owned()),
            1 => panic!("a bug"),
            _ => Ok(()),
        }
    });
    let id = EventId::from_bytes([3; 16]);
    assert_eq!(charge(id).await.expect_err("fails").to_string(), "no money");
    assert!(charge(id).await.expect_err("panics").to_string().contains("cut off"));
    let count = || -> (u32, u32) {
        let sql = "SELECT (SELECT count(*) FROM charges), (SELECT count(*) FROM dedupe)";
        connect(&path).query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?))).expect("counted")
    };
    assert_eq!(count(), (0, 0));
    charge(id).await.expect("third time lucky");
    charge(id).await.expect("passed over");
    assert_eq!((count(), tries.load(SeqCst)), ((1, 1), 3));
}

#[tokio::test]
async fn the_callers_own_transaction_can_record_the_event() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("billing.db");
    let marks = SqliteDedupe::open(&path, "billing").expect("opened");
    let other = SqliteDedupe::open(&path, "shipping").expect("opened");
    let (mut connection, id) = (connect(&path), EventId::from_bytes([3; 16]));
    let tx = connection.transaction().expect("begun");
    assert!(marks.record(&tx, id).expect("recorded"));
    tx.rollback().expect("rolled back");
    let tx = connection.transaction().expect("begun");
    assert!(marks.record(&tx, id).expect("recorded"), "the first one was rolled back");
    assert!(other.record(&tx, id).expect("recorded"), "each consumer has marks of its own");
    tx.commit().expect("committed");
    let tx = connection.transaction().expect("begun");
    assert!(!marks.record(&tx, id).expect("seen"));
}

#[tokio::test]
async fn a_mark_on_sqlite_is_seen_until_it_runs_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let marks = SqliteDedupe::open(dir.path().join("marks.db"), "billing").expect("opened");
    marks_run_out(&marks).await;
}

/// What every store of marks keeps.
pub(crate) async fn marks_run_out(marks: &dyn DedupeStore) {
    let (short, long) = (EventId::from_bytes([1; 16]), EventId::from_bytes([2; 16]));
    assert!(!marks.seen(short).await.expect("read"));
    // Two seconds: a busy machine must get to look before the mark runs out.
    marks.mark(short, Duration::from_secs(2)).await.expect("marked");
    assert!(marks.seen(short).await.expect("read"));
    marks.mark(long, Duration::from_secs(600)).await.expect("marked");
    assert!(marks.seen(long).await.expect("read"));
    tokio::time::sleep(Duration::from_millis(2_050)).await;
    assert!(!marks.seen(short).await.expect("read") && marks.seen(long).await.expect("read"));
    marks.mark(short, Duration::from_secs(60)).await.expect("marked anew");
    assert!(marks.seen(short).await.expect("read"));
}

#[tokio::test]
async fn a_handler_of_the_bus_is_wrapped_and_called_once_for_each_event() {
    let (log, calls) = (Log::new(), Arc::new(AtomicUsize::new(0)));
    publish(&log).await;
    let dir = tempfile::tempdir().expect("a directory");
    let marks = Arc::new(SqliteDedupe::open(dir.path().join("marks.db"), "ops").expect("opened"));
    for round in 1..=2 {
        // A second group sees everything again; the consumer's marks say that it is done.
        let called = Arc::clone(&calls);
        let handler = exactly_once(
            move |_: Arc<Delivery>| {
                called.fetch_add(1, SeqCst);
                async { Ok::<(), String>(()) }
            },
            Arc::clone(&marks) as Arc<dyn DedupeStore>,
        );
        let group = Group::parse(&format!("g{round}")).expect("a group");
        let options = SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() };
        let running = log
            .bus
            .subscribe_with("orders", group.clone(), options, Handling::AutoAck, handler)
            .await
            .expect("subscribed");
        let topic = Topic::parse("orders").expect("a topic");
        while log.bus.lag(&topic, &group).await.expect("read").events > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(running);
        assert_eq!(calls.load(SeqCst), EVENTS, "round {round}");
    }
}
