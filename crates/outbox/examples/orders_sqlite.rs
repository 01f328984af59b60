//! An order service on SQLite: the order and its event commit together, and the service is killed with `kill -9` in the
//! middle, several times. Run it: `cargo run -p promethean-outbox --example orders_sqlite`.

mod support;

use std::sync::Arc;
use std::time::Duration;

use promethean_client::Client;
use promethean_outbox::{ClientPublisher, NewRow, OutboxStore as _, Settings, SqliteOutbox, drain};
use support::{Anyhow, CUSTOMERS, ORDERS};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Anyhow<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, what, hub, database] = args.as_slice()
        && what == "service"
    {
        return service(hub, database).await;
    }
    let dir = tempfile::tempdir()?;
    let database = dir.path().join("shop.db").display().to_string();
    let events = support::run_and_kill(&database).await?;
    let shop = rusqlite::Connection::open(&database)?;
    let orders: Vec<i64> =
        shop.prepare("SELECT id FROM orders")?.query_map((), |row| row.get(0))?.collect::<Result<_, _>>()?;
    support::check(orders.into_iter().map(|order| order as usize).collect(), &events);
    Ok(())
}

/// The service: takes orders, and drains its outbox into the hub.
async fn service(hub: &str, database: &str) -> Anyhow<()> {
    let mut shop = rusqlite::Connection::open(database)?;
    shop.busy_timeout(Duration::from_secs(5))?;
    shop.pragma_update(None, "journal_mode", "WAL")?;
    shop.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT)")?;
    let outbox = SqliteOutbox::open(database)?;

    // One call: from here on everything that is committed is published.
    let client = Client::builder(hub).connect().await?;
    let settings = Settings { lease: Duration::from_secs(1), ..Settings::default() };
    let drainer = drain(Arc::new(outbox.clone()), Arc::new(ClientPublisher::new(client)), settings);

    let taken: i64 = shop.query_row("SELECT count(*) FROM orders", (), |row| row.get(0))?;
    for order in taken as usize..ORDERS {
        let customer = format!("customer-{}", order % CUSTOMERS);
        let tx = shop.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.execute("INSERT INTO orders (id, customer) VALUES (?1, ?2)", (order as i64, &customer))?;
        outbox.add(&tx, &NewRow::new("orders.created", &serde_json::json!({"order": order}))?.key(customer))?;
        outbox.commit(tx)?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    while {
        let stats = outbox.stats().await?;
        stats.pending + stats.claimed > 0
    } {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drainer.stop().await;
    Ok(())
}
