//! What a drainer does, on SQLite and an in-process log.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use promethean_outbox::{Answer, List, NewRow, Publisher, Settings, Status, Topic, Which, drain};
use tokio::time::Instant;

use crate::fakes::{Counting, Fixture, Fragile, Fuse, Log, Scripted, by_key, numbered, quick};
use crate::sqlite::Sqlite;

#[tokio::test]
async fn a_row_arrives_with_its_whole_envelope_and_its_id() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    let id = promethean_outbox::EventId::from_bytes([9; 16]);
    sqlite.add(&[NewRow::new("a.b", &"x").expect("a row").id(id).key("k").header("x-h", "1")]).await;
    let mut drainer = drain(sqlite.store(), log.publisher(), quick());
    assert_eq!(drainer.ended().await, None);
    let place = log.bus.store().locate(&[id]).await.expect("read").remove(0).expect("it is there");
    assert_eq!(place.topic.as_str(), "a.b");
    assert_eq!(log.events("a.b").await, [(Some("k".into()), "\"x\"".into())]);
    let row = sqlite.store().list(List { status: None, limit: 1 }).await.expect("listed").remove(0);
    assert_eq!((row.status, row.claimed_by, row.lease_until), (Status::Sent, None, None));
    assert_eq!(drainer.snapshot().sent, 1);
}

#[tokio::test]
async fn what_was_rolled_back_is_never_published() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    sqlite.add_and_roll_back(&[numbered("t", None, 1)]).await;
    sqlite.add(&[numbered("t", None, 2)]).await;
    let mut drainer = drain(sqlite.store(), log.publisher(), quick());
    assert_eq!(drainer.ended().await, None);
    assert_eq!(log.events("t").await, [(None, "2".into())]);
}

/// Two drainers and many rows: each once, in order per key, and shared out.
pub(crate) async fn two_drainers(fixture: &dyn Fixture, rows: usize, settings: &dyn Fn() -> Settings) {
    let log = Log::new();
    let all: Vec<_> = (0..rows).map(|number| numbered("t", Some(&(number % 500).to_string()), number)).collect();
    for some in all.chunks(2_500) {
        fixture.add(some).await;
    }
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let publishers: Vec<_> = (0..2)
        .map(|_| {
            let (inner, seen) = (log.publisher(), Arc::clone(&seen));
            Arc::new(Counting { inner, rows: AtomicU64::new(0), seen })
        })
        .collect();
    let drainers: Vec<_> = publishers
        .iter()
        .map(|publisher| drain(fixture.store(), Arc::clone(publisher) as Arc<dyn Publisher>, settings()))
        .collect();
    for mut drainer in drainers {
        assert_eq!(drainer.ended().await, None);
    }
    let events = log.events("t").await;
    assert_eq!(events.len(), rows);
    for (key, numbers) in by_key(&events) {
        let first: usize = key.parse().expect("a number");
        assert_eq!(numbers, (0..rows / 500).map(|n| n * 500 + first).collect::<Vec<_>>(), "key {key}");
    }
    assert!(seen.lock().expect("not poisoned").values().all(|times| *times == 1), "each handed over once");
    for publisher in &publishers {
        let share = publisher.rows.load(SeqCst) as f64 / rows as f64;
        assert!((0.1..=0.9).contains(&share), "one drainer had {share} of the rows");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_drainers_publish_ten_thousand_rows_once_each_and_share_them() {
    let settings = || Settings { until_empty: true, batch_rows: 100, ..Settings::default() };
    two_drainers(&Sqlite::new(), 10_000, &settings).await;
}

#[tokio::test]
async fn a_poison_row_is_parked_at_once_with_the_reason_and_blocks_nobody() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    sqlite.write(["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d", "no topic", "1"]).await;
    sqlite.add(&[NewRow::new("t", &"x".repeat(1_100_000)).expect("a row").key("k")]).await;
    sqlite.write(["nonsense", "t", "1"]).await;
    sqlite.write(["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5e", "t", "{"]).await;
    sqlite.add(&[numbered("t", Some("k"), 1), numbered("t", None, 2)]).await;
    let mut drainer = drain(sqlite.store(), log.publisher(), quick());
    assert_eq!(drainer.ended().await, None);
    assert_eq!(log.events("t").await, [(Some("k".into()), "1".into()), (None, "2".into())]);
    let parked = sqlite.store().list(List { status: Some(Status::Error), limit: 10 }).await.expect("listed");
    let said: Vec<_> = parked.iter().map(|row| (row.last_err.as_deref().unwrap_or_default(), row.attempts)).collect();
    for (n, code) in ["bad_topic: ", "too_large: ", "bad_id: ", "bad_json: "].into_iter().enumerate() {
        assert!(said[n].0.starts_with(code) && said[n].1 == 1, "{:?}", said[n]);
    }
    let snapshot = drainer.snapshot();
    assert_eq!((snapshot.sent, snapshot.errors, snapshot.parked), (2, 4, 4));
    assert_eq!((snapshot.stats.parked, snapshot.stats.pending), (4, 0));
}

#[tokio::test]
async fn an_id_that_another_topic_has_is_parked() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    let id = promethean_outbox::EventId::from_bytes([9; 16]);
    sqlite.add(&[numbered("a", None, 1).id(id)]).await;
    drain(sqlite.store(), log.publisher(), quick()).ended().await;
    let other = Sqlite::new();
    other.add(&[numbered("b", None, 1).id(id)]).await;
    drain(other.store(), log.publisher(), quick()).ended().await;
    let parked = other.store().list(List { status: Some(Status::Error), limit: 10 }).await.expect("listed");
    assert!(parked[0].last_err.as_deref().is_some_and(|err| err.starts_with("duplicate_id: ")), "{parked:?}");
}

#[tokio::test]
async fn a_row_that_fails_is_tried_again_and_then_parked_while_its_key_waits() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    sqlite.add(&[numbered("t", Some("k"), 0), numbered("t", Some("k"), 1), numbered("t", Some("l"), 2)]).await;
    let tries = Arc::new(AtomicU32::new(0));
    let (tried, order) = (Arc::clone(&tries), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&order);
    let publisher = Scripted {
        inner: log.publisher(),
        script: move |draft: &promethean_event::Draft<'_>| {
            seen.lock().expect("not poisoned").push(draft.payload.get().to_owned());
            let fails = draft.payload.get() == "0";
            fails.then(|| Answer::Failed(format!("no answer: try {}", tried.fetch_add(1, SeqCst) + 1)))
        },
    };
    let mut settings = quick();
    settings.policy.max_attempts = 4;
    let mut drainer = drain(sqlite.store(), Arc::new(publisher), settings);
    assert_eq!(drainer.ended().await, None);
    assert_eq!(tries.load(SeqCst), 4);
    let parked = sqlite.store().list(List { status: Some(Status::Error), limit: 10 }).await.expect("listed");
    assert_eq!(parked.len(), 1);
    let said = parked[0].last_err.as_deref().expect("a reason");
    assert!(said.contains("after 4 attempts") && said.contains("try 4"), "{said}");
    let order = order.lock().expect("not poisoned").clone();
    assert_eq!(order.last().map(String::as_str), Some("1"), "the key's later row waited: {order:?}");
    assert_eq!(log.events("t").await, [(Some("l".into()), "2".into()), (Some("k".into()), "1".into())]);
    // Somebody mends it and tries again.
    assert_eq!(sqlite.store().retry(&Which::All).await.expect("retried"), 1);
    drain(sqlite.store(), log.publisher(), quick()).ended().await;
    assert_eq!(log.events("t").await.len(), 3);
}

#[tokio::test]
async fn a_hub_that_is_away_loses_nothing_parks_nothing_and_keeps_the_order() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let publisher = Scripted {
        inner: log.publisher(),
        script: move |_: &promethean_event::Draft<'_>| {
            let away = Answer::Unavailable { reason: "connection refused".into(), retry_after: None };
            (!is_up.load(SeqCst)).then_some(away)
        },
    };
    let mut settings = quick();
    settings.policy.max_attempts = 2;
    let mut drainer = drain(sqlite.store(), Arc::new(publisher), settings);
    for round in 0..20 {
        let rows: Vec<_> = (0..10).map(|n| numbered("t", Some(&(n % 3).to_string()), round * 10 + n)).collect();
        sqlite.add(&rows).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(log.events("t").await.is_empty());
    up.store(true, SeqCst);
    assert_eq!(drainer.ended().await, None);
    let events = log.events("t").await;
    assert_eq!(events.len(), 200);
    assert!(by_key(&events).values().all(|numbers| numbers.is_sorted()));
    let snapshot = drainer.snapshot();
    assert_eq!((snapshot.errors, snapshot.parked), (0, 0), "it is not the rows' fault");
}

/// A minute of the drainer's clock, which does not run while there is nothing to do: the test takes no minute.
#[tokio::test(start_paused = true)]
async fn a_hub_that_is_down_for_a_minute_gets_everything_afterwards_in_order_per_key() {
    const MINUTE: Duration = Duration::from_secs(60);
    let (sqlite, log, began) = (Sqlite::new(), Log::new(), Instant::now());
    let tries = Arc::new(Mutex::new(BTreeSet::new()));
    let tried = Arc::clone(&tries);
    let publisher = Scripted {
        inner: log.publisher(),
        script: move |_: &promethean_event::Draft<'_>| {
            tried.lock().expect("not poisoned").insert(began.elapsed());
            let away = Answer::Unavailable { reason: "connection refused".into(), retry_after: None };
            (began.elapsed() < MINUTE).then_some(away)
        },
    };
    let mut settings = Settings::default();
    settings.policy.max_attempts = 2;
    let drainer = drain(sqlite.store(), Arc::new(publisher), settings);
    // The service goes on all the while.
    for second in 0..60 {
        let rows: Vec<_> = (0..10).map(|n| numbered("t", Some(&(n % 3).to_string()), second * 10 + n)).collect();
        sqlite.add(&rows).await;
        assert!(log.events("t").await.is_empty(), "nobody is there");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    while log.events("t").await.len() < 600 {
        // The longest pause is five seconds: by then a hub that is back was noticed.
        assert!(began.elapsed() < MINUTE + Duration::from_secs(6), "{:?}: not all there", began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (key, numbers) in by_key(&log.events("t").await) {
        let first: usize = key.parse().expect("a number");
        let expected = (0..600).filter(|n| n % 10 % 3 == first).collect::<Vec<_>>();
        assert_eq!(numbers, expected, "key {key}");
    }
    let while_down = tries.lock().expect("not poisoned").iter().filter(|at| **at < MINUTE).count();
    assert!((10..=20).contains(&while_down), "{while_down} tries: the pauses grow to five seconds");
    let done = drainer.stop().await;
    assert_eq!((done.sent, done.errors, done.parked), (600, 0, 0), "it is not the rows' fault");
}

#[tokio::test]
async fn what_the_hub_is_to_blame_for_costs_no_attempt_and_keeps_the_order_of_each_key() {
    use promethean_event::Code;
    for code in [Code::PublishFailed, Code::Forbidden, Code::LimitReached, Code::StoreDamaged] {
        let (sqlite, log) = (Sqlite::new(), Log::new());
        let rows: Vec<_> = (0..30).map(|n| numbered(if n % 2 == 0 { "t" } else { "u" }, Some("k"), n)).collect();
        sqlite.add(&rows).await;
        sqlite.add(&[numbered("other", Some("l"), 1)]).await;
        let tries = Arc::new(AtomicU32::new(0));
        let tried = Arc::clone(&tries);
        let publisher = Scripted {
            inner: log.publisher(),
            script: move |draft: &promethean_event::Draft<'_>| {
                let blocked = draft.topic.as_str() == "t" && tried.fetch_add(1, SeqCst) < 12;
                blocked.then(|| Answer::refusal(Some(code), "not now", None))
            },
        };
        let mut settings = quick();
        settings.policy.max_attempts = 2;
        settings.policy.longest_wait = Duration::from_millis(10);
        let mut drainer = drain(sqlite.store(), Arc::new(publisher), settings);
        assert_eq!(drainer.ended().await, None);
        let done = drainer.snapshot();
        assert_eq!((done.sent, done.errors, done.parked), (31, 0, 0), "{code}: it is not the rows' fault");
        let sorted = |events: Vec<(Option<String>, String)>| by_key(&events)["k"].is_sorted();
        assert!(sorted(log.events("t").await) && sorted(log.events("u").await), "{code}");
        assert!(tries.load(SeqCst) > 12, "{code}");
    }
}

#[tokio::test]
async fn leases_are_prolonged_while_the_publisher_takes_its_time() {
    struct Slow(Arc<dyn Publisher>);
    impl Publisher for Slow {
        fn publish<'a>(&'a self, drafts: &'a [promethean_event::Draft<'a>]) -> promethean_outbox::Answers<'a> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                self.0.publish(drafts).await
            })
        }
    }
    let (sqlite, log) = (Sqlite::new(), Log::new());
    sqlite.add(&[numbered("t", None, 1)]).await;
    let mut slow = drain(sqlite.store(), Arc::new(Slow(log.publisher())), quick());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let counting = Arc::new(Counting { inner: log.publisher(), rows: AtomicU64::new(0), seen });
    let mut other = drain(sqlite.store(), Arc::clone(&counting) as Arc<dyn Publisher>, quick());
    assert_eq!((slow.ended().await, other.ended().await), (None, None));
    assert_eq!(counting.rows.load(SeqCst), 0, "the lease of 40 ms held for 300 ms");
    assert_eq!(log.events("t").await.len(), 1);
}

#[tokio::test]
async fn a_stop_finishes_the_batch_under_way_or_gives_it_back() {
    struct Stuck;
    impl Publisher for Stuck {
        fn publish<'a>(&'a self, _: &'a [promethean_event::Draft<'a>]) -> promethean_outbox::Answers<'a> {
            Box::pin(std::future::pending())
        }
    }
    let (sqlite, log) = (Sqlite::new(), Log::new());
    sqlite.add(&[numbered("t", None, 1)]).await;
    let settings = Settings { grace: Duration::from_millis(50), ..Settings::default() };
    let stuck = drain(sqlite.store(), Arc::new(Stuck), settings);
    while sqlite.store().stats().await.expect("read").claimed == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    stuck.stop().await;
    let row = sqlite.store().list(List { status: None, limit: 1 }).await.expect("listed").remove(0);
    assert_eq!((row.status, row.attempts), (Status::Pending, 0), "given back at once, not after the lease");
    assert!(row.last_err.as_deref().is_some_and(|err| err.contains("unknown")), "{row:?}");
    let drainer = drain(sqlite.store(), log.publisher(), Settings::default());
    while log.events("t").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let snapshot = drainer.stop().await;
    assert_eq!((snapshot.sent, snapshot.stats.pending + snapshot.stats.claimed), (1, 0), "marked before the end");
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_database_that_is_away() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    // The first call, and each one after it, never returns.
    let fuse = Fuse::after(0);
    let store = Fragile { fuse: Arc::clone(&fuse), inner: sqlite.store() };
    let drainer = drain(Arc::new(store), log.publisher(), Settings::default());
    fuse.blown().await;
    let began = Instant::now();
    assert_eq!(drainer.stop().await.sent, 0);
    assert_eq!(began.elapsed().as_secs(), 2 * Settings::default().grace.as_secs(), "and no longer");
}

#[tokio::test]
async fn a_key_in_several_topics_waits_as_a_whole_when_the_bus_takes_nothing() {
    let log = Log::new();
    log.bus.drain().await;
    let null = serde_json::value::RawValue::NULL;
    let draft = |topic: &str, key: Option<&'static str>| {
        let mut draft = promethean_event::Draft::new(Topic::parse(topic).expect("a topic"), Cow::Borrowed(null));
        draft.options.key = key.map(Cow::Borrowed);
        draft
    };
    let drafts = [draft("a", Some("k")), draft("b", Some("k")), draft("b", None), draft("a", Some("k"))];
    let answers = log.publisher().publish(&drafts).await;
    assert!(matches!(answers[0], Answer::Unavailable { .. }) && matches!(answers[2], Answer::Unavailable { .. }));
    assert_eq!((&answers[1], &answers[3]), (&Answer::Held, &Answer::Held), "not tried before the first is stored");
}

#[tokio::test]
async fn rows_of_one_key_on_several_topics_are_all_published() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    let rows: Vec<_> = (0..30).map(|n| numbered(["a", "b", "c"][n % 3], Some(&(n % 2).to_string()), n)).collect();
    sqlite.add(&rows).await;
    assert_eq!(drain(sqlite.store(), log.publisher(), quick()).ended().await, None);
    for (n, topic) in ["a", "b", "c"].into_iter().enumerate() {
        let numbers: Vec<usize> =
            log.events(topic).await.iter().map(|(_, number)| number.parse().expect("a number")).collect();
        let mut all = numbers.clone();
        all.sort_unstable();
        assert_eq!(all, (0..10).map(|i| i * 3 + n).collect::<Vec<_>>());
        assert!(by_key(&log.events(topic).await).values().all(|numbers| numbers.is_sorted()), "{numbers:?}");
    }
}

#[tokio::test]
async fn a_publisher_that_ended_ends_the_drainer_and_gives_the_rows_back() {
    let (sqlite, log) = (Sqlite::new(), Log::new());
    sqlite.add(&[numbered("t", None, 1)]).await;
    let closed = |_: &promethean_event::Draft<'_>| Some(Answer::Closed("token_expired: renew it".into()));
    let publisher = Scripted { inner: log.publisher(), script: closed };
    let mut drainer = drain(sqlite.store(), Arc::new(publisher), quick());
    assert_eq!(drainer.ended().await.as_deref(), Some("token_expired: renew it"));
    let row = sqlite.store().list(List { status: None, limit: 1 }).await.expect("listed").remove(0);
    assert_eq!((row.status, row.attempts), (Status::Pending, 0));
    let stats = drainer.snapshot().stats;
    assert_eq!((stats.pending, stats.claimed), (1, 0), "the last numbers are those of the end");
}

/// Keeps the messages of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().expect("kept").push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_does_not_answer_is_named_once_in_the_log() {
    struct Slow(Arc<dyn Publisher>);
    impl Publisher for Slow {
        fn publish<'a>(&'a self, drafts: &'a [promethean_event::Draft<'a>]) -> promethean_outbox::Answers<'a> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(30)).await;
                self.0.publish(drafts).await
            })
        }
    }
    let warnings = Warnings::default();
    let _kept = tracing::subscriber::set_default(warnings.clone());
    let (sqlite, log) = (Sqlite::new(), Log::new());
    sqlite.add(&[numbered("t", None, 1)]).await;
    let settings = Settings { until_empty: true, ..Settings::default() };
    let mut drainer = drain(sqlite.store(), Arc::new(Slow(log.publisher())), settings);
    assert_eq!(drainer.ended().await, None);
    let said = warnings.0.lock().expect("kept").clone();
    assert_eq!(said, ["the hub has not answered for a while; the rows wait for it"]);
    assert_eq!(log.events("t").await.len(), 1);
}
