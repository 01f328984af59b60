//! The embedded engine under the law: with files so small that every case flushes, and with the defaults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use promethean_event::Millis;
use promethean_store::log::{Log, Options};
use promethean_store::suite::{Place, append, event, topic};
use promethean_store::{Compaction, Error, Pending, ReadMax, Store, TopicSettings};

struct Directory {
    dir: tempfile::TempDir,
    change: fn(&mut Options),
}

impl Place for Directory {
    fn open(&self) -> Pending<'_, Arc<dyn Store>> {
        Box::pin(async {
            let mut options = Options::new(self.dir.path().join("data"));
            (self.change)(&mut options);
            let log = Log::open(options).map_err(|error| Error::Damaged(error.to_string()))?;
            Ok(Arc::new(log) as Arc<dyn Store>)
        })
    }
}

fn place(change: fn(&mut Options)) -> Box<dyn Place> {
    Box::new(Directory { dir: tempfile::tempdir().expect("a directory"), change })
}

fn small(options: &mut Options) {
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (4 << 10, 2 << 10, 512);
}

mod small_files {
    promethean_store::suite!(|| super::place(super::small));
    promethean_store::durable_suite!(|| super::place(super::small));
}

mod small_files_compressed {
    fn packed(options: &mut promethean_store::log::Options) {
        super::small(options);
        options.compress = true;
    }
    promethean_store::suite!(|| super::place(packed));
    promethean_store::durable_suite!(|| super::place(packed));
}

mod defaults {
    promethean_store::suite!(|| super::place(|_| ()));
    promethean_store::durable_suite!(|| super::place(|_| ()));
}

mod synced_at_intervals {
    fn interval(options: &mut promethean_store::log::Options) {
        super::small(options);
        options.sync = "5ms".parse().expect("an interval");
    }
    promethean_store::suite!(|| super::place(interval));
    promethean_store::durable_suite!(|| super::place(interval));
}

/// By itself, in the background: nobody publishes any more, and it is a small part of its topic.
#[tokio::test]
async fn a_tombstone_goes_from_a_topic_where_nothing_else_happens() {
    let place = place(|options| {
        small(options);
        options.maintenance = Some(Duration::from_millis(20));
    });
    let store = place.open().await.expect("opens");
    let grace = Compaction { tombstone_grace: Duration::from_millis(300) };
    let settings = TopicSettings { compaction: Some(grace), ..TopicSettings::default() };
    store.set_settings(&topic("t"), settings).await.expect("set");
    let now = Millis::now().0;
    let keyed = |n: u32| event("t").key(format!("k{n}")).appended(now);
    // A null without a key is nobody's end.
    let mut events = vec![event("t").payload("null").appended(now)];
    events.extend((0..100).map(keyed));
    append(&*store, &events).await;
    let there = async || store.read(&topic("t"), 1, ReadMax::events(1_000)).await.expect("read").len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(there().await, 101);
    append(&*store, &[event("t").key("k7").payload("null").appended(Millis::now().0)]).await;
    let key = ["k7".to_owned()];
    let began = Instant::now();
    while store.latest_by_key(&topic("t"), &key).await.expect("looked up")[0].is_some() {
        assert!(began.elapsed() < Duration::from_secs(20), "the tombstone stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(300), "it went before its grace");
    assert_eq!(there().await, 100, "both events of the key are gone, no other");
}
