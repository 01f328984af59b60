//! Every `make` of every page, run: a test program of its own, because the targets take the whole machine.
//!
//! `SHORT=1` makes them short: the dev build that the tests have made, and as little work as shows that the target works
//! (the Makefile says what that is for each). `make test` and `make check` are what runs these tests, so they are only
//! asked what they would do.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use promethean_e2e::transcript::blocks;
use promethean_e2e::{get, request};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// The repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// A target may compile something, on a machine that is slow.
const PATIENCE: Duration = Duration::from_secs(900);

/// What a target says when it has done its work, beside the exit code 0.
const SAYS: [(&str, &[&str]); 4] = [
    (
        "bench",
        &[
            "end to end, batches of 500",
            "end to end with sync = always",
            "snapshot start of 100 k keys",
            "outbox in SQLite",
            "bare:",
            "wake-up",
            "commands for 40 claims",
        ],
    ),
    ("bench-compare", &["a short run"]),
    ("torture", &["nothing lost", "test result: ok. "]),
    ("fuzz", &["fuzz: frame", "fuzz: codec", "fuzz: pattern", "fuzz: jwt", "stat::number_of_executed_units"]),
];

/// The lines of all pages that begin with `make`: the page, the line's number, the command without its remark.
fn lines() -> Vec<(String, usize, String)> {
    let listed = Command::new("git").args(["ls-files", "--", "*.md"]).current_dir(ROOT).output().expect("git runs");
    let mut found = Vec::new();
    for page in String::from_utf8(listed.stdout).expect("text").lines() {
        let text =
            std::fs::read_to_string(Path::new(ROOT).join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        for (first, block) in ["sh", ""].iter().flat_map(|fence| blocks(&text, fence)) {
            for (line, command) in (first..).zip(block.lines()).filter(|(_, line)| line.starts_with("make ")) {
                let command = command.split(" # ").next().unwrap_or_default().trim_end();
                found.push((page.to_owned(), line, command.to_owned()));
            }
        }
    }
    found
}

fn target(command: &str) -> &str {
    command.split_whitespace().nth(1).unwrap_or_default()
}

/// A shell in the repository, with nothing of the `make` and the `cargo` that run this test.
fn shell(command: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).current_dir(ROOT).stdin(Stdio::null()).process_group(0);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let kept = ["CARGO_HOME", "CARGO_TARGET_DIR"].contains(&name.as_str()) || name.starts_with("CARGO_NET_");
        if name.starts_with("MAKE") || name == "MFLAGS" || (name.starts_with("CARGO") && !kept) {
            shell.env_remove(&name);
        }
    }
    shell
}

/// Runs a line to its end. What it said, when it failed or left out what it has to say.
fn run(command: &str, dir: &Path) -> Result<(), String> {
    let said = dir.join("said");
    let file = File::create(&said).expect("a file");
    let mut shell = shell(&format!("{command} SHORT=1"));
    shell.stdout(file.try_clone().expect("a handle")).stderr(file);
    let mut child = shell.spawn().expect("bash starts");
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("waitable") {
            break status.to_string() + if status.success() { "" } else { ", which is a failure" };
        }
        if started.elapsed() > PATIENCE {
            end(&child, Signal::KILL);
            let _ = child.wait();
            break "it did not end".into();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    println!("{command}: {status} after {:.0} s", started.elapsed().as_secs_f64());
    let said = String::from_utf8_lossy(&std::fs::read(&said).expect("readable")).into_owned();
    let (_, says) = SAYS.iter().find(|(name, _)| *name == target(command)).expect("asserted before");
    let left_out: Vec<_> = says.iter().filter(|text| !said.contains(**text)).collect();
    let fine = status == "exit status: 0" && left_out.is_empty();
    if fine { Ok(()) } else { Err(format!("{status}; {left_out:?} is missing from what it said:\n{said}")) }
}

fn end(child: &Child, signal: Signal) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = group.map(|group| kill_process_group(group, signal));
}

#[test]
fn every_make_of_every_page_works() {
    let lines = lines();
    let of_itself = ["run", "test", "check"];
    for name in of_itself.iter().chain(SAYS.iter().map(|(name, _)| name)) {
        assert!(lines.iter().any(|(_, _, line)| target(line) == *name), "no page says make {name}: {lines:?}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut wrong = Vec::new();
    for (page, line, command) in lines.iter().filter(|(_, _, line)| !of_itself.contains(&target(line))) {
        assert!(SAYS.iter().any(|(name, _)| *name == target(command)), "{page}:{line}: nobody runs {command:?}");
        wrong.extend(run(command, dir.path()).err().map(|why| format!("{page}:{line}: {command}\n{why}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// `make run` of the README: the hub answers, keeps what it said `OK` to over a second start, and ends when it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn make_run_starts_a_hub_that_answers() {
    let said = lines().into_iter().find(|(page, _, line)| page == "README.md" && target(line) == "run");
    let (_, _, command) = said.expect("the README says make run");
    let dir = tempfile::tempdir().expect("a directory");
    for round in 1..=2 {
        let mut shell = shell(&format!("{command} SHORT=1"));
        shell.env("PROMETHEAN_DATA_DIR", dir.path()).env_remove("MONGO_URL").stdout(Stdio::piped());
        for port in ["WS_PORT", "HTTP_PORT", "OPS_PORT"] {
            shell.env(port, "0");
        }
        let mut child = shell.spawn().expect("bash starts");
        // Make says its commands first.
        let printed = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let ready = printed.into_iter().find(|line| line.contains(" http=")).expect("the line of a hub that is ready");
        let http = ready.split(' ').find_map(|word| word.strip_prefix("http=")?.parse().ok()).expect("an address");
        let event = json!({"round": round}).to_string();
        assert_eq!(
            request(http, "POST", "/publish/made", &[("content-type", "application/json")], event.as_bytes())
                .await
                .status,
            200
        );
        let events: Value = get(http, "/replay?topic=made&from=earliest").await.json();
        assert_eq!(events["events"].as_array().map(Vec::len), Some(round), "{events}");
        end(&child, Signal::TERM);
        child.wait().expect("waitable");
    }
}

/// What runs these tests is `make test`; that it also does all of `make check` is not left to chance.
#[test]
fn make_check_is_a_part_of_make_test() {
    let plan = |name: &str| {
        let plan = shell(&format!("make --dry-run --no-print-directory {name}")).output().expect("make runs");
        assert!(plan.status.success(), "{plan:?}");
        String::from_utf8(plan.stdout).expect("text").lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (all, quick) = (plan("test"), plan("check"));
    assert!(quick.iter().any(|line| line.contains("clippy")) && quick.iter().any(|line| line.contains("test")));
    let missing: Vec<_> = quick.iter().filter(|line| !all.contains(line)).collect();
    assert!(missing.is_empty(), "make test leaves out {missing:?}");
}
