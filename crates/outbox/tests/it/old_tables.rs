//! Tables of SQLite that an application made, or that were made an outbox later.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::Millis;
use promethean_outbox::{List, OutboxStore, Schema, Settings, SqliteOutbox, Status, drain};
use rusqlite::Connection;

use crate::fakes::{Log, by_key};
use crate::sqlite::connect;

fn id(n: u32) -> String {
    format!("{n:08}-7d3b-7cc2-8b1a-3f0e2c9a4b5d")
}

/// An application's table without a payload, and what the remedy made of it.
fn remedied(connection: &Connection, path: &std::path::Path, rows: u32) -> Arc<dyn OutboxStore> {
    let old = "CREATE TABLE old (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, topic TEXT, key TEXT)";
    connection.execute_batch(old).expect("made");
    for n in 0..rows {
        connection.execute("INSERT INTO old (id, topic, key) VALUES (?1, 't', 'k')", [id(n)]).expect("inserted");
    }
    let refused = SqliteOutbox::open_existing(path, "old", Schema::Create).expect_err("refused").to_string();
    connection.execute_batch(refused.split_once("lacks\n").expect("a remedy").1).expect("the remedy runs");
    Arc::new(SqliteOutbox::open_existing(path, "old", Schema::Create).expect("now it is one"))
}

#[tokio::test]
async fn rows_without_a_payload_are_parked_and_hold_nobody_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    let connection = connect(&path);
    // More than a batch of them: they must not be all that is ever looked at.
    let store = remedied(&connection, &path, 25);
    let insert = "INSERT INTO old (id, topic, key, payload) VALUES (?1, 't', 'k', ?2)";
    for n in 0..3 {
        connection.execute(insert, (id(100 + n), n)).expect("inserted");
    }
    let (log, settings) = (Log::new(), Settings { batch_rows: 10, ..crate::fakes::quick() });
    let mut drainer = drain(Arc::clone(&store), log.publisher(), settings);
    let ended = tokio::time::timeout(Duration::from_secs(20), drainer.ended()).await;
    assert_eq!(ended.expect("it ends"), None);
    assert_eq!(by_key(&log.events("t").await)["k"], [0, 1, 2]);
    let parked = store.list(List { status: Some(Status::Error), limit: 100 }).await.expect("listed");
    assert_eq!(parked.len(), 25);
    for row in parked {
        assert!(row.last_err.as_deref().is_some_and(|err| err.contains("bad_json")), "{row:?}");
    }
}

#[tokio::test]
async fn a_row_whose_age_is_not_known_hides_no_other_ones_age() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    let connection = connect(&path);
    let store = remedied(&connection, &path, 3);
    let hour = Duration::from_secs(3_600);
    let ago = |hours: u32| i64::try_from(Millis::now().0).expect("a time") - i64::from(hours) * 3_600_000;
    let change = |sql: &str, time: i64| connection.execute(sql, [time]).expect("changed");
    let oldest = async || store.stats().await.expect("counted").oldest.expect("rows wait");
    assert_eq!(oldest().await, Duration::ZERO, "nobody knows any");
    change("UPDATE old SET added = ?1 WHERE seq = 3", ago(2));
    assert!(oldest().await >= 2 * hour, "two before it have no time: {:?}", oldest().await);
    change("UPDATE old SET added = 'long ago', ts = ?1 WHERE seq = 2", ago(3));
    assert!(oldest().await >= 3 * hour, "{:?}", oldest().await);
    // What was claimed, and never had a time but the one of its first claim.
    let claimed =
        "UPDATE old SET status = 'claimed', claimed_by = 'w', lease_until = 9000000000000, ts = ?1 WHERE seq = 1";
    change(claimed, ago(5));
    assert!(oldest().await >= 5 * hour, "{:?}", oldest().await);
}

#[tokio::test]
async fn a_table_whose_rows_would_never_be_drained_is_refused_and_the_remedy_keeps_its_rows() {
    let made = {
        let shape = tempfile::tempdir().expect("a directory");
        let path = shape.path().join("shape.db");
        drop(SqliteOutbox::open(&path).expect("made"));
        let table = "SELECT sql FROM sqlite_master WHERE name = 'outbox'";
        connect(&path).query_row(table, (), |row| row.get::<_, String>(0)).expect("the table")
    };
    let key = "seq INTEGER PRIMARY KEY";
    let status = "TEXT NOT NULL DEFAULT 'pending'";
    for (from, to, names_seq) in [
        (key, "seq INTEGER", false),
        (key, "seq TEXT PRIMARY KEY", false),
        (key, "seq INTEGER PRIMARY KEY DESC", false),
        ("TEXT NOT NULL UNIQUE", "TEXT PRIMARY KEY", false),
        (")\n)", ")\n) WITHOUT ROWID", true),
        (status, "TEXT", false),
        (status, "TEXT DEFAULT NULL", false),
        (status, "TEXT NOT NULL DEFAULT 'new'", false),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("app.db");
        let connection = connect(&path);
        let mut table = made.replacen(from, to, 1);
        assert_ne!(table, made, "{from}");
        if to == "TEXT PRIMARY KEY" {
            table = table.replacen(key, "seq INTEGER", 1);
        }
        connection.execute_batch(&table.replace("CHECK (status IN", "CHECK (1 OR status IN")).expect("made");
        for n in 0..12 {
            let row = (id(99 - n), n, names_seq.then_some(n));
            let insert = if names_seq {
                "INSERT INTO outbox (id, topic, key, payload, seq) VALUES (?1, 't', 'k', ?2, ?3)"
            } else {
                "INSERT INTO outbox (id, topic, key, payload, last_err) VALUES (?1, 't', 'k', ?2, ?3)"
            };
            connection.execute(insert, row).expect("inserted");
        }
        connection.execute("UPDATE outbox SET status = 'pending' WHERE status = 'new'", ()).expect("as it stood");
        for schema in [Schema::Create, Schema::Require] {
            let refused = SqliteOutbox::open_existing(&path, "outbox", schema).expect_err(to).to_string();
            let word = if from == status { "status" } else { "seq is no INTEGER PRIMARY KEY" };
            assert!(refused.contains(word) && refused.contains("would never be drained"), "{to}: {refused}");
        }
        let refused = SqliteOutbox::open_existing(&path, "outbox", Schema::Create).expect_err(to).to_string();
        let remedy = refused.split_once("copy the rows:\n").expect("a remedy").1;
        connection.execute_batch(remedy).unwrap_or_else(|error| panic!("{to}: {error}: {remedy}"));
        let store = SqliteOutbox::open_existing(&path, "outbox", Schema::Create).expect("now it is one");
        let log = Log::new();
        let mut drainer = drain(Arc::new(store), log.publisher(), crate::fakes::quick());
        let ended = tokio::time::timeout(Duration::from_secs(20), drainer.ended()).await;
        assert_eq!(ended.expect("it ends"), None, "{to}");
        assert_eq!(by_key(&log.events("t").await)["k"], (0..12).collect::<Vec<_>>(), "{to}: in their order");
    }
}

#[test]
fn a_status_that_may_be_null_but_has_its_default_is_good_enough() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("app.db");
    drop(SqliteOutbox::open(&path).expect("made"));
    let connection = connect(&path);
    let table = "SELECT sql FROM sqlite_master WHERE name = 'outbox'";
    let table: String = connection.query_row(table, (), |row| row.get(0)).expect("the table");
    for (n, good) in ["TEXT DEFAULT 'pending'", "TEXT NOT NULL DEFAULT ('pending')", "TEXT NOT NULL"].iter().enumerate()
    {
        let like =
            table.replace("TEXT NOT NULL DEFAULT 'pending'", good).replace("TABLE outbox", &format!("TABLE good{n}"));
        connection.execute_batch(&like).expect("made");
        SqliteOutbox::open_existing(&path, &format!("good{n}"), Schema::Create).expect(good);
    }
}
