//! `promethean serve`: opens the store, listens, and comes to an orderly end.
//!
//! - The ready line on stdout comes when every listener is up, and only then; systemd is told the same.
//! - The first SIGTERM or SIGINT drains: no new connections, requests finished, leases given back, everything synced.
//!   A second one, or a drain that takes too long, ends the process at once.
//! - A store that fails ends the process with its reason: nothing is retried over a disk that lost something.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

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
use crate::config::Config;
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
pub(super) fn run(config: &Config, demo: bool) -> Result<(), Failure> {
    keep_memory();
    start_logging(config)?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let ended = runtime.block_on(serve(config, demo));
    // What still runs has had its time.
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}

async fn serve(config: &Config, demo: bool) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    if config.auth.jwt_secret.as_ref().is_some_and(|secret| secret.expose().len() < 32) {
        tracing::warn!("jwt_secret is shorter than 32 bytes: it can be guessed from one token; use a longer one");
    }
    let tls = match &config.tls {
        Some((cert, key)) => Some(Tls::open(cert, key).map_err(Failure::usage)?),
        None => None,
    };
    // Recovery and a MongoDB that does not answer take their time, and nothing is promised yet.
    let opened = tokio::select! {
        opened = compose::open_store(config) => opened?,
        () = signals.end() => return Ok(()),
    };
    let store = Arc::clone(&opened.store);
    let ended = serve_over(config, demo, opened, tls, &mut signals).await;
    if ended.is_err() {
        // The listeners could not be opened, or the store failed: close what can be closed.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, store.close()).await;
    }
    ended
}

async fn serve_over(
    config: &Config,
    demo: bool,
    opened: Opened,
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
    }
    compose::listen(&hub, bound.listeners, &Intake::new(config.max_connections, tls.clone()));
    let drainer = config.outbox.as_ref().zip(outbox).map(|(outbox, store)| {
        // A stop takes twice the grace at most.
        outbox::start(outbox, store, &hub, OUTBOX_DEADLINE / 2)
    });
    say(&ready);
    let notify = Notify::from(&|name| std::env::var_os(name));
    notify.ready(&ready);
    notify.keep_watchdog();
    if demo {
        say(&super::demo::where_to_look(config, addresses));
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

fn reload(tls: Option<&Tls>) {
    match tls.map(Tls::reload) {
        None => tracing::info!("SIGHUP: nothing to read again without TLS"),
        Some(Ok(())) => tracing::info!("the TLS certificate was read again"),
        Some(Err(error)) => tracing::error!(%error, "the old TLS certificate goes on"),
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
