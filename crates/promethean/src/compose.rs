//! Puts the parts together: the only place that names an engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use promethean_bus::{Bus, BusOptions, Limits, run_compactors};
use promethean_event::Millis;
use promethean_gateway::audit::Audit;
use promethean_gateway::auth::Authenticator;
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::Intake;
use promethean_gateway::trace::Tracer;
use promethean_gateway::{Hub, http, ops, ws};
use promethean_store::log::{Log, Options};
use promethean_store::memory::Memory;
#[cfg(feature = "mongo")]
use promethean_store::mongo::{self, Mongo};
use promethean_store::{EventLog as _, SnapshotTargets, Store};

use crate::bound::Serving;
#[cfg(feature = "mongo")]
use crate::cluster::Place;
use crate::config::{Config, ConfigError, Engine};
#[cfg(feature = "mongo")]
use crate::exit::Exit;
use crate::exit::Failure;

/// An engine, and itself by its own name where other hubs may share it.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    #[cfg(feature = "mongo")]
    mongo: Option<Mongo>,
}

/// Opens the engine and gives the configured topics their settings.
pub(crate) async fn open_store(config: &Config) -> Result<Opened, Failure> {
    #[cfg(feature = "mongo")]
    let mut shared = None;
    let store: Arc<dyn Store> = match &config.engine {
        Engine::Memory => {
            let memory = Arc::new(Memory::new());
            tokio::spawn(keep_within_bounds(Arc::clone(&memory)));
            memory
        }
        Engine::Log { dir, sync, compress, open_files } => {
            let (sync, compress, open_files) = (*sync, *compress, *open_files);
            let options = Options { sync, compress, open_files, ..Options::new(dir) };
            // Opening replays the journal: that may take a moment, and blocks.
            let opened = tokio::task::spawn_blocking(move || Log::open(options)).await;
            Arc::new(opened.map_err(Failure::failed)?.map_err(Failure::failed)?)
        }
        #[cfg(feature = "mongo")]
        Engine::Mongo { url } => {
            let opened = Mongo::open(mongo::Options::new(url.expose())).await.map_err(mongo_refused)?;
            shared = Some(opened.clone());
            Arc::new(opened)
        }
        #[cfg(not(feature = "mongo"))]
        Engine::Mongo { .. } => {
            return Err(Failure::failed(
                "this build has no MongoDB engine: unset MONGO_URL, or set PROMETHEAN_STORE to log or memory",
            ));
        }
    };
    check_snapshots(config, &*store)?;
    for (topic, settings) in &config.topics {
        if store.settings(topic) != *settings {
            let changed = store.set_settings(topic, settings.clone()).await;
            changed.map_err(|error| Failure::failed(format!("topics.{:?}: {error}", topic.as_str())))?;
        }
    }
    Ok(Opened {
        store,
        #[cfg(feature = "mongo")]
        mongo: shared,
    })
}

/// True if the configured snapshot topics get along with those that were set before and are not in the configuration.
fn check_snapshots(config: &Config, store: &dyn Store) -> Result<(), Failure> {
    let before = store.all_settings();
    let before = before.iter().map(|(topic, settings)| (topic, settings));
    let targets = SnapshotTargets::new(before.chain(&config.topics));
    config.topics.keys().try_for_each(|topic| {
        targets.check(topic).map_err(|reason| ConfigError::new(&format!("topics.{:?}", topic.as_str()), reason).into())
    })
}

#[cfg(feature = "mongo")]
async fn place(config: &Config, opened: &Opened, ws: SocketAddr) -> Result<Option<Place>, Failure> {
    match &opened.mongo {
        Some(mongo) => Place::take(config, mongo, ws).await.map(Some),
        None => Ok(None),
    }
}

/// Without the engine that hubs can share, a hub is alone.
#[cfg(not(feature = "mongo"))]
async fn place(_: &Config, _: &Opened, _: SocketAddr) -> Result<Option<Place>, Failure> {
    Ok(None)
}

#[cfg(not(feature = "mongo"))]
struct Place {
    cluster: promethean_bus::Cluster,
    secret: promethean_gateway::auth::Secret,
}

/// How the process ends when MongoDB cannot be used.
#[cfg(feature = "mongo")]
pub(crate) fn mongo_refused(error: promethean_store::mongo::OpenError) -> Failure {
    use promethean_store::mongo::OpenError;
    match error {
        OpenError::BadUrl(_) => Failure::usage(error),
        OpenError::Unreachable { .. } => Failure::new(Exit::Unreachable, error),
        OpenError::Authentication(_) | OpenError::NoPermission { .. } => Failure::new(Exit::Denied, error),
        error => Failure::failed(error),
    }
}

/// How often the memory engine applies retention and compaction; the embedded engine does so by itself.
const MAINTENANCE: Duration = Duration::from_secs(10);

async fn keep_within_bounds(memory: Arc<Memory>) {
    loop {
        tokio::time::sleep(MAINTENANCE).await;
        if memory.maintain(Millis::now()).await.is_err() {
            return;
        }
    }
}

/// The shared state of the edge over a store. Where other hubs share the store, they reach this one at `ws`.
pub(crate) async fn hub(config: &Config, opened: &Opened, ws: SocketAddr) -> Result<Arc<Hub>, Failure> {
    let options = BusOptions {
        limits: Limits { max_event_bytes: config.edge.max_event_bytes },
        max_series: config.edge.metrics_max_series,
        bounds: config.bounds,
        auto_create: config.edge.auto_create,
    };
    let mut auth = config.auth.clone();
    let store = Arc::clone(&opened.store);
    let bus = match place(config, opened, ws).await? {
        None => Bus::new(store, options),
        Some(Place { cluster, secret }) => {
            auth.cluster_secret = Some(secret);
            Bus::clustered(store, options, cluster)
        }
    };
    let auth = Authenticator::new(&auth).map_err(Failure::usage)?;
    let quotas = Quotas::new(config.conn_rate, config.topic_rate).with_topics(config.topic_rates.clone());
    let mut hub = Hub::new(bus, auth, quotas, config.edge.clone());
    hub.tracer = tracer(config)?;
    if let Some(path) = &config.audit_log {
        let refused = |error| Failure::usage(format!("audit_log: {} cannot be opened: {error}", path.display()));
        hub.audit = Audit::to_file(path).map_err(refused)?;
    }
    if let Engine::Log { dir, .. } = &config.engine {
        hub.about.set_data_dir(dir.clone());
    }
    Ok(Arc::new(hub))
}

/// Where spans go.
#[cfg(feature = "otel")]
fn tracer(config: &Config) -> Result<Option<Tracer>, Failure> {
    let started = config.otlp_endpoint.as_deref().map(Tracer::start).transpose();
    started.map_err(|reason| Failure::usage(format!("otlp_endpoint: {reason}")))
}

#[cfg(not(feature = "otel"))]
fn tracer(config: &Config) -> Result<Option<Tracer>, Failure> {
    match config.otlp_endpoint {
        Some(_) => Err(Failure::usage("otlp_endpoint: this build sends no spans; build it with the feature otel")),
        None => Ok(None),
    }
}

/// Connections of the ops port beyond `max_connections`.
const OPS_SLOTS: usize = 32;

/// Serves every listener in a task of its own, keeps the signing keys fresh, takes samples for the charts and runs the
/// compactors of topics that are to have snapshots.
pub(crate) fn listen(hub: &Arc<Hub>, listeners: Vec<Serving>, intake: &Intake) {
    for serving in listeners {
        let router = router(hub, &serving);
        // Health checks get in although clients have used up all slots.
        let watched = serving.ops && !serving.ws && !serving.http;
        let intake = if watched { intake.clone().reserve(OPS_SLOTS) } else { intake.clone() };
        tokio::spawn(serving.listener.serve(router, intake, hub.drain.watch()));
    }
    let auth = hub.auth.clone();
    tokio::spawn(async move { auth.run().await });
    tokio::spawn(ops::sample(Arc::clone(hub)));
    // Where several hubs share a store, one of them does it.
    let bus = hub.bus.clone();
    tokio::spawn(run_compactors(hub.bus.clone(), move |_| std::future::ready(bus.leads())));
}

/// What one listener answers.
fn router(hub: &Arc<Hub>, serving: &Serving) -> Router {
    if serving.ws && !serving.http && !serving.ops {
        return ws::router(Arc::clone(hub));
    }
    let router = match (serving.http, serving.ops) {
        (true, true) => ops::router_with_http(Arc::clone(hub)),
        (_, true) => ops::router(Arc::clone(hub)),
        _ => http::router(Arc::clone(hub)),
    };
    if serving.ws { ws::in_front_of(router, Arc::clone(hub)) } else { router }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use promethean_event::Topic;
    use promethean_store::TopicSettings;

    use super::open_store;
    use crate::config::{Config, File, Layers};

    async fn settings_of_a(dir: &std::path::Path, text: &str) -> TopicSettings {
        try_settings_of_a(dir, text).await.expect("opened")
    }

    async fn try_settings_of_a(dir: &std::path::Path, text: &str) -> Result<TopicSettings, String> {
        let file = File { path: "promethean.toml".into(), text: format!("data_dir = {dir:?}\n{text}") };
        let mut layers = Layers::collect(&BTreeMap::new(), &|_| None, Some(&file)).expect("a good file");
        let config = Config::resolve(&mut layers, &|_| None).expect("a good configuration");
        let store = open_store(&config).await.map_err(|failure| failure.to_string())?.store;
        let settings = store.settings(&Topic::parse("a").expect("a topic"));
        store.close().await.expect("closed");
        Ok(settings)
    }

    #[tokio::test]
    async fn a_configured_snapshot_topic_is_checked_against_what_was_set_before() {
        let dir = tempfile::tempdir().expect("a directory");
        settings_of_a(dir.path(), "[topics.b]\nsnapshot_topic = \"a\"\n").await;
        let circle = try_settings_of_a(dir.path(), "[topics.a]\nsnapshot_topic = \"b\"\n").await;
        assert!(circle.as_ref().is_err_and(|refused| refused.contains("a → b → a")), "{circle:?}");
        let shared = try_settings_of_a(dir.path(), "[topics.c]\nsnapshot_topic = \"a\"\n").await;
        assert!(shared.as_ref().is_err_and(|refused| refused.contains("snapshots of b")), "{shared:?}");
        assert_eq!(settings_of_a(dir.path(), "").await, TopicSettings::default(), "nothing was set");
        let both = "[topics.a]\nsnapshot_topic = \"b\"\n[topics.b]\nsnapshot = false\n";
        assert!(settings_of_a(dir.path(), both).await.snapshot.is_some(), "what the file changes does not count");
    }

    #[tokio::test]
    async fn the_settings_of_topics_reach_the_store_and_stay_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let configured = settings_of_a(dir.path(), "[topics.a]\nretentionDays = 3\ncompaction = true\n").await;
        assert_eq!(configured.retention.max_age.map(|age| age.as_secs()), Some(3 * 86_400));
        assert!(configured.compaction.is_some());
        assert_eq!(settings_of_a(dir.path(), "").await, configured, "without the table they stay as they were");
    }
}
