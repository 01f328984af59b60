//! The journal's files.

use std::fs;

use promethean_store::log::{OpenError, doctor};

use super::{directory, filled, find, refused};

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
