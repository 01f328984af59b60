//! `GET /hub`: whom am I talking to.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use parking_lot::Mutex;
use promethean_event::Millis;
use serde::Serialize;

use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, json_body};

/// Looking through the data directory costs a little: not at every request.
const DISK_EVERY: Duration = Duration::from_secs(5);

/// Where the hub listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// WebSocket.
    pub ws: SocketAddr,
    /// HTTP.
    pub http: SocketAddr,
    /// Ops.
    pub ops: SocketAddr,
}

/// What the hub says of itself. Whoever starts it fills in what it knows.
#[derive(Debug)]
pub struct About {
    started_at: Millis,
    addresses: OnceLock<Addresses>,
    data_dir: OnceLock<PathBuf>,
    demo: AtomicBool,
    disk: Mutex<Option<(Instant, Disk)>>,
}

impl Default for About {
    fn default() -> Self {
        Self {
            started_at: Millis::now(),
            addresses: OnceLock::new(),
            data_dir: OnceLock::new(),
            demo: AtomicBool::new(false),
            disk: Mutex::new(None),
        }
    }
}

impl About {
    /// Says where the hub listens; counts once.
    pub fn set_addresses(&self, addresses: Addresses) {
        let _ = self.addresses.set(addresses);
    }

    /// Says where the store keeps its files; counts once.
    pub fn set_data_dir(&self, dir: PathBuf) {
        let _ = self.data_dir.set(dir);
    }

    /// Says whether the demo runs, and so whether its page is served.
    pub fn set_demo(&self, runs: bool) {
        self.demo.store(runs, Ordering::Relaxed);
    }

    /// True if the demo runs.
    pub fn is_demo(&self) -> bool {
        self.demo.load(Ordering::Relaxed)
    }

    /// What the store takes up; `None` where it has no files.
    async fn disk(&self) -> Option<Disk> {
        let dir = self.data_dir.get()?.clone();
        if let Some((at, disk)) = *self.disk.lock()
            && at.elapsed() < DISK_EVERY
        {
            return Some(disk);
        }
        let disk = tokio::task::spawn_blocking(move || Disk { used: used(&dir), free: free(&dir) }).await.ok()?;
        *self.disk.lock() = Some((Instant::now(), disk));
        Some(disk)
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Disk {
    used: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    free: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    version: &'static str,
    store: &'static str,
    started_at: Millis,
    now: Millis,
    #[serde(flatten)]
    addresses: Option<Addresses>,
    auth: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    admin: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<Disk>,
}

pub(super) async fn about(State(hub): State<Arc<Hub>>, caller: Caller) -> Response {
    json_body(&Shown {
        version: env!("CARGO_PKG_VERSION"),
        store: hub.bus.store().name(),
        started_at: hub.about.started_at,
        now: Millis::now(),
        addresses: hub.about.addresses.get().copied(),
        auth: !hub.auth.is_open(),
        admin: caller.identity.policy.allows_somewhere(Action::Admin),
        sub: caller.identity.sub,
        disk: hub.about.disk().await,
    })
}

/// Bytes of all files below `dir`. What cannot be read, or goes away meanwhile, counts nothing.
fn used(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => used(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

fn free(dir: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(dir).ok()?;
    system.f_bavail.checked_mul(system.f_frsize)
}
