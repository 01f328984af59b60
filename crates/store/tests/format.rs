//! Data directories of earlier versions go on opening. `examples/fixture.rs` wrote them.

use std::fs;
use std::path::Path;

use promethean_event::{Group, Millis};
use promethean_store::log::{Log, Options, doctor};
use promethean_store::suite::{append, event, id, read_all, seqs, topic};
use promethean_store::{EventLog, GroupStore, Seek, Store};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("the fixture is in the repository") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("copied");
        }
    }
}

#[tokio::test]
async fn a_directory_of_format_1_opens_with_everything_in_it() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("data");
    copy(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/format-1")), &dir);
    let report = doctor::check(&dir).expect("checked");
    assert!(report.is_sound(), "{report}");
    let log = Log::open(Options::new(&dir)).expect("opens");
    assert_eq!(seqs(&log, "orders.created").await, (3..=30).collect::<Vec<_>>());
    for event in read_all(&log, "orders.created").await {
        assert_eq!((event.id, event.ts), (id(u128::from(event.seq)), Millis(event.seq * 1_000)));
    }
    let state = read_all(&log, "state.snapshot").await;
    let payloads: Vec<_> = state.iter().map(|event| event.payload().to_owned()).collect();
    let expected: Vec<_> = [18, 19, 20].into_iter().chain(21..=30).map(|n| format!("{{\"n\": {n}}}")).collect();
    assert_eq!(payloads, expected, "compacted up to 20");
    assert_eq!(log.settings(&topic("state.snapshot")).partitions, 4);
    let latest = log.latest_by_key(&topic("state.snapshot"), &["k0".to_owned()]).await.expect("found");
    assert_eq!(latest[0].as_ref().map(|event| event.seq), Some(30));
    let group = Group::parse("billing").expect("a group");
    let (state, _) = log.load(&topic("orders.created"), &group).await.expect("loads").expect("there");
    assert_eq!(state.floor, 12);
    let start = log.seek(&topic("orders.created"), Seek::Ts(Millis(7_500))).await.expect("sought").expect("a place");
    assert_eq!(start.done, 7);
    assert!(append(&log, &[event("orders.created").id(9)]).await[0].duplicate);
    assert_eq!(append(&log, &[event("orders.created")]).await[0].seq, 31);
    log.close().await.expect("closed");
}
