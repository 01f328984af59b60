//! The listeners, each bound once: equal ports share one, port 0 picks one for each.

use std::net::SocketAddr;

use promethean_gateway::listener::Listener;

use crate::config::Config;
use crate::exit::Failure;

/// A listener and what it serves.
pub(crate) struct Serving {
    pub(crate) listener: Listener,
    pub(crate) ws: bool,
    pub(crate) http: bool,
    pub(crate) ops: bool,
}

/// Every listener, and the address of each gateway.
pub(crate) struct Bound {
    pub(crate) listeners: Vec<Serving>,
    pub(crate) ws: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) ops: SocketAddr,
}

impl Bound {
    pub(crate) async fn open(config: &Config) -> Result<Self, Failure> {
        let mut listeners = Vec::new();
        let ws = bind(&mut listeners, config.ws, |serving| serving.ws = true).await?;
        let http = bind(&mut listeners, config.http, |serving| serving.http = true).await?;
        let ops = bind(&mut listeners, config.ops, |serving| serving.ops = true).await?;
        Ok(Self { listeners, ws, http, ops })
    }
}

async fn bind(
    listeners: &mut Vec<Serving>,
    addr: SocketAddr,
    mark: impl Fn(&mut Serving),
) -> Result<SocketAddr, Failure> {
    if let Some(shared) = listeners.iter_mut().find(|serving| serving.listener.local_addr() == addr) {
        mark(shared);
        return Ok(addr);
    }
    let listener = Listener::bind(addr).await.map_err(|error| {
        Failure::failed(format!("cannot listen on {addr}: {error}; choose another port, or stop whoever has it"))
    })?;
    let bound = listener.local_addr();
    let mut serving = Serving { listener, ws: false, http: false, ops: false };
    mark(&mut serving);
    listeners.push(serving);
    Ok(bound)
}
