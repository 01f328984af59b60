//! What operators do: topics, groups, dead letters.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

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

#[test]
fn a_long_list_is_read_to_its_last_page() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.find(String::is_empty);
            let body = match first.contains("after=b") {
                false => r#"{"topics":[{"topic":"a"},{"topic":"b"}],"next":"b"}"#,
                true => r#"{"topics":[{"topic":"c"}]}"#,
            };
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    let hub = Hub::start(&[]);
    let listed = json_lines(&hub.ok(&["topic", "list", "--json", "--server", &server], "")).remove(0);
    assert_eq!(listed, serde_json::json!({ "topics": [{ "topic": "a" }, { "topic": "b" }, { "topic": "c" }] }));
}

#[test]
fn a_topics_settings_are_set_and_shown_and_none_takes_a_bound_away() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1"], "");
    let set =
        ["topic", "set", "a", "--max-age", "12h", "--max-bytes", "1GiB", "--max-events", "9", "--compaction", "--json"];
    let told = json_lines(&hub.ok(&set, "")).remove(0);
    assert_eq!((&told["maxAgeMs"], &told["maxBytes"]), (&43_200_000.into(), &(1_u64 << 30).into()), "{told}");
    let seed =
        ["topic", "set", "a", "--retentionDays", "3", "--max-bytes", "none", "--snapshot-interval", "5s", "--json"];
    let told = json_lines(&hub.ok(&seed, "")).remove(0);
    assert_eq!((&told["maxAgeMs"], told.get("maxBytes")), (&(3_u64 * 86_400_000).into(), None));
    assert_eq!((&told["snapshotTopic"], &told["compaction"]), (&"a.snapshot".into(), &true.into()));
    let shown = hub.ok(&["topic", "show", "a"], "");
    assert!(shown.contains("maxEvents") && shown.contains("259200000"), "{shown}");
    let json = json_lines(&hub.ok(&["topic", "show", "a", "--json"], "")).remove(0);
    assert_eq!((&json["topic"]["events"], &json["settings"]["maxEvents"]), (&1.into(), &9.into()));
    for (args, code, said) in [
        (&["topic", "set", "a"][..], 2, "nothing to change"),
        (&["topic", "set", "a", "--max-age", "long"], 2, "--max-age"),
        (&["topic", "set", "a", "--partitions", "0"], 2, "partitions"),
        (&["topic", "show", "none"], 5, "no topic"),
    ] {
        let (exit, talk) = hub.exit(args);
        assert_eq!(exit, code, "{args:?}: {talk}");
        assert!(talk.contains(said), "{args:?}: {talk}");
    }
}

#[test]
fn a_topic_that_has_settings_and_no_events_yet_is_shown() {
    let hub = Hub::start(&[]);
    hub.ok(&["topic", "set", "a", "--max-events", "9"], "");
    let shown = hub.ok(&["topic", "show", "a"], "");
    assert!(shown.contains("maxEvents"), "{shown}");
    let json = json_lines(&hub.ok(&["topic", "show", "a", "--json"], "")).remove(0);
    assert_eq!((&json["topic"], &json["settings"]["maxEvents"]), (&serde_json::Value::Null, &9.into()));
    hub.ok(&["topic", "set", "a", "--max-events", "none"], "");
    assert_eq!(hub.exit(&["topic", "show", "a"]).0, 5, "as if it had never been set");
}

#[test]
fn groups_are_listed_explained_moved_and_forgotten() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "--ndjson"], "1\n2\n3\n");
    hub.ok(&["sub", "a", "--group", "g", "--from", "earliest", "--count", "2"], "");
    let table = hub.ok(&["group", "list"], "");
    let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!((row[0], row[1], row[3]), ("a", "g", "1"), "{table}");
    let json = json_lines(&hub.ok(&["group", "list", "a", "--json"], "")).remove(0);
    assert_eq!((&json["groups"][0]["lag"], &json["groups"][0]["seq"]), (&1.into(), &2.into()));
    assert_eq!(json_lines(&hub.ok(&["group", "show", "a", "g", "--json"], ""))[0]["group"]["group"], "g");
    let why = hub.ok(&["group", "explain", "a", "g"], "");
    assert!(why.contains("no_members") && why.contains("start a consumer"), "{why}");
    for args in [&["group", "seek", "a", "mistyped"][..], &["replay", "a", "--group", "mistyped"]] {
        let (code, said) = hub.exit(&[args, &["--from", "earliest", "--yes"]].concat());
        assert_eq!((code, said.contains("no such group: mistyped on a")), (5, true), "{said}");
    }
    assert!(!hub.ok(&["group", "list", "--json"], "").contains("mistyped"));
    let created = hub.ok(&["group", "seek", "a", "new", "--from", "latest", "--create", "--yes", "--json"], "");
    assert_eq!(json_lines(&created)[0]["after"]["seq"], 3);
    assert!(hub.ok(&["group", "seek", "a", "g", "--from", "earliest"], "").contains("2 come again"));
    assert!(hub.ok(&["group", "seek", "a", "g", "--from", "earliest", "--yes"], "").contains("lag 1 to 3"));
    assert!(hub.ok(&["group", "forget", "a", "g"], "").contains("would be forgotten"));
    assert!(hub.ok(&["group", "show", "a", "g"], "").contains(" 3 "), "it is still there");
    assert!(hub.ok(&["group", "forget", "a", "g", "--yes"], "").contains("is forgotten"));
    for args in [["show", "a", "g"], ["explain", "a", "g"], ["forget", "a", "g"]] {
        let (code, said) = hub.exit(&[&["group"], &args[..]].concat());
        assert_eq!(code, 5, "{args:?}: {said}");
    }
    assert_eq!(hub.exit(&["group", "forget", "a", "g", "--yes"]).0, 5);
}

/// Gives up events of `a` as the group `g`.
fn dead_letters(hub: &Hub, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = promethean_client::Client::builder(&hub.ws).connect().await.expect("connected");
        let options = promethean_client::SubscribeOptions { max_attempts: 1, ..Default::default() };
        let mut events = client.subscribe("a", Some("g"), options).await.expect("subscribed");
        for n in 0..count {
            let event = promethean_client::Publish::new(&n).expect("JSON").key(format!("k{n}"));
            client.send("a", event).await.expect("published");
            let given = events.next().await.expect("a delivery").expect("an event");
            given
                .nack(promethean_client::GiveBack { reason: Some("boom".into()), ..Default::default() })
                .await
                .expect("nacked");
        }
        let mut letters = client.subscribe("dlq.a", None, earliest()).await.expect("subscribed");
        for _ in 0..count {
            letters.next().await.expect("a delivery").expect("a letter");
        }
    });
}

fn earliest() -> promethean_client::SubscribeOptions {
    promethean_client::SubscribeOptions { from: promethean_client::From::Earliest, ..Default::default() }
}

#[test]
fn dead_letters_are_listed_shown_and_sent_back_once() {
    let hub = Hub::start(&[]);
    assert!(hub.run(&["dlq", "list"], "").stdout.is_empty());
    dead_letters(&hub, 4);
    let table = hub.ok(&["dlq", "list"], "");
    assert!(table.lines().nth(1).is_some_and(|row| row.starts_with("a ") && row.ends_with("g 4")), "{table}");
    let listed = json_lines(&hub.ok(&["dlq", "list", "a", "--json"], "")).remove(0);
    assert_eq!((&listed["groups"][0]["letters"], &listed["entries"][0]["seq"]), (&4.into(), &4.into()));
    let id = listed["entries"][0]["id"].as_str().expect("an id");
    let text = hub.ok(&["dlq", "list", "a"], "");
    assert!(text.contains("4 letters not redriven") && text.contains("4 × boom (g)") && text.contains(id), "{text}");
    let shown = hub.ok(&["dlq", "show", id], "");
    assert!(shown.contains("boom") && shown.contains("\"key\":\"k3\""), "{shown}");

    assert_eq!(hub.exit(&["dlq", "redrive", "a"]).0, 2, "all is said with --all");
    assert!(hub.ok(&["dlq", "redrive", "a", "--reason", "boo", "--dry-run"], "").starts_with("4 of 4"));
    assert!(hub.ok(&["dlq", "redrive", "a", id, "--to-topic"], "").starts_with("1 letter redriven to a, 3 left"));
    assert!(hub.ok(&["dlq", "redrive", "a", id], "").starts_with("0 letters"), "each once");
    assert!(
        hub.ok(&["dlq", "redrive", "a", "--key", "k0", "--group", "g", "--since", "1h"], "")
            .starts_with("1 letter redriven to the group that failed, 2 left")
    );
    assert!(hub.ok(&["dlq", "redrive", "a", "--all", "--to-topic"], "").starts_with("2 letters redriven to a, 0 left"));
    let events = json_lines(&hub.ok(&["export", "a"], ""));
    assert_eq!((events.len(), &events[4]["caused_by"][0]), (7, &id.into()));
    assert!(hub.ok(&["dlq", "redrive", "a", "--all"], "").contains("no letters to redrive"), "it says so");
    let unknown = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    let event = events[0]["id"].as_str().expect("an id");
    for (args, code) in [
        (["dlq", "show", unknown].to_vec(), 5),
        (["dlq", "show", event].to_vec(), 5),
        (["dlq", "show", "x"].to_vec(), 2),
        (["dlq", "redrive", "a", unknown].to_vec(), 5),
        (["dlq", "redrive", "a", event].to_vec(), 5),
    ] {
        let (exit, said) = hub.exit(&args);
        assert_eq!(exit, code, "{args:?}: {said}");
    }
}

#[test]
fn a_letter_is_sent_back_by_its_id_whatever_its_payload_holds_that_json_allows() {
    let hub = Hub::start(&[]);
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    for (number, payload) in ["1e400", "\"\\ud800\"", "{\"\\ud800\":1}", &deep].into_iter().enumerate() {
        let id = format!("0199d1c0-7d3b-7cc2-8b1a-{number:012}");
        let original = format!(r#"{{"id":"{id}","seq":1,"ts":1,"topic":"b","payload":{payload}}}"#);
        let letter = format!(r#"{{"topic":"b","group":"g","original":{original},"err":"no","attempts":1,"ts":1}}"#);
        let letter_id = format!("0199d1c0-7d3b-7cc2-8b1b-{number:012}");
        hub.ok(&["pub", "dlq.b", &letter, "--id", &letter_id], "");
        assert!(
            hub.ok(&["dlq", "redrive", "b", &letter_id, "--to-topic"], "").starts_with("1 letter redriven to b"),
            "{payload}"
        );
        let exported = hub.ok(&["export", "b"], "");
        assert!(exported.lines().last().is_some_and(|line| line.contains(payload)), "{payload}: {exported}");
    }
}

#[test]
fn an_empty_filter_is_a_mistake_and_sends_nothing_back() {
    let hub = Hub::start(&[]);
    dead_letters(&hub, 1);
    for flag in ["--reason", "--group", "--key", "--since", "--until"] {
        let (exit, said) = hub.exit(&["dlq", "redrive", "a", flag, ""]);
        assert_eq!((exit, said.contains(flag)), (2, true), "{flag}: {said}");
    }
    assert_eq!(hub.exit(&["dlq", "redrive", "a", ""]).0, 2);
    assert_eq!(json_lines(&hub.ok(&["export", "a"], "")).len(), 1, "nothing was sent");
}

#[test]
fn a_letter_that_the_topic_does_not_take_is_named_and_the_others_are_sent_back() {
    let hub = Hub::start(&[]);
    dead_letters(&hub, 2);
    let big = format!(
        r#"{{"group":"g","err":"boom","attempts":1,"original":{{"id":"x","payload":"{}"}}}}"#,
        "x".repeat(2_000)
    );
    let id = hub.ok(&["pub", "dlq.a"], &big).split(' ').next().expect("an id").to_owned();
    hub.ok(&["topic", "set", "a", "--max-event-bytes", "1KiB"], "");
    let output = hub.run(&["dlq", "redrive", "a", "--all", "--to-topic"], "");
    let (said, talk) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}{talk}");
    assert!(said.starts_with("2 letters redriven to a, 1 left\n"), "{said}");
    assert!(talk.contains("1 letter was refused") && talk.contains(&id) && talk.contains("too_large"), "{talk}");
    let output = hub.run(&["dlq", "redrive", "a", "--all", "--to-topic", "--json"], "");
    let told = json_lines(&String::from_utf8_lossy(&output.stdout)).remove(0);
    assert_eq!((output.status.code(), &told["refusals"][0]["id"]), (Some(1), &id.as_str().into()), "{told}");
    assert_eq!(json_lines(&hub.ok(&["export", "a"], "")).len(), 4);
}

#[test]
fn letters_are_asked_for_by_the_name_of_a_topic_that_is_there() {
    let hub = Hub::start(&[]);
    dead_letters(&hub, 1);
    hub.ok(&["pub", "dlq.a", "7"], "");
    hub.ok(&["pub", "b", "1"], "");
    for (args, code, said) in [
        (&["dlq", "list", "dlq.a"][..], 2, "without dlq."),
        (&["dlq", "redrive", "dlq.a", "--all"], 2, "without dlq."),
        (&["dlq", "list", ""], 2, "TOPIC"),
        (&["dlq", "list", "none.such"], 5, "no topic none.such"),
        (&["dlq", "list", "none.such", "--json"], 5, "no topic none.such"),
        (&["dlq", "redrive", "none.such", "--all"], 5, "no topic none.such"),
        (&["dlq", "redrive", "none.such", "--all", "--dry-run"], 5, "no topic none.such"),
        (&["dlq", "redrive", "b", "--all"], 0, ""),
    ] {
        let (exit, talk) = hub.exit(args);
        assert_eq!((exit, talk.contains(said)), (code, true), "{args:?}: {talk}");
    }
    let nothing = hub.ok(&["dlq", "redrive", "b", "--all"], "");
    assert_eq!(nothing, "b has no letters to redrive\n");
    let text = hub.ok(&["dlq", "list", "a"], "");
    assert!(text.starts_with("a: 2 letters not redriven; by group: g 1; no dead letters: 1\n"), "{text}");
    assert!(text.contains("no dead letter: somebody published it to dlq.a"), "{text}");
    let table = hub.ok(&["dlq", "list"], "");
    assert!(table.lines().nth(1).is_some_and(|row| row.ends_with("g 1; no dead letters: 1")), "{table}");
}

#[test]
fn the_hubs_own_groups_are_not_moved() {
    let hub = Hub::start(&[]);
    dead_letters(&hub, 1);
    let args = ["replay", "dlq.a", "--group", "promethean:redrive", "--from", "latest", "--yes"];
    let (exit, said) = hub.exit(&args);
    assert_eq!((exit, said.contains("belong to the hub")), (2, true), "{said}");
    assert!(hub.ok(&["dlq", "redrive", "a", "--all"], "").starts_with("1 letter redriven"));
}

#[test]
fn yes_without_a_group_is_a_mistake() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1"], "");
    // These do not go with a group, and yet do not stand for one.
    for more in [&[][..], &["--limit", "5"], &["--all"]] {
        let (exit, said) = hub.exit(&[&["replay", "a", "--yes"], more].concat());
        assert_eq!((exit, said.contains("--group")), (2, true), "{more:?}: {said}");
    }
}

#[test]
fn a_redrive_that_more_than_one_group_would_get_asks_for_yes() {
    let hub = Hub::start(&[]);
    dead_letters(&hub, 1);
    hub.ok(&["sub", "a", "--group", "other", "--from", "earliest", "--count", "1"], "");
    let (exit, said) = hub.exit(&["dlq", "redrive", "a", "--all", "--to-topic"]);
    assert_eq!((exit, said.contains("2 groups") && said.contains("--yes")), (2, true), "{said}");
    assert!(hub.ok(&["dlq", "redrive", "a", "--all", "--to-topic", "--dry-run"], "").starts_with("1 of 1"));
    let done = hub.ok(&["dlq", "redrive", "a", "--all"], "");
    assert!(done.starts_with("1 letter redriven to the group that failed, 0 left"), "{done}");
}
