//! A small HTTP client for the commands that speak HTTP: one request a connection, answers streamed, plain or TLS.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use promethean_event::Code;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::address::{self, Port, Target, Url};
use crate::args::HttpArgs;
use crate::config::duration;
use crate::exit::{Exit, Failure};

/// Longest line of a response's head.
const MAX_LINE: u64 = 64 * 1024;
/// Most of an error's body that is shown.
const MAX_ERROR: u64 = 4 * 1024;
/// Most of an answer that is taken in whole.
const MAX_WHOLE: u64 = 256 * 1024 * 1024;

/// A hub's HTTP or ops port.
pub(super) struct Peer {
    target: Target,
    timeout: Duration,
}

/// What a hub answered; the body as it comes.
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    body: Box<dyn Read>,
    server: String,
}

/// Parameters of a query.
pub(super) type Query<'a> = &'a [(&'a str, String)];

impl Peer {
    pub(super) fn new(args: &HttpArgs, port: Port) -> Result<Self, Failure> {
        let timeout = duration(&args.timeout).map_err(|reason| Failure::usage(format!("--timeout: {reason}")))?;
        Ok(Self { target: address::resolve(&args.at, port)?, timeout: timeout.max(Duration::from_millis(1)) })
    }

    /// The hub's address.
    pub(super) fn server(&self) -> &str {
        &self.target.server
    }

    /// The body of a 200.
    pub(super) fn get(&self, path: &str, query: Query<'_>) -> Result<Answer, Failure> {
        self.send("GET", path, query, None)?.ok()
    }

    /// The body of a 200 as text.
    pub(super) fn text(&self, path: &str, query: Query<'_>) -> Result<String, Failure> {
        self.get(path, query)?.text()
    }

    /// The body of a 200 as a `T`.
    pub(super) fn read<T: DeserializeOwned>(&self, path: &str, query: Query<'_>) -> Result<T, Failure> {
        let text = self.text(path, query)?;
        self.parse(&text)
    }

    /// Reads all pages of a list that is named like its path, as one answer.
    pub(super) fn pages(&self, path: &str, query: Query<'_>) -> Result<String, Failure> {
        let name = path.trim_start_matches('/');
        let limit = ("limit", "10000".to_owned());
        let ask = |after: Option<String>| {
            let query = query.iter().cloned().chain([limit.clone()]).chain(after.map(|after| ("after", after)));
            self.text(path, &query.collect::<Vec<_>>())
        };
        let text = ask(None)?;
        let mut all: Value = self.parse(&text)?;
        let mut next = all["next"].as_str().map(str::to_owned);
        if next.is_none() {
            return Ok(text);
        }
        while let Some(after) = next {
            let mut page: Value = self.parse(&ask(Some(after))?)?;
            next = page["next"].as_str().map(str::to_owned);
            if let (Some(all), Some(more)) = (all[name].as_array_mut(), page[name].as_array_mut()) {
                all.append(more);
            }
        }
        all.as_object_mut().map(|all| all.remove("next"));
        Ok(all.to_string())
    }

    /// Asks for a change; the body of a 200 as text.
    pub(super) fn change(&self, method: &str, path: &str, query: Query<'_>, body: &str) -> Result<String, Failure> {
        self.send(method, path, query, Some(body))?.ok()?.text()
    }

    /// An answer of the hub as a `T`.
    pub(super) fn parse<T: DeserializeOwned>(&self, text: &str) -> Result<T, Failure> {
        let unreadable = |error| Failure::failed(format!("{} answered something else: {error}", self.target.server));
        serde_json::from_str(text).map_err(unreadable)
    }

    /// Any answer.
    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        query: Query<'_>,
        body: Option<&str>,
    ) -> Result<Answer, Failure> {
        let Target { server, token, origin } = &self.target;
        let url = Url::parse(server).map_err(|reason| Failure::usage(format!("{origin}: {reason}")))?;
        let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        let authorization = match token {
            Some(token) if token.bytes().any(|byte| byte < 0x21 || byte == 0x7f) => {
                return Err(Failure::usage("the token holds a blank or a control character"));
            }
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let content = body.map_or_else(String::new, |body| {
            format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
        });
        let request = format!(
            "{method} {path}{mark}{} HTTP/1.1\r\nhost: {}:{}\r\n{authorization}{content}connection: close\r\n\r\n{}",
            pairs.join("&"),
            if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() },
            url.port,
            body.unwrap_or_default()
        );
        let unreachable = |error| failed(server, &error);
        let mut stream = connect(&url, self.timeout).map_err(unreachable)?;
        stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).map_err(unreachable)?;
        let mut stream = BufReader::with_capacity(64 * 1024, stream);
        let (status, headers) = read_head(&mut stream).map_err(unreachable)?;
        let chunked = find(&headers, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        let length = find(&headers, "content-length").map(str::parse);
        let body: Box<dyn Read> = match length {
            _ if chunked => Box::new(Chunked { stream, left: 0, ended: false }),
            Some(Ok(left)) => Box::new(Measured { stream, left }),
            Some(Err(_)) => {
                let error = io::Error::new(ErrorKind::InvalidData, "a content-length that is no number");
                return Err(unreachable(error));
            }
            None => Box::new(stream),
        };
        Ok(Answer { status, headers, body, server: server.clone() })
    }
}

impl Answer {
    /// Itself if it is a 200; else why not, with the exit code.
    fn ok(self) -> Result<Self, Failure> {
        if self.status == 200 {
            return Ok(self);
        }
        let (status, server) = (self.status, self.server.clone());
        let (said, code) = self.said_with_code();
        // The hub's 404 of a thing says unknown_id or unknown_topic; that of a route, bad_request; that of another server, something else.
        let of_a_thing = [Code::UnknownId.as_str(), Code::UnknownTopic.as_str()];
        let is_known = code.as_deref().is_some_and(|code| of_a_thing.contains(&code));
        let elsewhere = status == 426 || (status == 404 && !is_known);
        let exit = match status {
            _ if elsewhere => Exit::Usage,
            401 | 403 => Exit::Denied,
            404 => Exit::NotFound,
            400 | 405 | 413 => Exit::Usage,
            _ => Exit::Failed,
        };
        let remedy = match status {
            _ if elsewhere => format!("; {}", address::NAME_OPS),
            401 => format!("; {}", address::GIVE_A_TOKEN),
            _ => String::new(),
        };
        Err(Failure::new(exit, format!("{server} answered {status}: {said}{remedy}")))
    }

    /// What an error's body says, for people.
    pub(super) fn said(self) -> String {
        self.said_with_code().0
    }

    /// The same, and its code.
    fn said_with_code(self) -> (String, Option<String>) {
        let mut body = Vec::new();
        let _ = self.body.take(MAX_ERROR).read_to_end(&mut body);
        let body = String::from_utf8_lossy(&body).into_owned();
        let value: Option<serde_json::Value> = serde_json::from_str(&body).ok();
        let field = |name: &str| value.as_ref().and_then(|value| value.get(name)?.as_str());
        match (field("error"), field("code")) {
            (Some(error), Some(code)) => (format!("{error} ({code})"), Some(code.to_owned())),
            _ => (super::out::plain(body.trim()), None),
        }
    }

    /// A header's value.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The body, whole.
    pub(super) fn text(self) -> Result<String, Failure> {
        let mut text = String::new();
        let read = self.body.take(MAX_WHOLE + 1).read_to_string(&mut text);
        match read.map_err(|error| broken_off(&self.server, &error))? as u64 {
            0..=MAX_WHOLE => Ok(text),
            _ => Err(Failure::failed(format!("{}: the answer has more than {MAX_WHOLE} bytes", self.server))),
        }
    }

    /// The next bytes of the body; none at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        self.body.read(buffer).map_err(|error| broken_off(&self.server, &error))
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(this, _)| this.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// An answer that had begun and does not go on.
fn broken_off(server: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => failed(server, error),
        _ => Failure::new(
            Exit::Unreachable,
            format!("{server}: the answer was cut off: {error}; the hub's log says why, if it still runs"),
        ),
    }
}

/// A failed read or write, with its exit code.
fn failed(server: &str, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            Failure::new(Exit::Timeout, format!("{server}: no answer in time"))
        }
        _ if address::is_untrusted(&error.to_string()) => {
            Failure::new(Exit::Unreachable, format!("{server}: {error}; {}", address::TRUST_IT))
        }
        _ => Failure::new(Exit::Unreachable, format!("{server}: {error}; {}", address::START_ONE)),
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn connect(url: &Url, timeout: Duration) -> io::Result<Box<dyn Stream>> {
    let mut connected = Err(io::Error::new(ErrorKind::NotFound, "the host has no address"));
    for addr in (url.host.as_str(), url.port).to_socket_addrs()? {
        connected = TcpStream::connect_timeout(&addr, timeout);
        if connected.is_ok() {
            break;
        }
    }
    let tcp = connected?;
    tcp.set_read_timeout(Some(timeout))?;
    tcp.set_write_timeout(Some(timeout))?;
    if !url.tls {
        return Ok(Box::new(tcp));
    }
    let invalid = |error: String| io::Error::new(ErrorKind::InvalidInput, error);
    let name = rustls::pki_types::ServerName::try_from(url.host.clone()).map_err(|error| invalid(error.to_string()))?;
    let connection = rustls::ClientConnection::new(tls_config().map_err(invalid)?, name);
    Ok(Box::new(rustls::StreamOwned::new(connection.map_err(|error| invalid(error.to_string()))?, tcp)))
}

fn tls_config() -> Result<Arc<rustls::ClientConfig>, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The status and the headers.
fn read_head(stream: &mut impl BufRead) -> io::Result<(u16, Vec<(String, String)>)> {
    let no_http = || io::Error::new(ErrorKind::InvalidData, "does not speak HTTP");
    let first = read_line(stream)?;
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(no_http)?;
    let mut headers = Vec::new();
    while headers.len() < 100 {
        let line = read_line(stream)?;
        if line.is_empty() {
            return Ok((status, headers));
        }
        let (name, value) = line.split_once(':').ok_or_else(no_http)?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    Err(no_http())
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.take(MAX_LINE).read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}

/// A body in chunks. One that ends before its last chunk is an error: an export must not look whole when it is not.
struct Chunked<R> {
    stream: R,
    left: u64,
    ended: bool,
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            let mut line = read_line(&mut self.stream)?;
            if line.is_empty() {
                // The line break after the chunk before.
                line = read_line(&mut self.stream)?;
            }
            let size = line.split(';').next().unwrap_or_default();
            let size = u64::from_str_radix(size.trim(), 16);
            self.left = size.map_err(|_| io::Error::new(ErrorKind::InvalidData, "a chunk without a size"))?;
            self.ended = self.left == 0;
        }
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        let room = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.stream.read(buffer.get_mut(..room).unwrap_or_default())?;
        if count == 0 {
            return Err(cut_off());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// A body whose length was said. One that ends before is an error: half a list must not look like a whole one.
struct Measured<R> {
    stream: R,
    left: u64,
}

impl<R: Read> Read for Measured<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        let count = self.stream.read(buffer.get_mut(..room).unwrap_or_default())?;
        if count == 0 {
            return Err(cut_off());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn cut_off() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the answer was cut off")
}

/// What may stand in a query as it is; the rest in percent.
fn escape(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_put_together_and_a_cut_one_is_an_error() {
        let whole = b"5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n";
        let mut text = String::new();
        Chunked { stream: &whole[..], left: 0, ended: false }.read_to_string(&mut text).expect("whole");
        assert_eq!(text, "hello, world");
        for cut in 1..whole.len() - 6 {
            let mut text = String::new();
            let mut body = Chunked { stream: &whole[..cut], left: 0, ended: false };
            assert!(body.read_to_string(&mut text).is_err(), "cut at {cut}: {text:?}");
        }
    }

    #[test]
    fn a_body_that_is_shorter_than_was_said_is_an_error_and_a_longer_one_ends_where_it_was_said() {
        let read = |left| {
            let mut text = String::new();
            Measured { stream: &b"hello"[..], left }.read_to_string(&mut text).map(|_| text)
        };
        assert_eq!(
            (read(5).expect("whole"), read(4).expect("whole"), read(0).expect("empty")),
            ("hello".into(), "hell".into(), String::new())
        );
        assert_eq!(read(6).expect_err("cut").kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_head_is_a_status_and_headers() {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\na: b\r\n\r\nrest";
        let (status, headers) = read_head(&mut &head[..]).expect("a head");
        assert_eq!(
            (status, find(&headers, "transfer-encoding"), find(&headers, "A")),
            (200, Some("chunked"), Some("b"))
        );
        assert!(read_head(&mut &b"SSH-2.0\r\n"[..]).is_err());
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escape("a.b c/é&="), "a.b%20c%2F%C3%A9%26%3D");
    }
}
