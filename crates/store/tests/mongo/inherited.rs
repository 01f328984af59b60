//! What the seed leaves in a database: its indexes beside the hub's.

use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Collection, Database, IndexModel};
use promethean_store::suite::{append, event};
use promethean_testmongo::Scratch;

use crate::{open, run};

/// The database as a program of the seed sees it.
async fn seen(scratch: &Scratch) -> Database {
    let client = mongodb::Client::with_uri_str(scratch.url()).await.expect("a client");
    client.default_database().expect("named")
}

/// `MongoEventStore.ensureIndexes` of the seed: one index after another, each under MongoDB's name for it.
async fn ensure_indexes(events: &Collection<Document>) {
    let asked = [
        (doc! { "topic": 1, "ts": 1, "id": 1 }, None),
        (doc! { "topic": 1, "key": 1, "ts": -1 }, None),
        (doc! { "id": 1 }, Some(true)),
        (doc! { "headers.correlationId": 1 }, None),
    ];
    for (keys, unique) in asked {
        let options = IndexOptions::builder().unique(unique).build();
        let index = IndexModel::builder().keys(keys.clone()).options(options).build();
        events.create_index(index).await.unwrap_or_else(|error| panic!("{keys}: {error}"));
    }
}

async fn names(events: &Collection<Document>) -> Vec<String> {
    let mut names = events.list_index_names().await.expect("listed");
    names.sort();
    names
}

#[test]
fn a_program_of_the_seed_makes_its_indexes_beside_the_hubs() {
    run(60, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        let events = hub.database().collection::<Document>("events");
        ensure_indexes(&events).await;
        append(&hub, &[event("a").key("k")]).await;
        let there = names(&events).await;
        assert_eq!(there.len(), 10, "{there:?}");
        let again = open(scratch.url()).await;
        assert_eq!(append(&again, &[event("a").key("k")]).await[0].seq, 2);
        assert_eq!(names(&events).await, there, "nothing is missing");
    });
}

#[test]
fn a_hub_takes_the_indexes_that_the_seed_made_before_it() {
    run(60, async {
        let scratch = Scratch::new();
        let events = seen(&scratch).await.collection::<Document>("events");
        ensure_indexes(&events).await;
        let hub = open(scratch.url()).await;
        ensure_indexes(&events).await;
        append(&hub, &[event("a").key("k")]).await;
        assert_eq!(names(&events).await.len(), 8, "none twice: {:?}", names(&events).await);
    });
}

#[test]
fn the_indexes_of_an_earlier_hub_are_left_under_their_names() {
    run(60, async {
        let scratch = Scratch::new();
        let events = seen(&scratch).await.collection::<Document>("events");
        let partial = IndexOptions::builder().partial_filter_expression(doc! { "key": { "$exists": true } }).build();
        let sparse = IndexOptions::builder().sparse(true).build();
        for (keys, options) in
            [(doc! { "topic": 1, "key": 1, "ts": -1 }, partial), (doc! { "headers.correlationId": 1 }, sparse)]
        {
            events.create_index(IndexModel::builder().keys(keys).options(options).build()).await.expect("made");
        }
        let hub = open(scratch.url()).await;
        append(&hub, &[event("a").key("k")]).await;
        let there = names(&events).await;
        assert!(there.len() == 8 && there.iter().all(|name| !name.starts_with("promethean")), "{there:?}");
    });
}
