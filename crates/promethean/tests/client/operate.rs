//! What operators do: topics, groups, dead letters.

use super::{Hub, json_lines};

#[test]
fn topics_are_listed_and_their_keys_shown_as_they_are_and_as_they_were() {
    let hub = Hub::start(&[]);
    assert!(hub.run(&["topic", "list"], "").stdout.is_empty());
    hub.ok(&["pub", "a", "1", "--key", "k"], "");
    let first = json_lines(&hub.ok(&["replay", "a", "--json"], ""))[0]["ts"].as_u64().expect("a time");
    while promethean_event::Millis::now().0 <= first {
        std::thread::yield_now();
    }
    hub.ok(&["pub", "a", "2", "--key", "k"], "");
    hub.ok(&["pub", "a", "3", "--key", "l"], "");

    let table = hub.ok(&["topic", "list"], "");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows[0][0], rows[1][0], rows[1][1]), ("TOPIC", "a", "3"), "{table}");
    let json = json_lines(&hub.ok(&["topic", "list", "--json"], "")).remove(0);
    assert_eq!(json["topics"][0]["events"], 3);

    let shown = hub.ok(&["topic", "latest", "a"], "");
    assert!(shown.contains("a#2 [k] 2\n") && shown.contains("a#3 [l] 3\n"), "{shown}");
    let at = first.to_string();
    let then = hub.ok(&["topic", "latest", "a", "--at", &at], "");
    assert!(then.ends_with("a#1 [k] 1\n") && then.lines().count() == 1, "{then}");
    let page = json_lines(&hub.ok(&["topic", "latest", "a", "--at", &at, "--json"], "")).remove(0);
    assert_eq!((&page["complete"], &page["entries"]["k"]["payload"]), (&true.into(), &1.into()));
    let (code, said) = hub.exit(&["topic", "latest", "a", "--at", &at, "--key", "k", "--key", "l"]);
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("key l"), "{said}");
    assert!(hub.run(&["topic", "latest", "a", "--limit", "1"], "").stderr.starts_with(b"there is more: --after"));
    assert_eq!(hub.exit(&["topic", "latest", "a", "--at", "soon"]).0, 2);
}
