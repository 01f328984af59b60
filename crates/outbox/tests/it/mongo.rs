//! The law on a real MongoDB replica set, rows that its first version wrote, and what an idle drainer costs there.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, Uuid, doc};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};
use promethean_outbox::{
    Answer, Claim, EventId, Failed, List, MongoDedupe, MongoOutbox, NewRow, Next, OutboxStore, Schema, Settings,
    Status, drain,
};
use promethean_testmongo::Scratch;

use crate::fakes::{Fixture, Log, Scripted, numbered, quick};

struct Mongo {
    scratch: Scratch,
    client: Client,
    db: Database,
    outbox: MongoOutbox,
}

async fn fixture() -> Mongo {
    let scratch = tokio::task::spawn_blocking(Scratch::new).await.expect("a database");
    let client = Client::with_uri_str(scratch.url()).await.expect("connected");
    let db = client.database(scratch.name());
    let outbox = MongoOutbox::open(&db, "outbox").await.expect("opened");
    Mongo { scratch, client, db, outbox }
}

impl Mongo {
    async fn transact(&self, rows: &[NewRow], commit: bool) {
        let mut session = self.client.start_session().await.expect("a session");
        session.start_transaction().await.expect("begun");
        for row in rows {
            self.outbox.add(&mut session, row).await.expect("added");
        }
        if commit {
            self.outbox.commit(&mut session).await.expect("committed");
        } else {
            session.abort_transaction().await.expect("rolled back");
        }
    }
}

impl Fixture for Mongo {
    fn store(&self) -> Arc<dyn OutboxStore> {
        Arc::new(self.outbox.clone())
    }

    fn add<'a>(&'a self, rows: &'a [NewRow]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.transact(rows, true))
    }

    fn add_and_roll_back<'a>(&'a self, rows: &'a [NewRow]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.transact(rows, false))
    }

    /// As the first version of the hub wrote them: the payload is BSON, numbers are JavaScript's.
    fn write<'a>(&'a self, [id, topic, payload]: [&'a str; 3]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let payload = match serde_json::from_str::<serde_json::Value>(payload) {
                Ok(value) => mongodb::bson::serialize_to_bson(&value).expect("BSON"),
                Err(_) => Bson::from(payload),
            };
            let row = doc! {
                "_id": id, "topic": topic, "payload": payload, "headers": null, "status": "pending",
                "ts": 1_731_650_000_000_f64, "attempts": 0_f64,
            };
            self.db.collection::<Document>("outbox").insert_one(row).await.expect("inserted");
        })
    }
}

crate::law!(fixture());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drainer_on_mongodb_killed_at_any_step_loses_nothing_doubles_nothing_and_keeps_the_order() {
    crate::crash::at_every_step(&fixture().await, 10, &crate::crash::small).await;
}

/// With leases that are long enough for a plan to be used: of 20 rows it reads 8 ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drainer_on_mongodb_killed_at_any_step_of_what_it_read_ahead_keeps_the_order_too() {
    let settings = || Settings { lease: Duration::from_millis(250), ..crate::crash::small() };
    crate::crash::at_every_step(&fixture().await, 20, &settings).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_drainers_on_mongodb_publish_each_row_once_and_share_them() {
    let settings = || Settings { until_empty: true, batch_rows: 100, ..Settings::default() };
    crate::drainer::two_drainers(&fixture().await, 2_000, &settings).await;
}

#[tokio::test]
async fn random_failures_and_kills_on_mongodb_leave_every_row_published_once_in_order_or_parked() {
    crate::random::histories(&fixture().await, 100..103, 30).await;
}

#[tokio::test]
async fn the_indexes_of_the_first_version_are_there_and_made_again_where_they_are_missing() {
    let mongo = fixture().await;
    let rows = mongo.db.collection::<Document>("outbox");
    rows.drop_indexes().await.expect("dropped");
    MongoOutbox::connect(mongo.scratch.url(), "outbox", Schema::Create).await.expect("opened again");
    let names = rows.list_index_names().await.expect("listed");
    for name in ["status_1_lease_until_1", "ts_1", "status_1_ord_1_ts_1__id_1", "key_1_lease_until_1", "key_1_ord_-1"] {
        assert!(names.iter().any(|there| there == name), "{name} of {names:?}");
    }
    let refused = MongoOutbox::connect("mongodb://127.0.0.1:1/?directConnection=true", "outbox", Schema::Create).await;
    assert!(refused.expect_err("refused").to_string().contains("names no database"));
    assert!(MongoOutbox::open(&mongo.db, "$bad").await.is_err());
    let missing = MongoOutbox::connect(mongo.scratch.url(), "typo", Schema::Require).await.expect_err("refused");
    assert!(missing.to_string().contains("no collection typo"), "{missing}");
    let there = mongo.db.list_collection_names().await.expect("listed");
    assert!(!there.iter().any(|name| name == "typo"), "nothing is made by looking: {there:?}");
}

#[tokio::test]
async fn transactions_on_one_key_are_published_in_the_order_of_their_commits() {
    let mongo = fixture().await;
    let orders = mongo.db.collection::<Document>("orders");
    orders.insert_one(doc! {"_id": 1, "n": 0}).await.expect("inserted");
    // Many writers of one order: each raises its number and says so. MongoDB serialises them.
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (client, orders, outbox) = (mongo.client.clone(), orders.clone(), mongo.outbox.clone());
        writers.spawn(async move {
            let mut done = 0;
            while done < 5 {
                let mut session = client.start_session().await.expect("a session");
                session.start_transaction().await.expect("begun");
                let raise = orders.find_one_and_update(doc! {"_id": 1}, doc! {"$inc": {"n": 1}}).session(&mut session);
                let Ok(Some(before)) = raise.await else { continue };
                let number = before.get_i32("n").expect("a number");
                let added = outbox.add(&mut session, &numbered("orders", Some("1"), number as usize)).await;
                if added.is_ok() && outbox.commit(&mut session).await.is_ok() {
                    done += 1;
                }
            }
        });
    }
    let log = Log::new();
    let drainer = drain(mongo.store(), log.publisher(), Settings { until_empty: false, ..quick() });
    writers.join_all().await;
    drain(mongo.store(), log.publisher(), quick()).ended().await;
    drop(drainer);
    let numbers: Vec<usize> = log.events("orders").await.iter().map(|(_, n)| n.parse().expect("a number")).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn fields_that_hold_anything_else_make_a_bad_row_and_no_more() {
    let mongo = fixture().await;
    let rows = mongo.db.collection::<Document>("outbox");
    for (n, change) in [
        doc! {"headers": [1]},
        doc! {"headers": {"a": 1}},
        doc! {"tags": "x"},
        doc! {"ts": "yesterday"},
        doc! {"key": 7},
        doc! {"payload": "{", "encoding": "json"},
    ]
    .into_iter()
    .enumerate()
    {
        let mut row = doc! {"_id": format!("0000000{n}-7d3b-7cc2-8b1a-3f0e2c9a4b5d"), "topic": "t", "payload": 1};
        row.extend(doc! {"status": "pending", "ts": 5, "attempts": 0});
        row.extend(change);
        rows.insert_one(row).await.expect("inserted");
    }
    let log = Log::new();
    assert_eq!(drain(mongo.store(), log.publisher(), quick()).ended().await, None);
    let mut parked = mongo.store().list(List { status: Some(Status::Error), limit: 10 }).await.expect("listed");
    assert_eq!(parked.len(), 6);
    parked.sort_by(|one, other| one.id.cmp(&other.id));
    for (row, word) in parked.iter().zip(["headers", "headers", "tags", "ts", "key", "payload"]) {
        let said = row.last_err.as_deref().unwrap_or_default();
        assert!(said.contains(word) && said.contains("bad_"), "{said}");
    }
}

#[tokio::test]
async fn a_row_that_no_mark_can_name_or_count_is_parked_and_blocks_nobody() {
    let mongo = fixture().await;
    let rows = mongo.db.collection::<Document>("outbox");
    let row = doc! {"topic": "t", "payload": 1, "key": "k", "status": "pending", "ts": 5, "attempts": 0};
    let mut with = Vec::new();
    // MongoDB's own kind of id, which a document gets whose writer gives it none; a UUID as bytes; a number.
    for id in [Bson::ObjectId(ObjectId::new()), Bson::from(Uuid::new()), Bson::from(7)] {
        with.push(doc! {"_id": id});
    }
    with.push(doc! {"_id": "00000001-7d3b-7cc2-8b1a-3f0e2c9a4b5d", "attempts": "many"});
    with.push(doc! {"_id": "00000002-7d3b-7cc2-8b1a-3f0e2c9a4b5d", "lease_until": "later"});
    for other in with {
        let mut row = row.clone();
        row.extend(other);
        rows.insert_one(row).await.expect("inserted");
    }
    mongo.add(&[numbered("t", Some("k"), 2)]).await;
    let log = Log::new();
    let mut drainer = drain(mongo.store(), log.publisher(), quick());
    assert_eq!(drainer.ended().await, None);
    let done = drainer.snapshot();
    assert_eq!((done.sent, done.parked, done.errors), (1, 5, 5), "they are counted");
    assert_eq!(log.events("t").await, [(Some("k".into()), "2".into())]);
    let parked = mongo.store().list(List { status: Some(Status::Error), limit: 10 }).await.expect("listed");
    let said = |word: &str| {
        let says = |row: &&promethean_outbox::Row| row.last_err.as_deref().is_some_and(|err| err.contains(word));
        parked.iter().filter(says).count()
    };
    assert_eq!((parked.len(), said("bad_id: "), said("attempts"), said("lease_until")), (5, 3, 1, 1), "{parked:?}");
    assert_eq!((said("no whole number"), said("of milliseconds")), (2, 1), "attempts are no time: {parked:?}");
}

#[tokio::test]
async fn a_key_with_more_rows_than_a_batch_keeps_no_other_key_back() {
    let mongo = fixture().await;
    let mut rows: Vec<_> = (0..50).map(|n| numbered("t", Some("hot"), n)).collect();
    rows.push(numbered("t", Some("other"), 50));
    mongo.add(&rows).await;
    let store = mongo.store();
    let payloads = |rows: Vec<promethean_outbox::Row>| rows.into_iter().map(|row| row.payload).collect::<Vec<_>>();
    let first = crate::law::claim(&store, 5, "a").await;
    assert_eq!(payloads(first.clone()), ["0", "1", "2", "3", "4"]);
    assert_eq!(payloads(crate::law::claim(&store, 5, "b").await), ["50"], "behind 45 rows that wait");
    assert!(crate::law::claim(&store, 5, "c").await.is_empty());
    let ids: Vec<_> = first.into_iter().map(|row| row.id).collect();
    store.mark_sent(&ids).await.expect("marked");
    assert_eq!(payloads(crate::law::claim(&store, 2, "c").await), ["5", "6"]);
}

#[tokio::test]
async fn rows_that_others_wrote_go_by_their_time_as_in_the_first_version() {
    let mongo = fixture().await;
    let rows = mongo.db.collection::<Document>("outbox");
    for (number, ts) in [(0, 30), (1, 10), (2, 20)] {
        let id = format!("0000000{number}-7d3b-7cc2-8b1a-3f0e2c9a4b5d");
        let row =
            doc! {"_id": id, "topic": "t", "payload": ts, "key": "k", "status": "pending", "ts": ts, "attempts": 0};
        rows.insert_one(row).await.expect("inserted");
    }
    mongo.add(&[numbered("t", Some("k"), 40)]).await;
    let log = Log::new();
    assert_eq!(drain(mongo.store(), log.publisher(), quick()).ended().await, None);
    assert_eq!(crate::fakes::by_key(&log.events("t").await)["k"], [10, 20, 30, 40]);
}

/// Counts the commands of a client by their names.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<HashMap<String, u64>>>);

impl Counter {
    /// The outbox over a client of its own whose commands are counted.
    async fn outbox(&self, mongo: &Mongo) -> MongoOutbox {
        let counted = Arc::clone(&self.0);
        let mut options = ClientOptions::parse(mongo.scratch.url()).await.expect("parsed");
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            if let CommandEvent::Started(started) = event {
                *counted.lock().expect("not poisoned").entry(started.command_name).or_default() += 1;
            }
        }));
        let db = Client::with_options(options).expect("a client").database(mongo.scratch.name());
        let outbox = MongoOutbox::open(&db, "outbox").await.expect("opened");
        assert!(self.all() > 0, "commands are counted");
        // What it took to open is not counted.
        self.0.lock().expect("not poisoned").clear();
        outbox
    }

    fn all(&self) -> u64 {
        self.0.lock().expect("not poisoned").values().sum()
    }

    fn of(&self, command: &str) -> u64 {
        self.0.lock().expect("not poisoned").get(command).copied().unwrap_or(0)
    }
}

/// What claims and marks cost: how many rows, commands to claim them, commands to mark them.
async fn claim_and_mark(outbox: &MongoOutbox, counter: &Counter, rows: usize) -> (usize, u64, u64) {
    let before = counter.all();
    let claim = Claim { rows, bytes: 1 << 22, lease: Duration::from_secs(60), worker: "w" };
    let ids: Vec<_> = outbox.claim_batch(claim).await.expect("claimed").into_iter().map(|row| row.id).collect();
    let claimed = counter.all() - before;
    outbox.mark_sent(&ids).await.expect("marked");
    (ids.len(), claimed, counter.all() - before - claimed)
}

#[tokio::test]
async fn a_claim_is_at_most_two_commands_and_a_mark_one_however_many_rows() {
    let (mongo, counter) = (fixture().await, Counter::default());
    let outbox = counter.outbox(&mongo).await;
    fill(&mongo, 501).await;
    assert_eq!(claim_and_mark(&outbox, &counter, 1).await, (1, 2, 1));
    assert_eq!(claim_and_mark(&outbox, &counter, 200).await, (200, 2, 1), "it read two batches");
    assert_eq!(claim_and_mark(&outbox, &counter, 200).await, (200, 1, 1), "the second of them");
    assert_eq!(claim_and_mark(&outbox, &counter, 200).await, (100, 2, 1), "what is left");
    let before = counter.all();
    let none = Claim { rows: 500, bytes: 1 << 22, lease: Duration::from_secs(60), worker: "w" };
    assert!(outbox.claim_batch(none).await.expect("claimed").is_empty());
    assert_eq!(counter.all() - before, 1, "one question where there is nothing");
}

#[tokio::test]
async fn where_many_rows_wait_a_claim_is_one_command_and_every_eighth_reads() {
    const BATCHES: u64 = 8 + 32;
    let (mongo, counter, log) = (fixture().await, Counter::default(), Log::new());
    let outbox = counter.outbox(&mongo).await;
    fill(&mongo, BATCHES as usize * 20).await;
    let settings = Settings { batch_rows: 20, until_empty: true, ..Settings::default() };
    assert_eq!(drain(Arc::new(outbox), log.publisher(), settings).ended().await, None);
    let (updates, reads) = (counter.of("update"), counter.of("aggregate"));
    assert_eq!(log.events("t").await.len() as u64, BATCHES * 20);
    // A claim and a mark for each batch, and now and then a look for leases that ran out.
    assert!((2 * BATCHES + 1..=2 * BATCHES + 3).contains(&updates), "{updates} updates");
    // 1, 2, 4, then 8 at a time; the last finds nothing; and the numbers are read at the start and at the end. A busy
    // machine may have let a plan get too old.
    let expected = 3 + BATCHES.div_ceil(8) + 1 + 2;
    assert!((expected - 2..=expected + 4).contains(&reads), "{reads} reads");
    assert_eq!(counter.of("find") + counter.of("getMore") + counter.of("killCursors"), 0, "and nothing else");
}

fn payloads(rows: &[promethean_outbox::Row]) -> Vec<&str> {
    rows.iter().map(|row| row.payload.as_str()).collect()
}

fn ids(rows: &[promethean_outbox::Row]) -> Vec<String> {
    rows.iter().map(|row| row.id.clone()).collect()
}

/// An outbox with 8 rows of one key: the worker `a` has sent rows 0 and 1, read 2 to 5, and claimed 2 and 3, which are
/// returned.
async fn two_ahead(mongo: &Mongo) -> (Arc<dyn OutboxStore>, Vec<promethean_outbox::Row>) {
    mongo.add(&(0..8).map(|n| numbered("t", Some("k"), n)).collect::<Vec<_>>()).await;
    let store = mongo.store();
    let first = crate::law::claim(&store, 2, "a").await;
    store.mark_sent(&ids(&first)).await.expect("marked");
    let second = crate::law::claim(&store, 2, "a").await;
    assert_eq!(payloads(&second), ["2", "3"]);
    (store, second)
}

#[tokio::test]
async fn a_row_that_was_read_ahead_waits_for_an_earlier_one_of_its_key_that_failed() {
    let mongo = fixture().await;
    let (store, second) = two_ahead(&mongo).await;
    store.mark_sent(&ids(&second[..1])).await.expect("marked");
    let later = |wait| Failed { id: second[1].id.clone(), err: None, next: Next::Later(wait) };
    store.mark_error(&[later(Duration::from_millis(300))], "a").await.expect("marked");
    for worker in ["a", "b", "a"] {
        assert!(crate::law::claim(&store, 2, worker).await.is_empty(), "row 3 is tried again later");
    }
    tokio::time::sleep(Duration::from_millis(350)).await;
    assert_eq!(payloads(&crate::law::claim(&store, 2, "a").await), ["3", "4"]);
}

#[tokio::test]
async fn a_row_that_was_read_ahead_waits_while_an_earlier_one_of_its_key_is_in_flight() {
    let mongo = fixture().await;
    let (store, second) = two_ahead(&mongo).await;
    assert!(crate::law::claim(&store, 2, "a").await.is_empty(), "rows 2 and 3 are not marked");
    store.mark_sent(&ids(&second)).await.expect("marked");
    assert_eq!(payloads(&crate::law::claim(&store, 2, "a").await), ["4", "5"]);
}

#[tokio::test]
async fn what_another_worker_took_of_a_plan_ends_it_and_is_claimed_by_nobody_else() {
    let mongo = fixture().await;
    // Another client: the one that reads ahead hears nothing of it.
    let other = MongoOutbox::connect(mongo.scratch.url(), "outbox", Schema::Require).await.expect("opened");
    let other: Arc<dyn OutboxStore> = Arc::new(other);
    let (store, second) = two_ahead(&mongo).await;
    store.mark_sent(&ids(&second)).await.expect("marked");
    let theirs = crate::law::claim(&other, 1, "b").await;
    assert_eq!(payloads(&theirs), ["4"]);
    assert!(crate::law::claim(&store, 2, "a").await.is_empty(), "it got 5 and gave it back");
    let back = &store.list(List { status: None, limit: 10 }).await.expect("listed")[5];
    assert_eq!((back.payload.as_str(), back.status, back.attempts), ("5", Status::Pending, 0));
    let failed = Failed { id: theirs[0].id.clone(), err: Some("away".into()), next: Next::Release };
    other.mark_error(&[failed], "b").await.expect("marked");
    assert_eq!(payloads(&crate::law::claim(&store, 2, "a").await), ["4", "5"]);
}

#[tokio::test]
async fn a_row_that_was_tried_since_it_was_read_ahead_is_read_again() {
    let mongo = fixture().await;
    let other = MongoOutbox::connect(mongo.scratch.url(), "outbox", Schema::Require).await.expect("opened");
    let other: Arc<dyn OutboxStore> = Arc::new(other);
    let (store, second) = two_ahead(&mongo).await;
    store.mark_sent(&ids(&second)).await.expect("marked");
    let theirs = crate::law::claim(&other, 2, "b").await;
    let failed = |row: &promethean_outbox::Row| Failed {
        id: row.id.clone(),
        err: Some("publish_failed".into()),
        next: Next::Later(Duration::ZERO),
    };
    other.mark_error(&theirs.iter().map(failed).collect::<Vec<_>>(), "b").await.expect("marked");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let ours = crate::law::claim(&store, 2, "a").await;
    let read: Vec<_> = ours.iter().map(|row| (row.payload.as_str(), row.attempts, row.last_err.as_deref())).collect();
    assert_eq!(read, [("4", 2, Some("publish_failed")), ("5", 2, Some("publish_failed"))], "as it is now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_drainers_on_mongodb_that_read_ahead_and_fail_now_and_then_keep_the_order() {
    const ROWS: usize = 3_000;
    let (mongo, log) = (fixture().await, Log::new());
    fill_with(&mongo, ROWS, 40, |number| number.to_string()).await;
    let failures = Arc::new(AtomicUsize::new(0));
    let publisher = || {
        let failures = Arc::clone(&failures);
        let script = move |_: &promethean_event::Draft<'_>| match failures.fetch_add(1, SeqCst) % 211 {
            100 => Some(Answer::Failed("publish_failed: now and then".into())),
            200 => Some(Answer::Unavailable { reason: "away".into(), retry_after: None }),
            _ => None,
        };
        Arc::new(Scripted { inner: log.publisher(), script })
    };
    let settings = |batch_rows| {
        let mut settings = Settings { batch_rows, until_empty: true, ..Settings::default() };
        settings.policy.first_wait = Duration::from_millis(5);
        settings
    };
    // The second one is small, and comes and goes.
    let mut large = drain(mongo.store(), publisher(), settings(30));
    for _ in 0..5 {
        let small = drain(mongo.store(), publisher(), settings(7));
        tokio::time::sleep(Duration::from_millis(150)).await;
        small.stop().await;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(large.ended().await, None);
    let events = log.events("t").await;
    assert_eq!(events.len(), ROWS);
    for (key, numbers) in crate::fakes::by_key(&events) {
        assert!(numbers.is_sorted(), "key {key}: {numbers:?}");
    }
}

/// Adds rows as a service does, but many at a time: 256 bytes each, of 1,000 keys.
async fn fill(mongo: &Mongo, rows: usize) {
    let payload = serde_json::json!({"text": "x".repeat(245)}).to_string();
    fill_with(mongo, rows, 1_000, |_| payload.clone()).await;
}

async fn fill_with(mongo: &Mongo, rows: usize, keys: usize, payload: impl Fn(usize) -> String) {
    let row = |number: usize| {
        let id = EventId::from_bytes((number as u128).to_be_bytes());
        doc! {
            "_id": id.to_string(), "topic": "t", "key": (number % keys).to_string(), "payload": payload(number),
            "encoding": "json", "status": "pending", "attempts": 0, "ts": 1_731_650_000_000_i64,
            "ord": 1_731_650_000_000_i64 + number as i64,
        }
    };
    let collection = mongo.db.collection::<Document>("outbox");
    collection.delete_many(doc! {}).await.expect("deleted");
    for some in (0..rows).collect::<Vec<_>>().chunks(5_000) {
        collection.insert_many(some.iter().map(|number| row(*number))).await.expect("inserted");
    }
}

#[tokio::test]
async fn a_claim_and_its_marks_look_at_their_rows_only_however_many_wait() {
    const ROWS: i64 = 500;
    let mongo = fixture().await;
    let store = mongo.store();
    fill(&mongo, 5_000).await;
    mongo.db.run_command(doc! {"profile": 2}).await.expect("MongoDB writes down what it does");
    for _ in 0..2 {
        let claimed = crate::law::claim(&store, ROWS as usize, "w").await;
        let ids: Vec<_> = claimed.into_iter().map(|row| row.id).collect();
        store.extend(&ids, "w", Duration::from_secs(60)).await.expect("prolonged");
        store.mark_sent(&ids).await.expect("marked");
    }
    store.purge_sent(Duration::from_secs(1), ROWS as usize).await.expect("purged");
    mongo.db.run_command(doc! {"profile": 0}).await.expect("no longer");
    let profile = mongo.db.collection::<Document>("system.profile");
    let ours = doc! {"ns": format!("{}.outbox", mongo.scratch.name()), "keysExamined": {"$exists": true}};
    let mut done = profile.find(ours).await.expect("found");
    let mut commands = 0;
    while done.advance().await.expect("read") {
        let done = done.deserialize_current().expect("a document");
        let keys = done.get("keysExamined").and_then(Bson::as_i32).expect("a number");
        let command = done.get_document("command").expect("a command").keys().next().cloned();
        assert!(i64::from(keys) <= 3 * ROWS, "{:?} {command:?}: {keys} keys", done.get_str("op"));
        commands += 1;
    }
    assert!(commands >= 9, "{commands} commands: three for each batch, and more");
}

#[tokio::test]
async fn an_idle_drainer_asks_mongodb_at_most_four_times_a_second() {
    let mongo = fixture().await;
    let counter = Counter::default();
    let outbox = counter.outbox(&mongo).await;
    let log = Log::new();
    let drainer = drain(Arc::new(outbox), log.publisher(), Settings::default());
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = counter.all();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let idle = counter.all() - before;
    assert!((3..=12).contains(&idle), "{idle} commands in 3 s");
    mongo.add(&[numbered("t", None, 1)]).await;
    while log.events("t").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(drainer.stop().await.sent, 1);
}

#[tokio::test]
async fn a_mark_on_mongodb_is_seen_until_it_runs_out() {
    let mongo = fixture().await;
    crate::once::marks_run_out(&MongoDedupe::open(&mongo.db, "billing").await.expect("opened")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effect_and_mark_commit_together_on_mongodb_whoever_is_killed_in_between() {
    let mongo = fixture().await;
    let marks = MongoDedupe::open(&mongo.db, "billing").await.expect("opened");
    let charges = mongo.db.collection::<Document>("charges");
    charges.insert_one(doc! {"_id": "kept"}).await.expect("made");
    let (effects, calls) = (charges.clone(), Arc::new(AtomicUsize::new(0)));
    let called = Arc::clone(&calls);
    let charge = Arc::new(marks.transactional(move |session, id: &EventId| {
        let (effects, event, call) = (effects.clone(), id.to_string(), called.fetch_add(1, SeqCst));
        Box::pin(async move {
            effects.insert_one(doc! {"event": event}).session(session).await.map_err(|error| error.to_string())?;
            match call % 4 {
                0 => Err("no money".to_owned()),
                // Killed in the middle: the future is dropped below.
                1 => std::future::pending().await,
                _ => Ok(()),
            }
        })
    }));
    const EVENTS: u8 = 200;
    for n in 0..EVENTS {
        let id = EventId::from_bytes([n; 16]);
        let mut deliveries = 0;
        loop {
            deliveries += 1;
            let handled = tokio::time::timeout(Duration::from_millis(40), charge(id)).await;
            // Delivered again after each failure, and once more after it was done: killed between effect and ack.
            if handled.is_ok_and(|done| done.is_ok()) {
                break;
            }
            assert!(deliveries < 20, "event {n} is never done");
        }
        charge(id).await.expect("passed over");
    }
    let pipeline =
        [doc! {"$match": {"event": {"$exists": true}}}, doc! {"$group": {"_id": "$event", "n": {"$sum": 1}}}];
    let mut found = charges.aggregate(pipeline).await.expect("counted");
    let mut distinct = 0;
    while found.advance().await.expect("read") {
        let of: Document = found.deserialize_current().expect("a document");
        assert_eq!(of.get_i32("n").expect("a number"), 1, "{of}");
        distinct += 1;
    }
    assert_eq!(distinct, u32::from(EVENTS));
    assert!(calls.load(SeqCst) > 300, "failures and kills were among them");
}
