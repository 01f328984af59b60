//! The distributed engine beside plain `insertMany` of the same documents on the same server, with the same indexes and
//! the same write concern; two hubs beside one; how soon another hub hears of an event.
//!
//! The server is the one of `MONGO_URL`, or one member started for this run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::bson::{RawDocumentBuf, doc};
use promethean_bench::{Bar, median, report};
use promethean_event::{Draft, IdMaker, Limits, Millis, NewEvent, Sealer, Topic};
use promethean_store::mongo::{Mongo, Options};
use promethean_store::{EventLog as _, Store as _};
use promethean_testmongo::Scratch;
use serde_json::value::RawValue;

const BATCH: usize = 1_000;
const BATCHES: usize = 60;
const WRITERS: usize = 4;
const ROUNDS: usize = 3;

/// What each hub is given to do.
#[derive(Clone, Copy)]
struct Load {
    writers: usize,
    batches: usize,
    batch: usize,
}

/// As much as it takes.
const FULL: Load = Load { writers: WRITERS, batches: BATCHES / WRITERS, batch: BATCH };
/// One publisher that waits for each answer: a hub's own way to MongoDB is what it waits for, MongoDB has room left.
const LIGHT: Load = Load { writers: 1, batches: 150, batch: 20 };

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!(
        "a MongoDB replica set; 256-byte payloads, batches of {BATCH}, {WRITERS} publishers, w: majority, j: true"
    );
    let ok = runtime.block_on(measure());
    std::process::exit(i32::from(!ok));
}

async fn measure() -> bool {
    let mut ok = true;
    let (mut plain, mut one, mut two) = (Vec::new(), Vec::new(), Vec::new());
    let (mut light_one, mut light_two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(insert_many().await);
        one.push(publish(&["a"], FULL).await);
        two.push(publish(&["a", "b"], FULL).await);
        light_one.push(publish(&["a"], LIGHT).await);
        light_two.push(publish(&["a", "b"], LIGHT).await);
    }
    let (plain, one, two) = (median(plain), median(one), median(two));
    let (light_one, light_two) = (median(light_one), median(light_two));
    println!("at full load: insertMany {plain:.0}/s, one hub {one:.0}/s, two hubs on two topics {two:.0}/s");
    println!("one publisher a hub, batches of {}: one hub {light_one:.0}/s, two hubs {light_two:.0}/s", LIGHT.batch);
    ok &= report("publishes in batches, beside insertMany", one / plain * 100.0, "%", Bar::AtLeast(60.0));
    // Where MongoDB itself is at its end, a second hub adds nothing: that says nothing of hubs, so it has no bar.
    println!("two hubs beside one at full load: {:.2} × (MongoDB and this generator share one machine)", two / one);
    let ratio = light_two / light_one;
    ok &= report("two hubs on two topics, beside one, MongoDB not full", ratio, "×", Bar::AtLeast(1.5));
    let mut heard = hear().await;
    heard.sort_by(f64::total_cmp);
    ok &= report("append on one hub to wake-up on another: p50", heard[heard.len() / 2], "ms", Bar::AtMost(50.0));
    println!("p99 {:.2} ms", heard[heard.len() * 99 / 100]);
    ok
}

async fn open(url: &str) -> Mongo {
    Mongo::open(Options { maintenance: None, ..Options::new(url) }).await.expect("it opens")
}

fn events(ids: &IdMaker, topic: &str, count: usize) -> Vec<NewEvent> {
    let payload = format!("{{\"data\":\"{}\"}}", "x".repeat(245));
    let payload = RawValue::from_string(payload).expect("JSON");
    let draft = Draft::new(Topic::parse(topic).expect("a topic"), std::borrow::Cow::Owned(payload));
    let (mut sealer, now) = (Sealer::new(Limits::default()), Millis::now());
    for _ in 0..count {
        sealer.seal(&draft, ids.next(now), now, 16, 0).expect("valid");
    }
    sealer.finish()
}

/// The same documents, as the engine itself would store them, by `insertMany` and nothing else.
async fn insert_many() -> f64 {
    let scratch = Scratch::new();
    let mongo = open(scratch.url()).await;
    let topic = Topic::parse("a").expect("a topic");
    // What the engine writes, read back: the documents of as many batches as will be inserted, with new ids.
    mongo.append(events(&IdMaker::new(), "a", BATCH)).await.expect("appended");
    let collection = mongo.database().collection::<RawDocumentBuf>("events");
    let mut cursor = collection.find(doc! {}).await.expect("found");
    let mut pattern = Vec::new();
    while cursor.advance().await.expect("read") {
        pattern.push(cursor.current().to_owned());
    }
    let ids = IdMaker::new();
    let mut seq = mongo.info(&topic).await.expect("known").expect("exists").last_seq;
    let mut make = || {
        let document = |one: &RawDocumentBuf| {
            let mut document = mongodb::bson::Document::try_from(one).expect("a document");
            let id = ids.next(Millis::now());
            seq += 1;
            let uuid = mongodb::bson::Uuid::from_bytes(*id.as_bytes());
            document.insert("_id", uuid);
            document.insert("id", id.to_string());
            document.insert("seq", i64::try_from(seq).expect("small"));
            RawDocumentBuf::try_from(&document).expect("a document")
        };
        pattern.iter().map(document).collect::<Vec<_>>()
    };
    let work: Vec<Vec<Vec<RawDocumentBuf>>> =
        (0..WRITERS).map(|_| (0..BATCHES / WRITERS).map(|_| make()).collect()).collect();
    let count = work.iter().flatten().map(Vec::len).sum::<usize>();
    let began = Instant::now();
    let running: Vec<_> = work
        .into_iter()
        .map(|batches| {
            let collection = collection.clone();
            tokio::spawn(async move {
                for batch in batches {
                    collection.insert_many(batch).await.expect("inserted");
                }
            })
        })
        .collect();
    for one in running {
        one.await.expect("no panic");
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    mongo.close().await.expect("closed");
    mongo.database().drop().await.expect("dropped");
    rate
}

/// A hub for each topic, all at once; events a second over all of them.
async fn publish(topics: &'static [&'static str], load: Load) -> f64 {
    let scratch = Scratch::new();
    let mut hubs = Vec::new();
    for topic in topics {
        hubs.push((open(scratch.url()).await, *topic));
    }
    let ids = Arc::new(IdMaker::new());
    let mut work = Vec::new();
    for (hub, topic) in &hubs {
        hub.append(events(&ids, topic, 10)).await.expect("appended");
        for _ in 0..load.writers {
            let batches: Vec<_> = (0..load.batches).map(|_| events(&ids, topic, load.batch)).collect();
            work.push((hub.clone(), batches));
        }
    }
    let count = work.iter().flat_map(|(_, batches)| batches).map(Vec::len).sum::<usize>();
    let began = Instant::now();
    let running: Vec<_> = work
        .into_iter()
        .map(|(hub, batches)| {
            tokio::spawn(async move {
                for batch in batches {
                    hub.append(batch).await.expect("appended");
                }
            })
        })
        .collect();
    for one in running {
        one.await.expect("no panic");
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    for (hub, _) in &hubs {
        hub.close().await.expect("closed");
    }
    hubs[0].0.database().drop().await.expect("dropped");
    rate
}

/// Milliseconds from the call of `append` on one hub to the wake-up of a watcher on another.
async fn hear() -> Vec<f64> {
    let scratch = Scratch::new();
    let (one, two) = (open(scratch.url()).await, open(scratch.url()).await);
    let (ids, topic) = (IdMaker::new(), Topic::parse("a").expect("a topic"));
    let mut watch = two.watch(&topic);
    let mut took = Vec::new();
    for seq in 1..=200 {
        let began = Instant::now();
        let (appended, heard) = tokio::join!(one.append(events(&ids, "a", 1)), watch.wait_for(|tail| tail.seq >= seq));
        appended.expect("appended");
        drop(heard.expect("heard"));
        took.push(began.elapsed().as_secs_f64() * 1_000.0);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took
}
