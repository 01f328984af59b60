//! What both examples share: a hub in this process, and the service as a process that is killed with `kill -9` again
//! and again.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use promethean_bus::Bus;
use promethean_event::Topic;
use promethean_gateway::auth::{AuthConfig, Authenticator};
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub, ws};
use promethean_store::memory::Memory;
use promethean_store::{EventLog as _, ReadMax};

pub(crate) type Anyhow<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How many orders the service takes.
pub(crate) const ORDERS: usize = 300;
/// Customers: the events of one come in order.
pub(crate) const CUSTOMERS: usize = 7;

/// Runs the service again and again, killing it in the middle, until it has taken all orders and ends by itself.
/// Returns the events of the hub: (customer, order).
pub(crate) async fn run_and_kill(database: &str) -> Anyhow<Vec<(String, usize)>> {
    let memory = Arc::new(Memory::new());
    let bus = Bus::new(Arc::clone(&memory) as _, Default::default());
    let hub =
        Arc::new(Hub::new(bus, Authenticator::new(&AuthConfig::default())?, Quotas::default(), EdgeConfig::default()));
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await?;
    let url = format!("ws://{}", listener.local_addr());
    tokio::spawn(listener.serve(ws::router(Arc::clone(&hub)), Intake::new(100, None), hub.drain.watch()));

    let mut kills = 0;
    loop {
        let mut service = Command::new(std::env::current_exe()?).args(["service", &url, database]).spawn()?;
        // Killed four times, each time a little later; then it may finish.
        let patience = if kills < 4 { Duration::from_millis(150 * (kills + 1)) } else { Duration::from_secs(60) };
        tokio::time::sleep(Duration::from_millis(20)).await;
        let deadline = std::time::Instant::now() + patience;
        let ended = loop {
            match service.try_wait()? {
                Some(status) => break Some(status),
                None if std::time::Instant::now() > deadline => break None,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        match ended {
            Some(status) if status.success() => break,
            Some(status) => return Err(format!("the service failed: {status}").into()),
            None => {
                service.kill()?;
                service.wait()?;
                kills += 1;
                println!("killed the service, {kills} times now");
            }
        }
    }
    let topic = Topic::parse("orders.created")?;
    let events = memory.read(&topic, 1, ReadMax { events: 100_000, bytes: usize::MAX }).await?;
    let read = |event: &promethean_event::Event| {
        let order: serde_json::Value = event.payload_as().unwrap_or_default();
        (event.key().unwrap_or_default().into_owned(), order["order"].as_u64().unwrap_or(0) as usize)
    };
    Ok(events.iter().map(read).collect())
}

/// Every order once, those of a customer in order.
pub(crate) fn check(mut orders: Vec<usize>, events: &[(String, usize)]) {
    orders.sort_unstable();
    let mut published: Vec<usize> = events.iter().map(|(_, order)| *order).collect();
    let mut customers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (customer, order) in events {
        customers.entry(customer).or_default().push(*order);
    }
    assert!(customers.values().all(|orders| orders.is_sorted()), "in order per customer");
    published.sort_unstable();
    assert_eq!(published, orders, "an event for every order, and no other");
    assert_eq!(orders.len(), ORDERS);
    println!("{} orders, {} events, each once and in order", orders.len(), events.len());
}
