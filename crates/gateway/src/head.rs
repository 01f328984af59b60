//! Request heads that two readers could take in two ways (a proxy in front and this hub): refused on every port, before
//! any route. The router never sees one.

use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use promethean_event::Code;

use crate::rejection::Rejection;

/// Headers that count once or not at all.
const SINGLE: [header::HeaderName; 2] = [header::HOST, header::AUTHORIZATION];

/// Returns the answer to a request whose head is refused. The connection ends after it.
pub(crate) fn refused(headers: &HeaderMap) -> Option<Response> {
    let (status, message) = fault(headers)?;
    let rejection = Rejection { status: Some(status), ..Rejection::new(Code::BadRequest, message) };
    let mut answer = rejection.into_response();
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        answer.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    Some(answer)
}

fn fault(headers: &HeaderMap) -> Option<(StatusCode, String)> {
    if let Some(name) = SINGLE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        return Some((StatusCode::BAD_REQUEST, format!("the request has two {name} headers; send one")));
    }
    let transfer = codings(headers, &header::TRANSFER_ENCODING);
    if transfer.iter().any(|coding| !coding.eq_ignore_ascii_case("chunked")) {
        let message = "Transfer-Encoding: only chunked is supported; send the body without another coding";
        return Some((StatusCode::NOT_IMPLEMENTED, message.to_owned()));
    }
    if transfer.len() > 1 {
        return Some((StatusCode::BAD_REQUEST, "Transfer-Encoding: chunked is named twice; name it once".to_owned()));
    }
    if codings(headers, &header::CONTENT_ENCODING).iter().any(|coding| !coding.eq_ignore_ascii_case("identity")) {
        let message = "Content-Encoding: bodies are taken as they are; send the body uncompressed";
        return Some((StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned()));
    }
    None
}

/// The codings that all headers of this name list. A value that is not text is one unknown coding.
fn codings<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Vec<&'h str> {
    let values = headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or("?"));
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|coding| !coding.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(lines: &[(header::HeaderName, &str)]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        refused(&headers).map(|answer| answer.status().as_u16())
    }

    #[test]
    fn doubled_headers_and_unknown_codings_are_refused() {
        use header::{AUTHORIZATION, CONTENT_ENCODING, HOST, TRANSFER_ENCODING};
        for (lines, expected) in [
            (&[][..], None),
            (&[(HOST, "a"), (AUTHORIZATION, "Bearer b")], None),
            (&[(HOST, "a"), (HOST, "a")], Some(400)),
            (&[(AUTHORIZATION, "Bearer a"), (AUTHORIZATION, "Bearer b")], Some(400)),
            (&[(TRANSFER_ENCODING, "Chunked ")], None),
            (&[(TRANSFER_ENCODING, "gzip, chunked")], Some(501)),
            (&[(TRANSFER_ENCODING, "chunked, chunked")], Some(400)),
            (&[(TRANSFER_ENCODING, "chunked"), (TRANSFER_ENCODING, "chunked")], Some(400)),
            (&[(TRANSFER_ENCODING, "identity")], Some(501)),
            (&[(TRANSFER_ENCODING, "chunked\u{e9}")], Some(501)),
            (&[(CONTENT_ENCODING, "Identity")], None),
            (&[(CONTENT_ENCODING, "gzip")], Some(415)),
            (&[(CONTENT_ENCODING, "identity, br")], Some(415)),
            (&[(CONTENT_ENCODING, "identity"), (CONTENT_ENCODING, "br")], Some(415)),
        ] {
            assert_eq!(status(lines), expected, "{lines:?}");
        }
    }
}
