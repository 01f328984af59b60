//! The connection itself: TCP, TLS, the upgrade, `AUTH`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use promethean_event::frame::{Answer, ask};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::Error;
use crate::settings::Settings;

/// Both directions of a connection.
pub(crate) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// A connection that has been authenticated.
pub(crate) type Wire = WebSocketStream<Box<dyn ReadWrite>>;

/// A new connection.
pub(crate) struct Connected {
    pub(crate) wire: Wire,
    /// When the token runs out, in epoch seconds, where the hub says so.
    pub(crate) expires: Option<u64>,
}

/// Connects and authenticates, at the address of try number `attempt`.
pub(crate) async fn connect(settings: &Settings, attempt: usize) -> Result<Connected, Error> {
    let url = settings.url(attempt);
    let failed = |reason: String| Error::Connect { url: url.to_owned(), reason };
    let too_slow = || failed(format!("no answer within {:?}", settings.connect_timeout));
    let token = settings.token.fetch().await.map_err(|reason| failed(format!("no token: {reason}")))?;
    match tokio::time::timeout(settings.connect_timeout, open(settings, url, token)).await {
        Ok(opened) => opened.map_err(|error| match error {
            Opening::Failed(reason) => failed(reason),
            Opening::Refused(error) => error,
        }),
        Err(_) => Err(too_slow()),
    }
}

enum Opening {
    Failed(String),
    Refused(Error),
}

impl<E: std::error::Error> From<E> for Opening {
    fn from(error: E) -> Self {
        Opening::Failed(error.to_string())
    }
}

async fn open(settings: &Settings, url: &str, token: Option<String>) -> Result<Connected, Opening> {
    let mut request = url.into_client_request()?;
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("promethean.v1"));
    for (name, value) in &settings.headers {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    let tls = match request.uri().scheme_str() {
        Some("ws") => false,
        Some("wss") => true,
        _ => return Err(Opening::Failed("the address must begin with ws:// or wss://".to_owned())),
    };
    let host = request.uri().host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = request.uri().port_u16().unwrap_or(if tls { 443 } else { 80 });
    let tcp = TcpStream::connect((host.as_str(), port)).await?;
    tcp.set_nodelay(true)?;
    let stream: Box<dyn ReadWrite> = if tls {
        let config = match &settings.tls {
            Some(config) => Arc::clone(config),
            None => system_tls()?,
        };
        Box::new(tokio_rustls::TlsConnector::from(config).connect(ServerName::try_from(host)?, tcp).await?)
    } else {
        Box::new(tcp)
    };
    let config = WebSocketConfig::default().max_message_size(Some(64 << 20)).max_frame_size(Some(64 << 20));
    let upgraded = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
    let (mut wire, _) = upgraded.map_err(|error| match error {
        WsError::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            let said = String::from_utf8_lossy(body.get(..body.len().min(500)).unwrap_or_default()).into_owned();
            Opening::Failed(format!("the hub answered {}: {said}", response.status()))
        }
        other => Opening::Failed(other.to_string()),
    })?;
    let expires = match token {
        Some(token) => authenticate(&mut wire, &token).await?,
        None => None,
    };
    Ok(Connected { wire, expires })
}

/// Proves who the client is; until when that counts. Nothing else is on the wire yet.
async fn authenticate(wire: &mut Wire, token: &str) -> Result<Option<u64>, Opening> {
    let mut frame = Vec::new();
    ask::auth(&mut frame, 0, token);
    wire.send(text(frame)).await?;
    while let Some(message) = wire.next().await {
        if let Message::Text(text) = message? {
            return match Answer::parse(&text)? {
                Some(Answer::Error(refusal)) => Err(Opening::Refused(Error::refused(&refusal))),
                Some(Answer::Ok(done)) => Ok(done.exp),
                _ => Ok(None),
            };
        }
    }
    Err(Opening::Failed("the hub closed the connection during AUTH".to_owned()))
}

/// A text message of a frame that this client wrote.
pub(crate) fn text(frame: Vec<u8>) -> Message {
    Message::text(String::from_utf8(frame).unwrap_or_default())
}

fn system_tls() -> Result<Arc<rustls::ClientConfig>, Opening> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The wait before try number `attempt` (from 0): doubling, with jitter, so that clients of a hub that restarts do not
/// all come at once.
pub(crate) fn wait(attempt: u32, shortest: Duration, longest: Duration) -> Duration {
    use std::hash::BuildHasher as _;
    let doubled = shortest.saturating_mul(2_u32.saturating_pow(attempt.min(20))).min(longest);
    let random = std::hash::RandomState::new().hash_one(attempt);
    // Between half of it and all of it.
    doubled.mul_f64(0.5 + (random >> 11) as f64 / (1_u64 << 54) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_differ() {
        let (shortest, longest) = (Duration::from_millis(100), Duration::from_secs(10));
        for attempt in 0..40 {
            let full = shortest.saturating_mul(2_u32.saturating_pow(attempt.min(20))).min(longest);
            let waited = wait(attempt, shortest, longest);
            assert!(waited >= full / 2 && waited <= full, "{attempt}: {waited:?} of {full:?}");
        }
        let several: std::collections::HashSet<Duration> = (0..20).map(|_| wait(10, shortest, longest)).collect();
        assert!(several.len() > 1);
    }
}
