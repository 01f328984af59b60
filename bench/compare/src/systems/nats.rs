//! NATS JetStream: the text protocol, a stream on files, a push consumer with explicit acks.
//!
//! Publishes ask for the stream's confirmation at one inbox. Acks have no answer of their own, so a `PING` follows each
//! burst of them: the server has taken them when its `PONG` is here.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use memchr::memchr;

use super::{Consumer, Publisher, failed};
use crate::server::{self, Server};
use crate::wire::Wire;

const INBOX: &str = "_INBOX.compare";

pub(super) fn start(program: &Path, dir: &Path, always: bool) -> io::Result<Server> {
    let port = server::free_port()?;
    let sync = if always { "sync_interval: always" } else { "" };
    let config = format!(
        "listen: 127.0.0.1:{port}\njetstream {{\nstore_dir: {:?}\nmax_file: 64GB\nmax_mem: 1GB\n{sync}\n}}\n",
        dir.join("jetstream")
    );
    let file = dir.join("nats.conf");
    std::fs::write(&file, config)?;
    let mut command = Command::new(program);
    command.arg("-c").arg(&file);
    server::start_at(command, SocketAddr::from(([127, 0, 0, 1], port)), dir)
}

/// One message of the server.
enum Op<'a> {
    Msg { reply: Option<&'a [u8]>, payload: &'a [u8] },
    Ping,
    Pong,
    Other,
}

/// The next whole message and its length.
fn next(bytes: &[u8]) -> io::Result<Option<(usize, Op<'_>)>> {
    let Some(end) = memchr(b'\n', bytes) else { return Ok(None) };
    let line = bytes[..end].trim_ascii_end();
    let op = match line {
        [b'M', b'S', b'G', b' ', rest @ ..] => {
            // subject, subscription, reply where there is one, size
            let mut words = rest.rsplitn(4, |byte| *byte == b' ');
            let size = words.next().and_then(|word| std::str::from_utf8(word).ok()?.parse::<usize>().ok());
            let size = size.ok_or_else(|| failed("not a message of NATS", line))?;
            let reply = words.next().filter(|_| words.nth(1).is_some());
            let start = end + 1;
            if bytes.len() < start + size + 2 {
                return Ok(None);
            }
            let op = Op::Msg { reply, payload: &bytes[start..start + size] };
            return Ok(Some((start + size + 2, op)));
        }
        b"PING" => Op::Ping,
        b"PONG" => Op::Pong,
        [b'-', ..] => return Err(failed("NATS says", line)),
        _ => Op::Other,
    };
    Ok(Some((end + 1, op)))
}

fn connect(address: SocketAddr) -> io::Result<Wire> {
    let mut wire = Wire::connect(address)?;
    wire.out.extend_from_slice(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":false,\"lang\":\"raw\",");
    wire.out.extend_from_slice(b"\"version\":\"0\",\"protocol\":1}\r\n");
    wire.out.extend_from_slice(b"PING\r\n");
    pong(&mut wire)?;
    Ok(wire)
}

fn pong(wire: &mut Wire) -> io::Result<()> {
    wire.ask(|bytes| memchr::memmem::find(bytes, b"PONG\r\n").map(|at| (at + 6, ())))
}

/// Asks JetStream's API.
fn api(wire: &mut Wire, subject: &str, body: &str) -> io::Result<()> {
    let inbox = "_INBOX.api";
    let request = format!("SUB {inbox} 9\r\nPUB $JS.API.{subject} {inbox} {}\r\n{body}\r\nUNSUB 9 1\r\n", body.len());
    wire.out.extend_from_slice(request.as_bytes());
    let answer = wire.ask(|bytes| {
        let mut used = 0;
        while let Ok(Some((length, op))) = next(&bytes[used..]) {
            used += length;
            if let Op::Msg { payload, .. } = op {
                return Some((used, payload.to_vec()));
            }
        }
        None
    })?;
    if memchr::memmem::find(&answer, b"\"error\"").is_some() {
        return Err(failed("JetStream refuses", &answer));
    }
    Ok(())
}

fn stream_of(topic: &str) -> String {
    topic.replace('.', "_")
}

pub(super) fn prepare(address: SocketAddr, topic: &str) -> io::Result<()> {
    let name = stream_of(topic);
    let body = format!(r#"{{"name":"{name}","subjects":["{topic}"],"storage":"file","num_replicas":1}}"#);
    api(&mut connect(address)?, &format!("STREAM.CREATE.{name}"), &body)
}

pub(super) struct Publishing {
    topics: Vec<String>,
    inbox: String,
    next: usize,
}

pub(super) fn publisher(address: SocketAddr, topics: &[String]) -> io::Result<(Wire, Publishing)> {
    let mut wire = connect(address)?;
    let inbox = format!("{INBOX}.{}.{:?}", std::process::id(), std::thread::current().id()).replace(['(', ')'], "");
    wire.out.extend_from_slice(format!("SUB {inbox} 2\r\nPING\r\n").as_bytes());
    pong(&mut wire)?;
    Ok((wire, Publishing { topics: topics.to_vec(), inbox, next: 0 }))
}

impl Publisher for Publishing {
    fn publish(&mut self, out: &mut Vec<u8>, payload: &[u8]) {
        let topic = &self.topics[self.next % self.topics.len()];
        self.next += 1;
        // Writing into a vector cannot fail.
        let _ = write!(out, "PUB {topic} {} {}\r\n", self.inbox, payload.len());
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<(usize, u64)> {
        let (mut used, mut answered) = (0, 0);
        while let Some((length, op)) = next(&bytes[used..])? {
            used += length;
            match op {
                Op::Msg { payload, .. } if payload.starts_with(br#"{"stream""#) => answered += 1,
                Op::Msg { payload, .. } => return Err(failed("JetStream refuses a publish", payload)),
                Op::Ping => out.extend_from_slice(b"PONG\r\n"),
                Op::Pong | Op::Other => {}
            }
        }
        Ok((used, answered))
    }
}

pub(super) struct Consuming {
    begin: String,
    /// Acks before each `PING` whose `PONG` is not here.
    waiting: VecDeque<u64>,
}

pub(super) fn consumer(address: SocketAddr, topic: &str, group: &str, credit: usize) -> io::Result<(Wire, Consuming)> {
    let mut wire = connect(address)?;
    let (stream, deliver) = (stream_of(topic), format!("deliver.{group}"));
    let body = format!(
        r#"{{"stream_name":"{stream}","config":{{"durable_name":"{group}","deliver_subject":"{deliver}","deliver_policy":"all","ack_policy":"explicit","ack_wait":30000000000,"max_ack_pending":{credit}}}}}"#
    );
    api(&mut wire, &format!("CONSUMER.DURABLE.CREATE.{stream}.{group}"), &body)?;
    let begin = format!("SUB {deliver} 3\r\n");
    Ok((wire, Consuming { begin, waiting: VecDeque::new() }))
}

impl Consumer for Consuming {
    fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.begin.as_bytes());
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, each: &mut dyn FnMut(&[u8])) -> io::Result<(usize, u64)> {
        let (mut used, mut acked, mut new) = (0, 0, 0);
        while let Some((length, op)) = next(&bytes[used..])? {
            used += length;
            match op {
                Op::Msg { reply: Some(reply), payload } => {
                    each(payload);
                    out.extend_from_slice(b"PUB ");
                    out.extend_from_slice(reply);
                    out.extend_from_slice(b" 0\r\n\r\n");
                    new += 1;
                }
                Op::Ping => out.extend_from_slice(b"PONG\r\n"),
                Op::Pong => acked += self.waiting.pop_front().unwrap_or(0),
                Op::Msg { .. } | Op::Other => {}
            }
        }
        if new > 0 {
            out.extend_from_slice(b"PING\r\n");
            self.waiting.push_back(new);
        }
        Ok((used, acked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_whole_and_acked_at_their_reply() {
        let mut consuming = Consuming { begin: String::new(), waiting: VecDeque::new() };
        let bytes = b"MSG bench.a 3 $JS.ACK.x.1 5\r\nhello\r\nMSG bench.a 3 $JS.ACK.x.2 5\r\nwor";
        let (mut out, mut seen) = (Vec::new(), Vec::new());
        let read = consuming.read(bytes, &mut out, &mut |payload| seen.push(payload.to_vec())).expect("valid");
        assert_eq!((read, seen), ((36, 0), vec![b"hello".to_vec()]));
        assert_eq!(out, b"PUB $JS.ACK.x.1 0\r\n\r\nPING\r\n");
        assert_eq!(consuming.read(b"PONG\r\n", &mut out, &mut |_| ()).expect("valid"), (6, 1));
    }

    #[test]
    fn a_refused_publish_is_an_error() {
        let mut publishing = Publishing { topics: vec!["a".into()], inbox: "i".into(), next: 0 };
        let answer = r#"{"stream":"a","seq":12345}"#;
        let ok = format!("MSG i 2 {}\r\n{answer}\r\n", answer.len());
        let cut = &ok.as_bytes()[..ok.len() - 1];
        assert_eq!(publishing.read(cut, &mut Vec::new()).expect("valid"), (0, 0));
        assert_eq!(publishing.read(ok.as_bytes(), &mut Vec::new()).expect("valid"), (ok.len(), 1));
        let refused = b"MSG i 2 22\r\n{\"error\":{\"code\":503}}\r\n";
        assert!(publishing.read(&refused[..], &mut Vec::new()).is_err());
    }
}
