//! `promethean serve`: opens the store, listens, and comes to an orderly end.
//!
//! - The ready line on stdout comes when every listener is up, and only then; systemd is told the same.
//! - The first SIGTERM or SIGINT drains: no new connections, requests finished, leases given back, everything synced.
//!   A second one, or a drain that takes too long, ends the process at once.
//! - A store that fails ends the process with its reason: nothing is retried over a disk that lost something.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use promethean_gateway::drain::Drain;
use promethean_gateway::listener::Intake;
use promethean_gateway::ops::Addresses;
use promethean_gateway::tls::Tls;
use promethean_store::Store;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::logging;
use crate::allocator::keep_memory;
use crate::bound::Bound;
use crate::compose::{self, Opened};
use crate::config::{Config, Engine, Note};
use crate::exit::{Exit, Failure};
use crate::notify::Notify;
use crate::outbox;

/// How long the end may take, over all.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// How long closing the store may take where the hub ends for another reason, or has used its time up.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);
/// How long of it the outbox may take.
const OUTBOX_DEADLINE: Duration = Duration::from_millis(1_250);

/// Runs the hub to its end; `demo`: with the demo's processes and page.
pub(super) fn run(config: &Config, notes: &[Note], demo: bool) -> Result<(), Failure> {
    keep_memory();
    start_logging(config)?;
    notes.iter().for_each(Note::log);
    warn_of_weak_auth(config);
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let ended = runtime.block_on(serve(config, demo));
    // What still runs has had its time.
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}

async fn serve(config: &Config, demo: bool) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let tls = match &config.tls {
        Some((cert, key)) => Some(Tls::open(cert, key).map_err(Failure::usage)?),
        None => None,
    };
    // Recovery and a MongoDB that does not answer take their time, and nothing is promised yet.
    let opening = Instant::now();
    let opened = tokio::select! {
        opened = compose::open_store(config) => opened?,
        () = signals.end() => return Ok(()),
    };
    let store = Arc::clone(&opened.store);
    let found = Found { took: opening.elapsed(), events: events(store.as_ref()).await };
    let ended = serve_over(config, demo, (opened, found), tls, &mut signals).await;
    if ended.is_err() {
        // The listeners could not be opened, or the store failed: close what can be closed.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, store.close()).await;
    }
    ended
}

async fn serve_over(
    config: &Config,
    demo: bool,
    (opened, found): (Opened, Found),
    tls: Option<Tls>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let outbox = match &config.outbox {
        Some(outbox) => tokio::select! {
            opened = outbox.place.open(&outbox.table, promethean_outbox::Schema::Create) => Some(opened?),
            () = signals.end() => return opened.store.close().await.map_err(Failure::failed),
        },
        None => None,
    };
    let bound = Bound::open(config).await?;
    let hub = compose::hub(config, &opened, bound.ws).await?;
    let store = opened.store;
    let ready =
        format!("promethean ready ws={} http={} ops={} store={}", bound.ws, bound.http, bound.ops, store.name());
    let addresses = Addresses { ws: bound.ws, http: bound.http, ops: bound.ops };
    hub.about.set_addresses(addresses);
    if demo {
        super::demo::start(&hub).await?;
    } else if config.process_projector {
        super::projector::start(hub.bus.clone());
    }
    compose::listen(&hub, bound.listeners, &Intake::new(config.max_connections, tls.clone()).buffers(&hub.buffers));
    let drainer = config.outbox.as_ref().zip(outbox).map(|(outbox, store)| {
        // A stop takes twice the grace at most.
        outbox::start(outbox, store, &hub, OUTBOX_DEADLINE / 2)
    });
    tell_the_start(config, addresses, store.name(), found);
    say(&ready);
    let notify = Notify::from(&|name| std::env::var_os(name));
    notify.ready(&ready);
    notify.keep_watchdog();
    if demo {
        say(&super::demo::where_to_look(config, addresses));
    } else if std::io::stdout().is_terminal() {
        say(&where_to_look(config, addresses));
    }

    let failed = loop {
        tokio::select! {
            reason = store.failed() => break Some(reason),
            asked = signals.next() => match asked {
                Asked::Reload => reload(tls.as_ref()),
                Asked::End(name) => {
                    tracing::info!(signal = name, "shutting down");
                    break None;
                }
            },
        }
    };
    notify.stopping();
    let ending = async {
        if let Some(drainer) = drainer {
            // Before the bus refuses: what the outbox has claimed is published or given back.
            let _ = tokio::time::timeout(OUTBOX_DEADLINE, drainer.stop()).await;
        }
        match failed {
            Some(reason) => Err(give_up(&hub.drain, &reason).await),
            None => drain(&hub.drain, &hub.bus, store.as_ref()).await,
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(DRAIN_DEADLINE, ending) => match ended {
            Ok(ended) => ended,
            Err(_) => Err(Failure::failed(format!("the shutdown took longer than {DRAIN_DEADLINE:?}"))),
        },
        () = signals.end() => Err(Failure::new(Exit::Interrupted, "interrupted a second time: ended at once")),
    }
}

/// The end of a hub whose store has failed.
async fn give_up(drain: &Drain, reason: &str) -> Failure {
    tracing::error!(reason, "the store has failed");
    drain.begin();
    // Time to tell whoever waits for an answer.
    let _ = tokio::time::timeout(Duration::from_secs(1), drain.drained()).await;
    Failure::failed(format!("the store has failed: {reason}"))
}

/// Leases go back while their holders are still there, so that the deliveries do not count as attempts; then
/// connections finish what was accepted and close; then everything is synced.
async fn drain(drain: &Drain, bus: &promethean_bus::Bus, store: &dyn Store) -> Result<(), Failure> {
    // One that hangs must not keep the others from ending in order: each step has its share of the time.
    let _ = tokio::time::timeout(DRAIN_DEADLINE / 4, bus.drain()).await;
    // Other hubs take over at once.
    let _ = tokio::time::timeout(DRAIN_DEADLINE / 8, bus.leave()).await;
    drain.begin();
    if tokio::time::timeout(DRAIN_DEADLINE * 3 / 8, drain.drained()).await.is_err() {
        tracing::warn!("some connections did not finish in time and are cut off");
    }
    store.close().await.map_err(|error| Failure::failed(format!("closing the store: {error}")))?;
    tracing::info!("shut down");
    Ok(())
}

/// The one line that scripts wait for.
fn say(ready: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever started the hub may not listen; that is no reason not to serve.
    if let Err(error) = writeln!(out, "{ready}").and_then(|()| out.flush()) {
        tracing::warn!(%error, "the ready line could not be written to stdout");
    }
}

/// What opening the store took, and the events in it.
#[derive(Clone, Copy)]
struct Found {
    took: Duration,
    /// `None` where counting them would take a while.
    events: Option<u64>,
}

async fn events(store: &dyn Store) -> Option<u64> {
    if store.name() == "mongo" {
        return None;
    }
    let mut events = 0;
    for topic in store.topics().await.ok()? {
        events += store.info(&topic).await.ok()?.map_or(0, |info| info.events);
    }
    Some(events)
}

/// The line about everything that decides how this hub behaves.
fn tell_the_start(config: &Config, Addresses { ws, http, ops }: Addresses, store: &str, found: Found) {
    let (dir, sync) = match &config.engine {
        Engine::Log { dir, sync, .. } => (Some(dir.display()), sync.to_string()),
        Engine::Memory => (None, "never".to_owned()),
        Engine::Mongo { .. } => (None, "majority".to_owned()),
    };
    let Found { took, events } = found;
    let recovery_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), store, dir = dir.map(tracing::field::display), sync, auth = auth_mode(config),
        %ws, %http, %ops, tls = config.tls.is_some(), recovery_ms, events, "the hub is up"
    );
}

/// How clients authenticate: `open`, or `token`, `jwt_secret`, `jwks`, joined where there are several.
fn auth_mode(config: &Config) -> String {
    let auth = &config.auth;
    let modes = [
        (auth.static_token.is_some(), "token"),
        (auth.jwt_secret.is_some(), "jwt_secret"),
        (auth.jwks_url.is_some(), "jwks"),
    ];
    let modes: Vec<&str> = modes.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect();
    if modes.is_empty() { "open".to_owned() } else { modes.join("+") }
}

/// The addresses to click, for a person at a terminal.
fn where_to_look(config: &Config, Addresses { ws, http, ops }: Addresses) -> String {
    let secure = if config.tls.is_some() { "s" } else { "" };
    format!(
        "dashboard  http{secure}://{ops}/\n\
         publish    http{secure}://{http}/publish/TOPIC\n\
         websocket  ws{secure}://{ws}"
    )
}

fn reload(tls: Option<&Tls>) {
    match tls.map(Tls::reload) {
        None => tracing::info!("SIGHUP: nothing to read again without TLS"),
        Some(Ok(())) => tracing::info!("the TLS certificate was read again"),
        Some(Err(error)) => tracing::error!(%error, "the old TLS certificate goes on"),
    }
}

fn warn_of_weak_auth(config: &Config) {
    if config.auth.jwt_secret.as_ref().is_some_and(|secret| secret.expose().len() < 32) {
        tracing::warn!("jwt_secret is shorter than 32 bytes: it can be guessed from one token; use a longer one");
    }
    if config.auth.is_open() {
        tracing::info!(
            "auth is off: every process on this machine may do everything; set WS_TOKEN, JWT_SECRET or JWT_JWKS_URL"
        );
    } else if config.is_readable_on_the_network() {
        tracing::warn!(
            "tokens and events cross the network in clear text; set tls_cert and tls_key, or bind to loopback behind a proxy with TLS"
        );
    }
}

enum Asked {
    Reload,
    End(&'static str),
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::End("SIGTERM"),
            _ = self.interrupt.recv() => Asked::End("SIGINT"),
            _ = self.hangup.recv() => Asked::Reload,
        }
    }

    /// Waits for one that asks for the end.
    async fn end(&mut self) {
        while let Asked::Reload = self.next().await {}
    }
}

fn start_logging(config: &Config) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&config.log)
        .map_err(|error| Failure::usage(format!("log: {error}; write info, debug or info,promethean_bus=debug")))?;
    logging::start(filter, config.log_format, super::stderr_is_coloured());
    Ok(())
}

/// A connection is an open file, and many systems start with 1024: take what the hard limit allows.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open files stays low");
        }
    }
}
