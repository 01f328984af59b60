//! The outbox that the hub drains, or a command looks at: which database, and how it is opened.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use promethean_gateway::Hub;
use promethean_gateway::auth::Secret;
use promethean_outbox::{BusPublisher, Drainer, OutboxStore, Schema, Settings, SqliteOutbox, drain};

use crate::config::duration;
use crate::exit::{Exit, Failure};

/// Where an outbox is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Sqlite(PathBuf),
    Mongo(Secret),
}

impl Place {
    /// `sqlite:PATH` or `mongodb://…`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err("sqlite: needs a path, such as sqlite:/var/lib/shop/shop.db".into()),
                path => Ok(Place::Sqlite(path.into())),
            };
        }
        if text.starts_with("mongodb://") || text.starts_with("mongodb+srv://") {
            return Ok(Place::Mongo(Secret::new(text)));
        }
        // The text may hold a password: it is not shown.
        Err("is no outbox; write sqlite:PATH or mongodb://HOST/DATABASE?replicaSet=NAME".into())
    }

    /// What may be shown of it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Place::Sqlite(path) => path.display().to_string(),
            Place::Mongo(_) => "MongoDB".to_owned(),
        }
    }

    /// Opens the outbox; `schema` says what to do about a table that is missing.
    pub(crate) async fn open(&self, table: &str, schema: Schema) -> Result<Arc<dyn OutboxStore>, Failure> {
        let at = |error: promethean_outbox::Error| match &error {
            _ if error.is_unreachable() => {
                let remedy = "check the address, and that the replica set runs and has a primary";
                Failure::new(
                    Exit::Unreachable,
                    format!("outbox in {}: nobody answers; {remedy}: {error}", self.shown()),
                )
            }
            promethean_outbox::Error::Name(_) => Failure::usage(format!("the outbox: {error}")),
            // SQLite's own words: file is not a database.
            promethean_outbox::Error::Sqlite(sqlite) if sqlite.to_string().contains("not a database") => {
                let remedy = "name the file of the service's own database";
                Failure::failed(format!("outbox in {}: {error}; {remedy}", self.shown()))
            }
            _ => Failure::failed(format!("outbox in {}: {error}", self.shown())),
        };
        match self {
            Place::Sqlite(path) => {
                let (path, table) = (path.clone(), table.to_owned());
                let opened =
                    tokio::task::spawn_blocking(move || SqliteOutbox::open_existing(path, &table, schema)).await;
                Ok(Arc::new(opened.map_err(Failure::failed)?.map_err(at)?))
            }
            #[cfg(feature = "mongo")]
            Place::Mongo(url) => {
                Ok(Arc::new(promethean_outbox::MongoOutbox::connect(url.expose(), table, schema).await.map_err(at)?))
            }
            #[cfg(not(feature = "mongo"))]
            Place::Mongo(_) => Err(Failure::failed("this build has no MongoDB: use sqlite:PATH")),
        }
    }
}

/// How long a claim lasts: shorter ones would be prolonged all the time.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        lease if lease < Duration::from_secs(1) => Err(format!("{text} must be at least 1s")),
        lease => Ok(lease),
    }
}

/// The longest wait between two looks at an idle outbox.
pub(crate) fn poll(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        poll if poll < Duration::from_millis(5) => Err(format!("{text} must be at least 5ms")),
        poll => Ok(poll),
    }
}

/// The outbox that the hub drains.
#[derive(Debug, Clone)]
pub(crate) struct OutboxConfig {
    pub(crate) place: Place,
    pub(crate) table: String,
    pub(crate) batch: usize,
    pub(crate) lease: Duration,
    pub(crate) poll: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) keep_sent: Duration,
}

impl OutboxConfig {
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings {
            batch_rows: self.batch,
            lease: self.lease,
            longest_poll: self.poll,
            keep_sent: self.keep_sent,
            ..Settings::default()
        };
        settings.policy.max_attempts = self.max_attempts;
        settings
    }
}

/// How often the numbers go into the metrics.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Drains into the hub's own bus; its numbers go into the hub's metrics. A stop waits for `grace` for what is under way.
pub(crate) fn start(
    config: &OutboxConfig,
    store: Arc<dyn OutboxStore>,
    hub: &Arc<Hub>,
    grace: Duration,
) -> Arc<HubDrainer> {
    tracing::info!(outbox = config.place.shown(), table = config.table, "draining an outbox");
    let publisher = Arc::new(BusPublisher::new(hub.bus.clone()));
    let drainer = drain(store, publisher, Settings { grace, ..config.settings() });
    let drainer = Arc::new(HubDrainer { drainer: Mutex::new(Some(drainer)) });
    let (watched, hub) = (Arc::downgrade(&drainer), Arc::clone(hub));
    tokio::spawn(async move {
        while let Some(drainer) = watched.upgrade() {
            drainer.report(&hub);
            drop(drainer);
            tokio::time::sleep(REPORT_EVERY).await;
        }
    });
    drainer
}

/// The hub's drainer, until it is stopped.
#[derive(Debug)]
pub(crate) struct HubDrainer {
    drainer: Mutex<Option<Drainer>>,
}

impl HubDrainer {
    fn report(&self, hub: &Hub) {
        let drainer = self.drainer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(snapshot) = drainer.as_ref().map(Drainer::snapshot) else { return };
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let gauges = &hub.gauges;
        gauges.outbox_pending.store(snapshot.stats.pending + snapshot.stats.claimed, Relaxed);
        gauges.outbox_oldest_age_ms.store(snapshot.stats.oldest.map_or(0, millis), Relaxed);
        gauges.outbox_parked.store(snapshot.stats.parked, Relaxed);
        gauges.outbox_sent.store(snapshot.sent, Relaxed);
        gauges.outbox_errors.store(snapshot.errors, Relaxed);
    }

    /// Finishes the batch under way, or gives it back.
    pub(crate) async fn stop(&self) {
        let drainer = self.drainer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(drainer) = drainer {
            drainer.stop().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_is_a_file_or_a_replica_set_and_nothing_else() {
        assert_eq!(Place::parse("sqlite:/a/b.db"), Ok(Place::Sqlite("/a/b.db".into())));
        assert_eq!(Place::parse("sqlite:///a/b.db"), Ok(Place::Sqlite("/a/b.db".into())));
        assert_eq!(Place::parse("sqlite:b.db"), Ok(Place::Sqlite("b.db".into())));
        assert!(matches!(Place::parse("mongodb://u:canary@h/d"), Ok(Place::Mongo(_))));
        for bad in ["", "sqlite:", "/a/b.db", "postgres://u:canary@h/d"] {
            let why = Place::parse(bad).expect_err(bad);
            assert!(why.contains("sqlite:") && !why.contains("canary"), "{why}");
        }
    }
}
