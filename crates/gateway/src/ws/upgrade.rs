//! From an HTTP request to a WebSocket: the handshake of RFC 6455, the origin, and who it is.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use hyper::body::Body as _;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use promethean_event::Code;
use sha1::{Digest, Sha1};

use super::{origin, session};
use crate::Hub;
use crate::audit::Client;
use crate::http::bearer;
use crate::listener::{Peer, Stream};
use crate::rejection::{Rejection, error_response};

const PROTOCOL: &str = "promethean.v1";
/// Names the hub and its subscription that a connection of another hub is for: `HUB/NUMBER`.
const RELAY: &str = "promethean-relay";
/// What RFC 6455 appends to the client's key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The routes of a listener that serves WebSockets only: any path.
pub fn router(hub: Arc<Hub>) -> Router {
    Router::new().fallback(upgrade_or_explain).with_state(hub)
}

/// `router` with WebSockets on every path in front of it, for a listener that several protocols share.
pub fn in_front_of(router: Router, hub: Arc<Hub>) -> Router {
    router.layer(middleware::from_fn_with_state(
        hub,
        |State(hub): State<Arc<Hub>>, request: Request, next: Next| async {
            if is_upgrade(request.headers()) { upgrade(hub, request).await } else { next.run(request).await }
        },
    ))
}

/// True if a request wants to become a WebSocket.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, header::UPGRADE, "websocket") && has_token(headers, header::CONNECTION, "upgrade")
}

fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(token))
}

async fn upgrade_or_explain(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    if is_upgrade(request.headers()) {
        return upgrade(hub, request).await;
    }
    let message = "this port speaks WebSocket; connect with ws:// or wss://, HTTP has its own port";
    refuse(StatusCode::UPGRADE_REQUIRED, message)
}

/// The value of a header that is there exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).into_iter();
    values.next().filter(|_| values.next().is_none())
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let mut response = error_response(status, Code::BadRequest.as_str(), message);
    if status == StatusCode::UPGRADE_REQUIRED {
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    response
}

async fn upgrade(hub: Arc<Hub>, mut request: Request) -> Response {
    if hub.drain.has_begun() {
        return Rejection::shutting_down().into_response();
    }
    let client = Client { peer: request.extensions().get::<Peer>().map(|peer| peer.0), via: "ws", sub: None };
    let headers = request.headers();
    if request.method() != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket begins with GET");
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version.as_bytes() != b"13") {
        return refuse(StatusCode::UPGRADE_REQUIRED, "Sec-WebSocket-Version must be 13");
    }
    if request.version() == Version::HTTP_10 {
        return refuse(StatusCode::BAD_REQUEST, "a WebSocket begins with HTTP/1.1; HTTP/1.0 has no upgrades");
    }
    if !request.body().is_end_stream() {
        return refuse(StatusCode::BAD_REQUEST, "the request that begins a WebSocket has no body");
    }
    let Some(accept) = only(headers, &header::SEC_WEBSOCKET_KEY).and_then(accept_of) else {
        return refuse(StatusCode::BAD_REQUEST, "one Sec-WebSocket-Key is needed, 16 bytes in base64");
    };
    let (allowed, is_open) = (&hub.config.allowed_origins, hub.auth.is_open());
    if !origin::is_allowed(headers, allowed, is_open) || (is_open && origin::is_cross_site(headers, allowed)) {
        let rejection = Rejection::new(Code::Forbidden, "this origin may not connect; add it to allowed_origins");
        hub.audit.forbidden(client, &rejection);
        return rejection.into_response();
    }
    let offers_protocol = has_token(headers, header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    let identity = if let Some(origin) = headers.get(RELAY) {
        match hub.auth.authenticate_relay(bearer(headers), origin.to_str().unwrap_or_default()) {
            Ok(identity) => Some(identity),
            Err(refusal) => {
                hub.audit.authenticated(client, Err(&refusal));
                return Rejection::from(refusal).into_response();
            }
        }
    } else if hub.auth.is_open() {
        hub.auth.authenticate(None).await.ok()
    } else {
        match bearer(headers) {
            None => None,
            Some(token) => {
                let result = hub.auth.authenticate(Some(token)).await;
                hub.audit.authenticated(client, result.as_ref());
                match result {
                    Ok(identity) => Some(identity),
                    Err(refusal) => return Rejection::from(refusal).into_response(),
                }
            }
        }
    };
    let peer = request.extensions().get::<Peer>().map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |peer| peer.0);
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrading.await {
            Ok(upgraded) => {
                let opened = open(upgraded, &hub);
                session::run(hub, opened, identity, peer).await;
            }
            Err(error) => tracing::debug!(%peer, %error, "the upgrade was not finished"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if offers_protocol {
        answer.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    }
    response
}

/// The listener's stream itself where it is one, and the bytes that came after the request's head.
fn open(upgraded: Upgraded, hub: &Hub) -> session::Opened {
    match upgraded.downcast::<TokioIo<Stream>>() {
        Ok(parts) => {
            let mut stream = parts.io.into_inner();
            // The session has a deadline of its own, with a close code.
            stream.set_write_deadline(None);
            session::Opened { holder: stream.holder(), wire: Box::new(stream), first: parts.read_buf }
        }
        Err(upgraded) => session::Opened {
            wire: Box::new(TokioIo::new(upgraded)),
            first: Bytes::new(),
            holder: Arc::new(hub.buffers.open()),
        },
    }
}

fn accept_of(key: &HeaderValue) -> Option<HeaderValue> {
    let sent = STANDARD.decode(key.as_bytes()).ok()?;
    if sent.len() != 16 {
        return None;
    }
    let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(GUID).finalize();
    HeaderValue::from_str(&STANDARD.encode(digest)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_value_is_the_one_of_the_rfc() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept_of(&key).expect("valid"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(accept_of(&HeaderValue::from_static("c2hvcnQ=")), None);
        assert_eq!(accept_of(&HeaderValue::from_static("not base64!")), None);
    }

    #[test]
    fn an_upgrade_is_known_by_two_headers_whatever_their_case() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert!(!is_upgrade(&headers));
        headers.insert(header::UPGRADE, HeaderValue::from_static("WebSocket"));
        assert!(is_upgrade(&headers));
    }
}
