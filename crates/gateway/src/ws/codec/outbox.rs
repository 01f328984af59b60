//! What waits to be written: whole frames, in order, sent with as few system calls as possible.
//!
//! Invariants: the buffer begins at a frame's first byte, because it is emptied only when all of it was written; a
//! frame's length is written in as few bytes as RFC 6455 asks for.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::rejection::Close;

/// What stays allocated between bursts, however small they are.
const KEPT: usize = 64 * 1024;
/// What an idle connection may keep.
const IDLE: usize = 1024;

const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// Frames on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    buffer: Vec<u8>,
    written: usize,
    /// How large bursts were lately: the largest one, fading.
    usual: usize,
}

impl Outbox {
    /// Adds a text frame whose body `write` appends.
    pub(crate) fn text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[TEXT, 0, 0, 0]);
        write(&mut self.buffer);
        self.finish(start);
    }

    /// Fills in the length. Four bytes were set aside, which fits nearly every frame.
    fn finish(&mut self, start: usize) {
        let body = start + 4;
        let len = self.buffer.len() - body;
        match (u8::try_from(len).ok().filter(|len| *len < 126), u16::try_from(len)) {
            (Some(len), _) => {
                self.buffer.copy_within(body.., start + 2);
                self.buffer.truncate(self.buffer.len() - 2);
                self.buffer[start + 1] = len;
            }
            (None, Ok(len)) => {
                self.buffer[start + 1] = 126;
                self.buffer[start + 2..body].copy_from_slice(&len.to_be_bytes());
            }
            (None, Err(_)) => {
                let end = self.buffer.len();
                self.buffer.extend_from_slice(&[0; 6]);
                self.buffer.copy_within(body..end, body + 6);
                self.buffer[start + 1] = 127;
                self.buffer[start + 2..start + 10].copy_from_slice(&(len as u64).to_be_bytes());
            }
        }
    }

    fn control(&mut self, opcode: u8, payload: &[u8]) {
        let payload = payload.get(..payload.len().min(125)).unwrap_or_default();
        self.buffer.extend_from_slice(&[opcode, payload.len() as u8]);
        self.buffer.extend_from_slice(payload);
    }

    /// Adds a ping.
    pub(crate) fn ping(&mut self) {
        self.control(PING, b"");
    }

    /// Adds a pong.
    pub(crate) fn pong(&mut self, payload: &[u8]) {
        self.control(PONG, payload);
    }

    /// Adds the close frame.
    pub(crate) fn close(&mut self, code: Close) {
        let mut payload = code.code().to_be_bytes().to_vec();
        payload.extend_from_slice(code.reason().as_bytes());
        self.control(CLOSE, &payload);
    }

    /// Drops every frame that was not begun yet: what follows comes next on the wire.
    pub(crate) fn drop_unsent(&mut self) {
        let mut end = 0;
        while end < self.written {
            end += self.frame_len(end);
        }
        self.buffer.truncate(end);
    }

    /// The length of the frame that begins at `start`, header included.
    fn frame_len(&self, start: usize) -> usize {
        let rest = self.buffer.get(start..).unwrap_or_default();
        let len = match rest {
            [_, 126, a, b, ..] => 4 + usize::from(u16::from_be_bytes([*a, *b])),
            [_, 127, a, b, c, d, e, f, g, h, ..] => {
                10 + usize::try_from(u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])).unwrap_or(usize::MAX)
            }
            [_, len, ..] => 2 + usize::from(*len),
            _ => rest.len(),
        };
        len.clamp(1, rest.len().max(1))
    }

    /// Bytes that hold memory: the ones that wait, and the ones before them that were written.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// True if everything was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Writes what waits; `Ready` when all of it is gone. `progress` tells whether a byte went out.
    pub(crate) fn poll_write<W: AsyncWrite + Unpin + ?Sized>(
        &mut self,
        writer: &mut W,
        cx: &mut Context<'_>,
        progress: &mut bool,
    ) -> Poll<io::Result<()>> {
        while let Some(waiting) = self.buffer.get(self.written..).filter(|waiting| !waiting.is_empty()) {
            let count = ready!(Pin::new(&mut *writer).poll_write(cx, waiting))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *progress = true;
            self.written += count;
        }
        self.forget_written();
        Poll::Ready(Ok(()))
    }

    /// Begins anew. Memory is kept for another burst of the usual size: giving it back and taking it again would cost
    /// a busy connection two copies a burst.
    fn forget_written(&mut self) {
        self.usual = self.buffer.len().max(self.usual - self.usual / 8);
        self.buffer.clear();
        self.written = 0;
        let kept = KEPT.max(2 * self.usual);
        if self.buffer.capacity() > 2 * kept {
            self.buffer.shrink_to(kept);
        }
    }

    /// Gives memory back; for a connection that has been silent for a while.
    pub(crate) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer.shrink_to(IDLE);
            self.usual = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes a few bytes a call.
    struct Trickle(Vec<u8>, usize);

    impl AsyncWrite for Trickle {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.1);
            if count == 0 {
                return Poll::Pending;
            }
            self.0.extend_from_slice(&bytes[..count]);
            self.1 -= count;
            Poll::Ready(Ok(count))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn header(len: usize) -> Vec<u8> {
        match len {
            0..126 => vec![0x81, len as u8],
            126..65_536 => vec![0x81, 126, (len >> 8) as u8, len as u8],
            _ => [&[0x81, 127][..], &(len as u64).to_be_bytes()].concat(),
        }
    }

    #[test]
    fn lengths_are_written_in_as_few_bytes_as_possible() {
        for len in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000] {
            let mut outbox = Outbox::default();
            outbox.ping();
            outbox.text(|out| out.resize(out.len() + len, b'x'));
            let expected = [vec![0x89, 0], header(len), vec![b'x'; len]].concat();
            assert_eq!(outbox.buffer, expected, "{len}");
        }
    }

    #[test]
    fn memory_of_a_large_burst_is_given_back_when_bursts_are_small_again() {
        let mut outbox = Outbox::default();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut burst = |len: usize| {
            outbox.text(|out| out.resize(out.len() + len, b'x'));
            assert!(outbox.poll_write(&mut Trickle(Vec::new(), usize::MAX), &mut cx, &mut false).is_ready());
            outbox.buffer.capacity()
        };
        let large = burst(4 << 20);
        assert!(large >= 4 << 20 && burst(4 << 20) == large, "kept while bursts are as large");
        let last = (0..100).map(|_| burst(100)).last();
        assert!(last.is_some_and(|kept| kept <= 2 * KEPT), "{last:?}");
    }

    proptest! {
        #[test]
        fn a_frame_that_was_begun_is_finished_and_the_close_frame_comes_next(
            lens in proptest::collection::vec(prop_oneof![0_usize..200, Just(65_535), Just(65_600)], 1..6),
            taken in 0_usize..150_000,
        ) {
            let mut outbox = Outbox::default();
            for len in &lens {
                outbox.text(|out| out.resize(out.len() + len, b'x'));
            }
            let mut wire = Trickle(Vec::new(), taken);
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let done = outbox.poll_write(&mut wire, &mut cx, &mut false).is_ready();
            outbox.drop_unsent();
            outbox.close(Close::DoesNotRead);
            wire.1 = usize::MAX;
            prop_assert!(outbox.poll_write(&mut wire, &mut cx, &mut false).is_ready());

            let mut rest = wire.0.as_slice();
            for len in lens {
                let Some(after) = rest.strip_prefix(header(len).as_slice()) else { break };
                rest = &after[len..];
            }
            prop_assert_eq!(&rest[2..4], &4429_u16.to_be_bytes(), "the close frame follows a whole frame");
            prop_assert!(done || wire.0.len() <= taken + 65_610 + 130);
        }
    }
}
