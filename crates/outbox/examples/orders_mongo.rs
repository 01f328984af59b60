//! An order service on MongoDB: the order and its event commit together in the service's own session, and the service is
//! killed with `kill -9` in the middle, several times. Run it: `cargo run -p promethean-outbox --example orders_mongo`;
//! it uses the replica set of `MONGO_URL`, or starts one.

mod support;

use std::sync::Arc;

use mongodb::bson::{Document, doc};
use promethean_outbox::MongoOutbox;
use promethean_testmongo::Scratch;
use support::{Anyhow, ORDERS};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Anyhow<()> {
    if let Some((hub, database)) = support::service() {
        return service(&hub, &database).await;
    }
    let scratch = tokio::task::spawn_blocking(Scratch::new).await?;
    let shop = mongodb::Client::with_uri_str(scratch.url()).await?.database(scratch.name());
    // Made before the service starts: a collection that is made inside a transaction is locked for as long as MongoDB
    // keeps that transaction, which is a minute where its service was killed.
    shop.create_collection("orders").await?;
    let events = support::run_and_kill(scratch.url()).await?;
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
    let drainer = support::publish(hub, Arc::new(outbox.clone())).await?;

    let taken = orders.count_documents(doc! {}).await? as usize;
    for number in taken..ORDERS {
        let (customer, event) = support::order(number)?;
        let mut session = mongo.start_session().await?;
        session.start_transaction().await?;
        orders.insert_one(doc! {"order": number as i32, "customer": customer}).session(&mut session).await?;
        outbox.add(&mut session, &event).await?;
        outbox.commit(&mut session).await?;
    }
    support::finish(&outbox, drainer).await
}
