//! `promethean health`: asks `/readyz`, for container health checks and scripts.
//!
//! Exits 0 when the hub is ready, 1 when it answers that it is not, 3 when nobody answers, 124 when it takes too long.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::args::HealthArgs;
use crate::config::duration;
use crate::exit::{Exit, Failure};

/// Enough for a status line and the reason.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

pub(crate) fn run(args: &HealthArgs) -> Result<(), Failure> {
    let timeout = duration(&args.timeout).map_err(|reason| Failure::usage(format!("--timeout: {reason}")))?;
    let url = Url::parse(&args.server).map_err(|reason| Failure::usage(format!("--server: {reason}")))?;
    let answer = get(&url, "/readyz", timeout.max(Duration::from_millis(1))).map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Exit::Timeout,
            _ => Exit::Unreachable,
        };
        Failure::new(exit, format!("{}: {error}", args.server))
    })?;
    let (status, body) = split_answer(&answer)
        .ok_or_else(|| Failure::new(Exit::Unreachable, format!("{} does not speak HTTP", args.server)))?;
    if status == 200 {
        println!("ready");
        return Ok(());
    }
    Err(Failure::failed(format!("not ready ({status}): {}", body.trim())))
}

/// Where a hub's HTTP is.
pub(super) struct Url {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(format!("{text:?} must begin with http:// or https://")),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
            }
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() { Err("names no host".into()) } else { Ok(Self { tls, host, port }) }
    }
}

fn get(url: &Url, path: &str, timeout: Duration) -> std::io::Result<Vec<u8>> {
    let addrs = (url.host.as_str(), url.port).to_socket_addrs()?;
    let mut connected = Err(std::io::Error::new(ErrorKind::NotFound, "the host has no address"));
    for addr in addrs {
        connected = TcpStream::connect_timeout(&addr, timeout);
        if connected.is_ok() {
            break;
        }
    }
    let mut tcp = connected?;
    tcp.set_read_timeout(Some(timeout))?;
    tcp.set_write_timeout(Some(timeout))?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {}:{}\r\nconnection: close\r\n\r\n", url.host, url.port);
    let mut answer = Vec::new();
    if url.tls {
        let invalid = |error: String| std::io::Error::new(ErrorKind::InvalidInput, error);
        let name =
            rustls::pki_types::ServerName::try_from(url.host.clone()).map_err(|error| invalid(error.to_string()))?;
        let connection = rustls::ClientConnection::new(tls_config().map_err(invalid)?, name)
            .map_err(|error| invalid(error.to_string()))?;
        let mut stream = rustls::StreamOwned::new(connection, tcp);
        stream.write_all(request.as_bytes())?;
        read_answer(stream, &mut answer)?;
    } else {
        tcp.write_all(request.as_bytes())?;
        read_answer(tcp, &mut answer)?;
    }
    Ok(answer)
}

/// Reads to the end; an end without goodbye is one too once something came.
fn read_answer(stream: impl Read, answer: &mut Vec<u8>) -> std::io::Result<()> {
    match stream.take(MAX_ANSWER_BYTES).read_to_end(answer) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && !answer.is_empty() => Ok(()),
        other => other.map(drop),
    }
}

pub(super) fn tls_config() -> Result<Arc<rustls::ClientConfig>, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The status and the body.
fn split_answer(answer: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{Url, split_answer};

    #[test]
    fn addresses_are_read_with_and_without_ports() {
        for (text, tls, host, port) in [
            ("http://127.0.0.1:8081", false, "127.0.0.1", 8081),
            ("https://hub.example/x", true, "hub.example", 443),
            ("http://[::1]:9/", false, "::1", 9),
            ("http://[::1]", false, "::1", 80),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.tls, url.host.as_str(), url.port), (tls, host, port), "{text}");
        }
        for bad in ["hub:8081", "ws://hub", "http://", "http://hub:port"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        assert_eq!(split_answer(b"HTTP/1.1 503 No\r\na: b\r\n\r\nwhy"), Some((503, "why".into())));
        assert_eq!(split_answer(b"SSH-2.0"), None);
    }
}
