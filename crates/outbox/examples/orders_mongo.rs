//! An order service on MongoDB: the order and its event commit together in the service's own session, and the service is
//! killed with `kill -9` in the middle, several times. Run it: `cargo run -p promethean-outbox --example orders_mongo`;
//! it uses the replica set of `MONGO_URL`, or starts one.

mod support;

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use promethean_client::Client;
use promethean_outbox::{ClientPublisher, MongoOutbox, NewRow, OutboxStore as _, Settings, drain};
use promethean_testmongo::Scratch;
use support::{Anyhow, CUSTOMERS, ORDERS};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Anyhow<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, what, hub, database] = args.as_slice()
        && what == "service"
    {
        return service(hub, database).await;
    }
    let scratch = tokio::task::spawn_blocking(Scratch::new).await?;
    let events = support::run_and_kill(scratch.url()).await?;
    let shop = mongodb::Client::with_uri_str(scratch.url()).await?.database(scratch.name());
    let mut found = shop.collection::<Document>("orders").find(doc! {}).await?;
    let mut orders = Vec::new();
    while found.advance().await? {
        orders.push(found.deserialize_current()?.get_i32("order")? as usize);
    }
    support::check(orders, &events);
    Ok(())
}

/// The service: takes orders, and drains its outbox into the hub.
async fn service(hub: &str, url: &str) -> Anyhow<()> {
    let mongo = mongodb::Client::with_uri_str(url).await?;
    let shop = mongo.default_database().ok_or("the address names the database")?;
    let orders = shop.collection::<Document>("orders");
    let outbox = MongoOutbox::open(&shop, "outbox").await?;

    // One call: from here on everything that is committed is published.
    let client = Client::builder(hub).connect().await?;
    let settings = Settings { lease: Duration::from_secs(1), ..Settings::default() };
    let drainer = drain(Arc::new(outbox.clone()), Arc::new(ClientPublisher::new(client)), settings);

    let taken = orders.count_documents(doc! {}).await? as usize;
    for order in taken..ORDERS {
        let customer = format!("customer-{}", order % CUSTOMERS);
        let mut session = mongo.start_session().await?;
        session.start_transaction().await?;
        orders.insert_one(doc! {"order": order as i32, "customer": &customer}).session(&mut session).await?;
        let event = NewRow::new("orders.created", &serde_json::json!({"order": order}))?.key(customer);
        outbox.add(&mut session, &event).await?;
        outbox.commit(&mut session).await?;
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
