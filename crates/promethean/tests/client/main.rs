//! The commands that talk to a running hub: data on stdout, talk on stderr, exit codes.

mod bench;
mod contexts;
mod copies;
mod exits;
mod interrupts;
mod operate;
mod publish;
mod snapshot_tail;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A hub on free ports, gone with the test.
struct Hub {
    child: Child,
    ws: String,
    http: String,
    ops: String,
    /// Kept open, so that the hub may write.
    _stdout: BufReader<ChildStdout>,
}

impl Hub {
    fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_at(variables, "0")
    }

    fn start_at(variables: &[(&str, &str)], ws_port: &str) -> Self {
        let mut child = binary(variables)
            .args(["serve", "--store", "memory", "--ws-port", ws_port, "--http-port", "0", "--ops-port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the hub runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let mut ready = String::new();
        stdout.read_line(&mut ready).expect("a line");
        let field = |name: &str| ready.split(' ').find_map(|word| word.strip_prefix(name)).expect(name).to_owned();
        let ws = format!("ws://{}", field("ws="));
        let (http, ops) = (format!("http://{}", field("http=")), format!("http://{}", field("ops=").trim_end()));
        Self { child, ws, http, ops, _stdout: stdout }
    }

    /// Runs a command against this hub.
    fn run(&self, args: &[&str], input: &str) -> Output {
        let mut child = self.spawn(args);
        let mut stdin = child.stdin.take().expect("stdin");
        // One that refuses its arguments reads nothing.
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().expect("ended");
        let _ = writer.join().expect("written");
        output
    }

    fn spawn(&self, args: &[&str]) -> Child {
        binary(&[("PROMETHEAN_SERVER", &self.ws), ("PROMETHEAN_HTTP", &self.http), ("PROMETHEAN_OPS", &self.ops)])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs")
    }

    fn ok(&self, args: &[&str], input: &str) -> String {
        let output = self.run(args, input);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn exit(&self, args: &[&str]) -> (i32, String) {
        self.exit_with(args, "")
    }

    /// The body of a GET of the HTTP port, as it is.
    fn get(&self, path: &str) -> String {
        let address = self.http.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).expect("connected");
        write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    fn exit_with(&self, args: &[&str], input: &str) -> (i32, String) {
        let output = self.run(args, input);
        (output.status.code().expect("a code"), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command, which hears SIGHUP also where the tests run under nohup.
fn binary(variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_promethean")])
        .env_clear()
        .envs(variables.iter().copied())
        .current_dir(std::env::temp_dir());
    command
}

/// The exit code of a command that ends by itself, or by now.
fn ended(mut child: Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("it did not end");
}

/// Waits until a command hears SIGINT.
fn catches_interrupts(child: &Child) {
    let start = Instant::now();
    let caught = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default().trim().to_owned();
        u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & 0b10 != 0)
    };
    while !caught() {
        assert!(start.elapsed() < PATIENCE, "SIGINT is not caught");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn what_pub_publishes_sub_prints_once_and_acks() {
    let hub = Hub::start(&[]);
    let id = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    let args = ["pub", "a.b", r#"{"n": 1.50}"#, "--key", "k", "--tag", "t", "--header", "x-a=b=c", "--id", id];
    assert_eq!(hub.ok(&args, ""), format!("{id} 1\n"));
    assert_eq!(hub.ok(&args, ""), format!("{id} 1 duplicate\n"));
    assert_eq!(json_lines(&hub.ok(&["pub", "a.b", "--json"], "[2]\n"))[0]["seq"], 2);

    let sub = ["sub", "a.b", "--group", "g", "--from", "earliest", "--count", "2", "--json"];
    let printed = hub.ok(&sub, "");
    assert!(printed.contains(r#""payload":{"n": 1.50}}"#), "{printed}");
    let events = json_lines(&printed);
    assert_eq!(
        (&events[0]["headers"]["x-a"], &events[0]["tags"][0], &events[1]["payload"][0]),
        (&"b=c".into(), &"t".into(), &2.into())
    );
    let (code, said) = hub.exit(&["sub", "a.b", "--group", "g", "--from", "earliest", "--timeout", "300ms"]);
    assert_eq!(code, 124, "everything was acked: {said}");
}

#[test]
fn sub_no_ack_shows_events_and_leaves_them_to_the_group() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1"], "");
    let look = ["sub", "a", "--group", "g", "--from", "earliest", "--count", "1"];
    // More often than an event is tried: looking does not count.
    for _ in 0..6 {
        assert!(hub.ok(&[&look[..], &["--no-ack"]].concat(), "").ends_with("a#1 1\n"));
    }
    assert!(hub.ok(&look, "").ends_with("a#1 1\n"));
    let (code, said) = hub.exit(&["sub", "a", "--group", "g", "--timeout", "300ms"]);
    assert_eq!(code, 124, "the last one acked it: {said}");
}

#[test]
fn sub_count_leaves_the_other_events_as_they_were() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "--ndjson"], "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
    let sub = ["sub", "a", "--group", "g", "--from", "earliest", "--timeout", "10s", "--count"];
    let take = |count| hub.ok(&[&sub[..], &[count]].concat(), "");
    // More often than an event is tried.
    for n in 1..=6 {
        assert!(take("1").ends_with(&format!("a#{n} {n}\n")));
    }
    assert_eq!(take("4").lines().count(), 4);
    assert_eq!(hub.ok(&["dlq", "list", "--json"], ""), "{\"topics\":[]}\n", "no dead letters");
}

#[test]
fn sub_no_ack_leaves_events_as_they_were_however_it_ends() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "--ndjson"], "1\n2\n3\n");
    let look = ["sub", "a", "--group", "g", "--from", "earliest", "--no-ack"];
    // Each more often than an event is tried.
    for _ in 0..6 {
        let (code, said) = hub.exit(&[&look[..], &["--timeout", "100ms"]].concat());
        assert_eq!(code, 124, "{said}");

        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let mut interrupted = hub.spawn(&look);
            let mut printed = BufReader::new(interrupted.stdout.take().expect("stdout")).lines();
            assert!(printed.next().expect("a line").expect("text").ends_with("a#1 1"));
            kill_process(Pid::from_child(&interrupted), signal).expect("signalled");
            assert_eq!(interrupted.wait().expect("ended").code(), Some(130));
        }

        let mut unread = hub.spawn(&look);
        drop(unread.stdout.take());
        assert_eq!(unread.wait().expect("ended").code(), Some(0));
    }
    assert_eq!(hub.ok(&["sub", "a", "--group", "g", "--count", "3", "--timeout", "10s"], "").lines().count(), 3);
    assert_eq!(hub.ok(&["dlq", "list", "--json"], ""), "{\"topics\":[]}\n", "no dead letters");
}

#[test]
fn sub_no_ack_makes_no_dead_letters_where_it_cannot_say_goodbye() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "1"], "");
    let look = ["sub", "a", "--group", "g", "--from", "earliest", "--no-ack"];
    for _ in 0..7 {
        let mut killed = hub.spawn(&look);
        let mut printed = BufReader::new(killed.stdout.take().expect("stdout")).lines();
        assert!(printed.next().expect("a line").expect("text").ends_with("a#1 1"));
        killed.kill().expect("killed");
        killed.wait().expect("ended");
    }
    assert_eq!(hub.ok(&["dlq", "list", "--json"], ""), "{\"topics\":[]}\n", "no dead letters");
    // A group whose members have a limit keeps it.
    let mut member = hub.spawn(&["sub", "b", "--group", "g"]);
    let mut said = BufReader::new(member.stderr.take().expect("stderr")).lines();
    assert!(said.any(|line| line.is_ok_and(|line| line.contains("subscribed"))));
    let (code, said) = hub.exit(&["sub", "b", "--group", "g", "--no-ack", "--timeout", "100ms"]);
    assert_eq!(code, 124, "{said}");
    member.kill().expect("killed");
    member.wait().expect("ended");
}

#[test]
fn a_signal_ends_sub_and_tail_while_nobody_reads_what_they_print() {
    let hub = Hub::start(&[]);
    let large = format!("\"{}\"\n", "x".repeat(1_000)).repeat(1_000);
    hub.ok(&["pub", "a", "--ndjson"], &large);
    for args in [&["sub", "a", "--group", "g", "--from", "earliest"][..], &["tail", "a", "--from", "earliest"]] {
        let mut blocked = hub.spawn(args);
        let mut said = BufReader::new(blocked.stderr.take().expect("stderr")).lines();
        assert!(said.any(|line| line.is_ok_and(|line| line.contains("subscribed"))));
        // Until the pipe is full it prints.
        let start = Instant::now();
        let written = || {
            let io = std::fs::read_to_string(format!("/proc/{}/io", blocked.id())).expect("its counts");
            io.lines().find_map(|line| line.strip_prefix("wchar: ")).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        while written() < 48 * 1024 {
            assert!(start.elapsed() < PATIENCE, "it prints");
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(Pid::from_child(&blocked), Signal::INT).expect("signalled");
        assert_eq!(ended(blocked), Some(130), "{args:?}");
    }
}

#[test]
fn sub_no_ack_holds_as_many_as_it_is_to_show() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "--ndjson"], &"1\n".repeat(200));
    let look = ["sub", "a", "--group", "g", "--from", "earliest", "--no-ack", "--timeout", "10s", "--count"];
    assert_eq!(hub.ok(&[&look[..], &["200"]].concat(), "").lines().count(), 200);
    let (code, said) = hub.exit(&[&look[..], &["10001"]].concat());
    assert_eq!((code, said.contains("--count")), (2, true), "{said}");
}

#[test]
fn ndjson_is_one_event_a_line_and_export_and_replay_give_it_back() {
    let hub = Hub::start(&[]);
    let lines: String = (0..1_200).map(|n| format!("{{\"n\":{n}}}\n\n")).collect();
    let answers = hub.ok(&["pub", "a", "--ndjson", "--json"], &lines);
    assert_eq!(
        json_lines(&answers).iter().map(|one| one["seq"].as_u64()).collect::<Vec<_>>(),
        (1..=1_200).map(Some).collect::<Vec<_>>()
    );

    let exported = json_lines(&hub.ok(&["export", "a"], ""));
    assert_eq!((exported.len(), &exported[1_199]["payload"]["n"]), (1_200, &1_199.into()));
    let replayed = json_lines(&hub.ok(&["replay", "a", "--limit", "3", "--json"], ""));
    assert_eq!((replayed.len(), &replayed[2]["seq"]), (3, &3.into()));
    let after = replayed[2]["id"].as_str().expect("an id");
    assert_eq!(json_lines(&hub.ok(&["replay", "a", "--from", after, "--limit", "1", "--json"], ""))[0]["seq"], 4);
    let shown = hub.ok(&["replay", "a", "--limit", "1"], "");
    assert!(shown.ends_with("Z a#1 {\"n\":0}\n"), "{shown}");
}

#[test]
fn tail_shows_what_comes_and_an_interrupt_ends_it_with_130() {
    let hub = Hub::start(&[]);
    let mut tail = hub.spawn(&["tail", "a.*", "--json"]);
    let mut talk = BufReader::new(tail.stderr.take().expect("stderr"));
    let mut line = String::new();
    talk.read_line(&mut line).expect("a line");
    assert_eq!(line, "subscribed to a.*\n");
    hub.ok(&["pub", "a.x", "1"], "");
    let mut out = BufReader::new(tail.stdout.take().expect("stdout"));
    let mut event = String::new();
    out.read_line(&mut event).expect("a line");
    assert_eq!(json_lines(&event)[0]["topic"], "a.x");
    kill_process(Pid::from_child(&tail), Signal::INT).expect("signalled");
    assert_eq!(tail.wait().expect("ended").code(), Some(130));
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "");
}

#[test]
fn exit_codes_tell_scripts_what_went_wrong() {
    let hub = Hub::start(&[]);
    for (args, code, said) in [
        (vec!["pub", "a", "not json"], 2, "no JSON"),
        (vec!["pub", "a/b", "1"], 2, "segments may hold only"),
        (vec!["pub", "a", "1", "--id", "x"], 2, "--id"),
        (vec!["pub", "a", "1", "--header", "x"], 2, "NAME=VALUE"),
        (vec!["pub", "a", "1", "--server", "ws://127.0.0.1:9"], 3, "cannot connect"),
        (vec!["replay", "a", "--server", "http://127.0.0.1:9"], 3, "127.0.0.1:9"),
        (vec!["sub", "a", "--group", "g", "--from", "nowhere"], 2, "--from"),
        (vec!["sub", "a", "--group", "g", "--from", "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"], 5, "unknown_id"),
        (vec!["tail", "a", "--timeout", "100ms"], 124, "nothing within"),
        (vec!["replay", "a", "--from", "latest"], 2, "--from"),
        (vec!["replay", "a b"], 2, "bad_topic"),
    ] {
        let (exit, talk) = hub.exit(&args);
        assert_eq!(exit, code, "{args:?}: {talk}");
        assert!(talk.contains(said), "{args:?}: {talk}");
    }
}

#[test]
fn a_wrong_token_is_denied_with_4_and_is_not_shown() {
    let hub = Hub::start(&[("WS_TOKEN", "sesame")]);
    for args in [["pub", "a", "1"], ["tail", "a", "--json"], ["replay", "a", "--json"], ["export", "a", "--timeout=9s"]]
    {
        let (code, said) = hub.exit(&[&args[..], &["--token", "canary-barley"]].concat());
        assert_eq!(code, 4, "{args:?}: {said}");
        assert!(!said.contains("canary"), "{said}");
    }
    assert_eq!(hub.ok(&["pub", "a", "1", "--token", "sesame", "--json"], "").lines().count(), 1);
    assert_eq!(hub.ok(&["export", "a", "--token", "sesame"], "").lines().count(), 1);
}
