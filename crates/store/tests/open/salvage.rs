//! What is saved out of a damaged directory, and what is said of the rest.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use promethean_event::Millis;
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::disk::{Disk, File, Mode};
use promethean_store::log::{Log, OpenError, Options, doctor};
use promethean_store::suite::{append, event, seqs};
use promethean_store::{EventLog, Store};

use super::{directory, filled, find, flip, options};

#[tokio::test]
async fn salvage_saves_the_whole_records_around_damage() {
    let (place, dir) = directory();
    filled(&dir).await;
    let victim = find(&dir, "topics/1/000000000000000001.seg");
    flip(&victim, 100, 1);
    let to = place.path().join("saved");
    let saved = doctor::salvage(&dir, &to).expect("saved");
    assert!(saved.events >= 140 && saved.events < 162 && saved.groups == 1, "{saved:?}");
    assert!(matches!(doctor::salvage(&dir, &to), Err(OpenError::NotEmpty { .. })), "nothing is overwritten");
    let report = doctor::check(&to).expect("checked");
    assert!(report.is_sound() && report.events == saved.events, "{report}");
    let log = Log::open(options(&to)).expect("opens");
    assert_eq!(seqs(&log, "plain").await, (1..=81).collect::<Vec<_>>());
    let keyed = seqs(&log, "keyed").await;
    assert!(keyed.len() as u64 + 81 == saved.events && keyed.last() == Some(&81), "{keyed:?}");
    assert_eq!(append(&log, &[event("keyed")]).await[0].seq, 82);
}

/// Saves what is in `filled` after `damage`: what was saved, and the seqs of `plain` and `keyed`.
async fn saved_after(damage: impl FnOnce(&Path)) -> (doctor::Salvaged, Vec<u64>, Vec<u64>) {
    let (place, dir) = directory();
    filled(&dir).await;
    damage(&dir);
    let to = place.path().join("saved");
    let saved = doctor::salvage(&dir, &to).expect("saved");
    let log = Log::open(options(&to)).expect("opens");
    let (plain, keyed) = (seqs(&log, "plain").await, seqs(&log, "keyed").await);
    assert_eq!(append(&log, &[event("plain")]).await[0].seq, 82, "no seq is given out again");
    assert_eq!(saved.events, (plain.len() + keyed.len()) as u64);
    (saved, plain, keyed)
}

#[tokio::test]
async fn a_segment_with_a_damaged_head_is_saved_whole() {
    for manifest in [true, false] {
        let (saved, plain, keyed) = saved_after(|dir| {
            for file in super::contents(dir).keys().filter(|path| path.to_string_lossy().ends_with(".seg")) {
                flip(file, 22, 1);
            }
            if !manifest {
                fs::remove_file(dir.join("MANIFEST")).expect("removed");
            }
        })
        .await;
        assert_eq!((saved.events, saved.missing, plain.len(), keyed.len()), (162, 0, 81, 81), "{saved:?}");
        assert_eq!(saved.losses.is_empty(), manifest, "{saved:?}");
    }
}

#[tokio::test]
async fn without_a_manifest_the_unflushed_events_are_saved_too() {
    for missing in [false, true] {
        let (saved, plain, keyed) = saved_after(|dir| {
            flip(&dir.join("MANIFEST"), 40, 1);
            if missing {
                fs::remove_file(dir.join("MANIFEST")).expect("removed");
            }
        })
        .await;
        assert_eq!((plain.len(), keyed.len(), saved.missing), (81, 81, 0), "{saved:?}");
        assert!(saved.losses.iter().any(|loss| loss.contains("MANIFEST")), "{saved:?}");
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_journal_header_costs_nothing() {
    for at in [3, 17, 27, 35, 42] {
        let (saved, ..) = saved_after(|dir| flip(&find(dir, ".wal"), at, 1)).await;
        assert_eq!((saved.events, saved.missing), (162, 0), "byte {at}: {saved:?}");
    }
}

#[tokio::test]
async fn a_journal_whose_header_is_gone_is_said_to_be_lost() {
    let (place, dir) = directory();
    filled(&dir).await;
    let journal = find(&dir, ".wal");
    let mut bytes = fs::read(&journal).expect("read");
    bytes[..44].fill(0);
    fs::write(&journal, bytes).expect("written");
    let saved = doctor::salvage(&dir, &place.path().join("saved")).expect("saved");
    assert!(saved.events == 160 && saved.losses.iter().any(|loss| loss.contains(".wal")), "{saved:?}");
}

#[tokio::test]
async fn lost_segments_are_counted_wherever_they_were() {
    // The first, all of a topic, and the last.
    for (file, gone) in [("topics/2/000000000000000001.seg", 1..82), ("topics/1/000000000000000001.seg", 1..82)] {
        let (saved, ..) = saved_after(|dir| fs::remove_file(find(dir, file)).expect("removed")).await;
        assert!(gone.contains(&saved.missing) && saved.events + saved.missing == 162, "{saved:?}");
    }
    let (saved, ..) = saved_after(|dir| {
        let plain = super::contents(dir).into_keys().filter(|path| path.to_string_lossy().contains("topics/2/"));
        fs::remove_file(plain.max().expect("a segment")).expect("removed");
    })
    .await;
    assert!(saved.missing > 0 && saved.events + saved.missing == 162, "{saved:?}");
}

#[tokio::test]
async fn a_bad_sector_costs_what_is_in_it_and_the_doctor_goes_on_past_it() {
    for file in [".seg", ".wal"] {
        let disk = TestDisk::new();
        let on =
            |dir: &str| Options { disk: Arc::new(disk.clone()), journal_bytes: 64 << 10, ..options(Path::new(dir)) };
        let log = Log::open(Options { segment_bytes: 64 << 10, ..on("/data") }).expect("opens");
        for _ in 0..20 {
            append(&log, &vec![event("a").payload(format!("\"{}\"", "x".repeat(150))); 5]).await;
        }
        log.maintain(Millis(2_000)).await.expect("flushed");
        for _ in 0..60 {
            append(&log, &[event("a").payload(format!("\"{}\"", "x".repeat(150)))]).await;
        }
        log.close().await.expect("closed");
        let victim = disk.files().into_iter().map(|(path, _)| path).find(|path| path.to_string_lossy().ends_with(file));
        let victim = victim.expect("a file");
        disk.spoil_sector(&victim, 8192);
        let report = doctor::check_on(&disk, Path::new("/data")).expect("checked");
        assert!(report.damage.iter().any(|finding| finding.file == victim && finding.offset == 8192), "{report}");
        let saved = doctor::salvage_on(Arc::new(disk.clone()), Path::new("/data"), Path::new("/saved")).expect("saved");
        assert!(saved.missing > 0 && saved.missing < 60, "{saved:?}");
        assert_eq!(saved.events + saved.missing, 160, "{saved:?}");
        assert!(saved.losses.iter().any(|loss| loss.contains(&*victim.to_string_lossy())), "{saved:?}");
        drop(Log::open(on("/saved")).expect("opens"));
    }
}

#[tokio::test]
async fn a_source_that_cannot_be_written_to_is_saved_all_the_same() {
    /// Reads one disk, writes to another directory of it.
    #[derive(Debug)]
    struct Half(TestDisk);
    impl Disk for Half {
        fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
            match mode == Mode::Read || !path.starts_with("/data") {
                true => self.0.open(path, mode),
                false => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            }
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
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
        fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn std::any::Any + Send + Sync>>> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
    }
    let disk = TestDisk::new();
    let log = Log::open(Options { disk: Arc::new(disk.clone()), ..options(Path::new("/data")) }).expect("opens");
    append(&log, &[event("a")]).await;
    log.close().await.expect("closed");
    let half = Arc::new(Half(disk));
    let saved = doctor::salvage_on(half, Path::new("/data"), Path::new("/saved")).expect("saved");
    assert_eq!(saved.events, 1);
}
