//! What is broken off in the middle: after SIGINT every command that talks to a hub ends with 130 and leaves nothing half made;
//! an answer that was cut off is no answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::exits::TALKING;
use super::{Hub, PATIENCE, ended};

/// A hub that takes connections and says nothing.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("an address"));
    (listener, server)
}

/// A connection whose request was sent; its answer is `answer`.
fn answered(listener: &TcpListener, answer: &str) -> TcpStream {
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        request.push(byte[0]);
    }
    stream.write_all(answer.as_bytes()).expect("answered");
    stream
}

#[test]
fn every_command_that_talks_to_a_hub_ends_with_130() {
    let hub = Hub::start(&[]);
    let (listener, server) = silent();
    for (args, signal) in TALKING.iter().zip([Signal::INT, Signal::TERM, Signal::HUP].iter().cycle()) {
        let child = hub.spawn(&[args, &["--server", &server][..]].concat());
        let connected = listener.accept().expect("a connection");
        kill_process(Pid::from_child(&child), *signal).expect("signalled");
        assert_eq!(ended(child), Some(130), "{args:?}");
        drop(connected);
    }
}

#[test]
fn a_backup_that_is_interrupted_leaves_no_file() {
    let hub = Hub::start(&[]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("hub.backup").display().to_string();
    let (listener, server) = silent();
    let child = hub.spawn(&["backup", &file, "--server", &server]);
    let begun = answered(&listener, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let partial = dir.path().join("hub.backup.partial");
    let start = Instant::now();
    while !partial.exists() {
        assert!(start.elapsed() < PATIENCE, "it is not written");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("signalled");
    assert_eq!(ended(child), Some(130));
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0, "nothing is left");
    drop(begun);
}

#[test]
fn a_restore_that_is_interrupted_says_what_to_delete() {
    let hub = Hub::start(&[]);
    hub.ok(&["pub", "a", "--ndjson"], &"1\n".repeat(1_000));
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    hub.ok(&["backup", &path("hub.backup")], "");
    let whole = std::fs::read(path("hub.backup")).expect("read");
    let mut child = hub.spawn(&["restore", "-", &path("data")]);
    let mut input = child.stdin.take().expect("stdin");
    input.write_all(&whole[..whole.len() - 1]).expect("written");
    let start = Instant::now();
    while !dir.path().join("data/ids").exists() {
        assert!(start.elapsed() < PATIENCE, "nothing is restored");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("signalled");
    let output = child.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains(&format!("delete {} before another try", path("data"))), "{said}");
}

#[test]
fn an_answer_that_is_cut_off_is_no_answer() {
    let hub = Hub::start(&[]);
    let (listener, server) = silent();
    for (args, head) in [
        (&["topic", "list", "--json"][..], "content-length: 500"),
        (&["group", "list", "--json"], "content-length: 500"),
        (&["export", "a"], "content-length: 500"),
        (&["topic", "list", "--json"], "transfer-encoding: chunked"),
    ] {
        let child = hub.spawn(&[args, &["--server", &server][..]].concat());
        let body = "17\r\n{\"topics\":[{\"topic\":\"a\"\n";
        let body = if head.starts_with('t') { body } else { &body[4..] };
        drop(answered(&listener, &format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}")));
        let output = child.wait_with_output().expect("ended");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{args:?}: {said}");
        assert!(said.contains("cut off") || said.contains("end of file"), "{args:?}: {said}");
        if args[0] != "export" {
            assert_eq!(output.stdout, b"", "{args:?}");
        }
    }
}
