//! A small HTTP client for the commands that read over HTTP: GET, streamed, plain or TLS.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::health::{Url, tls_config};
use crate::args::HttpArgs;
use crate::config::duration;
use crate::exit::{Exit, Failure};

/// Longest line of a response's head.
const MAX_LINE: u64 = 64 * 1024;
/// Most of an error's body that is shown.
const MAX_ERROR: u64 = 4 * 1024;

/// The body of an answer with status 200, as it comes.
pub(super) fn get(args: &HttpArgs, path: &str, query: &[(&str, String)]) -> Result<Box<dyn Read>, Failure> {
    let timeout = duration(&args.timeout).map_err(|reason| Failure::usage(format!("--timeout: {reason}")))?;
    let url = Url::parse(&args.server).map_err(|reason| Failure::usage(format!("--server: {reason}")))?;
    let pairs: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    let target = format!("{path}?{}", pairs.join("&"));
    let unreachable = |error| failed(&args.server, &error);
    let mut stream = connect(&url, timeout).map_err(unreachable)?;
    let authorization = match &args.token {
        Some(token) if token.bytes().any(|byte| byte < 0x21 || byte == 0x7f) => {
            return Err(Failure::usage("the token holds a blank or a control character"));
        }
        Some(token) => format!("authorization: Bearer {token}\r\n"),
        None => String::new(),
    };
    let head =
        format!("GET {target} HTTP/1.1\r\nhost: {}:{}\r\n{authorization}connection: close\r\n\r\n", url.host, url.port);
    stream.write_all(head.as_bytes()).map_err(unreachable)?;
    let mut stream = BufReader::new(stream);
    let (status, chunked) = read_head(&mut stream).map_err(unreachable)?;
    let body: Box<dyn Read> =
        if chunked { Box::new(Chunked { stream, left: 0, ended: false }) } else { Box::new(stream) };
    if status == 200 {
        return Ok(body);
    }
    let mut said = String::new();
    let _ = body.take(MAX_ERROR).read_to_string(&mut said);
    let exit = match status {
        401 | 403 => Exit::Denied,
        404 => Exit::NotFound,
        400 => Exit::Usage,
        _ => Exit::Failed,
    };
    Err(Failure::new(exit, format!("{} answered {status}: {}", args.server, said.trim())))
}

/// A failed read or write, with its exit code.
pub(super) fn failed(server: &str, error: &io::Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Exit::Timeout,
        _ => Exit::Unreachable,
    };
    Failure::new(exit, format!("{server}: {error}"))
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

/// The status, and whether the body comes in chunks.
fn read_head(stream: &mut impl BufRead) -> io::Result<(u16, bool)> {
    let no_http = || io::Error::new(ErrorKind::InvalidData, "does not speak HTTP");
    let first = read_line(stream)?;
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(no_http)?;
    let mut chunked = false;
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            return Ok((status, chunked));
        }
        let (name, value) = line.split_once(':').ok_or_else(no_http)?;
        chunked |= name.eq_ignore_ascii_case("transfer-encoding") && value.trim().eq_ignore_ascii_case("chunked");
    }
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
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
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
    fn a_head_is_a_status_and_whether_chunks_follow() {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\na: b\r\n\r\nrest";
        assert_eq!(read_head(&mut &head[..]).expect("a head"), (200, true));
        assert!(read_head(&mut &b"SSH-2.0\r\n"[..]).is_err());
    }

    #[test]
    fn queries_are_escaped() {
        assert_eq!(escape("a.b c/é&="), "a.b%20c%2F%C3%A9%26%3D");
    }
}
