//! The projector of processes inside a hub: heartbeats on `heartbeat.received` become states on `process.state`.
//!
//! Of several hubs on one store, the one that leads runs it.

use std::time::Duration;

use promethean_bus::Bus;
use promethean_projection::bus::Projector;
use promethean_projection::process::Processes;

/// The wait before the projector is started again, and between two looks at who leads.
const AGAIN: Duration = Duration::from_secs(1);

/// Starts the projector, which runs until the hub ends.
pub(super) fn start(bus: Bus) {
    tokio::spawn(keep_running(bus));
}

async fn keep_running(bus: Bus) {
    while !bus.is_draining() {
        if bus.leads() {
            tokio::select! {
                stopped = run(&bus) => {
                    if !bus.is_draining() {
                        tracing::error!(error = %stopped, "the projector of processes stopped; it is started again");
                    }
                }
                () = no_longer(&bus) => tracing::info!("another hub runs the projector of processes now"),
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn run(bus: &Bus) -> promethean_projection::Error {
    match Projector::open(bus, Processes::settings(), Processes::default()).await {
        Ok(projector) => projector.run().await.map_or_else(|error| error, |never| match never {}),
        Err(error) => error,
    }
}

/// Waits until another hub leads.
async fn no_longer(bus: &Bus) {
    while bus.leads() {
        tokio::time::sleep(AGAIN).await;
    }
}
