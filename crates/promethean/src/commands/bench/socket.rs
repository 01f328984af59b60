//! A WebSocket connection with as little of its own as possible: the load generator must not be what is measured.
//!
//! Plain TCP, blocking, frames written many at a time. Only what the hub sends is understood: unfragmented text,
//! pings, close.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::super::address::GIVE_A_TOKEN;

/// Fixed: masking has to be done, being unpredictable helps nobody here.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// How long a read waits for the hub.
pub(super) const READ: Duration = Duration::from_millis(250);
/// How long a write waits for a hub that does not read: it may be waiting for this side to read. And how long a read
/// waits while there is more to write.
pub(super) const WRITE: Duration = Duration::from_millis(5);

/// The sending side: collects frames, writes them with one call.
pub(super) struct Sender {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are written already.
    written: usize,
}

/// The receiving side.
pub(super) struct Receiver {
    stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// How long a read waits now.
    waits: Duration,
}

/// Connects to `host:port` and upgrades.
pub(super) fn connect(address: &str, token: Option<&str>) -> io::Result<(Sender, Receiver)> {
    let mut stream = TcpStream::connect(address).map_err(|error| io::Error::new(io::ErrorKind::NotConnected, error))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(READ))?;
    stream.set_write_timeout(Some(WRITE))?;
    let auth = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{auth}\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let asked = Instant::now();
    let mut receiver =
        Receiver { stream: stream.try_clone()?, buffer: vec![0; 256 * 1024], start: 0, end: 0, waits: READ };
    let head = loop {
        let so_far = &receiver.buffer[..receiver.end];
        if let Some(end) = so_far.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        match receiver.fill() {
            Err(error) if is_timeout(&error) && asked.elapsed() < Duration::from_secs(10) => {}
            other => other?,
        }
    };
    let status = String::from_utf8_lossy(&receiver.buffer[..head]).lines().next().unwrap_or_default().to_owned();
    if !status.contains(" 101 ") {
        let status = status.strip_prefix("HTTP/1.1 ").unwrap_or(&status);
        let refused = format!("the hub refuses the connection: {status}");
        return Err(match status.get(..3) {
            Some("401") => io::Error::new(io::ErrorKind::PermissionDenied, format!("{refused}; {GIVE_A_TOKEN}")),
            Some("403") => io::Error::new(io::ErrorKind::PermissionDenied, refused),
            _ => io::Error::other(refused),
        });
    }
    receiver.start = head;
    Ok((Sender::new(stream), receiver))
}

impl Sender {
    fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: Vec::with_capacity(256 * 1024), written: 0 }
    }

    /// Adds a text frame.
    pub(super) fn push(&mut self, text: &[u8]) {
        self.push_frame(0x81, text);
    }

    /// Adds the answer to a ping.
    fn push_pong(&mut self, ping: &[u8]) {
        self.push_frame(0x8a, ping);
    }

    fn push_frame(&mut self, kind: u8, bytes: &[u8]) {
        let out = &mut self.buffer;
        out.push(kind);
        match bytes.len() {
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
        out.extend_from_slice(bytes);
        let (chunks, rest) = out[start..].as_chunks_mut::<8>();
        let wide = u64::from_ne_bytes([MASK[0], MASK[1], MASK[2], MASK[3], MASK[0], MASK[1], MASK[2], MASK[3]]);
        for chunk in chunks {
            *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
        }
        for (byte, mask) in rest.iter_mut().zip(MASK.iter().cycle()) {
            *byte ^= mask;
        }
    }

    /// True if something is left to write.
    pub(super) fn has_rest(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// True if so much is collected that it should be written.
    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= 128 * 1024
    }

    /// Writes what was added, or as much of it as the hub takes: the rest waits for the next call, so that its caller
    /// reads in between.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.written < self.buffer.len() {
            match self.stream.write(&self.buffer[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.buffer.clear();
        self.written = 0;
        Ok(())
    }
}

/// True if nothing came, or went, in the time that there was.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// What a hub's close frame says, for people.
fn closed(bytes: &[u8]) -> io::Error {
    let (code, reason) = bytes.split_first_chunk::<2>().map_or((0, &[][..]), |(code, rest)| {
        let code = u16::from_be_bytes(*code);
        (code, rest)
    });
    match code {
        1001 => io::Error::new(io::ErrorKind::ConnectionReset, "the hub was shut down (1001)"),
        1009 => io::Error::other(
            "the hub takes no frames that large (1009): a smaller --payload or --batch, or a larger limit of the hub",
        ),
        4401 => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the hub no longer takes the token, or got none (4401); {GIVE_A_TOKEN}"),
        ),
        _ => {
            let reason = String::from_utf8_lossy(reason);
            let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            io::Error::other(format!("the hub closed the connection with {code}{reason}"))
        }
    }
}

impl Receiver {
    fn fill(&mut self) -> io::Result<()> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        match self.stream.read(&mut self.buffer[self.end..])? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the hub closed the connection")),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }

    /// How long [`Receiver::frames`] waits for the first frame.
    pub(super) fn wait_at_most(&mut self, time: Duration) -> io::Result<()> {
        if self.waits != time {
            self.stream.set_read_timeout(Some(time))?;
            self.waits = time;
        }
        Ok(())
    }

    /// From now on [`Receiver::frames`] does not wait, nor does the sender of this connection.
    pub(super) fn do_not_wait(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(true)
    }

    /// Why the hub went away, where it said so before a write failed.
    pub(super) fn last_words(&mut self, sender: &mut Sender) -> Option<io::Error> {
        loop {
            match self.frames(sender, |_| ()) {
                Ok(()) => {}
                Err(error) => return Some(error).filter(|error| !is_timeout(error)),
            }
        }
    }

    /// The bounds of the next frame's text that is here already. Pings before it get their answer: the hub closes a
    /// connection that leaves them unanswered for a minute.
    fn ready(&mut self, sender: &mut Sender) -> io::Result<Option<(usize, usize)>> {
        loop {
            let bytes = &self.buffer[self.start..self.end];
            let Some((&[first, second], after)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
            let (header, length) = match second & 0x7f {
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
            if bytes.len() < header + length {
                return Ok(None);
            }
            let start = self.start + header;
            self.start = start + length;
            match first & 0x0f {
                0x1 => return Ok(Some((start, start + length))),
                0x8 => return Err(closed(&self.buffer[start..start + length])),
                0x9 => sender.push_pong(&self.buffer[start..start + length]),
                _ => {}
            }
        }
    }

    /// Calls `each` for every frame that is here, after waiting for at least one. `sender` gets the answers to pings.
    pub(super) fn frames(&mut self, sender: &mut Sender, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut any = false;
        loop {
            match self.ready(sender)? {
                Some((start, end)) => {
                    each(&self.buffer[start..end]);
                    any = true;
                }
                None if any => return Ok(()),
                None => {
                    if self.start == self.end {
                        (self.start, self.end) = (0, 0);
                    }
                    self.fill()?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_does_not_read_holds_nobody_up_and_gets_everything_once_it_does() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        stream.set_write_timeout(Some(WRITE)).expect("set");
        let (mut peer, _) = listener.accept().expect("accepted");
        let mut sender = Sender::new(stream);
        let frame = [b'x'; 1_000];
        for _ in 0..32_000 {
            sender.push(&frame);
        }
        sender.flush().expect("it does not wait for the peer");
        assert!(sender.written < sender.buffer.len(), "32 MB fit into no socket");

        let all = sender.buffer.clone();
        let reading = std::thread::spawn(move || {
            let mut got = vec![0; all.len()];
            peer.read_exact(&mut got).expect("all of it comes");
            got == all
        });
        while !sender.buffer.is_empty() {
            sender.flush().expect("written");
        }
        assert!(reading.join().expect("no panic"), "in order, nothing twice");
    }
}
