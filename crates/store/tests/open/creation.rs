//! Which directories without FORMAT are gone on with: those that a creation left behind, and no others.

use std::fs;
use std::io::{self, Read};

use promethean_store::backup::Writer;
use promethean_store::log::{Log, OpenError, restore};
use promethean_store::suite::{append, event, read_all, seqs, topic};
use promethean_store::{EventLog, Store};

use super::{directory, filled, options, refused};

#[tokio::test]
async fn a_data_directory_that_lost_its_format_is_refused_and_not_written_over() {
    let (_place, dir) = directory();
    filled(&dir).await;
    fs::remove_file(dir.join("FORMAT")).expect("removed");
    let error = refused(&dir);
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    // What its page advises.
    fs::write(dir.join("FORMAT"), "promethean log 1\n").expect("put back");
    let log = Log::open(options(&dir)).expect("opens");
    assert_eq!((seqs(&log, "plain").await.len(), seqs(&log, "keyed").await.len()), (81, 81));
}

#[tokio::test]
async fn each_single_part_of_a_data_directory_is_enough_to_refuse_it() {
    let (_place, whole) = directory();
    filled(&whole).await;
    for part in ["MANIFEST", "index.redb", "journal", "topics", "ids"] {
        let (_place, dir) = directory();
        fs::create_dir(&dir).expect("made");
        copy(&whole.join(part), &dir.join(part));
        let error = refused(&dir);
        assert!(matches!(error, OpenError::Foreign { .. }) && error.to_string().contains(part), "{error}");
    }
}

pub(super) fn copy(from: &std::path::Path, to: &std::path::Path) {
    if !from.is_dir() {
        fs::copy(from, to).expect("copied");
        return;
    }
    fs::create_dir(to).expect("made");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

#[test]
fn a_manifest_of_another_program_is_not_written_over() {
    let (_place, dir) = directory();
    fs::create_dir_all(dir.join("journal")).expect("made");
    fs::write(dir.join("MANIFEST"), "Manifest-Version: 1.0\n").expect("written");
    let error = refused(&dir);
    assert!(matches!(error, OpenError::Foreign { .. }) && error.to_string().contains("MANIFEST"), "{error}");
}

#[tokio::test]
async fn a_creation_that_was_cut_short_is_gone_on_with() {
    let (_place, whole) = directory();
    drop(Log::open(options(&whole)).expect("opens"));
    let (_place, dir) = directory();
    for name in ["journal", "topics", "ids", "lost+found"] {
        fs::create_dir_all(dir.join(name)).expect("made");
    }
    fs::copy(whole.join("MANIFEST"), dir.join("MANIFEST")).expect("copied");
    for name in ["LOCK", "MANIFEST.new", "FORMAT.new"] {
        fs::write(dir.join(name), "").expect("written");
    }
    let log = Log::open(options(&dir)).expect("opens");
    assert_eq!(append(&log, &[event("a")]).await[0].seq, 1);
}

/// A backup whose disk fails after its events.
struct Cut(io::Cursor<Vec<u8>>);

impl Read for Cut {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.0.read(out)? {
            0 => Err(io::Error::other("the tape is torn")),
            read => Ok(read),
        }
    }
}

#[tokio::test]
async fn a_restore_that_was_cut_short_is_refused_for_what_it_is() {
    let (_place, dir) = directory();
    let log = Log::open(options(&dir)).expect("opens");
    append(&log, &vec![event("a"); 3]).await;
    let info = log.info(&topic("a")).await.expect("known").expect("there");
    let (mut bytes, mut writer) = (promethean_store::backup::MAGIC.to_vec(), Writer::default());
    writer.topic(&mut bytes, &promethean_store::backup::TopicHead::new(info, log.settings(&topic("a"))));
    let head = bytes.clone();
    for event in read_all(&log, "a").await {
        writer.event(&mut bytes, &event);
    }
    log.close().await.expect("closed");
    for cut in [promethean_store::backup::MAGIC.to_vec(), head, bytes] {
        let (_place, to) = directory();
        restore(Cut(io::Cursor::new(cut)), &to).expect_err("not whole");
        let error = refused(&to);
        assert!(error.to_string().contains("restore") && error.to_string().contains("delete"), "{error}");
    }
}
