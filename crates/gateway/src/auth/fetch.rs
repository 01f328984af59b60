//! One small HTTP request: a GET for key sets (https or loopback only), a POST for spans. No redirects, a bounded body.
//!
//! The caller bounds the time.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Largest answer that is read.
pub(super) const MAX_BODY_BYTES: usize = 256 * 1024;

/// An address that may be fetched from.
#[derive(Clone)]
pub(crate) struct Source {
    host: String,
    port: u16,
    /// `Host`, as the URL has it.
    authority: String,
    path: String,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.shown())
    }
}

impl Source {
    /// # Errors
    /// Not a URL that may be used, and why.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        Self::trusting(url, system_roots)
    }

    /// Also plain http to another machine: for what need not be believed.
    ///
    /// # Errors
    /// Not a URL that may be used, and why.
    #[cfg(feature = "otel")]
    pub(crate) fn anywhere(url: &str) -> Result<Self, String> {
        Self::over(url, system_roots, |_| true)
    }

    fn trusting(url: &str, roots: impl Fn() -> RootCertStore) -> Result<Self, String> {
        Self::over(url, roots, is_loopback)
    }

    fn over(url: &str, roots: impl Fn() -> RootCertStore, plain: impl Fn(&str) -> bool) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "not a URL; write https://host/path".to_owned())?;
        let host = uri.host().ok_or("the URL names no host; write https://host/path")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        if authority.contains('@') {
            return Err("the URL must not hold a user name or password".into());
        }
        let tls = match uri.scheme_str() {
            Some("https") => Some(connector(roots())?),
            Some("http") if plain(&host) => None,
            Some("http") => return Err("must be https: plain http is for loopback addresses only".into()),
            _ => return Err("must begin with https://".into()),
        };
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { host, port, authority, path, tls })
    }

    /// For logs: without the path and query, which may hold a key.
    pub(crate) fn shown(&self) -> &str {
        &self.authority
    }

    pub(super) async fn get(&self) -> Result<Bytes, String> {
        self.exchange(None).await
    }

    /// Sends JSON; the answer is not looked at but for its status.
    #[cfg(feature = "otel")]
    pub(crate) async fn post(&self, body: Bytes) -> Result<(), String> {
        self.exchange(Some(body)).await.map(drop)
    }

    async fn exchange(&self, body: Option<Bytes>) -> Result<Bytes, String> {
        let connected = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = connected.map_err(|error| format!("cannot connect to {}: {error}", self.authority))?;
        match &self.tls {
            None => self.request(stream, body).await,
            Some(tls) => {
                let name =
                    ServerName::try_from(self.host.clone()).map_err(|_| "the host is no server name".to_owned())?;
                let stream = tls.connect(name, stream).await;
                self.request(stream.map_err(|error| format!("TLS with {}: {error}", self.authority))?, body).await
            }
        }
    }

    async fn request(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        body: Option<Bytes>,
    ) -> Result<Bytes, String> {
        let broken = |error: hyper::Error| format!("HTTP with {}: {error}", self.authority);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Polled together with the request, so that it ends with it: nothing is left behind on a time-out.
        let exchange = async {
            let method = if body.is_some() { Method::POST } else { Method::GET };
            let request = Request::builder()
                .method(method)
                .uri(&self.path)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::HOST, &self.authority)
                .header(header::ACCEPT, "application/json")
                .header(header::USER_AGENT, "promethean")
                .header(header::CONNECTION, "close")
                .body(Full::new(body.unwrap_or_default()))
                .map_err(|_| "the URL cannot be requested".to_owned())?;
            let response = sender.send_request(request).await.map_err(broken)?;
            if response.status() != StatusCode::OK {
                let redirect = if response.status().is_redirection() { "; redirects are not followed" } else { "" };
                return Err(format!("{} answered {}{redirect}", self.authority, response.status()));
            }
            let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
            body.map(http_body_util::Collected::to_bytes).map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    format!("the answer is larger than {MAX_BODY_BYTES} bytes")
                } else {
                    format!("HTTP with {}: {error}", self.authority)
                }
            })
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            // The connection may end first, after the whole answer came in.
            _ = connection => exchange.await,
        }
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// What the system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` count).
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn connector(roots: RootCertStore) -> Result<TlsConnector, String> {
    if roots.is_empty() {
        return Err("no trusted certificates on this system; install ca-certificates or set SSL_CERT_FILE".into());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Answers one request over TLS, as `localhost`; returns its port and certificate.
    async fn https_server() -> (u16, CertificateDer<'static>) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a certificate with its key");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.expect("a connection");
            let Ok(mut stream) = acceptor.accept(tcp).await else { return };
            let mut head = [0; 2048];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        });
        (port, made.cert.der().clone())
    }

    #[tokio::test]
    async fn https_works_with_a_certificate_that_is_trusted() {
        let (port, cert) = https_server().await;
        let trusting = || {
            let mut roots = RootCertStore::empty();
            roots.add(cert.clone()).expect("a root");
            roots
        };
        let source = Source::trusting(&format!("https://localhost:{port}/keys"), trusting).expect("a source");
        assert_eq!(source.get().await.expect("an answer"), "ok");
    }

    #[tokio::test]
    async fn https_with_a_certificate_that_is_not_trusted_is_refused() {
        let (port, _) = https_server().await;
        let (_, another) = https_server().await;
        let trusting = || {
            let mut roots = RootCertStore::empty();
            roots.add(another.clone()).expect("a root");
            roots
        };
        let source = Source::trusting(&format!("https://localhost:{port}/keys"), trusting).expect("a source");
        let refused = source.get().await.expect_err("not trusted");
        assert!(refused.contains("certificate"), "{refused}");
    }

    #[test]
    fn a_system_that_trusts_nobody_is_told_so() {
        let refused = Source::trusting("https://idp.example/keys", RootCertStore::empty).expect_err("no roots");
        assert!(refused.contains("ca-certificates"), "{refused}");
    }

    #[test]
    fn only_https_or_loopback_is_fetched() {
        for good in ["http://127.0.0.1:1/k", "http://localhost/k?x=1", "http://[::1]:8080/jwks"] {
            assert!(Source::parse(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("http://example.com/k", "https"),
            ("http://127.0.0.1.example.com/k", "https"),
            ("http://169.254.169.254/latest", "https"),
            ("ftp://localhost/k", "https://"),
            ("/just/a/path", "host"),
            ("", "not a URL"),
            ("https://user:canary@example.com/k", "user name"),
        ] {
            let refused = Source::parse(bad).expect_err(bad);
            assert!(refused.contains(why) && !refused.contains("canary"), "{bad}: {refused}");
        }
    }
}
