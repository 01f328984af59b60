//! Id tables and the index of the embedded engine over many flushes, on the test disk.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::Millis;
use promethean_store::backup::{MAGIC, TopicHead, Writer};
use promethean_store::log::disk::test::{Survival, TestDisk};
use promethean_store::log::{Log, Options, doctor, restore};
use promethean_store::suite::{append, event, read_all, topic};
use promethean_store::{Compaction, EventLog as _, Retention, Store as _, TopicSettings};

const NOW: Millis = Millis(2_000);

fn options(disk: &TestDisk) -> Options {
    let mut options = Options::new("/data");
    (options.disk, options.maintenance) = (Arc::new(disk.clone()), None);
    options
}

fn compacted() -> TopicSettings {
    TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() }
}

/// Number and bytes of the id tables.
fn tables(disk: &TestDisk) -> (usize, u64) {
    let files = disk.files().into_iter().filter(|(path, _)| path.starts_with("/data/ids"));
    files.fold((0, 0), |(count, bytes), (_, len)| (count + 1, bytes + len))
}

#[tokio::test]
async fn ids_are_in_proportion_to_the_events_that_are_kept() {
    let disk = TestDisk::new();
    let log = Log::open(options(&disk)).expect("opens");
    log.set_settings(&topic("state"), compacted()).await.expect("set");
    // It never changes again, and kept every table.
    append(&log, &[event("state").key("first")]).await;
    let mut gone = Vec::new();
    for _ in 0..20 {
        append(&log, &(0..2_000).map(|n| event("state").key(format!("k{}", n % 10))).collect::<Vec<_>>()).await;
        log.maintain(NOW).await.expect("maintained");
        gone.extend(read_all(&log, "state").await.last().map(|event| event.id));
    }
    let (count, bytes) = tables(&disk);
    // 40,001 ids are 274 pages.
    assert!(count <= 8 && bytes <= 64 * 4096, "{count} tables of {bytes} bytes");
    let kept = read_all(&log, "state").await;
    assert_eq!(kept.len(), 11);
    log.close().await.expect("closed");
    drop(log);
    let log = Log::open(options(&disk)).expect("opens");
    let found = log.locate(&kept.iter().map(|event| event.id).collect::<Vec<_>>()).await.expect("located");
    let seqs: Vec<_> = found.into_iter().map(|place| place.map(|place| place.seq)).collect();
    assert_eq!(seqs, kept.iter().map(|event| Some(event.seq)).collect::<Vec<_>>());
    gone.pop();
    let found = log.locate(&gone).await.expect("located");
    assert!(found.iter().all(Option::is_none), "they were replaced");
    log.close().await.expect("closed");
}

#[tokio::test]
async fn a_trickle_leaves_few_tables_and_every_id_is_found() {
    let disk = TestDisk::new();
    let log = Log::open(options(&disk)).expect("opens");
    for _ in 0..300 {
        append(&log, &[event("trickle")]).await;
        log.maintain(NOW).await.expect("maintained");
        assert!(tables(&disk).0 <= 16, "{:?}", tables(&disk));
    }
    let kept = read_all(&log, "trickle").await;
    let found = log.locate(&kept.iter().map(|event| event.id).collect::<Vec<_>>()).await.expect("located");
    assert!(
        kept.len() == 300
            && found
                .iter()
                .zip(&kept)
                .all(|(place, event)| { place.as_ref().is_some_and(|place| place.seq == event.seq) })
    );
    log.close().await.expect("closed");
}

/// A crash at any call leaves tables in which every id is found, and no file that stays.
#[tokio::test]
async fn a_crash_while_tables_are_merged_loses_no_id() {
    let disk = TestDisk::new();
    let log = Log::open(options(&disk)).expect("opens");
    for _ in 0..3 {
        append(&log, &[event("t"), event("t")]).await;
        log.maintain(NOW).await.expect("maintained");
    }
    append(&log, &[event("t"), event("t")]).await;
    let ids: Vec<_> = read_all(&log, "t").await.iter().map(|event| event.id).collect();
    let from = tables(&disk).0;
    disk.record();
    log.maintain(NOW).await.expect("maintained");
    assert!(tables(&disk).0 <= from, "they were merged: {:?}", tables(&disk));
    log.close().await.expect("closed");
    drop(log);
    let mut crashes = disk.crashes();
    let mut looks = 0;
    loop {
        let left = crashes.crash(Survival::Nothing, &mut |_| 0);
        let log = Log::open(options(&left)).expect("opens");
        let found = log.locate(&ids).await.expect("located");
        assert!(found.iter().all(Option::is_some), "after {looks} calls: {found:?}");
        log.maintain(NOW).await.expect("maintained");
        assert!(tables(&left).0 <= 4, "{:?}", tables(&left));
        log.close().await.expect("closed");
        looks += 1;
        if !crashes.advance() {
            break;
        }
    }
    assert!(looks > 10);
}

#[tokio::test]
async fn a_snapshot_that_is_read_slowly_does_not_make_the_index_grow() {
    let grown = async |held: bool| {
        let disk = TestDisk::new();
        let log = Log::open(Options { view_for: Duration::ZERO, ..options(&disk) }).expect("opens");
        log.set_settings(&topic("state"), compacted()).await.expect("set");
        let keys: Vec<_> = (0..2_000).map(|n| event("state").key(format!("k{n:04}"))).collect();
        append(&log, &keys).await;
        log.maintain(NOW).await.expect("maintained");
        let mut snapshot = log.key_snapshot(&topic("state")).await.expect("opened");
        let mut seen: Vec<_> = snapshot.next(10).await.expect("read");
        let snapshot = held.then_some(snapshot);
        for _ in 0..20 {
            append(&log, &keys[1_000..]).await;
            log.maintain(NOW).await.expect("maintained");
        }
        let size = disk.files().into_iter().find(|(path, _)| path.ends_with("index.redb")).map(|(_, len)| len);
        if let Some(mut snapshot) = snapshot {
            while let Some(last) = seen.last().map(|event| event.seq) {
                let more = snapshot.next(100).await.expect("read");
                seen.extend(more);
                if seen.last().map(|event| event.seq) == Some(last) {
                    break;
                }
            }
            // The others have events after the cut, which the live part has.
            let seen: Vec<_> = seen.iter().map(|event| event.seq).collect();
            assert_eq!(seen, (1..=1_000).collect::<Vec<_>>());
        }
        log.close().await.expect("closed");
        size.expect("an index")
    };
    let (without, with) = (grown(false).await, grown(true).await);
    assert!(with <= without + without / 4, "{without} bytes, {with} with a snapshot");
}

#[tokio::test]
async fn what_is_beyond_its_bound_goes_soon_after_a_start() {
    let disk = TestDisk::new();
    let log = Log::open(options(&disk)).expect("opens");
    append(&log, &vec![event("t"); 1_000]).await;
    log.maintain(NOW).await.expect("maintained");
    let retention = Retention { max_events: Some(100), ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    log.set_settings(&topic("t"), settings).await.expect("set");
    log.close().await.expect("closed");
    drop(log);
    let hour = Some(Duration::from_secs(3_600));
    let log = Log::open(Options { maintenance: hour, ..options(&disk) }).expect("opens");
    let gone = async {
        while log.info(&topic("t")).await.expect("known").is_none_or(|info| info.events > 100) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("long before the first round");
    log.close().await.expect("closed");
}

/// Every id of a restored hub was in the index, which is twice as large as tables.
#[tokio::test]
async fn a_restored_directory_has_ids_of_the_hub_in_tables() {
    let disk = TestDisk::new();
    let log = Log::open(options(&disk)).expect("opens");
    let maker = promethean_event::IdMaker::new();
    let ids: Vec<_> = (0..500_u64).map(|n| maker.next(Millis(1_700_000_000_000 + n))).collect();
    let made = ids.iter().map(|id| event("t").appended(1_700_000_000_500).id(u128::from_be_bytes(*id.as_bytes())));
    append(&log, &made.chain([event("t").id(7)]).collect::<Vec<_>>()).await;
    let info = log.info(&topic("t")).await.expect("known").expect("there");
    let (mut bytes, mut writer) = (MAGIC.to_vec(), Writer::default());
    writer.topic(&mut bytes, &TopicHead::new(info, TopicSettings::default()));
    for event in read_all(&log, "t").await {
        writer.event(&mut bytes, &event);
    }
    writer.end(&mut bytes);
    log.close().await.expect("closed");
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("data");
    restore(&bytes[..], &dir).expect("restored");
    let tables = std::fs::read_dir(dir.join("ids")).expect("there").map(|entry| entry.expect("an entry"));
    let pages: u64 = tables.map(|entry| entry.metadata().expect("known").len() / 4096).sum();
    assert_eq!(pages, 500_u64.div_ceil(146));
    assert!(doctor::check(&dir).expect("checked").is_sound());
    let log = Log::open(Options { maintenance: None, ..Options::new(&dir) }).expect("opens");
    let found = log.locate(&ids).await.expect("located");
    assert!(found.iter().zip(1..).all(|(place, seq)| place.as_ref().is_some_and(|place| place.seq == seq)));
    let again = [event("t").id(7), event("t").id(u128::from_be_bytes(*ids[3].as_bytes()))];
    let seqs: Vec<_> = append(&log, &again).await.iter().map(|done| (done.seq, done.duplicate)).collect();
    assert_eq!(seqs, [(501, true), (4, true)]);
    log.close().await.expect("closed");
}
