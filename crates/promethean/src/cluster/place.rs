//! Taking a place among the hubs of a MongoDB.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use promethean_bus::Cluster;
use promethean_gateway::auth::Secret;
use promethean_store::Terms;
use promethean_store::mongo::{Cluster as Hubs, Mongo};

use super::Ways;
use crate::config::{Config, Engine};
use crate::exit::Failure;

/// A hub's place: what the bus needs, and the secret by which other hubs are known.
pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    pub(crate) secret: Secret,
}

impl Place {
    /// Takes it. Other hubs may connect from then on.
    pub(crate) async fn take(config: &Config, store: &Mongo, ws: SocketAddr) -> Result<Self, Failure> {
        let failed = |error: promethean_store::Error| Failure::failed(format!("joining the other hubs: {error}"));
        let secret = match &config.auth.cluster_secret {
            Some(secret) => secret.clone(),
            None => Secret::new(Hubs::secret(store, &random()?).await.map_err(failed)?),
        };
        let address = address(config, ws)?;
        let hubs = Hubs::join(store, &address, env!("CARGO_PKG_VERSION"), Terms::default()).await.map_err(failed)?;
        tracing::info!(hub = %hubs.id(), address, "other hubs reach this one there");
        let ways = Ways::new(&hubs.id(), secret.clone());
        Ok(Self { cluster: Cluster { ownership: Arc::new(hubs), relays: Arc::new(ways) }, secret })
    }
}

/// Where other hubs reach the WebSocket port at `ws`.
fn address(config: &Config, ws: SocketAddr) -> Result<String, Failure> {
    if let Some(said) = &config.advertise {
        return Ok(said.clone());
    }
    let ip = if ws.ip().is_unspecified() { outgoing(config)? } else { ws.ip() };
    if ip.is_loopback() && !mongo_is_on_this_machine(config) {
        tracing::warn!("hubs on other machines cannot reach this one: it listens on loopback; set bind, or advertise");
    }
    let scheme = if config.tls.is_some() { "wss" } else { "ws" };
    Ok(format!("{scheme}://{}", SocketAddr::new(ip, ws.port())))
}

/// The address from which this machine reaches MongoDB. Nothing is sent.
fn outgoing(config: &Config) -> Result<IpAddr, Failure> {
    let unknown = || Failure::usage("advertise: say where other hubs reach this one, e.g. ws://10.0.0.5:8090");
    let Engine::Mongo { url } = &config.engine else { return Err(unknown()) };
    let host = first_host(url.expose()).ok_or_else(unknown)?;
    let any = |bind: &str| {
        let socket = UdpSocket::bind(bind)?;
        socket.connect(host.as_str())?;
        socket.local_addr()
    };
    any("0.0.0.0:0").or_else(|_| any("[::]:0")).map(|address| address.ip()).map_err(|_| unknown())
}

fn mongo_is_on_this_machine(config: &Config) -> bool {
    let Engine::Mongo { url } = &config.engine else { return true };
    let host = first_host(url.expose());
    let name = host.as_deref().and_then(|host| host.rsplit_once(':')).map(|(name, _)| name.trim_matches(['[', ']']));
    name.is_some_and(|name| name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

/// `HOST:PORT` of the first server in the address of a set; none where it has to be looked up.
fn first_host(url: &str) -> Option<String> {
    let rest = url.strip_prefix("mongodb://")?;
    let hosts = rest.split(['/', '?']).next()?;
    let host = hosts.rsplit('@').next()?.split(',').next()?;
    let port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Some(if port { host.to_owned() } else { format!("{host}:27017") })
}

/// 256 random bits as text.
fn random() -> Result<String, Failure> {
    let mut bytes = [0_u8; 32];
    let source = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    source.fill(&mut bytes).map_err(|_| Failure::failed("the system has no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_server_of_a_set_is_found() {
        for (url, host) in [
            ("mongodb://a:1,b:2/db?replicaSet=rs0", Some("a:1")),
            ("mongodb://a/db", Some("a:27017")),
            ("mongodb://user:p%40ss@[::1]:27018,b/", Some("[::1]:27018")),
            ("mongodb+srv://cluster.example/db", None),
        ] {
            assert_eq!(first_host(url).as_deref(), host, "{url}");
        }
    }

    #[test]
    fn two_secrets_are_never_alike() {
        let (one, two) = (random().expect("random"), random().expect("random"));
        assert!(one.len() == 64 && one != two);
    }
}
