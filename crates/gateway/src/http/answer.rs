//! Answers in JSON.

use axum::response::{IntoResponse, Response};
use http::header;
use serde::Serialize;

use promethean_event::Code;

use crate::rejection::Rejection;

/// `value` as the body of a 200.
pub(crate) fn json_body<T: Serialize + ?Sized>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => json_text(body),
        // The hub's own types all serialise; if one did not, that would be a fault of the hub.
        Err(error) => {
            Rejection::new(Code::PublishFailed, format!("the answer does not serialise: {error}")).into_response()
        }
    }
}

/// A 200 whose body is JSON already.
pub(crate) fn json_text(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}
