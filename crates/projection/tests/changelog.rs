//! Changelogs into SQLite and MongoDB: one law, both tables.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use promethean_bus::{Bus, BusOptions, Draft, Topic};
use promethean_event::{EventId, Millis, payload_of};
use promethean_projection::changelog::{Change, MongoCollection, SqliteTable, Table, run_on_bus};
use promethean_store::memory::Memory;
use promethean_testmongo::Scratch;
use rusqlite::Connection;
use serde_json::{Value, json, value::RawValue};

/// A table, and a look at it from outside.
trait Watched: Table {
    async fn rows(&self) -> BTreeMap<String, Value>;
}

struct Sqlite {
    table: SqliteTable,
    outside: Connection,
}

impl Sqlite {
    fn open(dir: &std::path::Path) -> Self {
        let path = dir.join("state.db");
        let table = SqliteTable::open(Connection::open(&path).expect("opens"), "processes").expect("made");
        Self { table, outside: Connection::open(&path).expect("opens") }
    }
}

impl Table for Sqlite {
    type Error = <SqliteTable as Table>::Error;
    async fn apply(&mut self, changes: Vec<Change>) -> Result<(), Self::Error> {
        self.table.apply(changes).await
    }
}

impl Watched for Sqlite {
    async fn rows(&self) -> BTreeMap<String, Value> {
        let mut query = self.outside.prepare("SELECT key, payload FROM processes").expect("a query");
        let pair = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
        let rows = query.query_map([], pair).expect("queried").map(|row| row.expect("a row"));
        rows.map(|(key, payload)| (key, serde_json::from_str(&payload).expect("JSON"))).collect()
    }
}

struct Mongo {
    table: MongoCollection,
    documents: mongodb::Collection<Document>,
    _scratch: Scratch,
}

impl Mongo {
    async fn open() -> Self {
        let scratch = tokio::task::spawn_blocking(Scratch::new).await.expect("a database");
        let client = mongodb::Client::with_uri_str(scratch.url()).await.expect("connected");
        let database = client.default_database().expect("named in the address");
        let table = MongoCollection::open(&database, "processes").await.expect("made");
        Self { table, documents: database.collection("processes"), _scratch: scratch }
    }
}

impl Table for Mongo {
    type Error = <MongoCollection as Table>::Error;
    async fn apply(&mut self, changes: Vec<Change>) -> Result<(), Self::Error> {
        self.table.apply(changes).await
    }
}

impl Watched for Mongo {
    async fn rows(&self) -> BTreeMap<String, Value> {
        let mut rows = BTreeMap::new();
        let mut found = self.documents.find(doc! {}).await.expect("found");
        while found.advance().await.expect("read") {
            let document = found.deserialize_current().expect("a document");
            let payload = document.get("payload").expect("a payload").clone();
            let payload = mongodb::bson::deserialize_from_bson(payload).expect("JSON");
            rows.insert(document.get_str("_id").expect("a key").to_owned(), payload);
        }
        rows
    }
}

fn change(key: &str, seq: u64, payload: Option<Value>) -> Change {
    let payload = payload.map(|value| RawValue::from_string(value.to_string()).expect("JSON"));
    Change { key: key.to_owned(), seq, id: EventId::derived(&[&seq.to_le_bytes()]), ts: Millis(seq), payload }
}

fn rows(pairs: &[(&str, Value)]) -> BTreeMap<String, Value> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// What comes twice or late changes nothing; what was deleted stays so.
async fn keeps_the_latest_of_each_key(table: &mut impl Watched) {
    let first = [change("a", 1, Some(json!({"n": 1}))), change("b", 2, Some(json!([1, "é", null, 2.5])))];
    table.apply(first.to_vec()).await.expect("applied");
    table.apply(vec![change("a", 5, Some(json!({"n": 5})))]).await.expect("applied");
    let both = rows(&[("a", json!({"n": 5})), ("b", json!([1, "é", null, 2.5]))]);
    assert_eq!(table.rows().await, both);
    table.apply(first.to_vec()).await.expect("applied");
    table.apply(vec![change("a", 3, None)]).await.expect("applied");
    assert_eq!(table.rows().await, both, "what came late made a difference");
    table.apply(vec![change("a", 6, None), change("c", 7, None)]).await.expect("applied");
    table.apply(vec![change("a", 5, Some(json!({"n": 5})))]).await.expect("applied");
    assert_eq!(table.rows().await, rows(&[("b", json!([1, "é", null, 2.5]))]), "what was deleted came back");
    table.apply(vec![change("a", 8, Some(json!(8)))]).await.expect("applied");
    assert_eq!(table.rows().await["a"], json!(8), "a key may come back later");
}

/// A greater version wins, whatever the order of the events.
async fn goes_by_the_version(table: &mut impl Watched) {
    let state = |version: Option<i64>, n: u64| version.map_or(json!({"n": n}), |v| json!({"meta": {"v": v}, "n": n}));
    for (seq, version, shown) in
        [(1, None, 1), (2, Some(5), 2), (3, Some(4), 2), (4, Some(5), 2), (5, None, 2), (6, Some(6), 6)]
    {
        table.apply(vec![change("k", seq, Some(state(version, seq)))]).await.expect("applied");
        assert_eq!(table.rows().await["k"]["n"], json!(shown), "after seq {seq}");
    }
    table.apply(vec![change("k", 7, None)]).await.expect("applied");
    assert_eq!(table.rows().await, BTreeMap::new(), "a tombstone has no version");
}

/// An event has one seq, and a seq one event: anything else is another log, and stops it.
async fn says_when_the_topic_was_numbered_anew(table: &mut impl Watched) {
    let state = |key: &str, seq| change(key, seq, Some(json!({"n": seq})));
    let with_id = |of: u64, change: Change| Change { id: EventId::derived(&[&of.to_le_bytes()]), ..change };
    table.apply(vec![state("a", 5), state("b", 6)]).await.expect("applied");
    table.apply(vec![change("b", 7, None)]).await.expect("applied");
    let before = table.rows().await;
    // Late or twice, of the same log.
    for same in [state("a", 5), state("a", 3), change("a", 4, None), state("b", 6), change("b", 7, None)] {
        table.apply(vec![same]).await.expect("nothing new");
    }
    for other in [
        with_id(5, state("a", 3)),
        with_id(99, state("a", 5)),
        with_id(99, change("a", 5, None)),
        with_id(5, change("a", 3, None)),
        with_id(99, state("b", 7)),
    ] {
        let shown = format!("{other:?}");
        let refused = table.apply(vec![other]).await.expect_err(&shown).to_string();
        assert!(refused.contains("another group write to another table"), "{refused}");
        assert!(refused.contains("promethean backup"), "{refused}");
    }
    assert_eq!(table.rows().await, before);
    table.apply(vec![state("a", 8), state("b", 9)]).await.expect("what is later is applied");
    assert_eq!(table.rows().await, rows(&[("a", json!({"n": 8})), ("b", json!({"n": 9}))]));
}

/// The same events on another hub, without those that were gone: as `export` and `import` have it.
async fn stops_on_a_hub_that_numbered_the_topic_anew(table: &mut impl Watched) {
    let (bus, to) = [(); 2].map(|()| Bus::new(Arc::new(Memory::new()), BusOptions::default())).into();
    for n in 0..9_u64 {
        publish(&bus, &format!("k{}", n % 4), json!({"n": n})).await;
    }
    let topic = Topic::parse("process.state").expect("a topic");
    let events = bus.store().read(&topic, 1, promethean_store::ReadMax::events(99)).await.expect("read");
    for event in &events {
        let payload = RawValue::from_string(event.payload().to_owned()).expect("JSON");
        let key = event.key().expect("a key").into_owned();
        let change = Change { key, seq: event.seq, id: event.id, ts: event.ts, payload: Some(payload.clone()) };
        table.apply(vec![change]).await.expect("applied");
        if event.seq > 4 {
            let mut draft = Draft::new(topic.clone(), Cow::Owned(payload));
            (draft.options.id, draft.options.key) = (Some(event.id), event.key());
            to.publish(&draft).await.expect("published");
        }
    }
    publish(&to, "k1", json!("later, and seemingly earlier")).await;
    let running = run_on_bus(&to, "process.state", "table", table);
    let ended = tokio::time::timeout(Duration::from_secs(30), running).await.expect("it stops");
    let said = ended.map(|_| ()).expect_err("another log").to_string();
    assert!(said.contains("of another log"), "{said}");
}

async fn publish(bus: &Bus, key: &str, value: Value) {
    let payload = payload_of(&value).expect("JSON");
    let mut draft = Draft::new(Topic::parse("process.state").expect("a topic"), Cow::Owned(payload));
    draft.options.key = Some(key.to_owned().into());
    bus.publish(&draft).await.expect("published");
}

/// Every live key, then whatever comes, also when it is stopped again and again.
async fn follows_a_topic(table: &mut impl Watched, rounds: u64, life: Duration) {
    let bus = Bus::new(Arc::new(Memory::new()), BusOptions::default());
    let mut expected = BTreeMap::new();
    for n in 0..60_u64 {
        publish(&bus, &format!("k{}", n % 20), json!({"n": n})).await;
    }
    publish(&bus, "k3", Value::Null).await;
    for round in 0..rounds {
        for n in 0..40_u64 {
            let (key, value) = (format!("k{}", (n * 7 + round) % 25), json!({"n": n, "round": round}));
            let value = if (n + round).is_multiple_of(9) { Value::Null } else { value };
            publish(&bus, &key, value.clone()).await;
            expected.insert(key, value);
        }
        // Stopped wherever it is.
        let running = run_on_bus(&bus, "process.state", "table", table);
        let ended = tokio::time::timeout(life * u32::try_from(round + 1).expect("few"), running).await;
        assert!(ended.is_err(), "it stopped by itself: {ended:?}");
    }
    expected.retain(|_, value| !value.is_null());
    // However long the table takes for a batch: sooner or later a run is long enough.
    for wait in (0..9).map(|doubled| life * (1 << (doubled + 3))) {
        let running = run_on_bus(&bus, "process.state", "table", table);
        let ended = tokio::time::timeout(wait, running).await;
        assert!(ended.is_err(), "it stopped by itself: {ended:?}");
        if table.rows().await == expected {
            return;
        }
    }
    assert_eq!(table.rows().await, expected);
}

#[tokio::test]
async fn a_sqlite_table_keeps_the_latest_of_each_key() {
    let dir = tempfile::tempdir().expect("a directory");
    keeps_the_latest_of_each_key(&mut Sqlite::open(dir.path())).await;
}

#[tokio::test]
async fn a_sqlite_table_goes_by_the_version() {
    let dir = tempfile::tempdir().expect("a directory");
    let Sqlite { table, outside } = Sqlite::open(dir.path());
    goes_by_the_version(&mut Sqlite { table: table.with_version("/meta/v"), outside }).await;
}

#[tokio::test]
async fn the_version_is_found_beside_whatever_json_allows() {
    let dir = tempfile::tempdir().expect("a directory");
    let Sqlite { table, outside } = Sqlite::open(dir.path());
    let mut table = table.with_version("/meta/v");
    let texts = [r#"{"meta":{"v":4}}"#, r#"{"big":1e400,"half":"\ud800","meta":{"v":5}}"#, r#"{"meta":{"v":4},"n":3}"#];
    for (seq, text) in (1..).zip(texts) {
        let payload = Some(RawValue::from_string(text.to_owned()).expect("JSON"));
        table.apply(vec![Change { payload, ..change("k", seq, None) }]).await.expect("applied");
    }
    let stored = outside.query_row("SELECT payload FROM processes", (), |row| row.get::<_, String>(0));
    assert_eq!(stored.expect("a row"), texts[1]);
}

#[tokio::test]
async fn a_sqlite_table_follows_a_topic() {
    let dir = tempfile::tempdir().expect("a directory");
    follows_a_topic(&mut Sqlite::open(dir.path()), 12, Duration::from_millis(2)).await;
}

#[tokio::test]
async fn a_sqlite_table_says_when_the_topic_was_numbered_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    says_when_the_topic_was_numbered_anew(&mut Sqlite::open(dir.path())).await;
    let dir = tempfile::tempdir().expect("a directory");
    stops_on_a_hub_that_numbered_the_topic_anew(&mut Sqlite::open(dir.path())).await;
}

#[tokio::test]
async fn a_mongodb_collection_says_when_the_topic_was_numbered_anew() {
    says_when_the_topic_was_numbered_anew(&mut Mongo::open().await).await;
    stops_on_a_hub_that_numbered_the_topic_anew(&mut Mongo::open().await).await;
}

#[tokio::test]
async fn a_payload_that_mongodb_does_not_take_as_a_value_is_kept_as_its_text() {
    let mut mongo = Mongo::open().await;
    let deep = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    let texts = [
        (r#"{"a\u0000b":1}"#.to_owned(), true),
        (r#"[{"x":{"\u0000":null}}]"#.to_owned(), true),
        (deep(81), true),
        (deep(110), true),
        ("[".repeat(128) + &"]".repeat(128), true),
        (deep(80), false),
        (r#"{"a":"\u0000","":{"b.c":1,"$d":2}}"#.to_owned(), false),
    ];
    for (seq, (text, _)) in (1..).zip(&texts) {
        let payload = Some(RawValue::from_string(text.clone()).expect("JSON"));
        let change = Change { payload, ..change(&format!("k{seq}"), seq, None) };
        mongo.apply(vec![change]).await.unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    let rows = mongo.rows().await;
    for (seq, (text, as_text)) in (1..).zip(texts) {
        let value = if as_text { Value::String(text) } else { serde_json::from_str(&text).expect("JSON") };
        assert_eq!(rows[&format!("k{seq}")], value);
    }
}

#[tokio::test]
async fn a_sqlite_table_needs_a_name_that_is_one() {
    for bad in ["", "1st", "a b", "t; DROP TABLE x", "é"] {
        let refused = SqliteTable::open(Connection::open_in_memory().expect("opens"), bad).expect_err(bad);
        assert!(refused.to_string().contains("no name"), "{refused}");
    }
}

#[tokio::test]
async fn a_mongodb_collection_keeps_the_latest_of_each_key() {
    keeps_the_latest_of_each_key(&mut Mongo::open().await).await;
}

#[tokio::test]
async fn a_mongodb_collection_goes_by_the_version() {
    let Mongo { table, documents, _scratch } = Mongo::open().await;
    goes_by_the_version(&mut Mongo { table: table.with_version("/meta/v"), documents, _scratch }).await;
}

/// Stopped only between batches: what a cut-off write leaves behind is SQLite's case, and its connection's end here.
#[tokio::test]
async fn a_mongodb_collection_follows_a_topic() {
    let bus = Bus::new(Arc::new(Memory::new()), BusOptions::default());
    let watched = Mongo::open().await;
    let mut expected = BTreeMap::new();
    for round in 0..2_u64 {
        for n in 0..60_u64 {
            let (key, value) = (format!("k{}", (n * 7 + round) % 15), json!({"n": n, "round": round}));
            let value = if (n + round).is_multiple_of(9) { Value::Null } else { value };
            publish(&bus, &key, value.clone()).await;
            expected.insert(key, value);
        }
        expected.retain(|_, value| !value.is_null());
        let (bus, mut table) = (bus.clone(), watched.table.clone());
        let running = tokio::spawn(async move { run_on_bus(&bus, "process.state", "table", &mut table).await });
        let started = tokio::time::Instant::now();
        while watched.rows().await != expected {
            assert!(started.elapsed() < Duration::from_secs(60), "{:?} is not {expected:?}", watched.rows().await);
            assert!(!running.is_finished(), "it stopped by itself");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The rows are right before the acks are: what is not acked comes again, and changes nothing.
        running.abort();
    }
}
