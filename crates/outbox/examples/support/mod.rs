//! What both examples share: a hub in this process, and the service as a process that is killed with `kill -9` again
//! and again.

mod hub;

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use promethean_client::Client;
use promethean_event::Topic;
use promethean_outbox::{ClientPublisher, Drainer, NewRow, OutboxStore, Settings, drain};
use promethean_store::ReadMax;

pub(crate) type Anyhow<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How many orders the service takes.
pub(crate) const ORDERS: usize = 300;
/// Customers: the events of one come in order.
const CUSTOMERS: usize = 7;

/// The hub and the database that this process is to be the service of, where it is that.
pub(crate) fn service() -> Option<(String, String)> {
    match std::env::args().collect::<Vec<_>>().as_slice() {
        [_, what, hub, database] if what == "service" => Some((hub.clone(), database.clone())),
        _ => None,
    }
}

/// The customer of an order, and its event.
pub(crate) fn order(number: usize) -> Anyhow<(String, NewRow)> {
    let customer = format!("customer-{}", number % CUSTOMERS);
    let event = NewRow::new("orders.created", &serde_json::json!({"order": number}))?.key(&customer);
    Ok((customer, event))
}

/// One call: from here on everything that is committed is published.
pub(crate) async fn publish(hub: &str, outbox: Arc<dyn OutboxStore>) -> Anyhow<Drainer> {
    let client = Client::builder(hub).connect().await?;
    let settings = Settings { lease: Duration::from_secs(1), ..Settings::default() };
    Ok(drain(outbox, Arc::new(ClientPublisher::new(client)), settings))
}

/// Ends the service once everything is published.
pub(crate) async fn finish(outbox: &dyn OutboxStore, drainer: Drainer) -> Anyhow<()> {
    while {
        let stats = outbox.stats().await?;
        stats.pending + stats.claimed > 0
    } {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drainer.stop().await;
    Ok(())
}

/// Runs the service again and again, killing it in the middle, until it has taken all orders and ends by itself.
/// Returns the events of the hub: (customer, order).
pub(crate) async fn run_and_kill(database: &str) -> Anyhow<Vec<(String, usize)>> {
    let (bus, url) = hub::start().await?;
    let mut kills = 0;
    loop {
        let mut service = Command::new(std::env::current_exe()?).args(["service", &url, database]).spawn()?;
        // Killed four times, each time a little later; then it may finish.
        let patience = if kills < 4 { Duration::from_millis(150 * (kills + 1)) } else { Duration::from_secs(60) };
        let deadline = Instant::now() + patience;
        let ended = loop {
            match service.try_wait()? {
                Some(status) => break Some(status),
                None if Instant::now() > deadline => break None,
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
                if kills > 4 {
                    return Err("the service did not finish within a minute".into());
                }
            }
        }
    }
    let topic = Topic::parse("orders.created")?;
    let events = bus.store().read(&topic, 1, ReadMax { events: 100_000, bytes: usize::MAX }).await?;
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
