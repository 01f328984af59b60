//! What is saved out of a damaged directory, and what is said of the rest.

use std::fs;

use promethean_store::log::{Log, OpenError, doctor};
use promethean_store::suite::{append, event, seqs};

use super::{directory, filled, find, options};

#[tokio::test]
async fn salvage_saves_the_whole_records_around_damage() {
    let (place, dir) = directory();
    filled(&dir).await;
    let victim = find(&dir, "topics/1/000000000000000001.seg");
    let mut bytes = fs::read(&victim).expect("read");
    bytes[100] ^= 1;
    fs::write(&victim, bytes).expect("written");
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
