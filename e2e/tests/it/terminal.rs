//! What people see on a terminal, and programs behind a pipe do not: hints, colours, progress. `script` (of Debian's
//! essential bsdutils) lends the terminal.

use std::process::Stdio;

use promethean_e2e::{Hub, Setup, Wire, binary, run};
use serde_json::json;

/// Runs a shell line on a terminal; what was to be seen there.
fn seen(line: &str, variables: &[(&str, &str)]) -> String {
    let mut script = std::process::Command::new("script");
    script.args(["-qec", line, "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm").env_remove("NO_COLOR");
    let output = script.envs(variables.iter().copied()).output().expect("`script`, of the package bsdutils");
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {seen}");
    seen
}

/// The line that runs the binary against a hub.
fn line(hub: &Hub, args: &str) -> String {
    format!("{} {args} --server http://{}", binary().display(), hub.ops)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_shows_the_next_step_in_colour_and_a_pipe_does_not() {
    let hub = Setup::memory().start();
    let commands = [
        ("health", "promethean topic list"),
        ("topic list", "promethean pub orders.created"),
        ("pub t 1", "promethean sub t --group NAME --from earliest"),
        ("topic list", "promethean group list"),
        ("topic show t", "promethean replay t"),
        ("topic set t --max-age 1d", "promethean topic show t"),
    ];
    for (args, next) in commands {
        let line = line(&hub, args);
        let coloured = seen(&line, &[]);
        assert!(coloured.contains(&format!("\x1b[2mnext: {next}")), "{args}: {coloured}");
        for plain in [seen(&line, &[("NO_COLOR", "1")]), seen(&line, &[("TERM", "dumb")])] {
            assert!(plain.contains(&format!("next: {next}")) && !plain.contains('\x1b'), "{args}: {plain}");
        }
        let server = format!("http://{}", hub.ops);
        let args: Vec<&str> = args.split(' ').chain(["--server", &server]).collect();
        let piped = run(&args);
        let said = String::from_utf8_lossy(&piped.stderr) + String::from_utf8_lossy(&piped.stdout);
        assert!(piped.status.success() && !said.contains("next:") && !said.contains('\x1b'), "{args:?}: {said}");
    }
    let nothing = seen(&line(&hub, "dlq list"), &[]);
    assert!(!nothing.contains("next:"), "where nothing is dead there is no next step: {nothing}");
    let table = seen(&line(&hub, "topic list"), &[]);
    assert!(table.contains("\x1b[1m"), "the headings of a table stand out: {table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_shows_a_bar_on_a_terminal_only_and_takes_it_away_again() {
    const EVENTS: usize = 30_000;
    let (hub, dir) = (Setup::memory().start(), tempfile::tempdir().expect("a directory"));
    let mut wire = Wire::connect(hub.ws).await;
    for _ in 0..EVENTS / 1_000 {
        let batch: Vec<_> = (0..1_000).map(|n| json!({"payload": {"n": n, "fill": "x".repeat(200)}})).collect();
        wire.ok(json!({"op": "PUBLISH", "topic": "t", "events": batch})).await;
    }
    let file = dir.path().join("t.ndjson").display().to_string();
    let other = Setup::memory().start();
    let lines = [
        ("bench publish --duration 1s --json", line(&hub, "bench publish --duration 1s --json")),
        ("export", format!("{} > {file}", line(&hub, "export t"))),
        ("import", line(&other, &format!("import {file}"))),
    ];
    for (name, line) in lines {
        let seen = seen(&line, &[]);
        assert!(seen.contains("/s, "), "{name} shows how fast it goes: {seen:?}");
        assert!(seen.contains("\r\x1b[2K"), "{name} takes its bar away: {seen:?}");
        // The same behind a pipe.
        let piped = std::process::Command::new("sh").args(["-c", &line]).env("TERM", "xterm").output().expect("ended");
        let said = String::from_utf8_lossy(&piped.stderr) + String::from_utf8_lossy(&piped.stdout);
        assert!(piped.status.success() && !said.contains('\x1b'), "{name}: {said}");
    }
    // A bar for the fill, then one for what two groups consume.
    let filled = seen(&line(&hub, "bench subscribe --events 20000 --groups 2 --json"), &[]);
    let [fill, both] = ["/20,000 events", "/40,000 events"].map(|length| filled.find(length));
    assert!(fill.is_some() && fill < both, "{filled:?}");
    let exported = std::fs::read_to_string(&file).expect("exported");
    assert_eq!(exported.lines().count(), EVENTS);
}
