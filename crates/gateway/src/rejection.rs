//! The one place that turns the contract's codes into HTTP statuses, JSON error bodies and WebSocket close codes.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use promethean_bus::OWN_GROUPS;
use promethean_event::{Code, Group, Invalid};

use crate::auth::Refusal;
use crate::limits::Limited;

/// A refusal on its way to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {msg}")]
pub struct Rejection {
    /// The stable code.
    pub code: Code,
    /// For people; never holds a secret.
    pub msg: String,
    /// When to try again, for `rate_limited`.
    pub retry_after: Option<Duration>,
    /// The HTTP status, where it is not the code's own.
    pub status: Option<StatusCode>,
}

impl Rejection {
    /// A refusal with `code`, because of `msg`.
    pub fn new(code: Code, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), retry_after: None, status: None }
    }

    /// The policy says no.
    pub fn forbidden(action: crate::auth::Action, what: &str) -> Self {
        Self::new(Code::Forbidden, format!("the token's policy does not allow {action} on {what}"))
    }

    /// The hub has no room for this request at the moment.
    pub(crate) fn busy(msg: impl Into<String>) -> Self {
        let (retry_after, status) = (Some(Duration::from_secs(1)), Some(StatusCode::SERVICE_UNAVAILABLE));
        Self { retry_after, status, ..Self::new(Code::RateLimited, msg) }
    }

    /// The hub is draining.
    pub fn shutting_down() -> Self {
        Self::new(Code::ShuttingDown, "the hub is shutting down: connect again in a moment")
    }

    /// `retry_after_ms` as the wire has it: whole milliseconds, rounded up, so that who comes back at that time gets in.
    pub fn retry_after_ms(&self) -> Option<u64> {
        self.retry_after.map(|after| u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1))
    }
}

impl From<Invalid> for Rejection {
    fn from(invalid: Invalid) -> Self {
        Self::new(invalid.code, invalid.to_string())
    }
}

impl From<promethean_bus::Error> for Rejection {
    fn from(error: promethean_bus::Error) -> Self {
        Self::new(error.code, error.message)
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, refusal.msg)
    }
}

impl From<Limited> for Rejection {
    fn from(limited: Limited) -> Self {
        Self { retry_after: Some(limited.retry_after), ..Self::new(Code::RateLimited, limited.to_string()) }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = error_response(self.status.unwrap_or(status(self.code)), self.code.as_str(), &self.msg);
        response.extensions_mut().insert(self.clone());
        if let Some(after) = self.retry_after {
            // Whole seconds, rounded up: who comes back at that time gets in.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

/// The HTTP status of a code.
pub const fn status(code: Code) -> StatusCode {
    match code {
        Code::BadJson | Code::BadRequest | Code::BadTopic | Code::BadId => StatusCode::BAD_REQUEST,
        Code::Unauthorized | Code::NoToken | Code::BadToken | Code::JwtInvalid | Code::TokenExpired => {
            StatusCode::UNAUTHORIZED
        }
        Code::Forbidden => StatusCode::FORBIDDEN,
        Code::UnknownId | Code::NotSubscribed | Code::NotFound | Code::UnknownTopic | Code::TopicDeleted => {
            StatusCode::NOT_FOUND
        }
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::DuplicateId | Code::AlreadySubscribed | Code::LeaseLost | Code::Conflict => StatusCode::CONFLICT,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::RateLimited | Code::LimitReached => StatusCode::TOO_MANY_REQUESTS,
        Code::PublishFailed | Code::AckFailed | Code::StoreDamaged => StatusCode::INTERNAL_SERVER_ERROR,
        Code::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Refuses a group of the hub's own to everybody else: its cursor says what the hub has done, and must not say anything
/// else.
pub(crate) fn not_the_hubs_own(group: &Group) -> Result<(), Rejection> {
    if !group.as_str().starts_with(OWN_GROUPS) {
        return Ok(());
    }
    let message = format!("group: names that begin with {OWN_GROUPS} belong to the hub; {group} is for nobody else");
    Err(Rejection::new(Code::BadRequest, message))
}

/// Address of the page of the codes; each has a heading of its own there.
const CODES: &str = "https://github.com/promethean-hub/promethean/blob/main/docs/errors/codes.md";

/// The address of a code's page.
pub(crate) fn page(code: &str) -> String {
    format!("{CODES}#{code}")
}

/// An error body, RFC 9457's problem details, with its status. `error` is `detail` under its older name.
pub fn error_response(status: StatusCode, code: &str, msg: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({
        "type": page(code), "title": title, "status": status.as_u16(), "detail": msg, "code": code, "error": msg,
    });
    let mut response = (status, [(header::CONTENT_TYPE, PROBLEM)], body.to_string()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The content type of errors.
pub(crate) const PROBLEM: &str = "application/problem+json";

/// The answer for a route that does not exist: the fallback of every router.
pub async fn not_found() -> Response {
    Rejection::new(Code::NotFound, "there is no such route; see /openapi.json").into_response()
}

/// The answer for a route that exists with another method.
pub async fn method_not_allowed() -> Response {
    Rejection::new(Code::MethodNotAllowed, "this route has another method; the Allow header lists them").into_response()
}

/// Why the hub closes a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// The client closed first: a plain goodbye.
    Normal = 1000,
    /// The hub shuts down.
    GoingAway = 1001,
    /// The frames themselves break the WebSocket protocol.
    Protocol = 1002,
    /// A text frame that is not UTF-8.
    NotText = 1007,
    /// Pings and pongs over their rate.
    TooManyPings = 1008,
    /// A frame over the limit.
    TooBig = 1009,
    /// Not authenticated within the deadline, or the token expired.
    Unauthorized = 4401,
    /// No pong for 60 s.
    NoPong = 4408,
    /// The client does not read and its outbound buffer is full.
    DoesNotRead = 4429,
}

impl Close {
    /// The code on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The reason on the wire; at most 123 bytes.
    pub const fn reason(self) -> &'static str {
        match self {
            Close::Normal => "",
            Close::GoingAway => "the hub is shutting down",
            Close::Protocol => "protocol error",
            Close::NotText => "a text frame is not UTF-8",
            Close::TooManyPings => "too many pings or pongs",
            Close::TooBig => "a frame is over the limit",
            Close::Unauthorized => "not authenticated",
            Close::NoPong => "no pong",
            Close::DoesNotRead => "the client does not read",
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn every_code_has_the_status_of_the_contract() {
        for (code, expected) in [
            ("bad_json", 400),
            ("bad_request", 400),
            ("bad_topic", 400),
            ("bad_id", 400),
            ("unauthorized", 401),
            ("no_token", 401),
            ("bad_token", 401),
            ("jwt_invalid", 401),
            ("token_expired", 401),
            ("forbidden", 403),
            ("duplicate_id", 409),
            ("too_large", 413),
            ("rate_limited", 429),
            ("publish_failed", 500),
            ("shutting_down", 503),
        ] {
            assert_eq!(status(Code::parse(code).expect(code)).as_u16(), expected, "{code}");
        }
    }

    #[tokio::test]
    async fn an_error_is_problem_details_with_the_code_and_its_page() {
        let response = Rejection::new(Code::BadTopic, "topic: has a \"quote\"").into_response();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).expect("json");
        let text = "topic: has a \"quote\"";
        let expected = serde_json::json!({
            "type": page("bad_topic"), "title": "Bad Request", "status": 400, "detail": text, "code": "bad_topic",
            "error": text,
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up() {
        for (millis, seconds) in [(1, "1"), (1000, "1"), (1001, "2"), (0, "1")] {
            let mut rejection = Rejection::new(Code::RateLimited, "slow down");
            rejection.retry_after = Some(Duration::from_millis(millis));
            assert_eq!(rejection.into_response().headers()[header::RETRY_AFTER], seconds, "{millis} ms");
        }
        assert!(!Rejection::new(Code::Forbidden, "no").into_response().headers().contains_key(header::RETRY_AFTER));
    }

    #[test]
    fn retry_after_ms_is_never_earlier_than_there_is_room() {
        let mut rejection = Rejection::new(Code::RateLimited, "slow down");
        for (nanos, millis) in [(0, 1), (1, 1), (1_000_000, 1), (1_000_001, 2), (1_999_999, 2), (50_999_000, 51)] {
            rejection.retry_after = Some(Duration::from_nanos(nanos));
            assert_eq!(rejection.retry_after_ms(), Some(millis), "{nanos} ns");
        }
    }

    #[test]
    fn close_codes_are_those_of_the_contract() {
        let codes =
            [Close::Unauthorized, Close::NoPong, Close::NotText, Close::TooBig, Close::GoingAway, Close::DoesNotRead];
        assert_eq!(codes.map(Close::code), [4401, 4408, 1007, 1009, 1001, 4429]);
    }
}
