//! The distributed engine on a real replica set: the law, several hubs at once, one that died, a primary that is killed,
//! calls over several topics, what the seed has left in the database, and what the engine refuses to open.

mod failover;
mod heartbeat;
mod hubs;
mod inherited;
mod law;
mod long;
mod orphans;
mod refusals;
mod rights;
mod seed;
mod topics;

use promethean_store::mongo::{Mongo, Options};

/// Opens the engine without its background maintenance.
pub(crate) async fn open(url: &str) -> Mongo {
    Mongo::open(Options { maintenance: None, ..Options::new(url) }).await.expect("it opens")
}

/// Runs a test on a runtime of its own, within a limit.
pub(crate) fn run<F: Future<Output = ()>>(seconds: u64, test: F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let limit = std::time::Duration::from_secs(seconds);
    runtime.block_on(async { tokio::time::timeout(limit, test).await.expect("the test ends in time") });
}
