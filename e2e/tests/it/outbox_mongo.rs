//! An outbox in MongoDB, drained by the real binary: `kill -9` of drainers in the middle of whatever they do, the hub's
//! own drainer, parked rows. The rows are written as a service in any language would.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
use mongodb::{Client, Collection};
use promethean_e2e::Setup;
use promethean_testmongo::Scratch;

use crate::outbox::{KEYS, check, cli, events, id, kill, reasons, start_drainer};

/// A service with its database.
struct Shop {
    scratch: Scratch,
    client: Client,
}

impl Shop {
    async fn new() -> Self {
        let scratch = tokio::task::spawn_blocking(Scratch::new).await.expect("a database");
        let client = Client::with_uri_str(scratch.url()).await.expect("connected");
        let shop = Self { scratch, client };
        // Transactions that make a collection get in each other's way.
        let db = shop.client.database(shop.scratch.name());
        for name in ["orders", "outbox"] {
            db.create_collection(name).await.expect("made");
        }
        shop
    }

    fn collection(&self, name: &str) -> Collection<Document> {
        self.client.database(self.scratch.name()).collection(name)
    }

    /// A business write and its event in one transaction, tried again as MongoDB asks: drainers that start look after the
    /// indexes, and that may lock a collection for a moment.
    async fn order(&self, number: u64, commit: bool) {
        while let Err(error) = self.try_order(number, commit).await {
            assert!(error.contains_label(TRANSIENT_TRANSACTION_ERROR), "{error}");
        }
    }

    async fn try_order(&self, number: u64, commit: bool) -> mongodb::error::Result<()> {
        let mut session = self.client.start_session().await?;
        session.start_transaction().await?;
        self.collection("orders").insert_one(doc! {"_id": number.cast_signed()}).session(&mut session).await?;
        let row = doc! {
            "_id": id(number), "topic": "orders", "key": (number % KEYS).to_string(), "status": "pending",
            "payload": {"n": number.cast_signed()}, "ts": 1_700_000_000_000 + number.cast_signed(), "attempts": 0,
        };
        self.collection("outbox").insert_one(row).session(&mut session).await?;
        if commit { session.commit_transaction().await } else { session.abort_transaction().await }
    }

    async fn drained(&self) {
        let started = Instant::now();
        let unfinished = doc! {"status": {"$in": ["pending", "claimed"]}};
        while self.collection("outbox").count_documents(unfinished.clone()).await.expect("counted") > 0 {
            assert!(started.elapsed() < Duration::from_secs(45), "not drained in time");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drainers_on_mongodb_killed_with_9_lose_nothing_double_nothing_and_keep_the_order() {
    let shop = Shop::new().await;
    let dir = tempfile::tempdir().expect("a directory");
    let hub = Setup::log(&dir.path().join("hub")).start();
    let start = || start_drainer(shop.scratch.url(), hub.ws.port());
    let mut drainers = vec![start(), start()];
    let mut number = 0;
    for cycle in 0..8 {
        for _ in 0..40 {
            shop.order(number, true).await;
            number += 1;
        }
        shop.order(1_000_000 + cycle, false).await;
        tokio::time::sleep(Duration::from_millis(7 * cycle)).await;
        kill(drainers.remove(0));
        drainers.push(start());
    }
    // What a dead drainer had is taken over when its lease has run out, and nothing is locked for longer.
    shop.drained().await;
    drainers.into_iter().for_each(kill);
    check(&events(&hub).await, number);
    let parked = shop.collection("outbox").count_documents(doc! {"status": "error"}).await.expect("counted");
    assert_eq!(parked, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hub_drains_an_outbox_in_mongodb_by_configuration_and_parked_rows_can_be_listed_and_retried() {
    let shop = Shop::new().await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("promethean.toml");
    std::fs::write(&file, format!("[outbox]\nurl = {:?}\n", shop.scratch.url())).expect("written");
    let mut hub = Setup::log(&dir.path().join("hub")).arg("--config").arg(&file.display().to_string()).start();
    for number in 0..50 {
        shop.order(number, true).await;
    }
    let bad = "00000000-bad0-4000-8000-000000000000";
    let row = |topic: &str| doc! {"topic": topic, "payload": {}, "status": "pending", "ts": 2e12, "attempts": 0};
    let mut rows = vec![row("no topic"), row("orders")];
    // The second gets an id from MongoDB, which no event can have.
    rows[0].insert("_id", bad);
    shop.collection("outbox").insert_many(rows).await.expect("inserted");
    shop.drained().await;
    check(&events(&hub).await, 50);

    let cli = |args: &[&str]| cli(shop.scratch.url(), args);
    let (code, listed) = cli(&["outbox", "list", "--json"]);
    let mut parked = reasons(&listed);
    parked.sort_unstable();
    assert_eq!((code, parked.len()), (Some(0), 2), "{listed}");
    assert!(parked[0].starts_with("bad_id: ") && parked[1].starts_with("bad_topic: "), "{parked:?}");
    assert_eq!(cli(&["outbox", "list", "--status", "sent", "--json"]).1.lines().count(), 50);
    let mended = shop.collection("outbox").update_one(doc! {"_id": bad}, doc! {"$set": {"topic": "mended"}}).await;
    assert_eq!(mended.expect("mended").modified_count, 1);
    assert_eq!(cli(&["outbox", "retry", "--json", bad]), (Some(0), "{\"retried\":1}\n".to_owned()));
    assert_eq!(cli(&["outbox", "retry", "no-such-row"]).0, Some(5));
    assert_eq!(cli(&["outbox", "list", "--table", "typo"]).0, Some(1), "nothing is made by looking");
    shop.drained().await;
    assert_eq!(cli(&["outbox", "list", "--json"]).1.lines().count(), 1);
    assert!(hub.terminate().success(), "ends in order");

    // With the client, until nothing is left. A parked row is exit code 1.
    let hub = Setup::memory().start();
    let again = doc! {"$set": {"status": "pending"}};
    shop.collection("outbox").update_many(doc! {"status": "sent"}, again).await.expect("all again");
    let (code, report) = cli(&["outbox", "drain", "--once", "--json", "--server", &format!("ws://{}", hub.ws)]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((code, &report["sent"], &report["parked"]), (Some(1), &51.into(), &0.into()), "{report}");
    check(&events(&hub).await, 50);
}
