//! What a claim of the outbox costs on MongoDB: its time, and the commands that 40 of them take.
//!
//! The server is the one of `MONGO_URL`, or one member started for this run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::ClientOptions;
use promethean_bench::{Bar, begin, end, report, sized};
use promethean_outbox::{Claim, EventId, MongoOutbox, OutboxStore as _};
use promethean_testmongo::Scratch;

const BATCHES: usize = 40;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let scratch = Scratch::new();
    let runs = sized(5, 1);
    begin(&format!(
        "an outbox in MongoDB, rows of 256 bytes, 1,000 keys; {BATCHES} claims of one worker, the best of {runs} runs"
    ));
    let mut ok = true;
    for rows in sized([500, 100, 20], [5, 2, 1]) {
        let runs = (0..runs).map(|_| runtime.block_on(claims(&scratch, rows)));
        let (mean, commands) = runs.min().expect("a run");
        println!("  {rows:>3} rows a batch: {:.1} ms a claim", mean.as_secs_f64() * 1e3);
        let most = Bar::AtMost(BATCHES as f64 * 1.25);
        ok &= report(&format!("commands for {BATCHES} claims of {rows} rows"), commands as f64, "", most);
    }
    end(ok);
}

/// The mean time of a claim, and how many commands all of them took.
async fn claims(scratch: &Scratch, rows: usize) -> (Duration, u64) {
    let counted = Arc::new(AtomicU64::new(0));
    let outbox = opened(scratch, &counted).await;
    fill(scratch, BATCHES * rows).await;
    let (mut time, mut commands) = (Duration::ZERO, 0);
    for _ in 0..BATCHES {
        let (before, started) = (counted.load(Relaxed), Instant::now());
        let claim = Claim { rows, bytes: 1 << 22, lease: Duration::from_secs(30), worker: "w" };
        let claimed = outbox.claim_batch(claim).await.expect("claimed");
        time += started.elapsed();
        commands += counted.load(Relaxed) - before;
        assert_eq!(claimed.len(), rows);
        let ids: Vec<String> = claimed.into_iter().map(|row| row.id).collect();
        outbox.mark_sent(&ids).await.expect("marked");
    }
    (time / BATCHES as u32, commands)
}

/// The outbox over a client whose commands are counted.
async fn opened(scratch: &Scratch, counted: &Arc<AtomicU64>) -> MongoOutbox {
    let counted = counted.clone();
    let mut options = ClientOptions::parse(scratch.url()).await.expect("parsed");
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(_) = event {
            counted.fetch_add(1, Relaxed);
        }
    }));
    let db = Client::with_options(options).expect("a client").database(scratch.name());
    MongoOutbox::open(&db, "outbox").await.expect("opened")
}

/// Nothing but so many rows that wait.
async fn fill(scratch: &Scratch, rows: usize) {
    let payload = serde_json::json!({"text": "x".repeat(245)}).to_string();
    let row = |number: usize| {
        let id = EventId::from_bytes((number as u128).to_be_bytes());
        doc! {
            "_id": id.to_string(), "topic": "t", "key": (number % 1_000).to_string(), "payload": &payload,
            "encoding": "json", "status": "pending", "attempts": 0, "ts": 1_731_650_000_000_i64,
            "ord": 1_731_650_000_000_i64 + number as i64,
        }
    };
    let client = Client::with_uri_str(scratch.url()).await.expect("connected");
    let collection = client.database(scratch.name()).collection::<Document>("outbox");
    collection.delete_many(doc! {}).await.expect("deleted");
    for some in (0..rows).collect::<Vec<_>>().chunks(5_000) {
        collection.insert_many(some.iter().map(|number| row(*number))).await.expect("inserted");
    }
}
