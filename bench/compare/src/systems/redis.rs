//! Redis Streams: RESP, `XADD`, `XREADGROUP`, `XACK`.
//!
//! Two reads of half the credit each are under way, so that Redis works on one while the client works on the other; the
//! acks of a read go out together with the next one.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use memchr::memchr;

use super::{Consumer, Publisher, failed};
use crate::server::{self, Server};
use crate::wire::Wire;

pub(super) fn start(program: &Path, dir: &Path, always: bool) -> io::Result<Server> {
    let port = server::free_port()?;
    let mut command = Command::new(program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
    command.args(["--appendfsync", if always { "always" } else { "everysec" }]);
    // A rewrite of the file in the middle of a run would only make Redis slower.
    command.args(["--auto-aof-rewrite-percentage", "0", "--loglevel", "warning", "--dir"]).arg(dir);
    let server = server::start_at(command, SocketAddr::from(([127, 0, 0, 1], port)), dir)?;
    // A port that answers may still be loading what the file has.
    let mut wire = Wire::connect(server.address)?;
    loop {
        self::command(&mut wire.out, &[b"PING"]);
        let answer = wire.ask(|bytes| memchr(b'\n', bytes).map(|end| (end + 1, bytes[..end].to_vec())))?;
        if answer.starts_with(b"+PONG") {
            return Ok(server);
        }
        if !answer.starts_with(b"-LOADING") {
            return Err(failed("Redis does not start", &answer));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    // Writing into a vector cannot fail.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        bulk(out, word);
    }
}

fn bulk(out: &mut Vec<u8>, word: &[u8]) {
    let _ = write!(out, "${}\r\n", word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// A line with a number behind its mark, and the line's length.
fn line(bytes: &[u8]) -> io::Result<Option<(u8, i64, usize)>> {
    let Some(end) = memchr(b'\n', bytes) else { return Ok(None) };
    let text = bytes[..end].trim_ascii_end();
    let (Some((mark, number)), false) = (text.split_first(), text.starts_with(b"-")) else {
        return Err(failed("Redis says", text));
    };
    let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    Ok(Some((*mark, number.unwrap_or(0), end + 1)))
}

/// A bulk string and how many bytes it took.
fn text(bytes: &[u8]) -> io::Result<Option<(&[u8], usize)>> {
    let Some((mark, size, start)) = line(bytes)? else { return Ok(None) };
    let size = usize::try_from(size).ok().filter(|_| mark == b'$').ok_or_else(|| failed("not a string", bytes))?;
    Ok(bytes.get(start..start + size + 2).map(|found| (&found[..size], start + size + 2)))
}

pub(super) struct Publishing {
    /// Everything of an `XADD` before the payload.
    heads: Vec<Vec<u8>>,
    next: usize,
}

pub(super) fn publisher(address: SocketAddr, topics: &[String]) -> io::Result<(Wire, Publishing)> {
    let head = |topic: &String| {
        let mut out = b"*5\r\n".to_vec();
        for word in [b"XADD".as_slice(), topic.as_bytes(), b"*", b"d"] {
            bulk(&mut out, word);
        }
        out
    };
    Ok((Wire::connect(address)?, Publishing { heads: topics.iter().map(head).collect(), next: 0 }))
}

impl Publisher for Publishing {
    fn publish(&mut self, out: &mut Vec<u8>, payload: &[u8]) {
        out.extend_from_slice(&self.heads[self.next % self.heads.len()]);
        bulk(out, payload);
        self.next += 1;
    }

    fn read(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> io::Result<(usize, u64)> {
        let (mut used, mut answered) = (0, 0);
        while let Some((_, length)) = text(&bytes[used..])? {
            used += length;
            answered += 1;
        }
        Ok((used, answered))
    }
}

pub(super) struct Consuming {
    topic: Vec<u8>,
    group: Vec<u8>,
    /// An `XREADGROUP`, ready to be sent.
    ask: Vec<u8>,
    /// Entries of the reply at hand that are still to come.
    left: i64,
    /// Ids of the reply at hand, as words of an `XACK`.
    ids: Vec<u8>,
    count: usize,
}

pub(super) fn consumer(address: SocketAddr, topic: &str, group: &str, credit: usize) -> io::Result<(Wire, Consuming)> {
    let mut wire = Wire::connect(address)?;
    let (topic, group) = (topic.as_bytes().to_vec(), group.as_bytes().to_vec());
    command(&mut wire.out, &[b"XGROUP", b"CREATE", &topic, &group, b"0", b"MKSTREAM"]);
    wire.ask(|bytes| bytes.starts_with(b"+OK\r\n").then_some((5, ())))?;
    let half = (credit / 2).max(1).to_string();
    let mut ask = Vec::new();
    let words: [&[u8]; 11] =
        [b"XREADGROUP", b"GROUP", &group, b"c", b"COUNT", half.as_bytes(), b"BLOCK", b"20", b"STREAMS", &topic, b">"];
    command(&mut ask, &words);
    Ok((wire, Consuming { topic, group, ask, left: 0, ids: Vec::new(), count: 0 }))
}

impl Consuming {
    /// Acks what was read and asks for more.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.count > 0 {
            let _ = write!(out, "*{}\r\n", self.count + 3);
            bulk(out, b"XACK");
            bulk(out, &self.topic);
            bulk(out, &self.group);
            out.extend_from_slice(&self.ids);
            self.ids.clear();
            self.count = 0;
        }
        out.extend_from_slice(&self.ask);
    }
}

impl Consumer for Consuming {
    fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ask);
        out.extend_from_slice(&self.ask);
    }

    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, each: &mut dyn FnMut(&[u8])) -> io::Result<(usize, u64)> {
        let (mut used, mut acked) = (0, 0);
        loop {
            let rest = &bytes[used..];
            if self.left > 0 {
                let Some(Entry { id, payload, length }) = entry(rest)? else { break };
                each(payload);
                bulk(&mut self.ids, id);
                self.count += 1;
                self.left -= 1;
                used += length;
                if self.left == 0 {
                    self.finish(out);
                }
                continue;
            }
            match line(rest)? {
                None => break,
                Some((b':', count, length)) => {
                    acked += u64::try_from(count).unwrap_or(0);
                    used += length;
                }
                // Nothing came in time.
                Some((b'*', -1, length)) => {
                    used += length;
                    self.finish(out);
                }
                Some((b'*', ..)) => {
                    let Some((entries, length)) = reply(rest)? else { break };
                    self.left = entries;
                    used += length;
                }
                Some(_) => return Err(failed("Redis answers", rest)),
            }
        }
        Ok((used, acked))
    }
}

/// The beginning of a reply to `XREADGROUP` of one stream: how many entries follow, and its length.
fn reply(bytes: &[u8]) -> io::Result<Option<(i64, usize)>> {
    let mut used = 0;
    for _ in 0..2 {
        let Some((_, _, length)) = line(&bytes[used..])? else { return Ok(None) };
        used += length;
    }
    let Some((_, length)) = text(&bytes[used..])? else { return Ok(None) };
    used += length;
    Ok(line(&bytes[used..])?.map(|(_, entries, length)| (entries, used + length)))
}

/// An entry, and how many bytes it took.
struct Entry<'a> {
    id: &'a [u8],
    payload: &'a [u8],
    length: usize,
}

/// Reads an entry: `[id, [name, value]]`.
fn entry(bytes: &[u8]) -> io::Result<Option<Entry<'_>>> {
    let Some((_, _, mut used)) = line(bytes)? else { return Ok(None) };
    let Some((id, length)) = text(&bytes[used..])? else { return Ok(None) };
    used += length;
    let Some((_, _, length)) = line(&bytes[used..])? else { return Ok(None) };
    used += length;
    let Some((_, length)) = text(&bytes[used..])? else { return Ok(None) };
    used += length;
    Ok(text(&bytes[used..])?.map(|(payload, length)| Entry { id, payload, length: used + length }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consuming() -> Consuming {
        let (topic, group) = (b"t".to_vec(), b"g".to_vec());
        Consuming { topic, group, ask: b"ASK".to_vec(), left: 0, ids: Vec::new(), count: 0 }
    }

    #[test]
    fn a_reply_is_read_in_whatever_pieces_it_comes() {
        let reply = b"*1\r\n*2\r\n$1\r\nt\r\n*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nd\r\n$2\r\nab\r\n\
                      *2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nd\r\n$2\r\ncd\r\n:2\r\n";
        for cut in 0..reply.len() {
            let (mut this, mut out, mut seen) = (consuming(), Vec::new(), Vec::new());
            let mut each = |payload: &[u8]| seen.push(payload.to_vec());
            let (used, before) = this.read(&reply[..cut], &mut out, &mut each).expect("valid");
            let (rest, after) = this.read(&reply[used..], &mut out, &mut each).expect("valid");
            assert_eq!((used + rest, before + after, seen.len()), (reply.len(), 2, 2), "cut at {cut}");
            assert_eq!(out, b"*5\r\n$4\r\nXACK\r\n$1\r\nt\r\n$1\r\ng\r\n$3\r\n1-0\r\n$3\r\n1-1\r\nASK");
        }
    }

    #[test]
    fn an_error_is_an_error_and_an_empty_reply_asks_again() {
        let mut out = Vec::new();
        assert!(consuming().read(b"-NOGROUP No such key\r\n", &mut out, &mut |_| ()).is_err());
        assert_eq!(consuming().read(b"*-1\r\n", &mut out, &mut |_| ()).expect("valid"), (5, 0));
        assert_eq!(out, b"ASK");
    }
}
