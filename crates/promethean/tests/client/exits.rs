//! Exit codes, command by command: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 denied, 5 not found, 124 timeout, 130
//! interrupted. What a single command does is tested beside it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use promethean_outbox::{NewRow, SqliteOutbox};
use rustix::process::{Pid, Signal, kill_process};

use super::{Hub, binary, json_lines};

/// Every command that talks to a hub, with arguments that would work.
pub(super) const TALKING: &[&[&str]] = &[
    &["pub", "a", "1"],
    &["sub", "a", "--group", "g"],
    &["tail", "a"],
    &["replay", "a"],
    &["replay", "a", "--group", "g"],
    &["export", "a"],
    &["import"],
    &["topic", "list"],
    &["topic", "show", "a"],
    &["topic", "set", "a", "--partitions", "4"],
    &["topic", "latest", "a"],
    &["group", "list"],
    &["group", "show", "a", "g"],
    &["group", "explain", "a", "g"],
    &["group", "seek", "a", "g", "--from", "latest"],
    &["group", "forget", "a", "g", "--yes"],
    &["dlq", "list"],
    &["dlq", "show", "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"],
    &["dlq", "redrive", "a", "--all"],
    &["bench", "publish", "--events", "10"],
    &["bench", "e2e", "--events", "10"],
    &["backup", "-"],
];

#[test]
fn every_command_says_alike_that_nobody_is_there_that_it_is_denied_and_that_it_takes_too_long() {
    let hub = Hub::start(&[("WS_TOKEN", "sesame")]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = format!("http://{}", silent.local_addr().expect("an address"));
    for args in TALKING {
        let (code, said) = hub.exit(&[args, &["--server", "http://127.0.0.1:1"][..]].concat());
        assert_eq!(code, 3, "{args:?}: {said}");
        assert!(said.contains("promethean serve") && said.contains("--server"), "{args:?}: {said}");
        let (code, said) = hub.exit(&[args, &["--token", "wrong"][..]].concat());
        assert_eq!(code, 4, "{args:?}: {said}");
        assert!(!said.is_empty() && !said.contains("wrong"), "{args:?}: {said}");
        // Those that wait for events have their own limit; an import waits for the hub to come back; a bench has its own.
        if !matches!(args[0], "pub" | "sub" | "tail" | "import" | "bench") {
            let (code, said) = hub.exit(&[args, &["--server", &silent, "--timeout", "50ms"][..]].concat());
            assert_eq!(code, 124, "{args:?}: {said}");
        }
    }
}

/// Runs `cases` against a hub: arguments, exit code, what standard error has in it.
fn check(hub: &Hub, cases: &[(&[&str], i32, &str)]) {
    for (args, code, said) in cases {
        let (exit, talk) = hub.exit(args);
        assert_eq!(exit, *code, "{args:?}: {talk}");
        assert!(talk.contains(said), "{args:?}: {talk}");
    }
}

#[test]
fn a_bench_tells_what_it_measured_and_fails_where_that_is_not_what_was_asked_for() {
    let hub = Hub::start(&[]);
    let told = json_lines(&hub.ok(&["bench", "publish", "--events", "200", "--batch", "7", "--json"], "")).remove(0);
    assert_eq!((&told["mode"], &told["events"]), (&"publish".into(), &200.into()), "{told}");
    let told = json_lines(&hub.ok(&["bench", "subscribe", "--events", "50", "--groups", "2", "--json"], "")).remove(0);
    assert_eq!(told["events"], 100, "every group gets every event: {told}");
    let text = hub.ok(&["bench", "e2e", "--events", "50"], "");
    assert!(text.contains("50 events in") && text.contains("publish to delivery: p50"), "{text}");
    check(
        &hub,
        &[
            (&["bench", "publish", "--events", "50", "--min-rate", "1e15"], 1, "--min-rate"),
            (&["bench", "e2e", "--events", "50", "--max-p99", "0"], 1, "--max-p99"),
            (&["bench", "--clients", "0"], 2, "--clients"),
            (&["bench", "--payload", "99999999999"], 2, "--payload must be between 32 and 67108864, is 99999999999"),
            (&["bench", "--payload", "65536", "--batch", "10000"], 2, "--payload times --batch"),
            (&["bench", "--duration", "long"], 2, "--duration"),
            (&["bench", "--server", "https://127.0.0.1:1"], 2, "ws://"),
            (&["bench", "nothing"], 2, "invalid value"),
        ],
    );
}

#[test]
fn a_backup_that_does_not_work_leaves_nothing_and_a_restore_names_what_is_wrong() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1"], "");
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (file, target) = (path("hub.backup"), path("data"));
    check(&hub, &[(&["backup", &file, "--server", "http://127.0.0.1:1"], 3, "127.0.0.1:1")]);
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0, "nothing is left");
    let totals = json_lines(&hub.ok(&["backup", &file, "--json"], "")).remove(0);
    assert_eq!((&totals["topics"], &totals["events"]), (&1.into(), &1.into()), "{totals}");
    let cut = path("cut.backup");
    let whole = std::fs::read(&file).expect("read");
    std::fs::write(&cut, &whole[..whole.len() - 1]).expect("written");
    let longer = path("longer.backup");
    std::fs::write(&longer, [&whole[..], b"\n"].concat()).expect("written");
    check(
        &hub,
        &[
            (&["backup"], 2, "FILE"),
            (&["backup", &file], 2, "is there already"),
            (&["backup", &path("no/such/dir/x")], 1, "cannot be written"),
            (&["restore", &path("none"), &target], 1, "cannot be read"),
            (&["restore", &cut, &path("other")], 1, ""),
            (&["restore", &longer, &path("another")], 1, "there is more behind its end"),
            (&["restore", &file], 2, "DIR"),
        ],
    );
    let restored = json_lines(&hub.ok(&["restore", &file, &target, "--json"], "")).remove(0);
    assert_eq!(restored, totals);
    check(&hub, &[(&["doctor", &path("none")], 1, "none")]);
    assert_eq!(json_lines(&hub.ok(&["doctor", &target, "--salvage", &path("saved"), "--json"], ""))[0]["events"], 1);
}

#[test]
fn a_restore_says_delete_only_of_what_it_made_itself() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1"], "");
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (file, cut, none, data) = (path("hub.backup"), path("cut.backup"), path("no.backup"), path("data"));
    hub.ok(&["backup", &file], "");
    let whole = std::fs::read(&file).expect("read");
    std::fs::write(&cut, &whole[..whole.len() - 1]).expect("written");
    std::fs::write(&none, "something else").expect("written");
    hub.ok(&["restore", &file, &data], "");
    std::fs::create_dir(path("empty")).expect("made");
    std::fs::create_dir(path("mounted")).expect("made");
    std::fs::create_dir(path("photos")).expect("made");
    std::fs::write(path("photos/photo.jpg"), "").expect("written");

    // A data directory, perhaps of a hub that runs; files of somebody else; nothing at all.
    for (from, to, said) in [
        (&file, "data", "name a directory that is empty or does not exist"),
        (&cut, "photos", "name a directory that is empty or does not exist"),
        (&none, "empty", "backup"),
        (&none, "missing", "backup"),
    ] {
        let (code, talk) = hub.exit(&["restore", from, &path(to)]);
        assert_eq!((code, talk.contains(said)), (1, true), "{to}: {talk}");
        assert!(!talk.contains("delete") && !talk.contains("FORMAT"), "{to}: {talk}");
    }
    check(
        &hub,
        &[
            (&["restore", &cut, &path("fresh")], 1, &format!("; delete {} before another try", path("fresh"))),
            (&["restore", &cut, &path("mounted")], 1, &format!("; delete what is in {} now", path("mounted"))),
        ],
    );
    hub.ok(&["doctor", &data], "");
}

/// A MongoDB that is not there.
const NOBODY: &str = "mongodb://127.0.0.1:1/x?replicaSet=rs0&serverSelectionTimeoutMS=300";

#[test]
fn an_outbox_is_drained_listed_and_retried_with_the_same_codes() {
    let hub = Hub::start(&[("WS_TOKEN", "sesame")]);
    let dir = tempfile::tempdir().expect("a directory");
    // An empty file is an empty SQLite database.
    std::fs::write(dir.path().join("shop.db"), "").expect("made");
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    let at = ["--outbox", url.as_str()];
    let with = |args: &[&'static str]| [args, &at[..]].concat();
    let told = hub.ok(&with(&["outbox", "drain", "--once", "--json", "--token", "sesame"]), "");
    assert_eq!(json_lines(&told)[0]["sent"], 0, "{told}");
    assert_eq!(hub.ok(&with(&["outbox", "list", "--status", "all", "--json"]), ""), "");
    check(
        &hub,
        &[
            (&with(&["outbox", "drain", "--once", "--server", "ws://127.0.0.1:1"]), 3, "promethean serve"),
            (&with(&["outbox", "drain", "--once", "--token", "wrong"]), 4, "bad_token"),
            (&with(&["outbox", "drain", "--once", "--lease", "long"]), 2, "--lease"),
            (&with(&["outbox", "list", "--status", "lost"]), 2, "--status"),
            (&["outbox", "list", "--outbox", NOBODY], 3, "nobody answers; check the address"),
            (&with(&["outbox", "list", "--table", "a b"]), 2, "no name for a table"),
            (&with(&["outbox", "retry", "no-such-row"]), 5, "outbox list"),
            (&["outbox", "retry", "x"], 2, "--outbox"),
            (&["outbox", "list", "--outbox", "shop.db"], 2, "sqlite:PATH"),
        ],
    );
}

#[test]
fn a_drain_without_a_token_is_told_how_to_give_one_and_a_row_is_found_in_both_cases_of_its_id() {
    let hub = Hub::start(&[("WS_TOKEN", "sesame")]);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("shop.db");
    drop(SqliteOutbox::open(&path).expect("made"));
    let shop = rusqlite::Connection::open(&path).expect("opened");
    let url = format!("sqlite:{}", path.display());
    let add = |id: &str, topic: &str| {
        let row = (id, topic, "1");
        shop.execute("INSERT INTO outbox (id, topic, payload) VALUES (?1, ?2, ?3)", row).expect("added");
    };
    add("0199D1C0-7D3B-7CC2-8B1A-3F0E2C9A4B5D", "no topic");
    let drain = ["outbox", "drain", "--once", "--token", "sesame", "--outbox", &url];
    check(&hub, &[(&drain, 1, "1 rows are parked; promethean outbox list")]);
    let retry = ["outbox", "retry", "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d", "--outbox", &url];
    assert!(hub.ok(&retry, "").starts_with("1 row"), "parked, and found by the same id in lower case");
    add("0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5e", "a");
    check(&hub, &[(&["outbox", "drain", "--once", "--outbox", &url], 4, "give a token with --token")]);
    let file = dir.path().join("notes.txt");
    std::fs::write(&file, "no database, but long enough to be looked at as one: ".repeat(40)).expect("written");
    let url = format!("sqlite:{}", file.display());
    check(&hub, &[(&["outbox", "list", "--outbox", &url], 1, "the service's own database")]);
}

#[test]
fn a_drain_that_reached_no_hub_reports_what_is_left_and_a_long_key_does_not_make_every_row_wide() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("shop.db");
    let url = format!("sqlite:{}", path.display());
    let mut shop = rusqlite::Connection::open(&path).expect("opened");
    let outbox = SqliteOutbox::open(&path).expect("an outbox");
    let tx = shop.transaction().expect("begun");
    let key = "k".repeat(1_000);
    outbox.add(&tx, &NewRow::new("a", &1).expect("a row").key(&key)).expect("added");
    outbox.add(&tx, &NewRow::new("a", &2).expect("a row")).expect("added");
    outbox.commit(tx).expect("committed");
    for signal in [Signal::TERM, Signal::INT] {
        let mut drain = binary(&[])
            .args(["outbox", "drain", "--json", "--outbox", &url, "--server", "ws://127.0.0.1:1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut said = BufReader::new(drain.stderr.take().expect("stderr")).lines();
        assert!(said.any(|line| line.is_ok_and(|line| line.contains("trying again"))));
        kill_process(Pid::from_child(&drain), signal).expect("signalled");
        let output = drain.wait_with_output().expect("ended");
        assert_eq!(output.status.code(), Some(0), "{signal:?}");
        let told = json_lines(&String::from_utf8_lossy(&output.stdout)).pop().expect("a report");
        assert_eq!((&told["sent"], &told["left"]["pending"]), (&0.into(), &2.into()), "{told}");
    }
    let listed = |json: &[&str]| {
        let args = ["outbox", "list", "--status", "all", "--outbox", &url];
        let output = binary(&[]).args(args).args(json).output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let widest = listed(&[]).lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|widest| (80..200).contains(&widest)), "{}", listed(&[]));
    assert_eq!(json_lines(&listed(&["--json"]))[0]["key"], key.as_str());
}

#[test]
fn a_log_that_cannot_be_written_does_not_keep_an_outbox_from_being_drained() {
    // The first row is larger than the hub takes: it is parked, and that is said in the log.
    let hub = Hub::start(&[("PROMETHEAN_MAX_EVENT_BYTES", "1KiB")]);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("shop.db");
    let outbox = SqliteOutbox::open(&path).expect("an outbox");
    let mut shop = rusqlite::Connection::open(&path).expect("the same file");
    let tx = shop.transaction().expect("a transaction");
    for payload in ["x".repeat(5_000), "small".to_owned()] {
        outbox.add(&tx, &NewRow::new("a", &payload).expect("a row")).expect("added");
    }
    outbox.commit(tx).expect("committed");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full disk");
    let url = format!("sqlite:{}", path.display());
    let drained = binary(&[("PROMETHEAN_SERVER", &hub.ws)])
        .args(["outbox", "drain", "--once", "--json", "--outbox", &url])
        .stderr(full)
        .output()
        .expect("it runs");
    assert_eq!(drained.status.code(), Some(1), "a row is parked");
    let told = json_lines(&String::from_utf8_lossy(&drained.stdout)).remove(0);
    assert_eq!((&told["sent"], &told["parked"]), (&1.into(), &1.into()), "{told}");
}

#[test]
fn an_import_names_the_line_and_a_file_that_is_not_there() {
    let hub = Hub::start(&[]);
    check(&hub, &[(&["import", "/no/such/file"], 1, "/no/such/file"), (&["export", "a b"], 2, "bad_topic")]);
    let (code, said) = hub.exit_with(&["import"], "\n{\"n\":1}\n");
    assert_eq!((code, said.contains("line 2") && said.contains("pub --ndjson")), (2, true), "{said}");
    assert_eq!(json_lines(&hub.ok(&["import", "--json"], ""))[0]["events"], 0, "nothing to do is done");
}

#[test]
fn a_token_that_has_expired_already_is_not_made() {
    for ttl in ["0s", "900ms"] {
        let output = binary(&[]).args(["token", "--secret", "s", "--scope", "publish:a", "--ttl", ttl]).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.contains("--ttl"), output.stdout.len()), (Some(2), true, 0), "{said}");
    }
}

#[test]
fn a_demo_ends_in_order_and_refuses_what_serve_refuses() {
    let memory = ["demo", "--store", "memory", "--ws-port", "0", "--http-port", "0", "--ops-port", "0"];
    let mut demo = binary(&[]).args(memory).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
    let mut lines = BufReader::new(demo.stdout.take().expect("stdout")).lines();
    assert!(lines.next().expect("a line").expect("text").starts_with("promethean ready "));
    assert!(lines.next().expect("a line").expect("text").contains("/demo"));
    kill_process(Pid::from_child(&demo), Signal::INT).expect("signalled");
    assert_eq!(demo.wait().expect("ended").code(), Some(0));
    for args in [&["demo", "--ws-port", "x"][..], &["demo", "--bind", "0.0.0.0"], &["demo", "--store", "none"]] {
        assert_eq!(binary(&[]).args(args).output().expect("it runs").status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_the_end_and_no_failure() {
    let hub = Hub::start(&[]);
    let dir = tempfile::tempdir().expect("a directory");
    let outbox = format!("sqlite:{}", dir.path().join("shop.db").display());
    std::fs::write(dir.path().join("shop.db"), "").expect("written");
    hub.ok(&["pub", "a", "1"], "");
    for args in [
        &["config", "default"][..],
        &["config", "show"],
        &["config", "show", "--json"],
        &["man"],
        &["completions", "bash"],
        &["token", "--secret", "s", "--scope", "publish:a"],
        &["topic", "list"],
        &["replay", "a"],
        &["export", "a"],
        &["health"],
        &["bench", "publish", "--events", "1"],
        // A verdict counts also where nobody reads the report.
        &["bench", "publish", "--events", "1", "--min-rate", "1e15"],
        &["outbox", "drain", "--once", "--json", "--outbox", &outbox],
        &["outbox", "retry", "--all", "--outbox", &outbox],
        &["outbox", "list", "--status", "all", "--outbox", &outbox],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command =
            binary(&[("PROMETHEAN_SERVER", &hub.ws), ("PROMETHEAN_HTTP", &hub.http), ("PROMETHEAN_OPS", &hub.ops)]);
        let output =
            command.env("HOME", "/").args(args).stdout(writer).stderr(Stdio::piped()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let verdict = if args.contains(&"--min-rate") { 1 } else { 0 };
        assert_eq!((output.status.code(), said.contains("panicked")), (Some(verdict), false), "{args:?}: {said}");
    }
}

#[test]
fn a_key_that_there_is_not_is_5_with_json_too() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1", "--key", "k"], "");
    for (keys, printed) in [(&["--key", "nope"][..], "null\n"), (&["--key", "k", "--key", "nope"], "\"nope\":null")] {
        for json in [&["--json"][..], &[]] {
            let output = hub.run(&[&["topic", "latest", "a"], keys, json].concat(), "");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((output.status.code(), said.contains("with the key nope")), (Some(5), true), "{keys:?}: {said}");
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(json.is_empty() || shown.contains(printed), "{keys:?}: {shown}");
        }
    }
    assert_eq!(hub.ok(&["topic", "latest", "a", "--key", "k", "--json"], "").lines().count(), 1);
}

#[test]
fn who_is_denied_is_told_how_to_give_a_token_over_websocket_as_over_http() {
    let hub = Hub::start(&[("WS_TOKEN", "sesame")]);
    for args in [&["pub", "a", "1"][..], &["tail", "a"], &["sub", "a", "--group", "g"], &["topic", "list"]] {
        for token in [&[][..], &["--token", "wrong"]] {
            let (code, said) = hub.exit(&[args, token].concat());
            assert_eq!(code, 4, "{args:?}: {said}");
            assert!(said.contains("--token, PROMETHEAN_TOKEN or promethean context set"), "{args:?}: {said}");
        }
    }
}

#[test]
fn a_certificate_that_is_not_trusted_is_said_with_the_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let hub = Hub::start(&[("PROMETHEAN_TLS_CERT", &cert), ("PROMETHEAN_TLS_KEY", &key)]);
    let server = hub.ops.replace("http://127.0.0.1", "https://localhost");
    for args in [&["health"][..], &["pub", "a", "1"]] {
        let (code, said) = hub.exit(&[args, &["--server", &server]].concat());
        assert_eq!(code, 3, "{args:?}: {said}");
        assert!(said.contains("SSL_CERT_FILE") && !said.contains("is the hub running"), "{args:?}: {said}");
    }
}

#[test]
fn json_and_dry_runs_go_together() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1"], "");
    hub.ok(&["sub", "a", "--group", "g", "--from", "earliest", "--count", "1"], "");
    let told = json_lines(&hub.ok(&["group", "forget", "a", "g", "--json"], "")).remove(0);
    assert_eq!((&told["forgotten"], &told["dryRun"], &told["seq"]), (&false.into(), &true.into(), &1.into()), "{told}");
    let told = json_lines(&hub.ok(&["group", "seek", "a", "g", "--from", "earliest", "--json"], "")).remove(0);
    assert_eq!((&told["dryRun"], &told["again"]), (&true.into(), &1.into()), "{told}");
    let told = json_lines(&hub.ok(&["group", "forget", "a", "g", "--yes", "--json"], "")).remove(0);
    assert_eq!(told["forgotten"], true);
}

#[test]
fn who_names_a_port_that_does_not_know_the_question_is_told_which_one_does() {
    let hub = Hub::start(&[]);
    let http = hub.http.clone();
    for args in TALKING.iter().filter(|args| !matches!(args[0], "import" | "bench")) {
        let (code, said) = hub.exit(&[args, &["--server", &http][..]].concat());
        if code != 0 && !said.contains("unknown_id") {
            assert_eq!(code, 2, "{args:?}: {said}");
            assert!(said.contains("ops address (8082)"), "{args:?}: {said}");
        }
    }
    let (code, said) = hub.exit(&["group", "list", "--server", &http]);
    assert!(code == 2 && said.contains("no such route"), "{code}: {said}");
    let (code, said) = hub.exit(&["pub", "a", "1", "--server", &http]);
    assert!(code == 2 && said.contains("404"), "{code}: {said}");
}
