//! Reading a compacted topic from its first event to its last while its keys are written again and compaction runs: no
//! key is missing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::harness::{Served, Setup};
use promethean_event::{Millis, Topic};
use promethean_gateway::{http, ops};
use promethean_store::backup::{Reader, Record};
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Make, Watched, Watcher, append, event};
use promethean_store::{Compaction, EventLog as _, Store, TopicSettings};

const KEYS: usize = 30;

/// Writes all keys again and compacts before each read.
struct Busy {
    store: Memory,
    begun: AtomicBool,
}

impl Watcher for Busy {
    async fn before(&self, call: Call) {
        if call == Call::Read && self.begun.load(SeqCst) {
            append(&self.store, &keyed()).await;
            self.store.maintain(Millis(2_000)).await.expect("maintained");
        }
    }
}

/// Each key, with so much that a read has a few of them.
fn keyed() -> Vec<Make> {
    let payload = format!("\"{}\"", "x".repeat(40_000));
    (0..KEYS).map(|n| event("state").key(format!("k{n}")).payload(payload.clone())).collect()
}

async fn busy(router: fn(Arc<promethean_gateway::Hub>) -> axum::Router) -> Served {
    let store = Memory::new();
    let topic = Topic::parse("state").expect("a topic");
    let settings = TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() };
    store.set_settings(&topic, settings).await.expect("set");
    append(&store, &keyed()).await;
    let watcher = Busy { store: store.clone(), begun: AtomicBool::new(true) };
    let store: Arc<dyn Store> = Arc::new(Watched { store, watcher });
    Setup { store: Some(store), ..Setup::default() }.start(router).await
}

#[tokio::test]
async fn a_backup_has_every_key() {
    let hub = busy(ops::router).await;
    let answer = hub.get("/backup").await;
    let (mut reader, mut keys) = (Reader::new(&answer.body[..]).expect("a backup"), BTreeSet::new());
    while let Some(record) = reader.next_record().expect("whole") {
        if let Record::Event(event) = record {
            keys.insert(event.key().expect("a key").into_owned());
        }
    }
    assert_eq!(keys.len(), KEYS);
}

#[tokio::test]
async fn an_export_has_every_key() {
    let hub = busy(http::router).await;
    let answer = hub.get("/export?topic=state").await;
    let keys: BTreeSet<String> = answer
        .text()
        .lines()
        .map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).expect("an event");
            event["key"].as_str().expect("a key").to_owned()
        })
        .collect();
    assert_eq!(keys.len(), KEYS);
}

#[tokio::test]
async fn a_state_of_the_past_is_not_complete_if_compaction_ran_while_it_was_read() {
    let hub = busy(ops::router).await;
    let page = hub.get("/latest-by-key?topic=state&at=0").await.ok();
    assert_eq!(page["complete"], false, "{}", page["complete"]);
}
