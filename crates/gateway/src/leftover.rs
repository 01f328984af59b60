//! A request's body: counted while it is half read, and discarded where the answer is there before its end.
//!
//! An HTTP/1 connection is closed after such an answer. A client that is still sending then finds a broken pipe, and many
//! never look at the answer that says why. So the rest is read and thrown away first, within bounds: [`MOST`] bytes, [`WHOLE`] in
//! all, [`NEXT`] without any. Whoever asked with `Expect: 100-continue` waits for the answer and is not kept.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;

use crate::buffers::Holder;

/// Most bytes that are read for nothing: a frame's worth.
const MOST: usize = 16 * 1024 * 1024;
/// How long that may take.
const WHOLE: Duration = Duration::from_secs(5);
/// Bytes that are read at once, about.
const PIECE: usize = 8 * 1024;
/// How long the next bytes may take.
const NEXT: Duration = Duration::from_secs(1);

/// A request's body whose rest can be read after a handler has dropped it.
pub(crate) struct Shared {
    body: Arc<Mutex<Incoming>>,
    holder: Arc<Holder>,
    read: usize,
}

/// The rest of such a body; none: nothing is to be done about it.
pub(crate) struct Leftover(Option<Arc<Mutex<Incoming>>>);

/// Returns the request with a body that counts in `holder`, and the body's rest.
pub(crate) fn share(request: Request<Incoming>, holder: Arc<Holder>) -> (Request<Shared>, Leftover) {
    let wait = request.body().is_end_stream() || request.headers().contains_key(header::EXPECT);
    let (head, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body));
    let leftover = Leftover((!wait).then(|| Arc::clone(&body)));
    (Request::from_parts(head, Shared { body, holder, read: 0 }), leftover)
}

impl Leftover {
    /// Reads the rest, as far as the bounds go.
    pub(crate) async fn discard(self) {
        // Whoever still reads it goes on: an answer may begin before the body has ended.
        let Some(Ok(body)) = self.0.map(Arc::try_unwrap) else { return };
        let mut body = body.into_inner();
        let rest = async {
            let mut read = 0;
            while read < MOST && !body.is_end_stream() {
                let Ok(Some(Ok(frame))) = tokio::time::timeout(NEXT, body.frame()).await else { return };
                read += frame.data_ref().map_or(0, Bytes::len);
            }
        };
        let _ = tokio::time::timeout(WHOLE, rest).await;
    }
}

impl Body for Shared {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Err(full) = ready!(self.holder.poll_reading(self.read + PIECE, cx)) {
            self.holder.end_reading();
            return Poll::Ready(Some(Err(full.into())));
        }
        let frame = ready!(Pin::new(&mut *self.body.lock()).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.read += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => self.holder.end_reading(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.lock().size_hint()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.holder.end_reading();
    }
}
