//! A blocking connection that every client here shares: large reads, many messages with one write.
//!
//! The protocols are parsers and writers over byte slices (`systems/`), so that what a client costs differs by its
//! protocol alone.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What is read at once.
const BUFFER: usize = 256 * 1024;

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// What [`Wire::flush`] writes.
    pub(crate) out: Vec<u8>,
}

impl Wire {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { stream, buffer: vec![0; BUFFER], start: 0, end: 0, out: Vec::with_capacity(BUFFER) })
    }

    /// From now on [`Wire::fill`] does not wait.
    pub(crate) fn set_nonblocking(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(true)
    }

    /// What was read and not consumed, and where to write answers.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.buffer[self.start..self.end], &mut self.out)
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once; `false`: nothing came in time.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        // A message that is cut off by the end of the buffer is moved to its front, once most of it was used.
        if self.start > BUFFER / 2 || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        match self.stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(count) => {
                self.end += count;
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
            self.out.clear();
        }
        Ok(())
    }

    /// Writes what is collected and reads until `find` finds what it looks for; for everything before the load.
    pub(crate) fn ask<T>(&mut self, mut find: impl FnMut(&[u8]) -> Option<(usize, T)>) -> io::Result<T> {
        self.flush()?;
        for _ in 0..200 {
            if let Some((count, found)) = find(self.parts().0) {
                self.consume(count);
                return Ok(found);
            }
            self.fill()?;
        }
        let so_far = String::from_utf8_lossy(self.parts().0).into_owned();
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer in 20 s; there is {so_far:?}")))
    }
}
