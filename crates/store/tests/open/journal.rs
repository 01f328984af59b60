//! The journal's files: one that is lost is missed, one that is used again is whole, one that cannot be put away waits.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use promethean_event::Millis;
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::disk::{Disk, File, Mode};
use promethean_store::log::{Log, OpenError, Options, doctor};
use promethean_store::suite::{append, event, read_all};
use promethean_store::{EventLog, Store};

use super::{directory, filled, find, options, refused};

#[tokio::test]
async fn a_lost_journal_file_is_missed_by_name() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let victim = find(&dir, ".wal");
    fs::remove_file(&victim).expect("removed");
    let error = refused(&dir);
    let OpenError::Damaged { file, what, .. } = &error else { panic!("{error}") };
    assert!(*file == victim && what.contains("missing"), "{error}");
    let report = doctor::check(&dir).expect("checked");
    assert!(report.damage.iter().any(|finding| finding.file == victim), "{report}");
}

#[tokio::test]
async fn after_a_peaceful_stop_nothing_is_called_torn_although_the_file_had_a_former_life() {
    for last in 0..4 {
        let (_place, dir) = directory();
        let log = Log::open(options(&dir)).expect("opens");
        // Frames of one size, so that those of the former life begin where new ones would.
        for frames in [6, 6, last] {
            for _ in 0..frames {
                append(&log, &[event("a")]).await;
            }
            if frames == 6 {
                log.maintain(Millis(2_000)).await.expect("flushed");
            }
        }
        log.close().await.expect("closed");
        let report = doctor::check(&dir).expect("checked");
        assert!(report.is_sound() && report.notes.is_empty(), "{last} frames: {report}");
    }
}

/// A disk that has no room for a name, once.
#[derive(Debug)]
struct NoName(TestDisk, AtomicBool);

impl Disk for NoName {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        self.0.open(path, mode)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if to.ends_with("spare") && !self.1.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        self.0.len(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn std::any::Any + Send + Sync>>> {
        self.0.lock(path)
    }
}

#[tokio::test]
async fn a_flushed_file_that_cannot_be_put_away_for_lack_of_room_is_put_away_later_and_its_ids_stay() {
    let disk = TestDisk::new();
    let no_name = Arc::new(NoName(disk.clone(), AtomicBool::new(false)));
    let log = Log::open(Options { disk: no_name.clone(), ..options(Path::new("/data")) }).expect("opens");
    for _ in 0..2 {
        append(&log, &vec![event("a"); 5]).await;
        log.maintain(Millis(2_000)).await.expect("flushed");
    }
    assert!(no_name.1.load(Ordering::Acquire), "the disk had no room once");
    log.close().await.expect("closed");
    let left: Vec<_> = disk.files().into_iter().filter(|(path, _)| path.to_string_lossy().ends_with(".wal")).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let log = Log::open(Options { disk: Arc::new(disk), ..options(Path::new("/data")) }).expect("opens");
    let ids: Vec<_> = read_all(&log, "a").await.iter().map(|event| event.id).collect();
    let found = log.locate(&ids).await.expect("located");
    assert_eq!(found.iter().flatten().count(), 10, "every event is found by its id");
}

#[tokio::test]
async fn the_only_journal_file_is_missed_although_nothing_is_flushed() {
    let (_place, dir) = directory();
    let log = Log::open(Options { journal_bytes: 1 << 20, ..options(&dir) }).expect("opens");
    append(&log, &vec![event("a"); 100]).await;
    // As kill -9 leaves it.
    let (_other, left) = directory();
    super::creation::copy(&dir, &left);
    let victim = find(&left, ".wal");
    fs::remove_file(&victim).expect("removed");
    let error = refused(&left);
    let OpenError::Damaged { file, what, .. } = &error else { panic!("{error}") };
    assert!(*file == victim && what.contains("missing"), "{error}");
    let report = doctor::check(&left).expect("checked");
    assert!(report.damage.iter().any(|finding| finding.file == victim), "{report}");
}

#[tokio::test]
async fn a_directory_without_a_journal_that_never_began_opens_and_one_of_before_begins() {
    let (place, dir) = directory();
    filled(&dir).await;
    // What was made anew has no journal yet.
    let saved = place.path().join("saved");
    doctor::salvage(&dir, &saved).expect("saved");
    assert!(doctor::check(&saved).expect("checked").is_sound());
    drop(Log::open(options(&saved)).expect("opens"));
    fs::remove_file(find(&saved, ".wal")).expect("removed");
    assert!(matches!(refused(&saved), OpenError::Damaged { .. }));
    // An earlier version did not say that the journal has begun.
    let (_place, old) = directory();
    let log = Log::open(options(&old)).expect("opens");
    append(&log, &vec![event("a"); 3]).await;
    log.close().await.expect("closed");
    fs::remove_file(old.join("JOURNAL")).expect("removed");
    let log = Log::open(options(&old)).expect("opens");
    assert_eq!(read_all(&log, "a").await.len(), 3);
    log.close().await.expect("closed");
    fs::remove_file(find(&old, ".wal")).expect("removed");
    assert!(matches!(refused(&old), OpenError::Damaged { .. }));
}
