//! What of a request's body nobody has read when its answer is there: a refusal, nearly always.
//!
//! An HTTP/1 connection is closed after such an answer. A client that is still sending then finds a broken pipe, and many
//! never look at the answer that says why. So the rest is read and thrown away first, within bounds: [`MOST`] bytes, [`WHOLE`] in
//! all, [`NEXT`] without any. Whoever asked with `Expect: 100-continue` waits for the answer and is not kept.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;

/// Most bytes that are read for nothing: a frame's worth.
const MOST: usize = 16 * 1024 * 1024;
/// How long that may take.
const WHOLE: Duration = Duration::from_secs(5);
/// How long the next bytes may take.
const NEXT: Duration = Duration::from_secs(1);

/// A request's body that can still be read after whoever had it has dropped it.
pub(crate) struct Shared(Arc<Mutex<Incoming>>);

/// The rest of such a body; none: nothing is to be done about it.
pub(crate) struct Leftover(Option<Arc<Mutex<Incoming>>>);

/// The request with a body whose rest is not lost.
pub(crate) fn share(request: Request<Incoming>) -> (Request<Shared>, Leftover) {
    let wait = request.body().is_end_stream() || request.headers().contains_key(header::EXPECT);
    let (head, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body));
    let leftover = Leftover((!wait).then(|| Arc::clone(&body)));
    (Request::from_parts(head, Shared(body)), leftover)
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
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut *self.0.lock()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}
