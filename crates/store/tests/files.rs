//! Open files of the embedded engine, on a test disk that counts them.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::Millis;
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::{Log, Options};
use promethean_store::suite::{append, event, read_all, seqs, topic};
use promethean_store::{EventLog as _, Retention, Store as _, TopicSettings};

const NOW: Millis = Millis(2_000);
const MOST: usize = Options::MIN_OPEN_FILES;

fn open(disk: &TestDisk) -> Log {
    let mut options = Options::new("/data");
    (options.disk, options.maintenance, options.open_files) = (Arc::new(disk.clone()), None, MOST);
    Log::open(options).expect("opens")
}

fn names(count: usize) -> Vec<&'static str> {
    (0..count).map(|n| &*format!("topic.{n}").leak()).collect()
}

async fn keep(log: &Log, name: &str, events: u64) {
    let retention = Retention { max_events: Some(events), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    log.set_settings(&topic(name), settings).await.expect("set");
}

#[tokio::test]
async fn the_store_keeps_few_files_open_however_many_topics_and_flushes_there_are() {
    let disk = TestDisk::new();
    let log = open(&disk);
    let names = names(300);
    for name in names.iter().copied() {
        keep(&log, name, 100).await;
        append(&log, &vec![event(name); 2]).await;
    }
    log.maintain(NOW).await.expect("flushed");
    for round in 0..100 {
        append(&log, &[event(names[round % 7])]).await;
        log.maintain(NOW).await.expect("maintained");
    }
    for name in names.iter().copied() {
        assert!(read_all(&log, name).await.len() >= 2, "{name}");
    }
    log.close().await.expect("closed");
    drop(log);
    let log = open(&disk);
    for name in names.iter().copied() {
        assert!(read_all(&log, name).await.len() >= 2, "{name}");
    }
    log.close().await.expect("closed");
    let (_, most) = disk.open_files();
    assert!(most <= MOST, "{most} files were open at once");
}

/// Each event would be a file if segments had a quarter of the bound.
#[tokio::test]
async fn segments_of_a_topic_with_a_tiny_bound_have_a_size_that_is_worth_a_file() {
    let disk = TestDisk::new();
    let log = open(&disk);
    keep(&log, "t", 4).await;
    for _ in 0..5 {
        append(&log, &vec![event("t"); 4_000]).await;
    }
    log.maintain(NOW).await.expect("flushed");
    let files = disk.files().into_iter().filter(|(path, _)| path.starts_with("/data/topics")).count();
    assert!(files < 40, "{files} segments");
    assert_eq!(seqs(&log, "t").await, (19_997..=20_000).collect::<Vec<_>>());
    log.close().await.expect("closed");
    let (_, most) = disk.open_files();
    assert!(most <= MOST, "{most} files were open at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_free_descriptor_the_store_waits() {
    let disk = TestDisk::new();
    let log = Arc::new(open(&disk));
    let names = names(20);
    for name in names.iter().copied() {
        append(&*log, &[event(name)]).await;
    }
    disk.set_open_limit(Some(disk.open_files().0));
    let round = tokio::spawn({
        let log = log.clone();
        async move { log.maintain(NOW).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!round.is_finished(), "it waits");
    disk.set_open_limit(None);
    round.await.expect("no panic").expect("maintained");
    for name in names {
        assert_eq!(seqs(&*log, name).await, [1]);
    }
    log.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_waits_for_a_descriptor_can_be_closed() {
    let disk = TestDisk::new();
    let log = Arc::new(open(&disk));
    append(&*log, &[event("t")]).await;
    disk.set_open_limit(Some(disk.open_files().0));
    let round = tokio::spawn({
        let log = log.clone();
        async move { log.maintain(NOW).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // It may say that there is no descriptor; the event is durable.
    let _ = log.close().await;
    round.await.expect("no panic").expect_err("not maintained");
    drop(log);
    disk.set_open_limit(None);
    let log = open(&disk);
    assert_eq!(seqs(&log, "t").await, [1]);
}
