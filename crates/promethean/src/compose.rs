//! Puts the parts together: the only place that names an engine.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use promethean_bus::{Bus, BusOptions, Limits, run_compactors};
use promethean_event::Millis;
use promethean_gateway::auth::Authenticator;
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::Intake;
use promethean_gateway::trace::Tracer;
use promethean_gateway::{Hub, http, ops, ws};
use promethean_store::log::{Log, Options};
use promethean_store::memory::Memory;
use promethean_store::{EventLog as _, Store};

use crate::bound::Serving;
use crate::config::{Config, Engine};
#[cfg(feature = "mongo")]
use crate::exit::Exit;
use crate::exit::Failure;

/// Opens the engine and gives the configured topics their settings.
pub(crate) async fn open_store(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    let store: Arc<dyn Store> = match &config.engine {
        Engine::Memory => {
            let memory = Arc::new(Memory::new());
            tokio::spawn(keep_within_bounds(Arc::clone(&memory)));
            memory
        }
        Engine::Log { dir, sync } => {
            let options = Options { sync: *sync, ..Options::new(dir) };
            // Opening replays the journal: that may take a moment, and blocks.
            let opened = tokio::task::spawn_blocking(move || Log::open(options)).await;
            Arc::new(opened.map_err(Failure::failed)?.map_err(Failure::failed)?)
        }
        Engine::Mongo { url } => open_mongo(url.expose()).await?,
    };
    for (topic, settings) in &config.topics {
        if store.settings(topic) != *settings {
            let changed = store.set_settings(topic, settings.clone()).await;
            changed.map_err(|error| Failure::failed(format!("topics.{:?}: {error}", topic.as_str())))?;
        }
    }
    Ok(store)
}

#[cfg(feature = "mongo")]
async fn open_mongo(url: &str) -> Result<Arc<dyn Store>, Failure> {
    use promethean_store::mongo::{Mongo, Options};
    Ok(Arc::new(Mongo::open(Options::new(url)).await.map_err(mongo_refused)?))
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

#[cfg(not(feature = "mongo"))]
async fn open_mongo(_url: &str) -> Result<Arc<dyn Store>, Failure> {
    let why = "this build has no MongoDB engine: unset MONGO_URL, or set PROMETHEAN_STORE to log or memory";
    Err(Failure::failed(why))
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

/// The shared state of the edge over a store.
pub(crate) fn hub(config: &Config, store: Arc<dyn Store>) -> Result<Arc<Hub>, Failure> {
    let options = BusOptions {
        limits: Limits { max_event_bytes: config.edge.max_event_bytes },
        max_series: config.edge.metrics_max_series,
    };
    let auth = Authenticator::new(&config.auth).map_err(Failure::usage)?;
    let quotas = Quotas::new(config.conn_rate, config.topic_rate);
    let mut hub = Hub::new(Bus::new(store, options), auth, quotas, config.edge.clone());
    hub.tracer = tracer(config)?;
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

/// Serves every listener in a task of its own, keeps the signing keys fresh, takes samples for the charts and runs the
/// compactors of topics that are to have snapshots.
pub(crate) fn listen(hub: &Arc<Hub>, listeners: Vec<Serving>, intake: &Intake) {
    for serving in listeners {
        let router = router(hub, &serving);
        tokio::spawn(serving.listener.serve(router, intake.clone(), hub.drain.watch()));
    }
    let auth = hub.auth.clone();
    tokio::spawn(async move { auth.run().await });
    tokio::spawn(ops::sample(Arc::clone(hub)));
    // Where several hubs share a store, the one that owns the topic has to answer yes here, alone.
    tokio::spawn(run_compactors(hub.bus.clone(), |_| std::future::ready(true)));
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
        let file = File { path: "promethean.toml".into(), text: format!("data_dir = {dir:?}\n{text}") };
        let mut layers = Layers::collect(&BTreeMap::new(), &|_| None, Some(&file)).expect("a good file");
        let config = Config::resolve(&mut layers, &|_| None).expect("a good configuration");
        let store = open_store(&config).await.expect("opened");
        let settings = store.settings(&Topic::parse("a").expect("a topic"));
        store.close().await.expect("closed");
        settings
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
