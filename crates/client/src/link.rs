//! One connection, frame by frame: nothing is remembered, nothing reconnects. For who has to see every answer.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::Error;
use crate::wire::{self, Wire};

/// One connection to a hub.
pub struct Link(Wire);

impl Link {
    pub(crate) fn new(wire: Wire) -> Self {
        Self(wire)
    }

    /// Both directions, so that reading never waits for writing.
    pub fn split(self) -> (LinkWriter, LinkReader) {
        let (writer, reader) = self.0.split();
        (LinkWriter(writer), LinkReader(reader))
    }
}

/// The way to the hub.
pub struct LinkWriter(SplitSink<Wire, Message>);

impl LinkWriter {
    /// Puts a frame on its way; [`LinkWriter::flush`] sends it.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn feed(&mut self, frame: Vec<u8>) -> Result<(), Error> {
        self.0.feed(wire::text(frame)).await.map_err(|_| Error::Lost)
    }

    /// Sends what was fed.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.0.flush().await.map_err(|_| Error::Lost)
    }

    /// Says goodbye.
    pub async fn close(mut self) {
        let _ = self.0.close().await;
    }
}

/// The way from the hub.
pub struct LinkReader(SplitStream<Wire>);

impl LinkReader {
    /// The next frame; `None` when the connection has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Utf8Bytes> {
        loop {
            match self.0.next().await? {
                Ok(Message::Text(text)) => return Some(text),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}
