//! `promethean tail --from snapshot` over a hub that comes back.

use super::*;

#[test]
fn a_tail_says_that_its_snapshot_begins_again() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "s", "--key", "a", "1"], "");
    let mut tail = hub.spawn(&["tail", "s", "--from", "snapshot", "--json", "--count", "3"]);
    let mut out = BufReader::new(tail.stdout.take().expect("stdout"));
    let mut line = || {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        serde_json::from_str::<Value>(&line).expect("JSON")
    };
    let first = line();
    assert_eq!((&first["key"], &first["restarted"]), (&"a".into(), &Value::Null));
    // Another hub at that address, which has nothing of what the first one had.
    let port = hub.ws.rsplit(':').next().expect("a port").to_owned();
    drop(hub);
    let other = Hub::start_at(&[], &port);
    other.ok(&["pub", "s", "--key", "b", "2"], "");
    let second = line();
    assert_eq!((&second["key"], &second["restarted"]), (&"b".into(), &true.into()));
    other.ok(&["pub", "s", "--key", "c", "3"], "");
    assert_eq!(line()["restarted"], Value::Null, "said once");
    let ended = tail.wait_with_output().expect("ended");
    let talk = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && talk.contains("the snapshot begins again"), "{talk}");
}
