//! What the embedded engine says of directories that it cannot open, or only in part; and what the doctor does.

mod busy;
mod creation;
mod ids;
mod index;
mod journal;
mod salvage;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use promethean_event::Millis;
use promethean_store::log::disk::test::{Fault, TestDisk};
use promethean_store::log::disk::{Disk, File, Mode};
use promethean_store::log::{Log, OpenError, Options, doctor};
use promethean_store::suite::{append, event, id, read_all, seqs, topic};
use promethean_store::{Error, EventLog, GroupState, GroupStore, Store};

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir);
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (16 << 10, 8 << 10, 1 << 10);
    options.maintenance = None;
    options
}

/// A directory with flushed and unflushed events, keys, client ids and a group.
async fn filled(dir: &Path) {
    let log = Log::open(options(dir)).expect("opens");
    for round in 0..8_u128 {
        let keyed = (0..10_u128).map(|n| event("keyed").key(n.to_string()).id(round * 10 + n + 1));
        append(&log, &keyed.collect::<Vec<_>>()).await;
        append(&log, &vec![event("plain").payload(format!("\"{}\"", "x".repeat(150))); 10]).await;
    }
    log.maintain(Millis(2_000)).await.expect("flushed");
    append(&log, &[event("plain"), event("keyed").key("3")]).await;
    let group = promethean_event::Group::parse("g").expect("a group");
    let state = GroupState { floor: 5, ..GroupState::default() };
    log.compare_and_set(&topic("plain"), &group, 0, state).await.expect("saved");
    log.close().await.expect("closed");
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).expect("read"));
        }
    }
    all
}

fn find(dir: &Path, end: &str) -> PathBuf {
    let files: Vec<_> = contents(dir).into_keys().filter(|path| path.to_string_lossy().ends_with(end)).collect();
    files.into_iter().next().unwrap_or_else(|| panic!("a file that ends with {end}"))
}

/// Flips bits of one byte of a file.
fn flip(file: &Path, at: usize, bits: u8) {
    let mut bytes = fs::read(file).expect("read");
    bytes[at] ^= bits;
    fs::write(file, bytes).expect("written");
}

/// Opens what cannot be opened: the message, after a look that nothing was changed.
fn refused(dir: &Path) -> OpenError {
    let before = contents(dir);
    let error = Log::open(options(dir)).expect_err("refused");
    assert_eq!(contents(dir), before, "nothing is changed by {error}");
    error
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("data");
    (place, dir)
}

#[tokio::test]
async fn another_format_version_is_refused() {
    let (_place, dir) = directory();
    filled(&dir).await;
    fs::write(dir.join("FORMAT"), "promethean log 99\n").expect("written");
    let error = refused(&dir);
    assert!(matches!(error, OpenError::Format { .. }));
    assert!(error.to_string().contains("promethean log 99") && error.to_string().contains("promethean log 1"));
}

#[test]
fn a_directory_of_another_program_is_refused() {
    let (_place, dir) = directory();
    fs::create_dir(&dir).expect("made");
    fs::write(dir.join("photo.jpg"), "not ours").expect("written");
    let error = refused(&dir);
    assert!(matches!(error, OpenError::Foreign { .. }) && error.to_string().contains("photo.jpg"), "{error}");
}

#[tokio::test]
async fn a_directory_in_use_is_refused_until_it_is_closed() {
    let (_place, dir) = directory();
    let first = Log::open(options(&dir)).expect("opens");
    let error = Log::open(options(&dir)).expect_err("in use");
    assert!(matches!(error, OpenError::InUse { .. }) && error.to_string().contains("in use"), "{error}");
    first.close().await.expect("closed");
    drop(Log::open(options(&dir)).expect("free again"));
}

/// A disk that lets nobody write.
#[derive(Debug)]
struct ReadOnly(TestDisk);

impl Disk for ReadOnly {
    fn open(&self, path: &Path, mode: Mode) -> std::io::Result<Arc<dyn File>> {
        if mode == Mode::Read { self.0.open(path, mode) } else { Err(std::io::ErrorKind::ReadOnlyFilesystem.into()) }
    }
    fn rename(&self, _: &Path, _: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn remove(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn create_dir(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn list(&self, dir: &Path) -> std::io::Result<Vec<String>> {
        self.0.list(dir)
    }
    fn len(&self, path: &Path) -> std::io::Result<u64> {
        self.0.len(path)
    }
    fn sync_dir(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn lock(&self, _: &Path) -> std::io::Result<Option<Box<dyn std::any::Any + Send + Sync>>> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }
}

#[tokio::test]
async fn a_read_only_directory_is_refused_whether_it_is_new_or_not() {
    let disk = TestDisk::new();
    let read_only = || Options { disk: Arc::new(ReadOnly(disk.clone())), ..options(Path::new("/data")) };
    let error = Log::open(read_only()).expect_err("refused");
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error}");
    let log = Log::open(Options { disk: Arc::new(disk.clone()), ..options(Path::new("/data")) }).expect("opens");
    append(&log, &[event("a")]).await;
    log.close().await.expect("closed");
    let error = Log::open(read_only()).expect_err("refused");
    assert!(matches!(error, OpenError::ReadOnly { .. }) && error.to_string().contains("cannot be written"), "{error}");
}

#[tokio::test]
async fn a_missing_or_broken_index_or_id_table_is_made_anew() {
    for (name, broken) in
        [("index.redb", None), ("index.redb", Some("not a database")), (".ids", None), (".ids", Some(""))]
    {
        let (_place, dir) = directory();
        filled(&dir).await;
        let victim = find(&dir, name);
        match broken {
            None => fs::remove_file(&victim).expect("removed"),
            Some(bytes) => fs::write(&victim, bytes).expect("written"),
        }
        let log = Log::open(options(&dir)).unwrap_or_else(|error| panic!("{name} {broken:?}: {error}"));
        let keys: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let latest = log.latest_by_key(&topic("keyed"), &keys).await.expect("found");
        let latest: Vec<_> = latest.into_iter().flatten().map(|event| event.seq).collect();
        assert_eq!(latest, [71, 72, 73, 81, 75, 76, 77, 78, 79, 80]);
        let plain = read_all(&log, "plain").await;
        let ids: Vec<_> = plain.iter().map(|event| event.id).chain([id(1), id(80), id(999)]).collect();
        let found = log.locate(&ids).await.expect("located");
        assert_eq!(found.iter().flatten().count(), 83, "every event is found by its id");
        assert!(append(&log, &[event("keyed").id(5)]).await[0].duplicate);
        log.close().await.expect("closed");
    }
}

#[tokio::test]
async fn a_missing_or_cut_segment_is_refused_by_name() {
    for cut in [false, true] {
        let (_place, dir) = directory();
        filled(&dir).await;
        let victim = find(&dir, ".seg");
        if cut {
            let bytes = fs::read(&victim).expect("read");
            fs::write(&victim, &bytes[..bytes.len() / 2]).expect("cut");
        } else {
            fs::remove_file(&victim).expect("removed");
        }
        let error = refused(&dir);
        assert!(matches!(error, OpenError::MissingSegment { .. }));
        assert!(error.to_string().contains(&*victim.to_string_lossy()), "{error}");
    }
}

#[tokio::test]
async fn a_missing_or_damaged_manifest_is_refused() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let whole = fs::read(dir.join("MANIFEST")).expect("read");
    for at in [0, 9, 13, 20, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(dir.join("MANIFEST"), bytes).expect("written");
        let error = refused(&dir);
        assert!(matches!(error, OpenError::Damaged { .. }) && error.to_string().contains("MANIFEST"), "{error}");
    }
    fs::remove_file(dir.join("MANIFEST")).expect("removed");
    assert!(refused(&dir).to_string().contains("missing"));
}

#[tokio::test]
async fn without_a_manifest_the_doctor_still_looks_at_segments_and_journal() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let (events, segments) = {
        let report = doctor::check(&dir).expect("checked");
        (report.events, report.segments)
    };
    let manifest = dir.join("MANIFEST");
    flip(&manifest, 20, 4);
    let report = doctor::check(&dir).expect("checked");
    let named: Vec<_> = report.damage.iter().map(|finding| &finding.file).collect();
    assert_eq!((named, report.events, report.segments, report.topics), (vec![&manifest], events, segments, 2));
    let (segment, journal) = (find(&dir, "topics/1/000000000000000001.seg"), find(&dir, ".wal"));
    flip(&segment, 100, 1);
    flip(&journal, 4200, 1);
    let report = doctor::check(&dir).expect("checked");
    for victim in [&manifest, &segment, &journal] {
        assert!(report.damage.iter().any(|finding| finding.file == *victim), "{}: {report}", victim.display());
    }
    assert!(report.events < events && report.to_string().contains("--salvage"), "{report}");
}

#[tokio::test]
async fn damage_in_a_segment_is_named_and_never_served_and_other_topics_go_on() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let victim = find(&dir, "topics/1/000000000000000001.seg");
    flip(&victim, 100, 1);
    let log = Log::open(options(&dir)).expect("opens: nothing was read yet");
    let error = log.read(&topic("keyed"), 1, promethean_store::ReadMax::events(100)).await.expect_err("damaged");
    let Error::Damaged(text) = &error else { panic!("{error}") };
    assert!(text.contains(&*victim.to_string_lossy()) && text.contains("offset"), "{text}");
    assert_eq!(seqs(&log, "plain").await.len(), 81);
    log.close().await.expect("closed");
    let report = doctor::check(&dir).expect("checked");
    assert!(!report.is_sound() && report.damage.iter().any(|finding| finding.file == victim), "{report}");
    assert!(report.to_string().contains("--salvage"), "{report}");
}

#[tokio::test]
async fn damage_in_the_middle_of_the_journal_is_refused_with_its_offset() {
    let (_place, dir) = directory();
    let log = Log::open(options(&dir)).expect("opens");
    for _ in 0..5 {
        append(&log, &[event("a")]).await;
    }
    log.close().await.expect("closed");
    let journal = find(&dir, ".wal");
    flip(&journal, 4096 + 50, 1);
    let error = refused(&dir);
    let OpenError::Damaged { file, offset: 4096, .. } = &error else { panic!("{error}") };
    assert_eq!(*file, journal);
    let report = doctor::check(&dir).expect("checked");
    assert!(report.damage.iter().any(|finding| finding.offset == 4096), "{report}");
}

#[tokio::test]
async fn every_byte_prefix_of_the_last_journal_file_opens_to_whole_appends() {
    let disk = TestDisk::new();
    let on = |disk: &TestDisk| Options { disk: Arc::new(disk.clone()), ..options(Path::new("/data")) };
    let log = Log::open(on(&disk)).expect("opens");
    for _ in 0..8 {
        append(&log, &vec![event("a"); 2]).await;
    }
    let written = log.stats().journal_bytes;
    log.close().await.expect("closed");
    let journal = Path::new("/data/journal/00000001.wal");
    let mut most = 0;
    // Frames are filled up to 8 bytes.
    for cut in 4096..=4096 + written + 8 * 8 {
        let disk = disk.copy();
        disk.open(journal, Mode::Write).expect("there").set_len(cut).expect("cut");
        let log = Log::open(on(&disk)).expect("a torn end is cut");
        let found = seqs(&log, "a").await;
        assert!(found.len() % 2 == 0 && found.len() >= most, "half an append, or fewer events for more bytes");
        assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>());
        most = found.len();
        if cut % 16 == 0 {
            assert_eq!(append(&log, &[event("a")]).await[0].seq, most as u64 + 1);
        }
        log.close().await.expect("closed");
    }
    assert_eq!(most, 16);
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_reported_or_harmless_and_never_served() {
    let disk = TestDisk::new();
    let on = |disk: &TestDisk| Options { disk: Arc::new(disk.clone()), ..options(Path::new("/data")) };
    let log = Log::open(on(&disk)).expect("opens");
    for round in 0..6_u128 {
        let keyed = (0..10_u128).map(|n| event("a").key(n.to_string()).id(round * 10 + n + 1));
        append(&log, &keyed.collect::<Vec<_>>()).await;
        append(&log, &vec![event("a").payload(format!("\"{}\"", "y".repeat(99))); 5]).await;
    }
    log.maintain(Millis(2_000)).await.expect("flushed");
    append(&log, &vec![event("a"); 20]).await;
    let whole = read_all(&log, "a").await;
    log.close().await.expect("closed");
    let mut random = promethean_store::log::torture::Random::new(42);
    let files = disk.files();
    let (mut reported, mut harmless) = (0, 0);
    for _ in 0..3_000 {
        let (path, len) = &files[usize::try_from(random.below(files.len() as u64)).expect("small")];
        let disk = disk.copy();
        disk.flip(path, random.below((*len).max(1)), u8::try_from(random.below(8)).expect("a bit"));
        let Ok(log) = Log::open(on(&disk)) else {
            reported += 1;
            continue;
        };
        let (mut from, mut sound) = (0, true);
        loop {
            match log.read(&topic("a"), from, promethean_store::ReadMax::events(7)).await {
                Err(error) => {
                    assert!(matches!(error, Error::Damaged(_)), "{error}");
                    sound = false;
                    break;
                }
                Ok(part) if part.is_empty() => break,
                Ok(part) => {
                    for event in &part {
                        assert_eq!(
                            whole.get(usize::try_from(event.seq).expect("small") - 1),
                            Some(event),
                            "wrong bytes"
                        );
                    }
                    from = part.last().map_or(from, |event| event.seq + 1);
                }
            }
        }
        if sound {
            harmless += 1
        } else {
            reported += 1
        }
        log.close().await.expect("closed");
    }
    assert!(reported > 300 && harmless > 300, "{reported} reported, {harmless} harmless");
}

#[tokio::test]
async fn a_failed_sync_is_never_ok_and_the_engine_says_why_and_stops() {
    let disk = TestDisk::new();
    let log = Log::open(Options { disk: Arc::new(disk.clone()), ..options(Path::new("/data")) }).expect("opens");
    append(&log, &[event("a")]).await;
    disk.record();
    // The write is the first call, the sync the second.
    disk.fail_at(1, Fault::Eio);
    let told = log.append(vec![event("a").new_event()]).await;
    assert!(matches!(told, Err(Error::Unknown(_))), "{told:?}");
    let why = tokio::time::timeout(Duration::from_secs(10), log.failed()).await.expect("told");
    assert!(why.contains("sync") && why.contains("journal"), "{why}");
    assert!(matches!(log.append(vec![event("a").new_event()]).await, Err(Error::Closed(_))));
    assert!(matches!(log.ready(), Err(Error::Closed(_))));
}

#[tokio::test]
async fn a_full_disk_refuses_publishers_lets_readers_and_acks_go_on_and_recovers() {
    let disk = TestDisk::new();
    let log = Log::open(Options { disk: Arc::new(disk.clone()), ..options(Path::new("/data")) }).expect("opens");
    append(&log, &vec![event("a"); 3]).await;
    disk.record();
    disk.fail_at(0, Fault::Full(u64::MAX));
    let big = || event("a").payload(format!("\"{}\"", "x".repeat(900))).new_event();
    let mut stored = 3;
    let refused = loop {
        match log.append(vec![big()]).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "a full disk takes no events");
    };
    let Error::Refused(text) = &refused else { panic!("{refused}") };
    assert!(text.contains("no space left") && text.contains("/data"), "{text}");
    assert_eq!(seqs(&log, "a").await.len(), stored);
    let group = promethean_event::Group::parse("g").expect("a group");
    let state = GroupState { floor: 2, ..GroupState::default() };
    log.compare_and_set(&topic("a"), &group, 0, state).await.expect("an ack needs no new space");
    disk.fail_at(u64::MAX, Fault::Eio);
    let told = tokio::time::timeout(Duration::from_secs(20), async {
        while log.append(vec![big()]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    told.await.expect("it goes on by itself");
    assert_eq!(seqs(&log, "a").await.len(), stored + 1);
    assert!(log.load(&topic("a"), &group).await.expect("loads").is_some());
}

#[tokio::test]
async fn files_that_a_crash_left_behind_are_removed_and_no_others() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let segment = find(&dir, "topics/1/000000000000000001.seg");
    let (left, table) = (segment.with_file_name("000000000000000001.9.seg"), dir.join("ids/00099999.ids"));
    fs::copy(&segment, &left).expect("copied");
    fs::write(&table, "left").expect("written");
    let before = contents(&dir).len();
    let log = Log::open(options(&dir)).expect("opens");
    let events = (read_all(&log, "plain").await, read_all(&log, "keyed").await);
    log.maintain(Millis(2_000)).await.expect("maintained");
    assert!(!left.exists() && !table.exists());
    assert_eq!((read_all(&log, "plain").await, read_all(&log, "keyed").await), events);
    log.close().await.expect("closed");
    assert!(contents(&dir).len() >= before - 2 && doctor::check(&dir).expect("checked").is_sound());
}

#[tokio::test]
async fn the_doctor_finds_a_sound_directory_sound() {
    let (_place, dir) = directory();
    filled(&dir).await;
    let before = contents(&dir);
    let report = doctor::check(&dir).expect("checked");
    assert!(report.is_sound(), "{report}");
    assert_eq!((report.topics, report.events), (2, 162));
    assert_eq!(contents(&dir), before, "a check changes nothing");
    assert!(matches!(doctor::check(dir.parent().expect("above")), Err(OpenError::Foreign { .. })));
}

#[tokio::test]
async fn the_doctor_rebuilds_an_index_that_is_damaged() {
    let (_place, dir) = directory();
    filled(&dir).await;
    for name in ["index.redb", ".ids"] {
        let victim = find(&dir, name);
        let mut bytes = fs::read(&victim).expect("read");
        let middle = bytes.len() / 2;
        bytes[100..middle].fill(0x55);
        fs::write(&victim, bytes).expect("written");
        let report = doctor::check(&dir).expect("checked");
        assert!(!report.is_sound() && report.to_string().contains("--rebuild-index"), "{report}");
        doctor::rebuild_index(&dir).expect("rebuilt");
        let report = doctor::check(&dir).expect("checked");
        assert!(report.is_sound(), "{report}");
    }
    let log = Log::open(options(&dir)).expect("opens");
    assert!(append(&log, &[event("keyed").id(5)]).await[0].duplicate);
    assert!(matches!(doctor::rebuild_index(&dir), Err(OpenError::InUse { .. })));
}
