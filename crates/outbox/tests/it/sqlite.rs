//! The law on SQLite, its schema, and what an idle drainer costs.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use promethean_outbox::{List, NewRow, OutboxStore, Schema, Settings, SqliteOutbox, Status, drain};
use rusqlite::Connection;
use rusqlite::trace::TraceEventCodes;

use crate::fakes::{Fixture, Log, numbered};

pub(crate) struct Sqlite {
    dir: tempfile::TempDir,
    outbox: SqliteOutbox,
}

impl Sqlite {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("app.db");
        connect(&path).pragma_update(None, "journal_mode", "WAL").expect("WAL");
        let outbox = SqliteOutbox::open(&path).expect("opened");
        Self { dir, outbox }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("app.db")
    }

    fn transact(&self, rows: &[NewRow], commit: bool) {
        let mut connection = connect(&self.path());
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("begun");
        for row in rows {
            self.outbox.add(&tx, row).expect("added");
        }
        if commit {
            self.outbox.commit(tx).expect("committed");
        } else {
            tx.rollback().expect("rolled back");
        }
    }
}

pub(crate) fn connect(path: &std::path::Path) -> Connection {
    let connection = Connection::open(path).expect("opened");
    connection.busy_timeout(Duration::from_secs(5)).expect("set");
    connection
}

impl Fixture for Sqlite {
    fn store(&self) -> Arc<dyn OutboxStore> {
        Arc::new(SqliteOutbox::open(self.path()).expect("opened"))
    }

    fn add<'a>(&'a self, rows: &'a [NewRow]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.transact(rows, true);
        Box::pin(async {})
    }

    fn add_and_roll_back<'a>(&'a self, rows: &'a [NewRow]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.transact(rows, false);
        Box::pin(async {})
    }

    fn write<'a>(&'a self, row: [&'a str; 3]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let insert = "INSERT INTO outbox (id, topic, payload) VALUES (?1, ?2, ?3)";
        connect(&self.path()).execute(insert, row).expect("inserted");
        Box::pin(async {})
    }
}

async fn fixture() -> Sqlite {
    Sqlite::new()
}

crate::law!(fixture());

#[test]
fn the_table_is_made_once_and_used_again() {
    let sqlite = Sqlite::new();
    sqlite.transact(&[numbered("t", None, 1)], true);
    for _ in 0..2 {
        SqliteOutbox::open(sqlite.path()).expect("opened again");
    }
    let rows: u32 =
        connect(&sqlite.path()).query_row("SELECT count(*) FROM outbox", (), |row| row.get(0)).expect("counted");
    assert_eq!(rows, 1);
}

#[test]
fn a_row_written_by_plain_sql_has_the_time_of_its_insert() {
    let sqlite = Sqlite::new();
    let connection = connect(&sqlite.path());
    connection.execute("INSERT INTO outbox (id, topic, payload) VALUES ('a', 't', '1')", ()).expect("inserted");
    let read = |row: &rusqlite::Row<'_>| Ok([row.get::<_, i64>(0)?, row.get::<_, i64>(1)?]);
    let times = connection.query_row("SELECT ts, added FROM outbox", (), read).expect("a row");
    let now = i64::try_from(promethean_event::Millis::now().0).expect("a time");
    assert!(times.iter().all(|time| (now - 60_000..=now + 1).contains(time)), "{times:?} at {now}");
    let table = "SELECT sql FROM sqlite_master WHERE name = 'outbox'";
    let table: String = connection.query_row(table, (), |row| row.get(0)).expect("the table");
    assert!(!table.contains("unixepoch"), "SQLite before 3.42 cannot insert here: {table}");
}

#[test]
fn an_index_that_was_dropped_is_made_again() {
    let sqlite = Sqlite::new();
    let count = || -> u32 {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND tbl_name = 'outbox' AND sql IS NOT NULL";
        connect(&sqlite.path()).query_row(sql, (), |row| row.get(0)).expect("counted")
    };
    let before = count();
    connect(&sqlite.path()).execute_batch("DROP INDEX outbox_pending; DROP INDEX outbox_held").expect("dropped");
    SqliteOutbox::open(sqlite.path()).expect("opened");
    assert_eq!(count(), before);
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    let refused =
        |table: &str, schema| SqliteOutbox::open_existing(&path, table, schema).expect_err("refused").to_string();
    assert!(refused("outbox", Schema::Create).contains("no such file"));
    let connection = Connection::open(&path).expect("made");
    let missing = refused("outbox", Schema::Require);
    assert!(missing.contains("no table outbox") && missing.contains("CREATE TABLE"), "{missing}");
    assert!(refused("out box", Schema::Create).contains("no name for a table"));
    connection
        .execute_batch("CREATE TABLE old (seq INTEGER PRIMARY KEY, id TEXT, topic TEXT, payload TEXT)")
        .expect("made");
    let old = refused("old", Schema::Create);
    assert!(old.contains("ALTER TABLE old ADD COLUMN lease_until INTEGER;") && !old.contains("payload"), "{old}");
    // The remedy works as it is written.
    let remedy = old.split_once("lacks\n").expect("a remedy").1;
    connection.execute_batch(remedy).expect("the remedy runs");
    SqliteOutbox::open_existing(&path, "old", Schema::Create).expect("now it is one");
}

#[tokio::test]
async fn a_service_gets_its_refusal_before_anything_is_written() {
    let sqlite = Sqlite::new();
    let mut connection = connect(&sqlite.path());
    let tx = connection.transaction().expect("begun");
    let reserved = NewRow::new("t", &1).expect("a row").header("Promethean-X", "1");
    let refused = sqlite.outbox.add(&tx, &reserved).expect_err("refused").to_string();
    assert!(refused.contains("headers"), "{refused}");
    let id = sqlite.outbox.add(&tx, &numbered("t", None, 1)).expect("added");
    let again = sqlite.outbox.add(&tx, &numbered("t", None, 2).id(id)).expect_err("the id is taken").to_string();
    assert!(again.contains("UNIQUE"), "{again}");
    tx.commit().expect("committed");
}

#[tokio::test]
async fn columns_that_hold_anything_else_make_a_bad_row_and_no_more() {
    let sqlite = Sqlite::new();
    let insert = "INSERT INTO outbox (id, topic, payload, headers, tags, ts) VALUES (?1, 't', ?2, ?3, ?4, ?5)";
    let connection = connect(&sqlite.path());
    for (n, (payload, headers, tags, ts)) in [
        (&b"1"[..], Some("[1]"), None, 5_i64),
        (b"1", Some(r#"{"a":1}"#), None, 5),
        (b"1", None, Some("{}"), 5),
        (b"\"\xff\"", None, None, 5),
        (b"1", None, None, -5),
        (b"1", Some(r#"{},"sid":"x""#), None, 5),
    ]
    .into_iter()
    .enumerate()
    {
        connection
            .execute(insert, (format!("0000000{n}-7d3b-7cc2-8b1a-3f0e2c9a4b5d"), payload, headers, tags, ts))
            .expect("inserted");
    }
    let count = "INSERT INTO outbox (id, topic, payload, attempts) VALUES (?1, 't', '1', 1.5)";
    connection.execute(count, ["00000006-7d3b-7cc2-8b1a-3f0e2c9a4b5d"]).expect("inserted");
    let log = Log::new();
    let mut drainer = drain(sqlite.store(), log.publisher(), crate::fakes::quick());
    assert_eq!(drainer.ended().await, None);
    let rows = sqlite.store().list(List { status: None, limit: 10 }).await.expect("listed");
    let reasons: Vec<_> = rows.iter().map(|row| (row.status, row.last_err.as_deref().unwrap_or_default())).collect();
    for (n, word) in [
        "headers",
        "headers",
        "tags",
        "payload",
        "ts is no whole number of milliseconds",
        "headers",
        "attempts is no whole number",
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(reasons[n].0, Status::Error, "{n}");
        let said = reasons[n].1;
        assert!(said.contains(word) && said.contains("bad_request"), "{said}");
    }
    assert!(reasons[6].1.ends_with("whole number"), "attempts are no time: {:?}", reasons[6]);
}

#[tokio::test]
async fn a_row_whose_id_is_no_text_is_parked_and_published_never() {
    let sqlite = Sqlite::new();
    let connection = connect(&sqlite.path());
    let insert = "INSERT INTO outbox (id, topic, key, payload) VALUES (?1, 't', 'k', '1')";
    // As bytes, as some libraries write a UUID; and as bytes that look like text.
    connection.execute(insert, [[0x9a_u8; 16]]).expect("inserted");
    connection.execute(insert, [*b"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"]).expect("inserted");
    sqlite.add(&[numbered("t", Some("k"), 2)]).await;
    let log = Log::new();
    let mut drainer = drain(sqlite.store(), log.publisher(), crate::fakes::quick());
    assert_eq!(drainer.ended().await, None);
    let done = drainer.snapshot();
    assert_eq!((done.sent, done.parked, done.errors), (1, 2, 2), "they are counted");
    assert_eq!(log.events("t").await, [(Some("k".into()), "2".into())], "they hold nobody back");
    let parked = List { status: Some(Status::Error), limit: 10 };
    let parked = sqlite.store().list(parked).await.expect("listed");
    assert_eq!(parked.len(), 2);
    for row in parked {
        assert!(row.last_err.as_deref().is_some_and(|err| err.starts_with("bad_id: ")), "{row:?}");
        assert_eq!((row.claimed_by, row.lease_until), (None, None));
    }
}

#[tokio::test]
async fn an_idle_drainer_asks_at_most_four_times_a_second() {
    let sqlite = Sqlite::new();
    let asked = Arc::new(AtomicU64::new(0));
    let mut connection = connect(&sqlite.path());
    let counter = Arc::clone(&asked);
    connection
        .trace_v2(
            TraceEventCodes::SQLITE_TRACE_STMT,
            Some(move |_: rusqlite::trace::TraceEvent<'_>| {
                counter.fetch_add(1, SeqCst);
            }),
        )
        .expect("traced");
    let outbox = SqliteOutbox::with_connection(connection, "outbox").expect("opened");
    assert!(asked.load(SeqCst) > 0, "statements are counted");
    let log = Log::new();
    let drainer = drain(Arc::new(outbox.clone()), log.publisher(), Settings::default());
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = asked.load(SeqCst);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let idle = asked.load(SeqCst) - before;
    assert!((3..=12).contains(&idle), "{idle} statements in 3 s");
    // And it is not asleep: a row that is committed here goes out long before the next look.
    let mut service = connect(&sqlite.path());
    let started = std::time::Instant::now();
    let tx = service.transaction().expect("begun");
    outbox.add(&tx, &numbered("t", None, 1)).expect("added");
    outbox.commit(tx).expect("committed");
    while log.events("t").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(drainer.stop().await.sent, 1);
}

#[tokio::test]
async fn ids_that_are_not_unique_are_made_so_or_named() {
    let sqlite = Sqlite::new();
    let connection = connect(&sqlite.path());
    let made: String = connection
        .query_row("SELECT sql FROM sqlite_master WHERE name = 'outbox'", (), |row| row.get(0))
        .expect("the table");
    let plain = made.replace("CREATE TABLE outbox", "CREATE TABLE plain").replace("NOT NULL UNIQUE", "NOT NULL");
    connection.execute_batch(&plain).expect("made");
    let insert = "INSERT INTO plain (id, topic, payload) VALUES ('0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d', ?1, '1')";
    connection.execute(insert, ["a"]).expect("inserted");
    connection.execute(insert, ["b"]).expect("inserted twice");
    let open = || SqliteOutbox::open_existing(sqlite.path(), "plain", Schema::Create);
    let refused = open().expect_err("refused").to_string();
    assert!(refused.contains("UNIQUE") && refused.contains("CREATE UNIQUE INDEX plain_id ON plain (id)"), "{refused}");
    connection.execute("DELETE FROM plain WHERE topic = 'b'", ()).expect("deleted");
    for _ in 0..2 {
        open().expect("made unique");
    }
    connection.execute(insert, ["c"]).expect_err("an id is there once");
    // One that is unique already gets no second index.
    let own = "SELECT count(*) FROM sqlite_master WHERE name = 'outbox_id'";
    assert_eq!(connection.query_row(own, (), |row| row.get::<_, u32>(0)).expect("counted"), 0);
}

#[tokio::test]
async fn a_table_that_the_remedy_made_an_outbox_publishes_events_of_today() {
    let sqlite = Sqlite::new();
    let connection = connect(&sqlite.path());
    let insert = |n: u32| {
        let id = format!("0000000{n}-7d3b-7cc2-8b1a-3f0e2c9a4b5d");
        connection.execute("INSERT INTO old (id, topic, payload) VALUES (?1, 't', ?2)", (id, n)).expect("inserted");
    };
    let old = "CREATE TABLE old (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, topic TEXT, payload TEXT)";
    connection.execute_batch(old).expect("made");
    insert(1);
    let open = || SqliteOutbox::open_existing(sqlite.path(), "old", Schema::Create);
    let refused = open().expect_err("refused").to_string();
    connection.execute_batch(refused.split_once("lacks\n").expect("a remedy").1).expect("the remedy runs");
    insert(2);
    let store: Arc<dyn OutboxStore> = Arc::new(open().expect("now it is one"));
    let waiting = store.stats().await.expect("counted");
    assert_eq!((waiting.pending, waiting.oldest), (2, Some(Duration::ZERO)), "nobody knows how long");
    let (before, log) = (promethean_event::Millis::now(), Log::new());
    assert_eq!(drain(Arc::clone(&store), log.publisher(), crate::fakes::quick()).ended().await, None);
    let topic = promethean_event::Topic::parse("t").expect("a topic");
    let max = promethean_store::ReadMax { events: 10, bytes: usize::MAX };
    let events = log.bus.store().read(&topic, 1, max).await.expect("read");
    assert_eq!(events.len(), 2);
    assert!(events.iter().all(|event| event.ts >= before), "{events:?}");
    // The row has that time too, and so stays as long as others do and no longer.
    assert_eq!(store.purge_sent(Duration::from_secs(60), 10).await.expect("purged"), 0);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.purge_sent(Duration::ZERO, 10).await.expect("purged"), 2);
}

/// How many statements a drainer makes in three seconds, once it has come to rest.
async fn statements_of(sqlite: &Sqlite, settings: Settings) -> u64 {
    let asked = Arc::new(AtomicU64::new(0));
    let mut connection = connect(&sqlite.path());
    let counter = Arc::clone(&asked);
    let count = move |_: rusqlite::trace::TraceEvent<'_>| {
        counter.fetch_add(1, SeqCst);
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(count)).expect("traced");
    let outbox = SqliteOutbox::with_connection(connection, "outbox").expect("opened");
    let drainer = drain(Arc::new(outbox), Log::new().publisher(), settings);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = asked.load(SeqCst);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let idle = asked.load(SeqCst) - before;
    drainer.stop().await;
    idle
}

#[tokio::test]
async fn a_short_lease_does_not_make_an_idle_drainer_ask_more() {
    let settings = Settings { lease: Duration::from_secs(1), ..Settings::default() };
    let idle = statements_of(&Sqlite::new(), settings).await;
    assert!((3..=12).contains(&idle), "{idle} statements in 3 s");
}

#[tokio::test]
async fn rows_that_wait_for_their_key_do_not_make_an_idle_drainer_ask_more() {
    let sqlite = Sqlite::new();
    sqlite.add(&[numbered("t", Some("k"), 1), numbered("t", Some("k"), 2)]).await;
    let far = "UPDATE outbox SET status = 'claimed', claimed_by = 'x', lease_until = 9000000000000 WHERE seq = 1";
    connect(&sqlite.path()).execute(far, ()).expect("claimed by another");
    let idle = statements_of(&sqlite, Settings::default()).await;
    assert!((3..=12).contains(&idle), "{idle} statements in 3 s");
}

#[tokio::test]
async fn a_lease_that_is_no_time_holds_no_row_and_no_key_for_ever() {
    for wrong in [
        "status = 'pending', lease_until = 'soon'",
        "status = 'pending', lease_until = 4e15 + 0.5",
        "status = 'claimed', lease_until = 'soon'",
        "status = 'claimed', lease_until = NULL",
    ] {
        let (sqlite, log) = (Sqlite::new(), Log::new());
        sqlite.add(&(0..3).map(|n| numbered("t", Some("k"), n)).collect::<Vec<_>>()).await;
        connect(&sqlite.path()).execute(&format!("UPDATE outbox SET {wrong} WHERE seq = 1"), ()).expect("changed");
        let store = sqlite.store();
        let stats = store.stats().await.expect("counted");
        assert_eq!(stats.pending + stats.claimed, 3, "{wrong}: every row is counted");
        if wrong.contains("claimed") {
            let rows = crate::law::claim(&store, 10, "w").await;
            assert_eq!(rows, [], "{wrong}: the later rows wait for it");
        }
        let mut drainer = drain(store, log.publisher(), crate::fakes::quick());
        let ended = tokio::time::timeout(Duration::from_secs(10), drainer.ended()).await;
        assert_eq!(ended.expect("it ends"), None, "{wrong}");
        assert_eq!(crate::fakes::by_key(&log.events("t").await)["k"], [0, 1, 2], "{wrong}");
    }
}

#[test]
fn what_is_looked_at_again_and_again_is_found_by_an_index() {
    let sqlite = Sqlite::new();
    let mut connection = connect(&sqlite.path());
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let statements = Arc::clone(&seen);
    let keep = move |event: rusqlite::trace::TraceEvent<'_>| {
        if let rusqlite::trace::TraceEvent::Stmt(_, sql) = event {
            statements.lock().expect("kept").push(sql.to_owned());
        }
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(keep)).expect("traced");
    let outbox = SqliteOutbox::with_connection(connection, "outbox").expect("opened");
    seen.lock().expect("kept").clear();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        sqlite.add(&[numbered("t", Some("k"), 1)]).await;
        let store: Arc<dyn OutboxStore> = Arc::new(outbox);
        crate::law::claim(&store, 10, "w").await;
        store.requeue_expired().await.expect("requeued");
        store.stats().await.expect("counted");
    });
    let statements = seen.lock().expect("kept").clone();
    assert!(statements.len() >= 4, "{statements:?}");
    for sql in statements {
        let explained = format!("EXPLAIN QUERY PLAN {}", sql.split("RETURNING").next().expect("a statement"));
        let connection = connect(&sqlite.path());
        let mut plan = connection.prepare(&explained).expect("explained");
        let mut steps = plan.raw_query();
        while let Some(row) = steps.next().expect("a step") {
            let step: String = row.get(3).expect("a text");
            let scan = step.starts_with("SCAN") && ["outbox", "o", "e"].contains(&step.split(' ').nth(1).unwrap_or(""));
            assert!(!scan || step.contains("INDEX"), "{step}: {sql}");
        }
    }
}

#[tokio::test]
async fn a_database_that_may_not_be_written_is_named_with_the_remedy() {
    let sqlite = Sqlite::new();
    let read_only = || Connection::open_with_flags(sqlite.path(), rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY);
    let refused =
        SqliteOutbox::with_connection(read_only().expect("opened"), "outbox").expect_err("refused").to_string();
    assert!(refused.contains("app.db may not be written") && refused.contains("check"), "{refused}");
}

#[tokio::test]
async fn what_was_written_while_the_clock_was_ahead_is_free_when_it_is_right_again() {
    let sqlite = Sqlite::new();
    sqlite.add(&[numbered("t", Some("k"), 1), numbered("t", Some("k"), 2), numbered("t", Some("l"), 3)]).await;
    let store = sqlite.store();
    crate::law::claim(&store, 1, "gone").await;
    // As if both were written an hour ahead: a claim, and a wait.
    let ahead = "lease_until = (unixepoch() + 3600) * 1000";
    let connection = connect(&sqlite.path());
    connection.execute(&format!("UPDATE outbox SET {ahead} WHERE payload = '1'"), ()).expect("set");
    connection.execute(&format!("UPDATE outbox SET {ahead} WHERE payload = '3'"), ()).expect("set");
    assert!(crate::law::claim(&store, 10, "w").await.is_empty());
    assert_eq!(store.requeue_expired().await.expect("requeued"), 2);
    assert_eq!(crate::law::claim(&store, 10, "w").await.len(), 3);
}
