//! Promethean's frames over a plain WebSocket: one `PUBLISH` an event, `EVENTS` in, one `ACK` with the ids of each.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::net::SocketAddr;

use memchr::memmem::Finder;

use super::{Consumer, Publisher, failed};
use crate::wire::Wire;

/// Fixed: masking has to be done, being unpredictable helps nobody here.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

fn connect(address: SocketAddr) -> io::Result<Wire> {
    let mut wire = Wire::connect(address)?;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    wire.out.extend_from_slice(request.as_bytes());
    let head = wire.ask(|bytes| {
        let end = memchr::memmem::find(bytes, b"\r\n\r\n")? + 4;
        Some((end, bytes[..end].to_vec()))
    })?;
    if !head.starts_with(b"HTTP/1.1 101 ") {
        return Err(failed("the hub refuses the connection", &head));
    }
    Ok(wire)
}

/// Kinds of frames, the last of its message each.
const TEXT: u8 = 0x81;
const PONG: u8 = 0x8a;

/// Appends a frame that `write` fills.
fn frame(out: &mut Vec<u8>, kind: u8, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    match length {
        short @ ..=125 => out.push(0x80 | short as u8),
        middle @ ..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(middle as u16).to_be_bytes());
        }
        long => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&MASK);
    let start = out.len();
    write(out);
    debug_assert_eq!(out.len() - start, length);
    let (words, rest) = out[start..].as_chunks_mut::<8>();
    let [a, b, c, d] = MASK;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(MASK.iter().cycle()) {
        *byte ^= mask;
    }
}

/// The text of the next whole frame, none where it is no text, and the frame's length. A ping is answered: the hub closes
/// a connection that leaves them unanswered for a minute.
fn next<'a>(bytes: &'a [u8], out: &mut Vec<u8>) -> io::Result<Option<(&'a [u8], usize)>> {
    let Some((&[first, second], after)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
    let (header, length): (usize, usize) = match second & 0x7f {
        126 => match after.first_chunk::<2>() {
            Some(length) => (4, usize::from(u16::from_be_bytes(*length))),
            None => return Ok(None),
        },
        127 => match after.first_chunk::<8>() {
            Some(length) => (10, usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX)),
            None => return Ok(None),
        },
        short => (2, usize::from(short)),
    };
    let Some(text) = bytes.get(header..header.saturating_add(length)) else { return Ok(None) };
    match first & 0x0f {
        0x8 => Err(failed("the hub closes", text)),
        0x1 => Ok(Some((text, header + length))),
        0x9 => {
            frame(out, PONG, length, |out| out.extend_from_slice(text));
            Ok(Some((&[], header + length)))
        }
        _ => Ok(Some((&[], header + length))),
    }
}

pub(super) struct Publishing {
    heads: Vec<Vec<u8>>,
    next: usize,
}

pub(super) fn publisher(address: SocketAddr, topics: &[String]) -> io::Result<(Wire, Publishing)> {
    let heads = topics.iter().map(|topic| format!(r#"{{"op":"PUBLISH","topic":"{topic}","payload":"#).into_bytes());
    Ok((connect(address)?, Publishing { heads: heads.collect(), next: 0 }))
}

impl Publisher for Publishing {
    fn publish(&mut self, out: &mut Vec<u8>, payload: &[u8]) {
        let head = &self.heads[self.next % self.heads.len()];
        self.next += 1;
        frame(out, TEXT, head.len() + payload.len() + 1, |out| {
            out.extend_from_slice(head);
            out.extend_from_slice(payload);
            out.push(b'}');
        });
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<(usize, u64)> {
        let (mut used, mut answered) = (0, 0);
        while let Some((text, length)) = next(&bytes[used..], out)? {
            used += length;
            match text {
                [] => {}
                ok if ok.starts_with(br#"{"op":"OK""#) => answered += 1,
                other => return Err(failed("the hub refuses a publish", other)),
            }
        }
        Ok((used, answered))
    }
}

pub(super) struct Consuming {
    begin: String,
    ack: String,
    ids: Vec<u8>,
    /// Events of each unanswered frame; the first is the `SUBSCRIBE`.
    waiting: VecDeque<u64>,
    event: Finder<'static>,
    payload: Finder<'static>,
}

pub(super) fn consumer(address: SocketAddr, topic: &str, group: &str, credit: usize) -> io::Result<(Wire, Consuming)> {
    Ok((connect(address)?, Consuming::new(topic, group, credit)))
}

impl Consuming {
    fn new(topic: &str, group: &str, credit: usize) -> Self {
        Self {
            begin: format!(
                r#"{{"op":"SUBSCRIBE","topic":"{topic}","group":"{group}","opts":{{"from":"earliest","maxInFlight":{credit},"batch":true}}}}"#
            ),
            ack: format!(r#"{{"op":"ACK","topic":"{topic}","group":"{group}","ids":["#),
            ids: Vec::new(),
            waiting: VecDeque::from([0]),
            event: Finder::new(br#"{"event":{"id":"#),
            payload: Finder::new(br#","payload":"#),
        }
    }

    /// Collects the quoted ids of an `EVENTS` frame, with a comma behind each.
    fn events(&mut self, text: &[u8], each: &mut dyn FnMut(&[u8])) -> u64 {
        let (mut rest, mut count) = (text, 0);
        while let Some(at) = self.event.find(rest) {
            let after = &rest[at + self.event.needle().len()..];
            let Some(id) = after.get(..38) else { break };
            self.ids.extend_from_slice(id);
            self.ids.push(b',');
            count += 1;
            rest = &after[38..];
            if let Some(at) = self.payload.find(rest) {
                rest = &rest[at + self.payload.needle().len()..];
                each(rest);
            }
        }
        self.ids.pop();
        count
    }
}

impl Consumer for Consuming {
    fn begin(&mut self, out: &mut Vec<u8>) {
        frame(out, TEXT, self.begin.len(), |out| out.extend_from_slice(self.begin.as_bytes()));
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, each: &mut dyn FnMut(&[u8])) -> io::Result<(usize, u64)> {
        let (mut used, mut acked) = (0, 0);
        while let Some((text, length)) = next(&bytes[used..], out)? {
            used += length;
            if text.starts_with(br#"{"op":"OK""#) {
                acked += self.waiting.pop_front().unwrap_or(0);
            } else if text.starts_with(br#"{"op":"EVENTS""#) {
                self.ids.clear();
                let count = self.events(text, each);
                self.waiting.push_back(count);
                frame(out, TEXT, self.ack.len() + self.ids.len() + 2, |out| {
                    out.extend_from_slice(self.ack.as_bytes());
                    out.extend_from_slice(&self.ids);
                    // Writing into a vector cannot fail.
                    let _ = out.write_all(b"]}");
                });
            } else if !text.is_empty() {
                return Err(failed("the hub says", text));
            }
        }
        Ok((used, acked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(text: &str) -> Vec<u8> {
        [&[0x81, text.len() as u8][..], text.as_bytes()].concat()
    }

    #[test]
    fn every_event_of_a_frame_is_acked_by_one_frame() {
        let id = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
        let event = format!(r#"{{"event":{{"id":"{id}","payload":{{}}}}}}"#);
        let text = format!(r#"{{"op":"EVENTS","events":[{event}]}}"#);
        let mut this = Consuming::new("t", "g", 2);
        let (mut out, mut seen) = (Vec::new(), 0);
        let bytes = [served(r#"{"op":"OK"}"#), served(&text)].concat();
        let read = this.read(&bytes, &mut out, &mut |payload| seen += usize::from(payload.starts_with(b"{}")));
        assert_eq!((read.expect("valid"), seen), ((bytes.len(), 0), 1));
        let ack = format!(r#"{{"op":"ACK","topic":"t","group":"g","ids":["{id}"]}}"#);
        let sent: Vec<u8> = out[6..].iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(String::from_utf8_lossy(&sent), ack);
        assert_eq!(this.read(&served(r#"{"op":"OK"}"#), &mut out, &mut |_| ()).expect("valid").1, 1);
    }

    #[test]
    fn a_ping_is_answered_with_what_it_says() {
        let ping = b"\x89\x03abc";
        let pong: Vec<u8> = b"abc".iter().zip(MASK).map(|(byte, mask)| byte ^ mask).collect();
        let pong = [&[0x8a, 0x83][..], &MASK, &pong].concat();
        let (mut of_publisher, mut of_consumer) = (Vec::new(), Vec::new());
        let mut publishing = Publishing { heads: vec![Vec::new()], next: 0 };
        assert_eq!(publishing.read(ping, &mut of_publisher).expect("valid"), (ping.len(), 0));
        let mut consuming = Consuming::new("t", "g", 2);
        assert_eq!(consuming.read(ping, &mut of_consumer, &mut |_| ()).expect("valid"), (ping.len(), 0));
        assert_eq!((of_publisher, of_consumer), (pong.clone(), pong));
    }

    #[test]
    fn a_refusal_is_an_error() {
        let mut this = Publishing { heads: vec![Vec::new()], next: 0 };
        assert!(this.read(&served(r#"{"op":"ERR"}"#), &mut Vec::new()).is_err());
    }
}
