//! An order service on SQLite: the order and its event commit together, and the service is killed with `kill -9` in the
//! middle, several times. Run it: `cargo run -p promethean-outbox --example orders_sqlite`.

mod support;

use std::sync::Arc;
use std::time::Duration;

use promethean_outbox::SqliteOutbox;
use support::{Anyhow, ORDERS};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Anyhow<()> {
    if let Some((hub, database)) = support::service() {
        return service(&hub, &database).await;
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
    let drainer = support::publish(hub, Arc::new(outbox.clone())).await?;

    let taken: i64 = shop.query_row("SELECT count(*) FROM orders", (), |row| row.get(0))?;
    for number in taken as usize..ORDERS {
        let (customer, event) = support::order(number)?;
        let tx = shop.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.execute("INSERT INTO orders (id, customer) VALUES (?1, ?2)", (number as i64, customer))?;
        outbox.add(&tx, &event)?;
        outbox.commit(tx)?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    support::finish(&outbox, drainer).await
}
