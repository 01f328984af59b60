//! A damaged index: made anew or named, and never a reason to say that something is not there.

use std::fs;
use std::path::PathBuf;

use promethean_store::log::{Log, OpenError, Options, doctor};
use promethean_store::suite::{append, event, read_all, seqs, topic};
use promethean_store::{Error, EventLog, Store};

use super::{directory, filled, find, flip, options};

/// Copies of a filled directory, each with nonsense in another page of its index.
async fn spoilt() -> Vec<(usize, tempfile::TempDir, PathBuf)> {
    let (_place, whole) = directory();
    filled(&whole).await;
    let index = fs::read(whole.join("index.redb")).expect("read");
    let (pages, _) = index.as_chunks::<4096>();
    let used = (0..pages.len()).filter(|page| pages[*page].iter().any(|byte| *byte != 0));
    used.map(|page| {
        let (place, dir) = directory();
        super::creation::copy(&whole, &dir);
        let mut bytes = index.clone();
        for at in (8..4096).step_by(16) {
            bytes[page * 4096 + at] ^= 0x10;
        }
        fs::write(dir.join("index.redb"), bytes).expect("written");
        (page, place, dir)
    })
    .collect()
}

/// Every key and every client's id of `filled` is found.
async fn is_right(log: &Log) {
    let keys: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    let latest = log.latest_by_key(&topic("keyed"), &keys).await.expect("found");
    let latest: Vec<_> = latest.into_iter().flatten().map(|event| event.seq).collect();
    assert_eq!(latest, [71, 72, 73, 81, 75, 76, 77, 78, 79, 80]);
    for id in 1..=80 {
        assert!(append(log, &[event("keyed").id(id)]).await[0].duplicate, "{id} was stored twice");
    }
}

#[tokio::test]
async fn an_index_that_is_damaged_inside_is_made_anew_at_opening() {
    for (page, _place, dir) in spoilt().await {
        let log = Log::open(options(&dir)).unwrap_or_else(|error| panic!("page {page}: {error}"));
        is_right(&log).await;
        append(&log, &[event("keyed").key("1").id(900)]).await;
        log.maintain(promethean_event::Millis(2_000)).await.expect("flushed");
        log.close().await.expect("closed");
        let report = doctor::check(&dir).expect("checked");
        assert!(report.is_sound(), "page {page}: {report}");
    }
}

#[tokio::test]
async fn damage_that_a_look_up_meets_is_named_and_the_next_start_makes_the_index_anew() {
    let mut met = 0;
    for (_, _place, dir) in spoilt().await {
        let index = dir.join("index.redb");
        let log = Log::open(Options { index_check_bytes: 0, ..options(&dir) }).expect("opens");
        let keys: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let looked = log.latest_by_key(&topic("keyed"), &keys).await.map(drop);
        let published = log.append(vec![event("keyed").id(7).new_event()]).await.map(drop);
        let errors: Vec<_> = [looked.err(), published.err()].into_iter().flatten().collect();
        if errors.is_empty() {
            // Damage elsewhere, over which redb would abort when it closes the file.
            std::mem::forget(log);
            continue;
        }
        for error in errors {
            assert!(matches!(&error, Error::Damaged(text) if text.contains("--rebuild-index")), "{error}");
            met += 1;
        }
        assert!(!index.exists(), "the next start must not find it");
        log.close().await.expect("closed");
        is_right(&Log::open(options(&dir)).expect("opens")).await;
    }
    assert!(met > 0, "no damage was met");
}

#[tokio::test]
async fn a_restored_directory_that_loses_its_index_has_it_made_anew() {
    let (place, dir) = directory();
    filled(&dir).await;
    let to = place.path().join("saved");
    doctor::salvage(&dir, &to).expect("saved");
    fs::remove_file(to.join("index.redb")).expect("removed");
    is_right(&Log::open(options(&to)).expect("opens")).await;
}

#[tokio::test]
async fn an_id_that_was_used_again_after_a_trim_is_known_by_an_index_that_is_made_anew() {
    let (_place, dir) = directory();
    let log = Log::open(options(&dir)).expect("opens");
    append(&log, &[event("low"), event("high").id(1), event("high").id(2), event("high")]).await;
    log.maintain(promethean_event::Millis(2_000)).await.expect("flushed");
    log.trim(&topic("high"), 3).await.expect("trimmed");
    // Of two events with one id, the trimmed one is in the topic with the larger number, and in the same one.
    append(&log, &[event("low").id(1), event("high").id(2)]).await;
    log.maintain(promethean_event::Millis(2_000)).await.expect("flushed");
    log.close().await.expect("closed");
    find(&dir, "topics/2/000000000000000001.seg");
    fs::remove_file(dir.join("index.redb")).expect("removed");
    let log = Log::open(options(&dir)).expect("opens");
    for again in append(&log, &[event("low").id(1), event("high").id(2)]).await {
        assert!(again.duplicate, "{again:?} was stored twice");
    }
    assert_eq!((seqs(&log, "low").await, seqs(&log, "high").await), (vec![1, 2], vec![3, 4]));
}

#[tokio::test]
async fn a_rebuild_that_fails_leaves_the_old_index() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let victim = find(&dir, "topics/2/000000000000000001.seg");
    flip(&victim, 700, 1);
    let before = super::contents(&dir);
    let error = doctor::rebuild_index(&dir).expect_err("a block is damaged");
    assert!(error.to_string().contains(&*victim.to_string_lossy()), "{error}");
    assert_eq!(super::contents(&dir), before, "nothing is changed");
    is_right(&Log::open(options(&dir)).expect("opens as before")).await;
}

#[tokio::test]
async fn a_lost_index_and_a_damaged_block_do_not_keep_the_hub_from_its_other_topics() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let victim = find(&dir, "topics/1/000000000000000001.seg");
    flip(&victim, 100, 1);
    fs::remove_file(dir.join("index.redb")).expect("removed");
    fs::remove_file(find(&dir, ".ids")).expect("removed");
    for _ in 0..2 {
        let log = Log::open(options(&dir)).expect("opens");
        assert!(seqs(&log, "plain").await.len() >= 81);
        append(&log, &[event("plain"), event("keyed").key("new")]).await;
        let plain: Vec<_> = read_all(&log, "plain").await.iter().map(|event| event.id).collect();
        let found = log.locate(&plain).await.expect("located");
        assert!(found.iter().all(Option::is_some));
        // What may be in the damaged block is not said to be missing.
        let keys: Vec<_> = (0..10).map(|n| n.to_string()).collect();
        let told = log.latest_by_key(&topic("keyed"), &keys).await;
        assert!(matches!(&told, Err(Error::Damaged(text)) if text.contains("damaged")), "{told:?}");
        let told = log.locate(&[promethean_store::suite::id(1)]).await;
        assert!(matches!(&told, Err(Error::Damaged(_))), "{told:?}");
        log.close().await.expect("closed");
    }
    assert!(matches!(doctor::rebuild_index(&dir), Err(OpenError::Io { .. } | OpenError::Damaged { .. })));
}
