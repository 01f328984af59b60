//! A drainer over WebSocket into a real hub whose limits are small.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use promethean_bus::{Bus, BusOptions};
use promethean_client::Client;
use promethean_gateway::auth::{AuthConfig, Authenticator};
use promethean_gateway::limits::{Quotas, Rate};
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub, ws};
use promethean_outbox::{ClientPublisher, List, NewRow, Settings, Snapshot, Status, drain};
use promethean_store::memory::Memory;

use crate::fakes::{Fixture, Log, by_key, numbered, quick};
use crate::sqlite::Sqlite;

/// A hub and the log that it writes to.
async fn hub(edge: EdgeConfig, max_event_bytes: usize, quotas: Quotas) -> (Log, Client) {
    let limits = promethean_event::limits::Limits { max_event_bytes };
    let bus = Bus::new(Arc::new(Memory::new()), BusOptions { limits, ..BusOptions::default() });
    let auth = Authenticator::new(&AuthConfig::default()).expect("a configuration");
    let hub = Arc::new(Hub::new(bus.clone(), auth, quotas, EdgeConfig { max_event_bytes, ..edge }));
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let url = format!("ws://{}", listener.local_addr());
    tokio::spawn(listener.serve(ws::router(Arc::clone(&hub)), Intake::new(100, None), hub.drain.watch()));
    let wait = Duration::from_millis(5);
    let client = Client::builder(url).backoff(wait, wait).connect().await.expect("connected");
    (Log { bus }, client)
}

/// Drains until nothing is left.
async fn drained(fixture: &Sqlite, client: Client) -> Snapshot {
    let settings = Settings { until_empty: true, batch_rows: 500, ..quick() };
    let mut drainer = drain(fixture.store(), Arc::new(ClientPublisher::new(client)), settings);
    let ended = tokio::time::timeout(Duration::from_secs(30), drainer.ended()).await;
    assert_eq!(ended.expect("every row is published or parked"), None);
    drainer.snapshot()
}

fn of_size(topic: &str, key: &str, bytes: usize) -> NewRow {
    NewRow::new(topic, &"x".repeat(bytes)).expect("valid").key(key)
}

#[tokio::test]
async fn a_row_over_the_hubs_frame_limit_is_parked_and_blocks_nobody() {
    let edge = EdgeConfig { max_frame_bytes: 64 << 10, ..EdgeConfig::default() };
    let (log, client) = hub(edge, 32 << 10, Quotas::default()).await;
    let fixture = Sqlite::new();
    let mut rows: Vec<NewRow> = (0..20).map(|n| numbered("t", Some("k"), n)).collect();
    rows.insert(10, of_size("t", "k", 100 << 10));
    rows.insert(11, of_size("t", "k", 40 << 10));
    rows.push(numbered("other", None, 0));
    fixture.add(&rows).await;
    let done = drained(&fixture, client).await;
    assert_eq!((done.sent, done.parked), (21, 2));
    assert_eq!(by_key(&log.events("t").await)["k"], (0..20).collect::<Vec<_>>(), "in order");
    assert_eq!(log.events("other").await.len(), 1);
    let parked = fixture.store().list(List { status: Some(Status::Error), limit: 10 }).await.expect("listed");
    let reasons: Vec<&str> = parked.iter().filter_map(|row| row.last_err.as_deref()).collect();
    assert!(reasons.iter().all(|reason| reason.starts_with("too_large: ")), "{reasons:?}");
    assert!(reasons[0].contains("max_frame_bytes"), "{reasons:?}");
}

#[tokio::test]
async fn good_rows_that_are_too_much_for_one_frame_go_in_several() {
    let edge = EdgeConfig { max_frame_bytes: 64 << 10, ..EdgeConfig::default() };
    let (log, client) = hub(edge, 32 << 10, Quotas::default()).await;
    let fixture = Sqlite::new();
    fixture.add(&(0..400).map(|_| of_size("t", "k", 600)).collect::<Vec<_>>()).await;
    let done = drained(&fixture, client).await;
    assert_eq!((done.sent, done.parked), (400, 0));
    assert_eq!(log.events("t").await.len(), 400);
}

#[tokio::test]
async fn tags_and_headers_count_for_a_frame_so_that_the_default_limits_hold_every_batch() {
    let edge = EdgeConfig::default();
    let (log, client) = hub(edge, EdgeConfig::default().max_event_bytes, Quotas::default()).await;
    let fixture = Sqlite::new();
    let tagged = |n| {
        let options = promethean_event::PublishOptions {
            tags: (0..64).map(|_| "t".repeat(1_000).into()).collect(),
            ..Default::default()
        };
        NewRow::new("t", &n).expect("valid").options(options)
    };
    fixture.add(&(0..400).map(tagged).collect::<Vec<_>>()).await;
    let done = drained(&fixture, client).await;
    assert_eq!((done.sent, done.parked), (400, 0));
    assert_eq!(log.events("t").await.len(), 400);
}

#[tokio::test]
async fn a_row_over_the_default_limits_goes_to_a_hub_that_takes_it() {
    let edge = EdgeConfig { max_frame_bytes: 64 << 20, ..EdgeConfig::default() };
    let (log, client) = hub(edge, 32 << 20, Quotas::default()).await;
    let fixture = Sqlite::new();
    fixture.add(&[of_size("t", "k", 17 << 20)]).await;
    let done = drained(&fixture, client).await;
    assert_eq!((done.sent, done.parked), (1, 0));
    assert_eq!(log.events("t").await.len(), 1);
}

#[tokio::test]
async fn a_batch_that_is_more_than_a_topic_takes_at_once_is_sent_in_smaller_ones() {
    let some = |number| NonZeroU32::new(number).expect("not 0");
    let quotas = Quotas::new(None, Some(Rate { per_second: some(400), burst: some(40) }));
    let (log, client) = hub(EdgeConfig::default(), EdgeConfig::default().max_event_bytes, quotas).await;
    let fixture = Sqlite::new();
    let mut rows: Vec<NewRow> = (0..200).map(|n| numbered("t", Some("k"), n)).collect();
    rows.extend((0..5).map(|n| numbered("other", None, n)));
    fixture.add(&rows).await;
    let done = drained(&fixture, client).await;
    assert_eq!((done.sent, done.parked, done.errors), (205, 0, 0));
    assert_eq!(by_key(&log.events("t").await)["k"], (0..200).collect::<Vec<_>>(), "in order");
    assert_eq!(log.events("other").await.len(), 5);
}
