//! The distributed engine beside plain `insertMany` of the same documents on the same server, with the same indexes and
//! the same write concern; two hubs beside one, and two plain clients beside one; how soon another hub hears of an event.
//!
//! The server is the one of `MONGO_URL`, or one member started for this run. Two of anything are twice as fast as one
//! only where the machine has room for them: so each line says whose cores were busy.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, RawDocumentBuf, doc};
use promethean_bench::cores::{Cores, Processes};
use promethean_bench::{Bar, begin, report, sized};
use promethean_event::{Draft, IdMaker, Limits, Millis, NewEvent, Sealer, Topic};
use promethean_store::mongo::{Mongo, Options};
use promethean_store::{EventLog as _, Store as _};
use promethean_testmongo::{Scratch, shared_url};
use serde_json::value::RawValue;

/// What each hub, or each plain client, is given to do.
#[derive(Clone, Copy)]
struct Load {
    writers: usize,
    batches: usize,
    batch: usize,
}

/// As much as it takes.
const FULL: Load = Load { writers: 4, batches: 15, batch: 1_000 };
/// Of a short run.
const FEW: Load = Load { writers: 2, batches: 2, batch: 20 };
/// One publisher that waits for each answer: a hub's own way to MongoDB is what it waits for.
const LIGHT: [Load; 3] = [
    Load { writers: 1, batches: 300, batch: 1 },
    Load { writers: 1, batches: 150, batch: 20 },
    Load { writers: 1, batches: 60, batch: 200 },
];

/// One of them, or one on each of two topics.
const ONE: &[&str] = &["a"];
const TWO: &[&str] = &["a", "b"];

/// What came out of a run.
#[derive(Clone, Copy)]
struct Run {
    /// Events a second.
    rate: f64,
    cores: Cores,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    begin(&format!("a MongoDB replica set; 256-byte payloads, w: majority, j: true; {cores} cores for all of it"));
    let processes = Processes::of(&shared_url());
    let ok = runtime.block_on(measure(&processes));
    promethean_bench::end(ok);
}

async fn measure(processes: &Processes) -> bool {
    let full = Compared::measure(sized(FULL, FEW), processes).await;
    full.print("at full load: 4 publishers each, batches of 1,000");
    let (mut ratio, mut plain) = (0.0, 0.0);
    for load in sized(LIGHT, [FEW; 3]) {
        let light = Compared::measure(load, processes).await;
        light.print(&format!("1 publisher each, batches of {}, each waits for its answer", load.batch));
        let hubs = light.two_hubs.rate / light.one_hub.rate;
        println!("  two hubs beside one: {hubs:.2} ×");
        if hubs > ratio {
            (ratio, plain) = (hubs, light.two_clients.rate / light.one_client.rate);
        }
    }
    let beside = full.one_hub.rate / full.one_client.rate * 100.0;
    let mut ok = report("publishes in batches, beside insertMany", beside, "%", Bar::AtLeast(60.0));
    // Where MongoDB is at its end with one, a second adds nothing: so the bar is at the load that leaves it most room.
    ok &= report("two hubs on two topics, beside one", ratio, "×", Bar::AtLeast(1.5));
    println!("  two plain clients beside one, at the same load: {plain:.2} ×");
    let mut heard = hear().await;
    heard.sort_by(f64::total_cmp);
    ok &= report("append on one hub to wake-up on another: p50", heard[heard.len() / 2], "ms", Bar::AtMost(50.0));
    println!("  p99 {:.2} ms", heard[heard.len() * 99 / 100]);
    ok
}

/// One and two, plain and through hubs.
struct Compared {
    one_client: Run,
    two_clients: Run,
    one_hub: Run,
    two_hubs: Run,
}

impl Compared {
    /// They take turns; the middle of each counts.
    async fn measure(load: Load, processes: &Processes) -> Self {
        let mut runs: [Vec<Run>; 4] = Default::default();
        for _ in 0..sized(3, 1) {
            runs[0].push(insert_many(ONE, load, processes).await);
            runs[1].push(insert_many(TWO, load, processes).await);
            runs[2].push(publish(ONE, load, processes).await);
            runs[3].push(publish(TWO, load, processes).await);
        }
        let [one_client, two_clients, one_hub, two_hubs] = runs.map(|mut runs| {
            runs.sort_by(|one, other| one.rate.total_cmp(&other.rate));
            runs[runs.len() / 2]
        });
        Self { one_client, two_clients, one_hub, two_hubs }
    }

    fn print(&self, load: &str) {
        println!("{load}");
        let line = |name: &str, run: &Run| println!("  {name:<26} {:>8.0}/s   cores: {}", run.rate, run.cores);
        line("insertMany, one client", &self.one_client);
        line("insertMany, two clients", &self.two_clients);
        line("one hub", &self.one_hub);
        line("two hubs on two topics", &self.two_hubs);
    }
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

/// Runs one task a writer, all at once, and counts.
async fn timed<F: Future<Output = usize> + Send + 'static>(writers: Vec<F>, processes: &Processes) -> Run {
    let (counting, began) = (processes.count(), Instant::now());
    let running: Vec<_> = writers.into_iter().map(tokio::spawn).collect();
    let mut events = 0;
    for one in running {
        events += one.await.expect("no panic");
    }
    Run { rate: events as f64 / began.elapsed().as_secs_f64(), cores: counting.end() }
}

/// The same documents, as the engine itself would store them, by `insertMany` and nothing else: a client for each topic.
async fn insert_many(topics: &[&str], load: Load, processes: &Processes) -> Run {
    let scratch = Scratch::new();
    let (mut clients, mut writers) = (Vec::new(), Vec::new());
    for topic in topics {
        let mongo = open(scratch.url()).await;
        for batches in documents(&mongo, topic, load).await {
            let collection = mongo.database().collection::<RawDocumentBuf>("events");
            writers.push(async move {
                let mut count = 0;
                for batch in batches {
                    count += collection.insert_many(batch).await.expect("inserted").inserted_ids.len();
                }
                count
            });
        }
        clients.push(mongo);
    }
    let run = timed(writers, processes).await;
    end(clients).await;
    run
}

/// What each writer inserts: documents that the engine wrote, with new ids and seqs.
async fn documents(mongo: &Mongo, topic: &str, load: Load) -> Vec<Vec<Vec<RawDocumentBuf>>> {
    let ids = IdMaker::new();
    mongo.append(events(&ids, topic, 1)).await.expect("appended");
    let written = mongo.database().collection::<Document>("events");
    let mut document = written.find_one(doc! { "topic": topic }).await.expect("read").expect("it is there");
    let mut seq = 1;
    let mut next = || {
        let id = ids.next(Millis::now());
        seq += 1;
        document.insert("_id", mongodb::bson::Uuid::from_bytes(*id.as_bytes()));
        document.insert("id", id.to_string());
        document.insert("seq", i64::from(seq));
        RawDocumentBuf::try_from(&document).expect("a document")
    };
    let mut batch = || (0..load.batch).map(|_| next()).collect::<Vec<_>>();
    let mut batches = || (0..load.batches).map(|_| batch()).collect::<Vec<_>>();
    (0..load.writers).map(|_| batches()).collect()
}

/// A hub for each topic, all at once.
async fn publish(topics: &[&str], load: Load, processes: &Processes) -> Run {
    let scratch = Scratch::new();
    let ids = IdMaker::new();
    let (mut hubs, mut writers) = (Vec::new(), Vec::new());
    for topic in topics {
        let hub = open(scratch.url()).await;
        hub.append(events(&ids, topic, 10)).await.expect("appended");
        for _ in 0..load.writers {
            let batches: Vec<_> = (0..load.batches).map(|_| events(&ids, topic, load.batch)).collect();
            let hub = hub.clone();
            writers.push(async move {
                let mut count = 0;
                for batch in batches {
                    count += hub.append(batch).await.expect("appended").len();
                }
                count
            });
        }
        hubs.push(hub);
    }
    let run = timed(writers, processes).await;
    end(hubs).await;
    run
}

async fn end(hubs: Vec<Mongo>) {
    for hub in &hubs {
        hub.close().await.expect("closed");
    }
    hubs[0].database().drop().await.expect("dropped");
}

/// Milliseconds from the call of `append` on one hub to the wake-up of a watcher on another.
async fn hear() -> Vec<f64> {
    let scratch = Scratch::new();
    let (one, two) = (open(scratch.url()).await, open(scratch.url()).await);
    let (ids, topic) = (IdMaker::new(), Topic::parse("a").expect("a topic"));
    let mut watch = two.watch(&topic);
    let mut took = Vec::new();
    for seq in 1..=sized(200, 20) {
        let began = Instant::now();
        let (appended, heard) = tokio::join!(one.append(events(&ids, "a", 1)), watch.wait_for(|tail| tail.seq >= seq));
        appended.expect("appended");
        drop(heard.expect("heard"));
        took.push(began.elapsed().as_secs_f64() * 1_000.0);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took
}
