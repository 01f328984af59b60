//! From bytes off the socket to messages, in place.
//!
//! ```text
//!  buffer   [ frame ][ frame ][ frame ][ half a frame ……
//!             └ unmasked, borrowed as messages ┘ ▲ scanned
//! ```
//!
//! Invariants: a frame's announced length is checked before a byte of it is kept, so no peer makes the buffer larger
//! than the limit; the buffer grows only as bytes arrive, never by what a header claims; after the first violation or
//! the goodbye, bytes are dropped as they arrive. How the stream was cut into reads changes nothing.

use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt};

use super::mask;
use crate::rejection::Close;

/// What an idle connection keeps, and what a new one starts with.
const IDLE: usize = 2 * 1024;
/// Most that is read at once, unless one frame is larger.
const BURST: usize = 256 * 1024;
/// Largest header: two bytes, eight of length, four of mask.
const HEADER: usize = 14;
/// Largest payload of a control frame.
const MAX_CONTROL: usize = 125;
/// Messages of one read whose places stay allocated.
const FOUND: usize = 1024;

/// How much a decoder takes in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    /// Largest message.
    pub(crate) message: usize,
    /// Most bytes read at once, unless one frame is larger.
    pub(crate) burst: usize,
}

impl Allowance {
    /// Messages of at most `message` bytes, in reads of the usual size.
    pub(crate) fn of(message: usize) -> Self {
        Self { message, burst: BURST }
    }
}

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A text, checked to be UTF-8.
    Text(&'a str),
    /// A binary message; the contract has none, so its bytes do not matter.
    Binary,
    /// A ping, to be answered with the same bytes.
    Ping(&'a [u8]),
    /// A pong.
    Pong,
    /// The client says goodbye.
    Close,
    /// The client broke the protocol; there is no message after this one.
    Violation(Close),
}

#[derive(Debug)]
enum Found {
    Text(Range<usize>),
    /// A text that came in fragments.
    Joined(Vec<u8>),
    Binary,
    Ping(Range<usize>),
    Pong,
    Close,
    Violation(Close),
}

#[derive(Debug)]
struct Fragments {
    binary: bool,
    bytes: Vec<u8>,
}

/// Reads the messages of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    allowance: Allowance,
    /// The limit may be raised before the next frame is judged by it: that one is over it.
    over: bool,
    buffer: Vec<u8>,
    /// Everything before this is in `found`.
    scanned: usize,
    found: Vec<Found>,
    /// How many of `found` were handed out.
    taken: usize,
    fragments: Option<Fragments>,
    /// Whole length of the frame at `scanned` where its header is there; what the buffer has to hold next.
    expected: usize,
    /// The last read filled all the room it had: there is probably more.
    filled: bool,
    /// No more messages: the client said goodbye, broke the protocol, or is told to go.
    dead: bool,
    said_goodbye: bool,
    /// Bytes to drop before the next frame's header, once dead.
    skip: u64,
}

struct Header {
    fin: bool,
    opcode: u8,
    len: usize,
    mask: [u8; 4],
    size: usize,
}

impl Decoder {
    /// A decoder that refuses messages over the limit of `allowance`. `first` are bytes that came with the upgrade.
    pub(crate) fn new(allowance: Allowance, first: &[u8]) -> Self {
        let mut buffer = Vec::with_capacity(IDLE.max(first.len()));
        buffer.extend_from_slice(first);
        let mut decoder = Self {
            allowance,
            over: false,
            buffer,
            scanned: 0,
            found: Vec::new(),
            taken: 0,
            fragments: None,
            expected: 0,
            filled: false,
            dead: false,
            said_goodbye: false,
            skip: 0,
        };
        decoder.scan();
        decoder
    }

    /// Changes how much is taken in. A frame over the old limit that has not been refused yet counts by the new one.
    pub(crate) fn set_allowance(&mut self, allowance: Allowance) {
        self.allowance = allowance;
    }

    /// Drops all messages, and what arrives from now on up to the client's close frame.
    pub(crate) fn expect_close(&mut self) {
        self.dead = true;
        self.found = Vec::new();
        self.taken = 0;
        self.fragments = None;
        self.buffer.drain(..self.scanned);
        self.skim();
    }

    /// True if the client has said goodbye.
    pub(crate) fn is_closed(&self) -> bool {
        self.said_goodbye
    }

    /// True if a message is there.
    pub(crate) fn has_message(&self) -> bool {
        self.taken < self.found.len()
    }

    /// How many messages are there that were not taken, and their bytes, about.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let from = match self.found.get(self.taken) {
            Some(Found::Text(range) | Found::Ping(range)) => range.start,
            _ => self.scanned,
        };
        (self.found.len() - self.taken, self.scanned - from)
    }

    /// Reads once and finds what messages that completes; `Ok(0)` is the end of the stream.
    /// To be called only when every message was taken.
    pub(crate) fn poll_fill<R: AsyncRead + Unpin + ?Sized>(
        &mut self,
        reader: &mut R,
        cx: &mut Context<'_>,
    ) -> Poll<std::io::Result<usize>> {
        if std::mem::take(&mut self.over) && !self.dead {
            self.scan();
            if std::mem::take(&mut self.over) {
                self.break_off(Close::TooBig);
            }
            if self.has_message() {
                return Poll::Ready(Ok(1));
            }
        }
        let wanted = self.prepare_capacity();
        if wanted > self.buffer.capacity() {
            self.buffer.reserve_exact(wanted.saturating_sub(self.buffer.len()));
        }
        // `read_buf` keeps nothing between polls: a fresh one each time is the same as one that waits.
        let count = ready!(pin!(reader.read_buf(&mut self.buffer)).poll(cx))?;
        self.filled = self.buffer.len() == self.buffer.capacity();
        if self.dead {
            self.skim();
        } else {
            self.scan();
        }
        Poll::Ready(Ok(count))
    }

    /// Drops what is there, frame by frame, up to the client's close frame.
    fn skim(&mut self) {
        let mut at = 0;
        while !self.said_goodbye {
            let rest = self.buffer.get(at..).unwrap_or_default();
            let dropped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rest.len());
            (at, self.skip) = (at + dropped, self.skip - dropped as u64);
            if self.skip > 0 {
                break;
            }
            let Some((opcode, size)) = announced(rest.get(dropped..).unwrap_or_default()) else { break };
            self.said_goodbye = opcode == 0x8;
            self.skip = size;
        }
        self.buffer.drain(..at);
        self.scanned = 0;
    }

    /// Forgets the messages that were taken. Returns how many bytes of a half-read message the next read makes it hold.
    pub(crate) fn prepare(&mut self) -> usize {
        let capacity = self.prepare_capacity();
        let frame = if self.expected > 0 { capacity.max(self.buffer.capacity()) } else { 0 };
        frame + self.fragments.as_ref().map_or(0, |fragments| fragments.bytes.capacity())
    }

    /// Forgets the messages that were taken and gives back memory. Returns the capacity that the next read needs.
    fn prepare_capacity(&mut self) -> usize {
        self.found.clear();
        if self.found.capacity() > 4 * FOUND {
            self.found.shrink_to(FOUND);
        }
        self.taken = 0;
        self.buffer.drain(..self.scanned);
        self.scanned = 0;
        let burst = self.allowance.burst;
        if self.dead {
            self.expected = 0;
        }
        if self.buffer.capacity() > burst && self.expected <= burst && self.buffer.len() <= burst {
            self.buffer.shrink_to(burst);
        }
        let capacity = self.buffer.capacity();
        if self.expected > capacity || self.buffer.len() == capacity {
            (capacity * 2).min(self.expected.max(burst))
        } else if self.filled {
            (capacity * 2).min(burst)
        } else {
            capacity
        }
        .max(IDLE)
    }

    /// Gives memory back; for a connection that has been silent for a while.
    pub(crate) fn rest(&mut self) {
        if self.buffer.is_empty() || (self.scanned == self.buffer.len() && !self.has_message()) {
            self.buffer = Vec::with_capacity(IDLE);
            self.scanned = 0;
            self.found = Vec::new();
            self.taken = 0;
            self.filled = false;
        }
    }

    /// Bytes that the decoder holds.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.buffer.capacity() + self.fragments.as_ref().map_or(0, |fragments| fragments.bytes.capacity())
    }

    /// The number of the next message, in order. It stays the next one until [`Decoder::advance`].
    pub(crate) fn peek(&self) -> Option<usize> {
        self.has_message().then_some(self.taken)
    }

    /// Goes on to the message after this one.
    pub(crate) fn advance(&mut self) {
        self.taken += 1;
    }

    /// The message that [`Decoder::peek`] numbered.
    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        let bytes = |range: &Range<usize>| self.buffer.get(range.clone()).unwrap_or_default();
        let text = |bytes| simdutf8::basic::from_utf8(bytes).map_or(Message::Violation(Close::NotText), Message::Text);
        match self.found.get(index) {
            Some(Found::Text(range)) => text(bytes(range)),
            Some(Found::Joined(joined)) => text(joined),
            Some(Found::Binary) => Message::Binary,
            Some(Found::Ping(range)) => Message::Ping(bytes(range)),
            Some(Found::Pong) => Message::Pong,
            Some(Found::Close) | None => Message::Close,
            Some(Found::Violation(code)) => Message::Violation(*code),
        }
    }

    fn scan(&mut self) {
        while !self.dead {
            self.expected = 0;
            match self.scan_one() {
                Ok(true) => {}
                Ok(false) => return,
                Err(code) => self.break_off(code),
            }
        }
    }

    fn break_off(&mut self, code: Close) {
        self.found.push(Found::Violation(code));
        self.dead = true;
    }

    /// Finds one frame; `false` where it is not whole yet.
    fn scan_one(&mut self) -> Result<bool, Close> {
        let Some(header) = self.header()? else { return Ok(false) };
        if header.opcode < 0x8 && header.len.saturating_add(self.joined(header.opcode)) > self.allowance.message {
            self.over = true;
            return Ok(false);
        }
        let start = self.scanned + header.size;
        let end = start + header.len;
        let Some(payload) = self.buffer.get_mut(start..end) else {
            self.expected = header.size + header.len;
            return Ok(false);
        };
        mask::apply(payload, header.mask);
        self.scanned = end;
        let found = match header.opcode {
            0x0 => {
                let Some(fragments) = &mut self.fragments else { return Err(Close::Protocol) };
                append(&mut fragments.bytes, payload, self.allowance.message);
                match self.fragments.take_if(|_| header.fin) {
                    None => return Ok(true),
                    Some(Fragments { binary: true, .. }) => Found::Binary,
                    Some(Fragments { bytes, .. }) => Found::Joined(bytes),
                }
            }
            0x1 | 0x2 if !header.fin => {
                self.fragments = Some(Fragments { binary: header.opcode == 0x2, bytes: payload.to_vec() });
                return Ok(true);
            }
            0x1 => Found::Text(start..end),
            0x2 => Found::Binary,
            0x8 => {
                (self.dead, self.said_goodbye) = (true, true);
                check_close(payload)?;
                Found::Close
            }
            0x9 => Found::Ping(start..end),
            _ => Found::Pong,
        };
        self.found.push(found);
        Ok(true)
    }

    fn header(&self) -> Result<Option<Header>, Close> {
        let bytes = self.buffer.get(self.scanned..).unwrap_or_default();
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (fin, opcode) = (first & 0x80 != 0, first & 0x0f);
        let masked = second & 0x80 != 0;
        let known = matches!(opcode, 0x0..=0x2 | 0x8..=0xa);
        if first & 0x70 != 0 || !known || !masked {
            return Err(Close::Protocol);
        }
        let (len, rest) = match second & 0x7f {
            126 => match rest.split_first_chunk::<2>() {
                Some((len, rest)) => (u64::from(u16::from_be_bytes(*len)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk::<8>() {
                Some((len, rest)) => (u64::from_be_bytes(*len), rest),
                None => return Ok(None),
            },
            short => (u64::from(short), rest),
        };
        let control = opcode >= 0x8;
        if control && (!fin || len > MAX_CONTROL as u64) {
            return Err(Close::Protocol);
        }
        match (opcode, &self.fragments) {
            (0x0, None) | (0x1 | 0x2, Some(_)) => return Err(Close::Protocol),
            _ => {}
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // A frame that is over the limit is judged by this much of its header.
        let (mask, rest) = match rest.split_first_chunk::<4>() {
            Some((mask, rest)) => (*mask, rest),
            None if !control && len.saturating_add(self.joined(opcode)) > self.allowance.message => ([0; 4], rest),
            None => return Ok(None),
        };
        let size = bytes.len() - rest.len();
        debug_assert!(size <= HEADER);
        Ok(Some(Header { fin, opcode, len, mask, size }))
    }

    /// Bytes of the message that a frame of this kind continues.
    fn joined(&self, opcode: u8) -> usize {
        self.fragments.as_ref().filter(|_| opcode == 0x0).map_or(0, |fragments| fragments.bytes.len())
    }
}

/// Appends without allocating more than `most`, which doubling might.
fn append(bytes: &mut Vec<u8>, more: &[u8], most: usize) {
    let len = bytes.len() + more.len();
    if len > bytes.capacity() {
        bytes.reserve_exact((2 * len).min(most.max(len)) - bytes.len());
    }
    bytes.extend_from_slice(more);
}

/// The opcode of the frame that begins here, and its length with its header; `None` where the header is not whole.
fn announced(bytes: &[u8]) -> Option<(u8, u64)> {
    let [first, second, rest @ ..] = bytes else { return None };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let (header, len) = match second & 0x7f {
        126 => (4, u64::from(u16::from_be_bytes(*rest.first_chunk()?))),
        127 => (10, u64::from_be_bytes(*rest.first_chunk()?)),
        short => (2, u64::from(short)),
    };
    Some((first & 0x0f, len.saturating_add(header + mask)))
}

fn check_close(payload: &[u8]) -> Result<(), Close> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return if payload.is_empty() { Ok(()) } else { Err(Close::Protocol) };
    };
    if !matches!(u16::from_be_bytes(*code), 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Close::Protocol);
    }
    simdutf8::basic::from_utf8(reason).map(|_| ()).map_err(|_| Close::NotText)
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
