//! A hub whose heartbeats are not taken says so when that begins and when it ends, with the reason, and not at each.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::doc;
use parking_lot::Mutex;
use promethean_store::mongo::Cluster;
use promethean_store::{Ownership as _, Terms};
use promethean_testmongo::{Replica, Setup};

use crate::open;

/// What the engine says in its log: level, message and fields.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn count(&self, words: &str) -> usize {
        self.0.lock().iter().filter(|line| line.contains(words)).count()
    }
}

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl tracing::Subscriber for Said {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("promethean")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn updates(replica: &Replica, mode: &str) {
    let data = doc! { "failCommands": ["update"], "errorCode": 13 };
    let point = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    replica.command(0, point).expect("a failpoint");
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn an_outage_of_the_heartbeat_is_told_once_with_its_reason_and_once_that_it_is_over() {
    const LOST: &str = "the heartbeat was not taken";
    const BACK: &str = "the heartbeat is taken again";
    let said = Said::default();
    let _kept = tracing::subscriber::set_default(said.clone());
    // On one thread, whose log is kept.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let test = async {
            let replica = Setup::default().flag("--setParameter").flag("enableTestCommands=1").start();
            let hub = open(&replica.url("beats")).await;
            let every = Duration::from_millis(100);
            let place = Cluster::join(&hub, "ws://one:1", "1", Terms { ttl: 10 * every, every, margin: every }).await;
            let place = place.expect("a place");
            for outage in 1..=2 {
                updates(&replica, "alwaysOn");
                // The place is lost, and then some.
                until(|| place.ready().is_err()).await;
                let more = said.count("DEBUG") + 10;
                until(|| said.count("DEBUG") >= more).await;
                assert_eq!((said.count(LOST), said.count(BACK)), (outage, outage - 1));
                let why = place.ready().expect_err("no place").to_string();
                assert!(why.contains("failCommand") && !why.contains("is away"), "{why}");
                updates(&replica, "off");
                until(|| place.ready().is_ok()).await;
                assert_eq!((said.count(LOST), said.count(BACK)), (outage, outage));
            }
            place.leave().await.expect("left");
        };
        tokio::time::timeout(Duration::from_secs(90), test).await.expect("the test ends in time");
    });
}
