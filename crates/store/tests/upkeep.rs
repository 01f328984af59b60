//! Upkeep of the embedded engine on the test disk: retention, damage in one topic, restarts.

use std::sync::Arc;

use promethean_event::Millis;
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::{Log, Options};
use promethean_store::suite::{append, event, id, seqs, topic};
use promethean_store::{EventLog as _, Retention, Store as _, TopicSettings};

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
    // Their segment goes once all of it is hidden.
    append(&log, &vec![event("t"); 50]).await;
    log.maintain(NOW).await.expect("maintained");
    log.maintain(NOW).await.expect("maintained");
    assert_eq!(seqs(&log, "t").await, (501..=550).collect::<Vec<_>>());
    let first = std::path::Path::new("/data/topics/1/000000000000000001.seg");
    assert!(!disk.files().iter().any(|(path, _)| path == first));
    log.close().await.expect("closed");
}
