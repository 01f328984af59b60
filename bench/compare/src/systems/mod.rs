//! What is compared: how each server is started, and how a client speaks to it.

pub(crate) mod hub;
pub(crate) mod nats;
pub(crate) mod redis;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::{self, Server};
use crate::wire::Wire;

/// The publishing side of a protocol.
pub(crate) trait Publisher: Send {
    /// Appends one publish.
    fn publish(&mut self, out: &mut Vec<u8>, payload: &[u8]);
    /// Reads whole answers: how many bytes they took, how many publishes they confirm.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<(usize, u64)>;
}

/// The consuming side.
pub(crate) trait Consumer: Send {
    /// Appends what makes the server deliver.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// Reads whole deliveries, shows each payload, appends the acks: how many bytes they took, and how many acks the
    /// server is known to have taken.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, each: &mut dyn FnMut(&[u8])) -> io::Result<(usize, u64)>;
}

/// A server with its durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// NATS JetStream with its default sync (every two minutes).
    Nats,
    /// NATS JetStream, `sync_interval: always`.
    NatsAlways,
    /// Redis Streams, `appendfsync everysec`.
    Redis,
    /// Redis Streams, `appendfsync always`.
    RedisAlways,
    /// Promethean, `sync = 100ms`.
    Hub,
    /// Promethean, `sync = always`.
    HubAlways,
    /// Promethean's frames, nothing stored.
    Null,
}

/// Where the servers' programs are.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) nats: PathBuf,
    pub(crate) redis: PathBuf,
    pub(crate) promethean: PathBuf,
}

impl System {
    /// In the order of a round.
    pub(crate) const ALL: [System; 7] = [
        System::Hub,
        System::Nats,
        System::Redis,
        System::Null,
        System::HubAlways,
        System::NatsAlways,
        System::RedisAlways,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Nats => "nats",
            System::NatsAlways => "nats-always",
            System::Redis => "redis",
            System::RedisAlways => "redis-always",
            System::Hub => "promethean",
            System::HubAlways => "promethean-always",
            System::Null => "null",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            System::Nats => "NATS JetStream, default sync",
            System::NatsAlways => "NATS JetStream, `sync_interval: always`",
            System::Redis => "Redis Streams, `everysec`",
            System::RedisAlways => "Redis Streams, `always`",
            System::Hub => "Promethean, `100ms`",
            System::HubAlways => "Promethean, `always`",
            System::Null => "null hub (stores nothing)",
        }
    }

    /// The same server with the lazy durability: fills a topic faster.
    pub(crate) fn lazy(self) -> Self {
        match self {
            System::NatsAlways => System::Nats,
            System::RedisAlways => System::Redis,
            System::HubAlways => System::Hub,
            lazy => lazy,
        }
    }

    /// Starts the server with its data in `dir`.
    pub(crate) fn start(self, programs: &Programs, dir: &Path) -> io::Result<Server> {
        std::fs::create_dir_all(dir)?;
        match self {
            System::Nats | System::NatsAlways => nats::start(&programs.nats, dir, self == System::NatsAlways),
            System::Redis | System::RedisAlways => redis::start(&programs.redis, dir, self == System::RedisAlways),
            System::Hub | System::HubAlways => {
                let sync = if self == System::Hub { "100ms" } else { "always" };
                let mut command = Command::new(&programs.promethean);
                command.args(["serve", "--ws-port", "0", "--http-port", "0", "--ops-port", "0"]);
                command.args(["--store", "log", "--sync", sync, "--data-dir"]).arg(dir).env("PROMETHEAN_LOG", "warn");
                server::start_ready(command)
            }
            System::Null => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("null-hub");
                server::start_ready(command)
            }
        }
    }

    /// Makes a topic where the server does not do so by itself.
    pub(crate) fn prepare(self, address: SocketAddr, topic: &str) -> io::Result<()> {
        match self {
            System::Nats | System::NatsAlways => nats::prepare(address, topic),
            _ => Ok(()),
        }
    }

    /// Connects a publisher to `topics`, which it uses in turn.
    pub(crate) fn publisher(self, address: SocketAddr, topics: &[String]) -> io::Result<(Wire, Box<dyn Publisher>)> {
        Ok(match self {
            System::Nats | System::NatsAlways => boxed(nats::publisher(address, topics)?),
            System::Redis | System::RedisAlways => boxed(redis::publisher(address, topics)?),
            System::Hub | System::HubAlways | System::Null => boxed(hub::publisher(address, topics)?),
        })
    }

    /// Connects a consumer of `topic` that holds at most `credit` unacked events, from the topic's beginning.
    pub(crate) fn consumer(
        self,
        address: SocketAddr,
        topic: &str,
        group: &str,
        credit: usize,
    ) -> io::Result<(Wire, Box<dyn Consumer>)> {
        Ok(match self {
            System::Nats | System::NatsAlways => boxed_consumer(nats::consumer(address, topic, group, credit)?),
            System::Redis | System::RedisAlways => boxed_consumer(redis::consumer(address, topic, group, credit)?),
            System::Hub | System::HubAlways | System::Null => {
                boxed_consumer(hub::consumer(address, topic, group, credit)?)
            }
        })
    }
}

fn boxed<P: Publisher + 'static>((wire, publisher): (Wire, P)) -> (Wire, Box<dyn Publisher>) {
    (wire, Box::new(publisher))
}

fn boxed_consumer<C: Consumer + 'static>((wire, consumer): (Wire, C)) -> (Wire, Box<dyn Consumer>) {
    (wire, Box::new(consumer))
}

fn failed(what: &str, bytes: &[u8]) -> io::Error {
    io::Error::other(format!("{what}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)])))
}
