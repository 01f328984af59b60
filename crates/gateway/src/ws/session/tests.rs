//! A peer that always has something to send, without a socket in between.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use promethean_bus::{Bus, BusOptions};
use promethean_store::memory::Memory;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Opened, run};
use crate::auth::{AuthConfig, Authenticator, Identity, Secret};
use crate::limits::Quotas;
use crate::{EdgeConfig, Hub};

/// Reads after which the peer is gone.
const MOST: usize = 2_000;

/// Sends continuations without an end, which are neither messages nor control frames.
struct Flood {
    begun: bool,
    /// The hub's close frame was seen: there is no more.
    told: bool,
    reads: Arc<AtomicUsize>,
}

impl AsyncRead for Flood {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.told || self.reads.fetch_add(1, Ordering::Relaxed) == MOST {
            return Poll::Ready(Ok(()));
        }
        if !std::mem::replace(&mut self.begun, true) {
            room.put_slice(&[0x01, 0x80, 0, 0, 0, 0]);
        }
        while room.remaining() >= 6 {
            room.put_slice(&[0x00, 0x80, 0, 0, 0, 0]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.told |= bytes.contains(&0x88);
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn hub(auth_deadline: Duration) -> Arc<Hub> {
    let auth = AuthConfig { static_token: Some(Secret::new("t")), ..AuthConfig::default() };
    let auth = Authenticator::new(&auth).expect("a configuration");
    let bus = Bus::new(Arc::new(Memory::new()), BusOptions::default());
    Arc::new(Hub::new(bus, auth, Quotas::default(), EdgeConfig { auth_deadline, ..EdgeConfig::default() }))
}

/// Serves a flood and returns how often it was read before the goodbye.
async fn reads(hub: Arc<Hub>, identity: Option<Identity>) -> usize {
    let reads = Arc::new(AtomicUsize::new(0));
    let flood = Flood { begun: false, told: false, reads: Arc::clone(&reads) };
    let opened = Opened { wire: Box::new(flood), first: Bytes::new(), holder: Arc::new(hub.buffers.open()) };
    run(hub, opened, identity, ([127, 0, 0, 1], 1).into()).await;
    reads.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_deadline_ends_a_session_that_always_has_something_to_read() {
    let known = Identity { exp: Some(promethean_event::Millis(1)), ..Identity::wide_open() };
    let before_auth = reads(hub(Duration::ZERO), None).await;
    let expired = reads(hub(Duration::from_secs(10)), Some(known)).await;
    assert!(before_auth < 10 && expired < 10, "{before_auth} {expired}");
}

#[tokio::test]
async fn the_shutdown_ends_a_session_that_always_has_something_to_read() {
    let hub = hub(Duration::from_secs(10));
    hub.drain.begin();
    let reads = reads(hub, Some(Identity::wide_open())).await;
    assert!(reads < 10, "{reads}");
}

#[tokio::test]
async fn others_have_their_turn_while_a_session_always_has_something_to_read() {
    let turns = Arc::new(AtomicUsize::new(0));
    let other = Arc::clone(&turns);
    tokio::spawn(async move {
        loop {
            other.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let reads = reads(hub(Duration::from_secs(10)), Some(Identity::wide_open())).await;
    assert_eq!(reads, MOST + 1);
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= MOST / 40, "{turns} turns of another task within {reads} reads");
}
