//! Reading a request's body: whole, but never more than its limit and not for ever.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use promethean_event::Code;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::buffers::Full;
use crate::rejection::Rejection;

/// Most bytes of a body that says what to do.
pub(crate) const SMALL: usize = 256 * 1024;
/// How long the next bytes may take.
const NEXT: Duration = Duration::from_secs(10);
/// Bytes a second that a body must have on average after that.
const RATE: usize = 16 * 1024;
/// How long all of it may take.
const WHOLE: Duration = Duration::from_secs(120);

/// The body, at most `most` bytes.
///
/// # Errors
/// `too_large`; `bad_request` when it does not come.
pub(crate) async fn read(body: Body, most: usize) -> Result<Bytes, Rejection> {
    read_within(body, most, NEXT, WHOLE).await
}

/// A body that is a JSON object of known shape.
///
/// # Errors
/// `bad_json`; `bad_request` that names the field.
pub(crate) fn parse_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Rejection> {
    let refused = |error: serde_json::Error| {
        let code = if error.is_data() { Code::BadRequest } else { Code::BadJson };
        Rejection::new(code, format!("the body: {error}"))
    };
    // A list would be taken for the fields in the order in which they are declared.
    if !body.trim_ascii_start().starts_with(b"{") {
        serde_json::from_slice::<IgnoredAny>(body).map_err(refused)?;
        return Err(Rejection::new(Code::BadRequest, "the body: a JSON object is needed, {\"field\": value}"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        let known = error.inner().is_data() && field != "." && !error.inner().to_string().starts_with("unknown field");
        let Rejection { code, msg, .. } = refused(error.into_inner());
        Rejection::new(code, if known { format!("{field}: {}", msg.trim_start_matches("the body: ")) } else { msg })
    })?;
    json.end().map_err(refused)?;
    Ok(parsed)
}

async fn read_within(body: Body, most: usize, next: Duration, whole: Duration) -> Result<Bytes, Rejection> {
    let declared = hyper::body::Body::size_hint(&body).lower();
    if usize::try_from(declared).is_ok_and(|declared| declared > most) {
        return Err(too_large(most));
    }
    match tokio::time::timeout(whole, read_frames(body, most, next)).await {
        Ok(read) => read,
        Err(_) => Err(slow()),
    }
}

async fn read_frames(mut body: Body, most: usize, next: Duration) -> Result<Bytes, Rejection> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let begun = Instant::now();
    loop {
        let read = first.len().max(rest.len());
        if begun.elapsed() > next + Duration::from_secs(1).mul_f64(read as f64 / RATE as f64) {
            return Err(slow());
        }
        let frame = match tokio::time::timeout(next, body.frame()).await {
            Err(_) => return Err(slow()),
            Ok(None) if rest.is_empty() => return Ok(first),
            Ok(None) => return Ok(rest.freeze()),
            Ok(Some(Err(error))) => {
                if let Some(full) = full(&error) {
                    return Err(Rejection::busy(full.to_string()));
                }
                return Err(Rejection::new(Code::BadRequest, format!("the body ended early: {error}")));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if read + data.len() > most {
            return Err(too_large(most));
        }
        if first.is_empty() && rest.is_empty() {
            // Most bodies come in one piece, which is then not copied.
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
}

/// The reason, where the hub has no room for the body.
fn full(error: &axum::Error) -> Option<&Full> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(full) = error.downcast_ref::<Full>() {
            return Some(full);
        }
        cause = error.source();
    }
    None
}

fn too_large(most: usize) -> Rejection {
    Rejection::new(Code::TooLarge, format!("the body has more than {most} bytes; send less, or raise the limit"))
}

fn slow() -> Rejection {
    Rejection::new(Code::BadRequest, "the body did not come in time")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::StreamExt;
    use futures_util::stream;

    use super::*;

    fn pieces(pieces: &'static [&'static str]) -> Body {
        Body::from_stream(stream::iter(pieces.iter().map(|piece| Ok::<_, Infallible>(*piece))))
    }

    #[tokio::test]
    async fn a_body_is_whole_and_at_most_its_limit() {
        assert_eq!(read(Body::empty(), 0).await, Ok(Bytes::new()));
        assert_eq!(read(pieces(&["ab", "", "cd", "e"]), 5).await, Ok(Bytes::from_static(b"abcde")));
        assert_eq!(read(pieces(&["ab", "cd", "e"]), 4).await.expect_err("one too many").code, Code::TooLarge);
        assert_eq!(read(Body::from("abcde"), 4).await.expect_err("its length is known").code, Code::TooLarge);
    }

    /// A byte now and then, without an end.
    fn dripping() -> Body {
        Body::from_stream(stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok::<_, Infallible>(Bytes::from_static(b"x"))
        }))
    }

    #[tokio::test]
    async fn a_body_that_drips_is_not_waited_for() {
        let (next, whole) = (Duration::from_millis(20), Duration::from_secs(600));
        let refused = read_within(dripping(), usize::MAX, next, whole).await.expect_err("it is too slow");
        assert_eq!(refused.code, Code::BadRequest);
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(600));
        let silent = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let refused = read_within(silent, 10, short, long).await.expect_err("nothing came");
        assert_eq!(refused.code, Code::BadRequest);
        let refused = read_within(dripping(), usize::MAX, long, short).await.expect_err("it has no end");
        assert_eq!(refused.code, Code::BadRequest);
    }
}
