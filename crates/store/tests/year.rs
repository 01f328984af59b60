//! A year of upkeep in some seconds: the clock and the rounds are the test's, the disk is in memory.
//!
//! Every month is the same: days with a trickle, a burst, an idle week, restarts and kills. After each, every topic is
//! compared with its bounds and with a model, and what is on the disk with the months before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promethean_event::{Millis, Seq};
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::{Log, Options};
use promethean_store::suite::{Make, append, event, read_all, topic};
use promethean_store::{Compaction, EventLog as _, Retention, Store as _, TopicSettings};

const DAY: u64 = 24 * 60 * 60 * 1_000;
const START: u64 = 1_700_000_000_000;
/// Rounds of maintenance in a day.
const ROUNDS: u64 = 2;
const KEYS: u64 = 200;
const OPEN_FILES: usize = Options::MIN_OPEN_FILES;

fn options(disk: &TestDisk) -> Options {
    let mut options = Options::new("/data");
    (options.disk, options.maintenance, options.open_files) = (Arc::new(disk.clone()), None, OPEN_FILES);
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (512 << 10, 256 << 10, 4 << 10);
    options
}

fn days(days: u64) -> Duration {
    Duration::from_millis(days * DAY)
}

fn bounds() -> Vec<(&'static str, TopicSettings)> {
    let kept = |retention| TopicSettings { retention, ..TopicSettings::default() };
    let none = Retention::default();
    let compaction = Some(Compaction { tombstone_grace: days(2) });
    vec![
        ("age", kept(Retention { max_age: Some(days(7)), ..none })),
        ("events", kept(Retention { max_events: Some(500), ..none })),
        ("tiny", kept(Retention { max_events: Some(4), ..none })),
        ("bytes", kept(Retention { max_bytes: Some(100_000), ..none })),
        ("both", kept(Retention { max_age: Some(days(3)), max_events: Some(1_000), ..none })),
        ("state", TopicSettings { compaction, ..TopicSettings::default() }),
    ]
}

/// The hub and the model of it.
struct Year {
    disk: TestDisk,
    log: Log,
    now: u64,
    /// When the events of a topic were appended, the first one's first.
    appended: BTreeMap<&'static str, Vec<u64>>,
    /// The latest event of each key that is not deleted.
    keys: BTreeMap<String, Seq>,
    random: u64,
}

/// What the hub takes up.
#[derive(Debug, Clone, Copy)]
struct Size {
    files: usize,
    bytes: u64,
    ids: u64,
    manifest: u64,
}

impl Year {
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    fn make(&self, name: &'static str) -> Make {
        event(name).ts(self.now).appended(self.now).payload(format!("\"{}\"", "x".repeat(60)))
    }

    async fn publish(&mut self, name: &'static str, count: u64) {
        append(&self.log, &vec![self.make(name); usize::try_from(count).expect("few")]).await;
        let appended = self.appended.entry(name).or_default();
        appended.extend((0..count).map(|_| self.now));
    }

    async fn update(&mut self, count: u64) {
        let mut made = Vec::new();
        for _ in 0..count {
            // A few keys are hot, one never changes after its first event.
            let range = if self.below(4) == 0 { KEYS } else { 10 };
            let key = format!("key-{:03}", 1 + self.below(range));
            let make = self.make("state").key(key.clone());
            let deleted = self.below(20) == 0;
            made.push((key, deleted, if deleted { make.payload("null") } else { make }));
        }
        let events: Vec<_> = made.iter().map(|(_, _, make)| make.clone()).collect();
        for ((key, deleted, _), done) in made.into_iter().zip(append(&self.log, &events).await) {
            if deleted {
                self.keys.remove(&key);
            } else {
                self.keys.insert(key, done.seq);
            }
        }
    }

    async fn day(&mut self, day: u64) {
        for _ in 0..ROUNDS {
            self.now += DAY / ROUNDS;
            // The third week is idle.
            if !(14..21).contains(&day) {
                let burst = if day == 10 { 20 } else { 1 };
                for (name, count) in [("age", 20), ("events", 60), ("tiny", 30), ("bytes", 100), ("both", 150)] {
                    self.publish(name, count * burst).await;
                }
                self.update(100 * burst).await;
            }
            self.log.maintain(Millis(self.now)).await.expect("maintained");
        }
        match day {
            7 | 17 => self.restart(true).await,
            11 | 25 => self.restart(false).await,
            _ => {}
        }
    }

    /// Ends the hub, in order or at once, and starts another on its disk.
    async fn restart(&mut self, in_order: bool) {
        let disk = if in_order {
            self.log.close().await.expect("closed");
            self.disk.clone()
        } else {
            self.disk.copy()
        };
        let (_, most) = self.disk.open_files();
        assert!(most <= OPEN_FILES, "{most} files were open at once");
        // The old one ends before the new one has the lock.
        self.log = Log::open(options(&TestDisk::new())).expect("opens");
        self.disk = disk;
        self.log = Log::open(options(&self.disk)).expect("opens");
    }

    async fn check(&self) {
        for (name, settings) in bounds().into_iter().filter(|(name, _)| *name != "state") {
            let appended = &self.appended[name];
            let info = self.log.info(&topic(name)).await.expect("known").expect("there");
            assert_eq!(info.last_seq, appended.len() as u64, "{name}");
            let Retention { max_age, max_events, max_bytes } = settings.retention;
            let age = |part: f64| max_age.map(|age| self.now - age.mul_f64(part).as_millis() as u64);
            let since = |from: u64| appended.iter().filter(|at| **at >= from).count() as u64;
            let within = [age(1.0).map(&since), max_events].into_iter().flatten().min().unwrap_or(0);
            let beyond = [age(1.5).map(&since), max_events.map(|most| most + most / 2)];
            let beyond = beyond.into_iter().flatten().min().unwrap_or(u64::MAX);
            let there = read_all(&self.log, name).await.len() as u64;
            let all = info.last_seq;
            assert!(there >= within.min(all) && there <= beyond, "{name}: {there} of {within} to {beyond}");
            if let Some(most) = max_bytes {
                assert!(info.bytes <= most + most / 2 && info.bytes + 2_000 >= most, "{name}: {} bytes", info.bytes);
            }
        }
        let page = self.log.keys(&topic("state"), None, 1_000).await.expect("paged");
        let found = page.items.iter().map(|event| (event.key().expect("a key").into_owned(), event.seq));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), self.keys);
        let places = self.log.locate(&page.items.iter().map(|event| event.id).collect::<Vec<_>>()).await;
        let places = places.expect("located");
        assert!(places.iter().zip(&page.items).all(|(place, event)| place.as_ref().map(|p| p.seq) == Some(event.seq)));
        let left = read_all(&self.log, "state").await.len() as u64;
        assert!(left <= 2 * KEYS, "{left} events of {KEYS} keys");
    }

    fn size(&self) -> Size {
        let files = self.disk.files();
        let of = |part: &str| files.iter().filter(|(path, _)| path.starts_with(part)).map(|(_, len)| *len).sum();
        Size { files: files.len(), bytes: of("/data"), ids: of("/data/ids"), manifest: of("/data/MANIFEST") }
    }
}

#[tokio::test]
async fn a_hub_is_as_small_in_its_twelfth_month_as_in_its_second() {
    let disk = TestDisk::new();
    let log = Log::open(options(&disk)).expect("opens");
    let (appended, keys) = (BTreeMap::new(), BTreeMap::new());
    let mut year = Year { disk, log, now: START, appended, keys, random: 7 };
    for (name, settings) in bounds() {
        year.log.set_settings(&topic(name), settings).await.expect("set");
    }
    let first = append(&year.log, &[year.make("state").key("first")]).await;
    year.keys.insert("first".to_owned(), first[0].seq);
    let mut sizes = Vec::new();
    for month in 1..=12 {
        for day in 0..30 {
            year.day(day).await;
        }
        year.check().await;
        let size = year.size();
        println!("month {month}: {size:?}");
        sizes.push(size);
    }
    let second = sizes[1];
    for (month, size) in (3..).zip(&sizes[2..]) {
        let fits = |now: u64, then: u64, slack: u64| now <= then + then / 4 + slack;
        assert!(size.files <= second.files + 16, "month {month}: {size:?}, {second:?}");
        assert!(fits(size.bytes, second.bytes, 64 << 10), "month {month}: {size:?}, {second:?}");
        assert!(fits(size.manifest, second.manifest, 512), "month {month}: {size:?}, {second:?}");
        // Half as many again as there are events, and 32 pages.
        assert!(size.ids <= 70 * 4096, "month {month}: {size:?}");
    }
    year.log.close().await.expect("closed");
}
