//! A damaged table of ids: named, and made anew by the next start, whatever comes between.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use promethean_event::{EventId, Millis};
use promethean_store::log::disk::test::{Survival, TestDisk};
use promethean_store::log::{Log, Options, doctor};
use promethean_store::suite::{append, event, read_all, seqs, topic};
use promethean_store::{Error, EventLog, Retention, Store, TopicSettings};

use super::options;

fn open(disk: &TestDisk) -> Log {
    Log::open(Options { disk: Arc::new(disk.clone()), ..options(Path::new("/data")) }).expect("opens")
}

fn tables(disk: &TestDisk) -> Vec<(PathBuf, u64)> {
    disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "ids")).collect()
}

/// A closed directory with flushed events that have ids of the hub's, and those ids.
async fn flushed(disk: &TestDisk) -> Vec<EventId> {
    let log = open(disk);
    for _ in 0..3 {
        append(&log, &vec![event("a"); 20]).await;
        log.maintain(Millis(2_000)).await.expect("flushed");
    }
    let ids = read_all(&log, "a").await.iter().map(|event| event.id).collect();
    log.close().await.expect("closed");
    ids
}

async fn finds(log: &Log, ids: &[EventId]) {
    let found = log.locate(ids).await.expect("located");
    assert_eq!(found.iter().flatten().count(), ids.len(), "every event is found by its id");
    assert!(append(log, &[event("a").id(u128::from_be_bytes(*ids[0].as_bytes()))]).await[0].duplicate);
}

#[tokio::test]
async fn a_damaged_id_table_is_named_by_a_look_up_and_made_anew_by_the_next_start_also_when_that_crashes() {
    let disk = TestDisk::new();
    let ids = flushed(&disk).await;
    let (victim, _) = tables(&disk).into_iter().next().expect("a table");
    disk.flip(&victim, 2000, 3);
    let log = open(&disk);
    for _ in 0..2 {
        let told = log.locate(&ids).await;
        assert!(matches!(&told, Err(Error::Damaged(text)) if text.contains("the next start")), "{told:?}");
    }
    assert!(tables(&disk).iter().all(|(path, _)| *path != victim), "the next start must not find it");
    // As kill -9 leaves it.
    let left = disk.copy();
    drop(log);
    left.record();
    let log = open(&left);
    finds(&log, &ids).await;
    log.close().await.expect("closed");
    assert!(doctor::check_on(&left, Path::new("/data")).expect("checked").is_sound());
    let mut crashes = left.crashes();
    let mut random = promethean_store::log::torture::Random::new(7);
    loop {
        for survival in Survival::ALL {
            let again = open(&crashes.crash(survival, &mut |limit| random.below(limit)));
            finds(&again, &ids).await;
            again.close().await.expect("closed");
        }
        if !crashes.advance() {
            break;
        }
    }
}

#[tokio::test]
async fn retention_passes_over_a_damaged_id_table_and_removes_the_others() {
    let disk = TestDisk::new();
    flushed(&disk).await;
    let (victim, len) = tables(&disk).into_iter().next().expect("a table");
    // In the list of topics, which retention reads.
    disk.flip(&victim, len - 1, 3);
    let log = open(&disk);
    let retention = Retention { max_events: Some(1), ..Retention::default() };
    log.set_settings(&topic("a"), TopicSettings { retention, ..TopicSettings::default() }).await.expect("set");
    append(&log, &vec![event("a"); 20]).await;
    for _ in 0..2 {
        log.maintain(Millis(2_000)).await.expect("the hub goes on");
    }
    let there = seqs(&log, "a").await;
    assert!(there.len() < 60 && there.ends_with(&[80]), "{there:?}");
    assert!(tables(&disk).len() < 3, "the sound tables whose events are gone went: {:?}", tables(&disk));
    log.close().await.expect("closed");
    let log = open(&disk);
    assert_eq!(seqs(&log, "a").await, there);
    log.maintain(Millis(2_000)).await.expect("maintained");
    log.close().await.expect("closed");
    assert!(doctor::check_on(&disk, Path::new("/data")).expect("checked").is_sound());
}
