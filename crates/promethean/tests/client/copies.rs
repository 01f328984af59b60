//! `export | import`, `replay --group`: events come back as they were, and groups go back to them.

use super::{Hub, json_lines};

/// Publishes what is hard to carry: every optional field, line breaks, escapes, numbers that no float holds.
fn fill(hub: &Hub) {
    let payloads =
        ["{\n  \"a\": 1,\r\n\t\"b\\n\": [ ]\n}", "1e400", r#""\ud800 é \u00e9""#, r#"{"a":1,"a":2}"#, "null"];
    for (index, payload) in payloads.iter().enumerate() {
        let key = format!("k\"{index}");
        let args = ["pub", "a", payload, "--key", &key, "--tag", "t ü", "--header", "x-b=1", "--header", "x-a=2"];
        hub.ok(&args, "");
    }
    hub.ok(&["pub", "a", "--ndjson"], &"{\"n\": 12345678901234567890}\n".repeat(2_500));
    hub.ok(&["pub", "b.c", "[1]"], "");
}

#[test]
fn an_export_imported_elsewhere_is_the_same_byte_for_byte_also_the_second_time() {
    let (one, two) = (Hub::start(&[]), Hub::start(&[]));
    fill(&one);
    let exported = one.ok(&["export", "a", "b.c"], "");
    assert_eq!(exported.lines().count(), 2_506);

    // A part first, as if it had been broken off in the middle of a line.
    let line = exported.len() / 2 + exported[exported.len() / 2..].find('\n').expect("a line's end") + 1;
    let part = exported.get(..line + 40).expect("half of it");
    let broken = two.run(&["import"], part);
    assert_eq!(broken.status.code(), Some(2));
    let said = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert!(said.contains("run it again"), "{said}");
    let whole = part.lines().count() - 1;
    let again = json_lines(&two.ok(&["import", "--json"], &exported)).remove(0);
    assert_eq!((&again["events"], &again["duplicates"]), (&2_506.into(), &whole.into()), "{again}");
    assert_eq!((&again["otherSeq"], &again["droppedHeaders"]), (&0.into(), &0.into()));
    assert_eq!(two.ok(&["export", "a", "b.c"], ""), exported);

    // Not only what an export shows: the very bytes of the payloads.
    let raw = |hub: &Hub| hub.get("/replay?topic=a&limit=10");
    assert!(raw(&one).contains("{\n  \"a\": 1,\r\n\t\"b\\n\": [ ]\n}"));
    assert_eq!(raw(&two), raw(&one));
}

#[test]
fn an_import_says_which_line_is_none_and_what_became_of_the_others() {
    let hub = Hub::start(&[]);
    let id = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    let line =
        format!(r#"{{"id":"{id}","seq":7,"ts":5,"topic":"a","headers":{{"x":"1","promethean-hop":"2"}},"payload":1}}"#);
    let (code, said) = hub.exit_with(&["import"], &format!("{line}\n\n[1]\n"));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("line 3") && said.contains("1 events before it are stored"), "{said}");
    let told = json_lines(&hub.ok(&["import", "--json", "--topic", "a"], &line)).remove(0);
    assert_eq!((&told["duplicates"], &told["otherSeq"], &told["droppedHeaders"]), (&1.into(), &1.into(), &1.into()));
    let stored = json_lines(&hub.ok(&["export", "a"], "")).remove(0);
    assert_eq!(stored["headers"], serde_json::json!({ "x": "1" }), "the hub's own headers are not carried over");
    let (code, said) = hub.exit_with(&["import", "--topic", "b"], &line);
    assert_eq!(code, 1, "an id belongs to one topic: {said}");
    assert!(said.contains("duplicate_id") && said.contains("line 1"), "{said}");
    assert_eq!(hub.exit(&["import", "/no/such/file"]).0, 1);
}

#[test]
fn a_group_goes_back_only_with_yes_and_gets_again_what_it_was_told() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "--ndjson"], &"1\n".repeat(10));
    let sub = ["sub", "a", "--group", "g", "--from", "earliest", "--json", "--timeout", "2s", "--count"];
    hub.ok(&[&sub[..], &["10"]].concat(), "");

    let seek = ["replay", "a", "--group", "g", "--from", "seq:8"];
    let plan = hub.run(&seek, "");
    let text = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(text.contains("to after #7") && text.contains("3 come again, 0 are passed over; lag 0 to 3"), "{text}");
    assert!(String::from_utf8_lossy(&plan.stderr).contains("--yes"));
    let (code, said) = hub.exit(&["sub", "a", "--group", "g", "--timeout", "300ms"]);
    assert_eq!(code, 124, "nothing was moved: {said}");

    let moved = json_lines(&hub.ok(&[&seek[..], &["--yes", "--json"]].concat(), "")).remove(0);
    assert_eq!((&moved["again"], &moved["after"]["seq"], &moved["dryRun"]), (&3.into(), &7.into(), &false.into()));
    let seqs: Vec<_> =
        json_lines(&hub.ok(&[&sub[..], &["3"]].concat(), "")).iter().map(|one| one["seq"].clone()).collect();
    assert_eq!(seqs, [8, 9, 10]);

    assert_eq!(hub.exit(&["replay", "a", "--group", "g", "--from", "snapshot"]).0, 2);
    let unknown = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    assert_eq!(hub.exit(&["replay", "a", "--group", "g", "--from", unknown]).0, 5);
}

#[test]
fn a_long_replay_comes_page_by_page() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "--ndjson"], &"1\n".repeat(2_300));
    let output = hub.run(&["replay", "a", "--json", "--limit", "2100"], "");
    assert_eq!(json_lines(&String::from_utf8_lossy(&output.stdout)).len(), 2_100);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--from seq:2101"));
    let all = json_lines(&hub.ok(&["replay", "a", "--json", "--all", "--from", "seq:5"], ""));
    assert_eq!((all.len(), &all[0]["seq"], &all[2_295]["seq"]), (2_296, &5.into(), &2_300.into()));
    assert_eq!(json_lines(&hub.ok(&["export", "a", "--from", "#2299", "--to-seq", "2299"], "")).len(), 1);
    assert_eq!(hub.ok(&["export", "a", "--from", "1h"], "").lines().count(), 2_300, "an hour ago");
    assert_eq!(hub.ok(&["export", "a", "--to-ts", "2001-01-01T00:00:00Z"], ""), "");
}

#[test]
fn an_import_goes_at_the_speed_that_the_hub_takes() {
    let one = Hub::start(&[]);
    one.ok(&["pub", "a", "--ndjson"], &"1\n".repeat(1_200));
    let exported = one.ok(&["export", "a"], "");
    // Batches of a thousand are more than the topic ever takes at once.
    let limits = [("PROMETHEAN_TOPIC_RATE", "1000"), ("PROMETHEAN_TOPIC_BURST", "400")];
    let two = Hub::start(&limits);
    let told = json_lines(&two.ok(&["import", "--json"], &exported)).remove(0);
    assert_eq!((&told["events"], &told["duplicates"]), (&1_200.into(), &0.into()), "{told}");
    assert_eq!(two.ok(&["export", "a"], ""), exported);
}

#[test]
fn lines_that_can_never_be_stored_are_named_and_left_out_on_demand() {
    let hub = Hub::start(&[("PROMETHEAN_MAX_EVENT_BYTES", "1KiB")]);
    let line = |n: u32, payload: &str| {
        format!(
            "{{\"id\":\"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b{n:02}\",\"ts\":5,\"topic\":\"a\",\"payload\":{payload}}}\n"
        )
    };
    let (large, deep) = (format!("\"{}\"", "x".repeat(2_000)), format!("{}{}", "[".repeat(129), "]".repeat(129)));
    let lines: String =
        ["1", "2", &large, "4", &deep, "6"].iter().zip(10..).map(|(payload, n)| line(n, payload)).collect();
    let (code, said) = hub.exit_with(&["import"], &lines);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("line 3: too_large") && said.contains("2 events before it are stored"), "{said}");
    assert!(said.contains("--skip") && !said.contains("run it again"), "{said}");
    let output = hub.run(&["import", "--skip", "--json"], &lines);
    let told = json_lines(&String::from_utf8_lossy(&output.stdout)).remove(0);
    assert_eq!((&told["events"], &told["duplicates"], &told["skipped"]), (&4.into(), &2.into(), &2.into()), "{told}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("line 3: too_large") && said.contains("line 5: is no exported event"), "{said}");
    assert_eq!(hub.ok(&["export", "a"], "").lines().count(), 4);
    let (code, said) = hub.exit(&["export", "a", "--from", "sometime"]);
    assert!(code == 2 && !said.contains("snapshot") && said.contains("seq:N"), "{said}");
}
