//! A hub in this process, on a port of its own, with everything in memory.

use std::sync::Arc;

use promethean_bus::Bus;
use promethean_gateway::auth::{AuthConfig, Authenticator};
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub, ws};
use promethean_store::memory::Memory;

/// Starts it. Returns its bus and the address of its WebSocket.
pub(crate) async fn start() -> Result<(Bus, String), Box<dyn std::error::Error + Send + Sync>> {
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    let auth = Authenticator::new(&AuthConfig::default())?;
    let hub = Arc::new(Hub::new(bus.clone(), auth, Quotas::default(), EdgeConfig::default()));
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await?;
    let url = format!("ws://{}", listener.local_addr());
    tokio::spawn(listener.serve(ws::router(Arc::clone(&hub)), Intake::new(100, None), hub.drain.watch()));
    Ok((bus, url))
}
