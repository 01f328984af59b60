//! What every connection and handler of the edge shares.

use std::time::Duration;

use promethean_bus::Bus;
use promethean_event::limits::{DEFAULT_EVENT_BYTES, DEFAULT_FRAME_BYTES};

use crate::audit::Audit;
use crate::auth::Authenticator;
use crate::buffers::Buffers;
use crate::caps::Caps;
use crate::drain::Drain;
use crate::limits::Quotas;
use crate::metrics::{Gauges, Sizes};
use crate::ops::{About, DeadCounts, Samples};
use crate::trace::Tracer;
use crate::ws::Connections;

/// The shared state of the edge. Put it into an `Arc`.
#[derive(Debug)]
pub struct Hub {
    /// Where events go and come from.
    pub bus: Bus,
    /// The WebSockets that are open.
    pub connections: Connections,
    /// From tokens to identities.
    pub auth: Authenticator,
    /// Who was let in or refused, and what operators changed.
    pub audit: Audit,
    /// Per-connection and per-topic quotas.
    pub quotas: Quotas,
    /// The account of half-read requests and unread answers; the listeners share it.
    pub buffers: Buffers,
    /// What the operator set.
    pub config: EdgeConfig,
    /// Says when the hub ends; whoever must be waited for holds a watch of it.
    pub drain: Drain,
    /// What the hub says of itself.
    pub about: About,
    /// What is sampled every second.
    pub samples: Samples,
    /// What others count for `/metrics`.
    pub gauges: Gauges,
    /// Where spans go, where they are wanted.
    pub tracer: Option<Tracer>,
    /// Dead letters by group and reason.
    pub(crate) dead_counts: DeadCounts,
    /// What the store said of topics and groups for `/metrics`.
    pub(crate) sizes: Sizes,
}

impl Hub {
    /// A hub over `bus` to which nobody is connected yet.
    pub fn new(bus: Bus, auth: Authenticator, quotas: Quotas, config: EdgeConfig) -> Self {
        Self {
            bus,
            connections: Connections::default(),
            auth,
            audit: Audit::default(),
            quotas,
            buffers: Buffers::new(config.max_buffered_bytes),
            config,
            drain: Drain::new(),
            about: About::default(),
            samples: Samples::default(),
            gauges: Gauges::default(),
            tracer: None,
            dead_counts: DeadCounts::default(),
            sizes: Sizes::default(),
        }
    }
}

/// The settings of the edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeConfig {
    /// Origins of web pages that may connect, besides the hub's own host and loopback: `https://app.example`.
    pub allowed_origins: Vec<String>,
    /// Most bytes of one event.
    pub max_event_bytes: usize,
    /// Most bytes of one WebSocket frame, and of one HTTP body.
    pub max_frame_bytes: usize,
    /// Most bytes of half-read frames and bodies, and of answers that are not read, of all connections together.
    pub max_buffered_bytes: usize,
    /// Most bytes of deliveries that wait in the hub for one connection, give or take an event.
    pub max_connection_bytes: usize,
    /// What subscribers may ask for.
    pub caps: Caps,
    /// Most subscriptions of one connection.
    pub max_subscriptions: usize,
    /// Most patterns of all subscriptions of one connection.
    pub max_connection_patterns: usize,
    /// Most label sets of the metrics; what is over is counted under `_other`.
    pub metrics_max_series: usize,
    /// True if `/metrics` needs no token.
    pub metrics_public: bool,
    /// True if publishing and subscribing to a topic creates it; the bus is built with it.
    pub auto_create: bool,
    /// How long a WebSocket may stay without `AUTH`.
    pub auth_deadline: Duration,
    /// How often the hub pings.
    pub ping_every: Duration,
    /// How long a WebSocket may stay without a pong.
    pub pong_deadline: Duration,
    /// Most bytes of deliveries that wait to be written to a WebSocket, give or take an event. Answers have as much room
    /// again; where that is full too, the client is read no more.
    pub max_outbound_bytes: usize,
    /// How long a WebSocket may stay at that bound without taking a byte.
    pub stall_deadline: Duration,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            allowed_origins: Vec::new(),
            max_event_bytes: DEFAULT_EVENT_BYTES,
            max_frame_bytes: DEFAULT_FRAME_BYTES,
            max_buffered_bytes: 256 * 1024 * 1024,
            max_connection_bytes: 8 * 1024 * 1024,
            caps: Caps::default(),
            max_subscriptions: 1_000,
            max_connection_patterns: 1_000,
            metrics_max_series: 10_000,
            metrics_public: false,
            auto_create: true,
            auth_deadline: Duration::from_secs(10),
            ping_every: Duration::from_secs(20),
            pong_deadline: Duration::from_secs(60),
            max_outbound_bytes: 1024 * 1024,
            stall_deadline: Duration::from_secs(10),
        }
    }
}
