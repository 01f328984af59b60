//! `promethean bench`: what it sends, what it reports, and how it ends where the hub does not play along.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use super::{Hub, json_lines};

fn bench(hub: &Hub, args: &[&str]) -> Value {
    json_lines(&hub.ok(&[&["bench", "--json"], args].concat(), "")).remove(0)
}

/// The next frame of a client: its kind and its bytes.
fn frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut length = [0; 2];
            stream.read_exact(&mut length).ok()?;
            usize::from(u16::from_be_bytes(length))
        }
        short => usize::from(short),
    };
    let (mut mask, mut bytes) = ([0; 4], vec![0; length]);
    stream.read_exact(&mut mask).ok()?;
    stream.read_exact(&mut bytes).ok()?;
    bytes.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Some((head[0], bytes))
}

fn send(stream: &mut TcpStream, kind: u8, bytes: &[u8]) {
    let head = match u8::try_from(bytes.len()).ok().filter(|length| *length < 126) {
        Some(length) => vec![kind, length],
        None => [&[kind, 126][..], &(bytes.len() as u16).to_be_bytes()].concat(),
    };
    // One that has what it wanted goes away.
    let _ = stream.write_all(&[&head, bytes].concat());
}

/// A hub that pings each client and answers nothing before the pong. A subscription gets one event.
fn pinging(mut stream: TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        request.push(byte[0]);
    }
    stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").expect("answered");
    send(&mut stream, 0x89, b"are you there?");
    let (mut waiting, mut alive) = (Vec::new(), false);
    while let Some((kind, bytes)) = frame(&mut stream) {
        if kind == 0x8a {
            assert_eq!(bytes, b"are you there?", "a pong says what the ping said");
            alive = true;
        } else {
            waiting.push(String::from_utf8(bytes).expect("text"));
        }
        for text in waiting.extract_if(.., |_| alive) {
            send(&mut stream, 0x81, br#"{"op":"OK"}"#);
            if text.contains("SUBSCRIBE") {
                let event = r#"{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","payload":{"t":1000000000000001}}"#;
                let event = format!(r#"{{"op":"EVENTS","topic":"t","group":"g","events":[{{"event":{event}}}]}}"#);
                send(&mut stream, 0x81, event.as_bytes());
            }
        }
    }
}

#[test]
fn a_bench_answers_pings_as_a_hub_closes_a_connection_that_does_not() {
    let hub = Hub::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("ws://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || pinging(stream));
        }
    });
    for mode in [&["publish"][..], &["subscribe"], &["e2e"]] {
        let told = bench(&hub, &[mode, &["--events", "1", "--server", &server]].concat());
        assert_eq!(told["events"], 1, "{mode:?}: {told}");
    }
}
