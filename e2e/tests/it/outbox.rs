//! An outbox in SQLite, drained by the real binary: `kill -9` of drainer and hub, the hub's own drainer, bad rows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use promethean_e2e::{Hub, Setup, get, promethean};
use promethean_testmongo::free_port;
use rusqlite::Connection;
use serde_json::Value;

pub(crate) const KEYS: u64 = 5;

fn database(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("opened");
    connection.busy_timeout(Duration::from_secs(10)).expect("set");
    connection.pragma_update(None, "journal_mode", "WAL").expect("WAL");
    connection
}

pub(crate) fn id(number: u64) -> String {
    format!("{number:08x}-0000-4000-8000-{number:012x}")
}

/// A business write and its event in one transaction, as a service in any language would.
fn order(shop: &mut Connection, number: u64, commit: bool) {
    let tx = shop.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("begun");
    tx.execute("INSERT INTO orders (id) VALUES (?1)", [number.cast_signed()]).expect("written");
    let row = (id(number), (number % KEYS).to_string(), format!("{{\"n\": {number}}}"));
    tx.execute("INSERT INTO outbox (id, topic, key, payload) VALUES (?1, 'orders', ?2, ?3)", row).expect("added");
    if commit {
        tx.commit().expect("committed");
    }
}

/// The database of a shop, without an outbox yet.
fn shop(path: &Path) -> Connection {
    let shop = database(path);
    shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").expect("made");
    shop
}

fn parked(shop: &Connection) -> u32 {
    shop.query_row("SELECT count(*) FROM outbox WHERE status = 'error'", (), |row| row.get(0)).expect("counted")
}

fn unfinished(shop: &Connection) -> u64 {
    let sql = "SELECT count(*) FROM outbox WHERE status IN ('pending', 'claimed')";
    shop.query_row(sql, (), |row| row.get::<_, i64>(0)).expect("counted").unsigned_abs()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `promethean outbox drain` into the hub on `port`, with short leases and batches.
pub(crate) fn start_drainer(outbox: &str, port: u16) -> Child {
    let server = format!("ws://127.0.0.1:{port}");
    let args = ["outbox", "drain", "--outbox", outbox, "--server", &server, "--lease", "1s", "--batch", "20"];
    promethean(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started")
}

/// What a command of `promethean outbox` ends with, and says.
pub(crate) fn cli(outbox: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = promethean(args).env("PROMETHEAN_OUTBOX_URL", outbox).output().expect("it runs");
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

/// What a row is parked for, of each line of `promethean outbox list --json`.
pub(crate) fn reasons(listed: &str) -> Vec<String> {
    let reason = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("JSON");
        row["last_err"].as_str().expect("a reason").to_owned()
    };
    listed.lines().map(reason).collect()
}

pub(crate) fn kill(mut child: Child) {
    child.kill().expect("killable");
    child.wait().expect("waitable");
}

pub(crate) async fn events(hub: &Hub) -> Vec<Value> {
    let page = get(hub.http, "/replay?topic=orders&from=earliest&limit=10000").await.json();
    page["events"].as_array().expect("events").clone()
}

pub(crate) fn check(events: &[Value], expected: u64) {
    let ids: BTreeSet<&str> = events.iter().map(|event| event["id"].as_str().expect("an id")).collect();
    assert_eq!(ids.len(), events.len(), "none twice");
    let mut keys: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for event in events {
        let number = event["payload"]["n"].as_u64().expect("a number");
        assert_eq!(event["id"], id(number), "the row's id is the event's");
        keys.entry(event["key"].as_str().expect("a key")).or_default().push(number);
    }
    assert!(keys.values().all(|numbers| numbers.is_sorted()), "in order per key: {keys:?}");
    assert_eq!(events.len() as u64, expected, "none missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drainers_and_hubs_killed_with_9_lose_nothing_double_nothing_and_keep_the_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("shop.db");
    let mut shop = shop(&path);
    let outbox = format!("sqlite:{}", path.display());
    let port = free_port();
    let setup = Setup::log(&dir.path().join("hub")).env("WS_PORT", &port.to_string());
    // The drainer waits for a hub that is not there yet, and makes the table.
    let mut drainers = vec![start_drainer(&outbox, port), start_drainer(&outbox, port)];
    wait_until("the table is made", || shop.prepare("SELECT 1 FROM outbox").is_ok());
    let mut hub = setup.start();
    let mut number = 0;
    for cycle in 0..6 {
        for _ in 0..60 {
            order(&mut shop, number, true);
            number += 1;
        }
        // Rolled back: there is no such event.
        order(&mut shop, 1_000_000 + cycle, false);
        std::thread::sleep(Duration::from_millis(30 + 70 * cycle));
        match cycle % 3 {
            0 => {
                kill(drainers.remove(0));
                drainers.push(start_drainer(&outbox, port));
            }
            1 => {
                hub.kill();
                // Away for a while: the rows wait.
                std::thread::sleep(Duration::from_millis(700));
                hub = setup.start();
            }
            _ => {
                drainers.drain(..).for_each(kill);
                drainers.push(start_drainer(&outbox, port));
            }
        }
    }
    wait_until("everything is published", || unfinished(&shop) == 0);
    drainers.into_iter().for_each(kill);
    check(&events(&hub).await, number);
    assert_eq!(parked(&shop), 0, "a hub that is away is not the rows' fault");
}

/// A real minute, as the issue of the outbox says: longer than every wait between two tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_is_away_for_a_minute_gets_everything_afterwards_in_order_per_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("shop.db");
    let mut shop = shop(&path);
    let outbox = format!("sqlite:{}", path.display());
    let port = free_port();
    let setup = Setup::log(&dir.path().join("hub")).env("WS_PORT", &port.to_string());
    let drainers = [start_drainer(&outbox, port), start_drainer(&outbox, port)];
    wait_until("the table is made", || shop.prepare("SELECT 1 FROM outbox").is_ok());
    let mut hub = setup.start();
    (0..100).for_each(|number| order(&mut shop, number, true));
    // Away in the middle of the work, or soon after it.
    hub.kill();
    for number in 100..700 {
        order(&mut shop, number, true);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(unfinished(&shop) >= 600, "nothing can have been published");
    let hub = setup.start();
    wait_until("everything is published", || unfinished(&shop) == 0);
    drainers.into_iter().for_each(kill);
    check(&events(&hub).await, 700);
    assert_eq!(parked(&shop), 0, "a hub that is away is not the rows' fault");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hub_drains_an_outbox_by_configuration_and_parked_rows_can_be_listed_and_retried() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("shop.db");
    let mut shop = shop(&path);
    let outbox = format!("sqlite:{}", path.display());
    let file = dir.path().join("promethean.toml");
    std::fs::write(&file, format!("[outbox]\nurl = {outbox:?}\n")).expect("written");
    let setup = Setup::log(&dir.path().join("hub")).arg("--config").arg(&file.display().to_string());
    let mut hub = setup.start();
    for number in 0..50 {
        order(&mut shop, number, true);
    }
    let bad = [("00000000-bad0-4000-8000-000000000000", "no topic", "1".to_owned()), ("x", "orders", "1".to_owned())];
    let large = ("00000000-bad0-4000-8000-000000000001", "orders", format!("\"{}\"", "x".repeat(1_100_000)));
    for row in bad.into_iter().chain([large]) {
        shop.execute("INSERT INTO outbox (id, topic, payload) VALUES (?1, ?2, ?3)", row).expect("inserted");
    }
    wait_until("everything is published or parked", || unfinished(&shop) == 0);
    check(&events(&hub).await, 50);

    let cli = |args: &[&str]| cli(&outbox, args);
    let (code, listed) = cli(&["outbox", "list", "--json"]);
    let reasons = reasons(&listed);
    assert_eq!((code, reasons.len()), (Some(0), 3));
    for (reason, code) in reasons.iter().zip(["bad_topic: ", "bad_id: ", "too_large: "]) {
        assert!(reason.starts_with(code), "{reason}");
    }
    let listed = cli(&["outbox", "list"]).1;
    let rows: Vec<String> = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(rows[0], "ID STATUS TOPIC KEY ATTEMPTS WHY");
    assert!(rows[1].starts_with("00000000-bad0-4000-8000-000000000000 error no topic - 1 bad_topic: "), "{listed}");
    assert_eq!(cli(&["outbox", "list", "--status", "sent", "--json"]).1.lines().count(), 50);
    shop.execute("UPDATE outbox SET topic = 'mended' WHERE topic = 'no topic'", ()).expect("mended");
    let (code, retried) = cli(&["outbox", "retry", "--json", "00000000-bad0-4000-8000-000000000000"]);
    assert_eq!((code, retried.as_str()), (Some(0), "{\"retried\":1}\n"));
    assert_eq!(cli(&["outbox", "retry", "no-such-row"]).0, Some(5));
    wait_until("the mended row is published", || unfinished(&shop) == 0);
    assert_eq!(cli(&["outbox", "list", "--json"]).1.lines().count(), 2);

    let metric = |text: &str, name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
    };
    let started = Instant::now();
    loop {
        let text = get(hub.ops, "/metrics").await.text();
        let seen = ["outbox_sent_total", "outbox_errors_total", "outbox_parked", "outbox_pending"]
            .map(|name| metric(&text, name));
        if seen == [51.0, 3.0, 2.0, 0.0] {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(hub.terminate().success(), "ends in order");

    // With the client, until nothing is left; a row that the hub refuses takes no other with it. Parked rows are exit code 1.
    let mut hub = Setup::memory().start();
    shop.execute("UPDATE outbox SET status = 'pending'", ()).expect("all again");
    let server = format!("ws://{}", hub.ws);
    let (code, report) = cli(&["outbox", "drain", "--once", "--json", "--server", &server]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((code, &report["sent"], &report["parked"]), (Some(1), &51.into(), &2.into()), "{report}");
    check(&events(&hub).await, 50);
    assert!(hub.terminate().success());
}

#[test]
fn an_outbox_that_is_not_there_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = format!("sqlite:{}", dir.path().join("none.db").display());
    for (args, code, said) in [
        (vec!["outbox", "list", "--outbox", &missing], 1, "no such file"),
        (vec!["outbox", "list", "--outbox", "shop.db"], 2, "sqlite:PATH"),
        (vec!["outbox", "list", "--outbox", &missing, "--status", "lost"], 1, "no such file"),
        (vec!["outbox", "drain", "--once", "--outbox", &missing], 1, "no such file"),
        (vec!["serve", "--outbox-url", &missing, "--store", "memory"], 1, "no such file"),
    ] {
        let output = promethean(&args).env("WS_PORT", "0").env("HTTP_PORT", "0").env("OPS_PORT", "0").output();
        let output = output.expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
    assert!(!dir.path().join("none.db").exists(), "nothing is made by looking");
}
