//! Upkeep of the embedded engine on the test disk: retention, damage in one topic, restarts.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::Millis;
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::{Log, Options};
use promethean_store::suite::{append, event, id, seqs, topic};
use promethean_store::{Compaction, Error, EventLog as _, Retention, Store as _, TopicSettings};

const NOW: Millis = Millis(2_000);

fn open(disk: &TestDisk) -> Log {
    let mut options = Options::new("/data");
    (options.disk, options.maintenance, options.block_bytes) = (Arc::new(disk.clone()), None, 1 << 10);
    Log::open(options).expect("opens")
}

async fn keep(log: &Log, name: &str, events: u64) {
    let retention = Retention { max_events: Some(events), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    log.set_settings(&topic(name), settings).await.expect("set");
}

#[tokio::test]
async fn a_topic_with_a_damaged_segment_holds_up_no_other() {
    let disk = TestDisk::new();
    let log = open(&disk);
    for name in ["damaged", "sound"] {
        append(&log, &vec![event(name); 500]).await;
    }
    log.maintain(NOW).await.expect("flushed");
    let files = disk.files();
    let (segment, len) = files.iter().find(|(path, _)| path.starts_with("/data/topics/1")).expect("a segment");
    disk.spoil_sector(segment, len - 1);
    for name in ["damaged", "sound"] {
        keep(&log, name, 50).await;
    }
    log.maintain(NOW).await.expect("maintained");
    assert_eq!(seqs(&log, "sound").await, (451..=500).collect::<Vec<_>>());
    log.close().await.expect("closed");
}

#[tokio::test]
async fn what_retention_hid_stays_hidden_and_uncounted_after_a_restart() {
    let disk = TestDisk::new();
    let log = open(&disk);
    append(&log, &(1..=500_u128).map(|n| event("t").id(n).key(n.to_string())).collect::<Vec<_>>()).await;
    log.maintain(NOW).await.expect("flushed");
    keep(&log, "t", 50).await;
    log.maintain(NOW).await.expect("maintained");
    let info = log.info(&topic("t")).await.expect("known");
    log.close().await.expect("closed");
    let log = open(&disk);
    assert_eq!(seqs(&log, "t").await, (451..=500).collect::<Vec<_>>());
    assert_eq!(log.info(&topic("t")).await.expect("known"), info);
    assert_eq!(info.map(|info| (info.events, info.first_seq)), Some((50, 451)));
    let found = log.locate(&[id(450), id(451)]).await.expect("located");
    assert!(found[0].is_none() && found[1].is_some());
    let page = log.keys(&topic("t"), None, 100).await.expect("paged");
    assert_eq!((page.items.len(), page.more), (50, false), "keys of hidden events are gone");
    // Their segment goes once all of it is hidden, and it was large enough for a file.
    let large = event("t").payload(format!("\"{}\"", "x".repeat(2_000)));
    for events in [vec![large; 40], vec![event("t"); 50]] {
        append(&log, &events).await;
        log.maintain(NOW).await.expect("maintained");
    }
    log.maintain(NOW).await.expect("maintained");
    let left = seqs(&log, "t").await;
    assert!((50..=62).contains(&left.len()) && left.last() == Some(&590), "{left:?}");
    let first = std::path::Path::new("/data/topics/1/000000000000000001.seg");
    assert!(!disk.files().iter().any(|(path, _)| path == first));
    log.close().await.expect("closed");
}

/// Publishes `rounds` × 10 events of 1 KB; how many were refused for lack of room.
async fn fill(log: &Log, name: &'static str, rounds: usize) -> usize {
    let mut refused = 0;
    for _ in 0..rounds {
        let events: Vec<_> =
            (0..10).map(|_| event(name).payload(format!("\"{}\"", "x".repeat(1_000))).new_event()).collect();
        match log.append(events).await {
            Ok(_) => {}
            Err(Error::Refused(reason)) => {
                assert!(reason.contains("no space left"), "{reason}");
                refused += 10;
            }
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

fn small(disk: &TestDisk) -> Options {
    let mut options = Options::new("/data");
    (options.disk, options.maintenance) = (Arc::new(disk.clone()), None);
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (1 << 20, 256 << 10, 4 << 10);
    options
}

/// The bound is far smaller than the disk, and the disk smaller than the journal.
#[tokio::test]
async fn a_disk_that_is_smaller_than_the_journal_is_emptied_by_retention() {
    let disk = TestDisk::new();
    let mut options = small(&disk);
    options.journal_bytes = 16 << 20;
    let log = Log::open(options.clone()).expect("opens");
    keep(&log, "t", 100).await;
    disk.set_room(Some(8 << 20));
    // 30 MB on a disk of 8 MB.
    for round in 0..30 {
        let refused = fill(&log, "t", 100).await;
        let full = refused > 0;
        assert_eq!(log.ready().is_err(), full, "round {round}");
        log.maintain(NOW).await.expect("retention makes room");
        log.ready().expect("it is over");
        assert_eq!(fill(&log, "t", 1).await, 0, "round {round}: events are taken again");
    }
    let info = log.info(&topic("t")).await.expect("known").expect("exists");
    log.maintain(NOW).await.expect("maintained");
    let left = seqs(&log, "t").await;
    assert!((100..=125).contains(&left.len()) && left.last() == Some(&info.last_seq), "{} events", left.len());
    log.close().await.expect("closed");
    let log = Log::open(options).expect("opens");
    assert_eq!(seqs(&log, "t").await.last(), Some(&info.last_seq));
}

/// Nothing is bounded, until the disk is full.
#[tokio::test]
async fn a_bound_that_is_set_on_a_full_disk_makes_room() {
    let disk = TestDisk::new();
    let log = Log::open(small(&disk)).expect("opens");
    disk.set_room(Some(8 << 20));
    let refused = fill(&log, "t", 1_000).await;
    assert!(refused > 1_000, "the disk is full: {refused}");
    assert_eq!(log.stats().refused, refused as u64);
    assert!(log.ready().is_err() && fill(&log, "t", 1).await == 10, "it stays full");
    let last = log.info(&topic("t")).await.expect("known").expect("exists").last_seq;
    assert_eq!(last, 10_000 - refused as u64, "what was taken is there");
    keep(&log, "t", 200).await;
    // What waits for the flush is gone after the first, the rest after the second.
    for _ in 0..2 {
        let _ = log.maintain(NOW).await;
    }
    log.maintain(NOW).await.expect("retention makes room");
    log.ready().expect("it is over");
    assert_eq!(fill(&log, "t", 100).await, 0);
    assert!(disk.used() < 6 << 20, "{} bytes", disk.used());
    log.close().await.expect("closed");
}

/// The hub does it by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_looks_after_a_full_disk_without_waiting_for_its_minute() {
    let disk = TestDisk::new();
    let log = Log::open(Options { maintenance: Some(Duration::from_secs(3600)), ..small(&disk) }).expect("opens");
    keep(&log, "t", 100).await;
    disk.set_room(Some(5 << 20));
    let taken = async {
        let mut taken = 0;
        while taken < 20_000 {
            taken += 100 - fill(&log, "t", 10).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(50), taken).await.expect("events are taken again and again");
    log.close().await.expect("closed");
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_and_compaction_goes_on() {
    let disk = TestDisk::new();
    let log = Log::open(Options { pin_for: Duration::ZERO, ..small(&disk) }).expect("opens");
    let settings = TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() };
    log.set_settings(&topic("t"), settings).await.expect("set");
    append(&log, &[event("t").key("a")]).await;
    let pin = log.pin(&[topic("t")]).await.expect("pinned");
    append(&log, &[event("t").key("a")]).await;
    log.maintain(NOW).await.expect("maintained");
    assert_eq!(seqs(&log, "t").await, [2]);
    let said = pin.check().expect_err("it is over").to_string();
    assert!(said.contains("start again"), "{said}");
    log.close().await.expect("closed");
}
