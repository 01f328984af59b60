//! Listening: accept, TLS, HTTP/1 with upgrades, a bound on connections, and the way out.
//!
//! - A connection holds its slot as long as its [`Stream`] lives, also after an upgrade. Without a free slot it is
//!   turned away at once with 503, so that health checks and clients see why.
//! - TLS and the request's head must come within the header deadline, or the connection is closed.
//! - An HTTP connection whose peer takes no byte for the write deadline ends, whatever waits to be written.
//! - Half-read bodies and answers that are not read count in one account ([`Buffers`]).
//! - When the drain begins no more connections are accepted, requests under way are finished, idle ones closed.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tower_service::Service;

use crate::buffers::{Buffers, CountedAnswer, Holder};
use crate::drain::Draining;
use crate::head;
use crate::leftover;
use crate::limits::{ConnectionQuota, Quotas};
use crate::seldom::Seldom;
use crate::tls::Tls;

/// Largest request head: request line and headers.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 128;
/// Keeps browsers from taking an answer for another type than it has.
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// The address of whoever sent a request: an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The quota of the connection that a request came over: an extension of every request, made when it is first asked for.
#[derive(Debug, Clone, Default)]
pub struct Quota(Arc<OnceLock<ConnectionQuota>>);

impl Quota {
    /// The quota, by the hub's rates.
    pub fn of(&self, quotas: &Quotas) -> &ConnectionQuota {
        self.0.get_or_init(|| quotas.connection())
    }
}

/// How connections are taken in. Cheap to clone; clones share the slots.
#[derive(Debug, Clone)]
pub struct Intake {
    slots: Arc<Semaphore>,
    /// Slots of one listener's own, for when the others are used up.
    own: Option<Arc<Semaphore>>,
    tls: Option<Tls>,
    header_deadline: Duration,
    write_deadline: Duration,
    buffers: Buffers,
}

impl Intake {
    /// At most `max_connections` at a time, over all listeners that share this.
    pub fn new(max_connections: usize, tls: Option<Tls>) -> Self {
        let slots = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
        let (header_deadline, write_deadline) = (Duration::from_secs(10), Duration::from_secs(10));
        Self { slots, own: None, tls, header_deadline, write_deadline, buffers: Buffers::new(usize::MAX) }
    }

    /// The account of the hub that is served; one without a bound if left out.
    #[must_use]
    pub fn buffers(mut self, buffers: &Buffers) -> Self {
        self.buffers = buffers.clone();
        self
    }

    /// How long an HTTP peer may take no byte of its answer.
    #[must_use]
    pub fn write_deadline(mut self, deadline: Duration) -> Self {
        self.write_deadline = deadline;
        self
    }

    /// Keeps `slots` more for the listener that serves with this, for when `max_connections` is used up.
    #[must_use]
    pub fn reserve(mut self, slots: usize) -> Self {
        self.own = Some(Arc::new(Semaphore::new(slots)));
        self
    }

    /// Takes a free slot.
    fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let own = || Arc::clone(self.own.as_ref()?).try_acquire_owned().ok();
        Arc::clone(&self.slots).try_acquire_owned().ok().or_else(own)
    }

    /// How long TLS, and then a request's head, may take.
    #[must_use]
    pub fn header_deadline(mut self, deadline: Duration) -> Self {
        self.header_deadline = deadline;
        self
    }
}

/// A connection's bytes, with the slot it takes up. What `hyper::upgrade::Upgraded` downcasts to, inside a `TokioIo`.
#[derive(Debug)]
pub struct Stream {
    io: Io,
    holder: Arc<Holder>,
    write_deadline: Option<Duration>,
    /// Runs while the peer takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    _slot: OwnedSemaphorePermit,
    _alive: Draining,
}

impl Stream {
    /// This connection's part of the account of buffered bytes.
    pub(crate) fn holder(&self) -> Arc<Holder> {
        Arc::clone(&self.holder)
    }

    /// Sets how long the peer may take no byte; `None`: for ever.
    pub(crate) fn set_write_deadline(&mut self, deadline: Option<Duration>) {
        (self.write_deadline, self.stalled) = (deadline, None);
    }

    /// Fails a write that has been pending for the write deadline.
    fn within_deadline<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(deadline) = self.write_deadline.filter(|_| written.is_pending()) else {
            self.stalled = None;
            return written;
        };
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(deadline)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A bound address.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Binds `addr`; port 0 picks one.
    ///
    /// # Errors
    /// The address is taken or not this machine's.
    pub async fn bind(addr: SocketAddr) -> io::Result<Self> {
        let tcp = TcpListener::bind(addr).await?;
        let addr = tcp.local_addr()?;
        Ok(Self { tcp, addr })
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts and serves until the drain begins. Connections that are open then go on in tasks of their own; each
    /// holds a clone of `draining`, so that [`Drain::drained`](crate::drain::Drain::drained) waits for them.
    pub async fn serve(self, router: Router, intake: Intake, mut draining: Draining) {
        loop {
            let accepted = tokio::select! {
                accepted = self.tcp.accept() => accepted,
                () = draining.begun() => return,
            };
            match accepted {
                Ok((tcp, peer)) => match intake.slot() {
                    Some(slot) => {
                        let alive = draining.clone();
                        tokio::spawn(serve_connection(tcp, Peer(peer), router.clone(), intake.clone(), slot, alive));
                    }
                    None => turn_away(&tcp, peer, intake.tls.is_some()),
                },
                Err(error) if is_per_connection(&error) => {}
                Err(error) => {
                    // Out of file descriptors, most likely: nothing to do but wait for some to come free.
                    tracing::warn!(addr = %self.addr, %error, "cannot accept connections for the moment");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// True if only this connection failed, before it was accepted.
fn is_per_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Says why, as far as that goes without waiting, and hangs up.
fn turn_away(tcp: &TcpStream, peer: SocketAddr, tls: bool) {
    const BODY: &str = r#"{"error":"the hub has max_connections already","code":"rate_limited"}"#;
    static TOLD: Seldom = Seldom::new();
    if TOLD.may(Instant::now()) {
        tracing::warn!(%peer, "turned away: max_connections reached");
    }
    if !tls {
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
             x-content-type-options: nosniff\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        let _ = tcp.try_write(answer.as_bytes());
    }
}

async fn serve_connection(
    tcp: TcpStream,
    peer: Peer,
    router: Router,
    intake: Intake,
    slot: OwnedSemaphorePermit,
    mut alive: Draining,
) {
    // Answers are written whole; waiting for more to send would only delay them.
    let _ = tcp.set_nodelay(true);
    let io = match &intake.tls {
        None => Io::Plain(tcp),
        Some(tls) => match tokio::time::timeout(intake.header_deadline, tls.acceptor().accept(tcp)).await {
            Ok(Ok(stream)) => Io::Tls(Box::new(stream)),
            Ok(Err(error)) => return tracing::debug!(peer = %peer.0, %error, "TLS handshake failed"),
            Err(_) => return tracing::debug!(peer = %peer.0, "TLS handshake took too long"),
        },
    };
    let holder = Arc::new(intake.buffers.open());
    let stream = Stream {
        io,
        holder: Arc::clone(&holder),
        write_deadline: Some(intake.write_deadline),
        stalled: None,
        _slot: slot,
        _alive: alive.clone(),
    };
    let quota = Quota::default();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(quota.clone());
        let (request, leftover) = leftover::share(request, Arc::clone(&holder));
        let (mut router, holder) = (router.clone(), Arc::clone(&holder));
        async move {
            let answer = match head::refused(request.headers()) {
                Some(answer) => {
                    drop(request);
                    Ok(answer)
                }
                None => router.call(request.map(Body::new)).await,
            };
            leftover.discard().await;
            answer.map(|mut answer| {
                answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
                answer.map(|body| CountedAnswer { body, holder })
            })
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(intake.header_deadline)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = alive.begun() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.0, %error, "connection ended");
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Io::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.io {
            Io::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Io::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        };
        this.within_deadline(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.io {
            Io::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Io::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        };
        this.within_deadline(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(tcp) => tcp.is_write_vectored(),
            Io::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match &mut this.io {
            // It has nothing to flush, and says so at once: that is no byte taken.
            Io::Plain(tcp) => return Pin::new(tcp).poll_flush(cx),
            Io::Tls(tls) => Pin::new(tls).poll_flush(cx),
        };
        this.within_deadline(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Io::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
