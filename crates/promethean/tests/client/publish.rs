//! `promethean pub` with one event a line.

use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use super::{Hub, PATIENCE, ended};

#[test]
fn ndjson_goes_out_in_frames_that_the_hub_takes() {
    // 5 MB of lines, each of which the hub takes: in one frame they would be closed with 1009, and sent again, for ever.
    let hub = Hub::start(&[("PROMETHEAN_MAX_FRAME_BYTES", "3MiB")]);
    let lines = format!("\"{}\"\n", "x".repeat(500_000)).repeat(10);
    let printed = hub.ok(&["pub", "a", "--ndjson", "--timeout", "30s"], &lines);
    let seqs: Vec<_> = printed.lines().map(|line| line.split(' ').nth(1).expect("a seq").to_owned()).collect();
    assert_eq!(seqs, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
}

#[test]
fn ndjson_of_a_live_pipe_is_published_as_it_comes_and_an_interrupt_ends_it() {
    let hub = Hub::start(&[]);
    let mut live = hub.spawn(&["pub", "a", "--ndjson"]);
    let mut input = live.stdin.take().expect("stdin");
    let (sender, printed) = mpsc::channel();
    let lines = BufReader::new(live.stdout.take().expect("stdout")).lines();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    // The pipe stays open: no line waits for the next one.
    for n in 1..=3 {
        writeln!(input, "{n}\n").expect("written");
        let line = printed.recv_timeout(PATIENCE).expect("published before the input ends");
        assert!(line.ends_with(&format!(" {n}")), "{line}");
    }
    // Half a line waits for its end.
    input.write_all(b"{\"half\":").expect("written");
    assert_eq!(hub.ok(&["replay", "a"], "").lines().count(), 3);
    kill_process(Pid::from_child(&live), Signal::INT).expect("signalled");
    assert_eq!(ended(live), Some(130));
}

#[test]
fn the_time_counts_while_input_is_waited_for() {
    let hub = Hub::start(&[]);
    for args in [&["pub", "a", "--timeout", "300ms"][..], &["pub", "a", "--ndjson", "--timeout", "300ms"]] {
        let mut waiting = hub.spawn(args);
        let open = waiting.stdin.take();
        assert_eq!(ended(waiting), Some(124), "{args:?}");
        drop(open);
    }
}

#[test]
fn an_interrupt_ends_a_pub_that_waits_for_its_payload() {
    let hub = Hub::start(&[]);
    let mut waiting = hub.spawn(&["pub", "a"]);
    let open = waiting.stdin.take();
    // It listens to the signal when it has caught it: /proc says so.
    super::catches_interrupts(&waiting);
    kill_process(Pid::from_child(&waiting), Signal::INT).expect("signalled");
    assert_eq!(ended(waiting), Some(130));
    drop(open);
}

#[test]
fn a_line_that_is_no_json_is_named_with_what_went_before_it() {
    let hub = Hub::start(&[]);
    for bad in ["{", "\u{fffd}"] {
        let (code, said) = hub.exit_with(&["pub", "a", "--ndjson"], &format!("1\n\n2\n{bad}\n3\n"));
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("line 4 is no JSON") && said.contains("2 events before it were published"), "{said}");
    }
    assert_eq!(hub.ok(&["replay", "a"], "").lines().count(), 4);
}

#[test]
fn ndjson_is_published_to_its_end_though_nobody_reads_the_ids() {
    let hub = Hub::start(&[]);
    let mut child = hub.spawn(&["pub", "a", "--ndjson"]);
    drop(child.stdout.take());
    let mut input = child.stdin.take().expect("stdin");
    for n in 0..5_000 {
        writeln!(input, "{n}").expect("read to its end");
    }
    drop(input);
    let output = child.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("5000 events published"), "{said}");
    assert!(hub.ok(&["topic", "list", "--json"], "").contains("\"lastSeq\":5000"));
}

#[test]
fn ndjson_waits_for_a_quota_and_an_interrupt_tells_the_count() {
    let hub = Hub::start(&[("PROMETHEAN_TOPIC_RATE", "1000"), ("PROMETHEAN_TOPIC_BURST", "100")]);
    let lines: String = (0..400).map(|n| format!("{n}\n")).collect();
    assert_eq!(hub.ok(&["pub", "a", "--ndjson", "--timeout", "30s"], &lines).lines().count(), 400);
    let mut live = hub.spawn(&["pub", "b", "--ndjson"]);
    let mut input = live.stdin.take().expect("stdin");
    writeln!(input, "1").expect("written");
    let mut printed = BufReader::new(live.stdout.take().expect("stdout")).lines();
    printed.next().expect("published").expect("text");
    kill_process(Pid::from_child(&live), Signal::TERM).expect("signalled");
    let output = live.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.contains("1 events before it were published")), (Some(130), true), "{said}");
}
