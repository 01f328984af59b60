//! What fuzz targets need of the inside. Only with the feature `fuzzing`; no promise of stability.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use crate::ws::codec::{Allowance, Decoder, Message};

/// Largest message in these runs.
const LIMIT: usize = 16 * 1024;

struct Pieces<'a> {
    bytes: &'a [u8],
    cuts: &'a [u8],
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (cut, rest) =
            self.cuts.split_first().map_or((usize::MAX, self.cuts), |(cut, rest)| (usize::from(*cut).max(1), rest));
        self.cuts = rest;
        let (now, later) = self.bytes.split_at(cut.min(room.remaining()).min(self.bytes.len()));
        room.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

/// The messages of a client's byte stream that arrives in pieces of these lengths, as text.
pub fn messages(stream: &[u8], cuts: &[u8]) -> Vec<String> {
    let mut reader = Pieces { bytes: stream, cuts };
    let mut decoder = Decoder::new(Allowance::of(LIMIT), b"");
    let (mut out, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
    loop {
        let read = decoder.poll_fill(&mut reader, &mut cx);
        while let Some(index) = decoder.peek() {
            decoder.advance();
            let message = decoder.message(index);
            out.push(format!("{message:?}"));
            if matches!(message, Message::Violation(_)) {
                return out;
            }
        }
        if let Poll::Ready(Ok(0)) = read {
            return out;
        }
    }
}
