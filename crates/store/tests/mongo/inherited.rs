//! What the seed leaves in a database: its indexes beside the hub's, events without a number, cursors by time.

use std::path::Path;
use std::process::Command;

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Collection, Database, IndexModel};
use promethean_event::{Group, Millis};
use promethean_store::mongo::OpenError;
use promethean_store::suite::{append, event, id, read_all, topic};
use promethean_store::{EventLog as _, GroupStore as _};
use promethean_testmongo::Scratch;

use crate::refusals::refused;
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

/// Events as the seed inserts them: of two topics, one with ids that are no UUIDs; and a cursor of each kind.
async fn seeds_events(database: &Database) {
    let events = database.collection::<Document>("events");
    ensure_indexes(&events).await;
    let made = [
        doc! { "id": id(3).to_string(), "ts": 1_700_000_000_003.0, "topic": "a", "key": "k", "payload": null },
        doc! { "id": id(1).to_string(), "ts": 1_700_000_000_001.0, "topic": "a", "key": "k", "payload": { "n": 1 } },
        doc! { "id": id(2).to_string(), "ts": 1_700_000_000_002.0, "topic": "a", "payload": "two" },
        doc! { "id": "18c2a1-000001-1a2b3c4d", "ts": 1_700_000_000_001.0, "topic": "b", "payload": 1 },
        doc! { "id": "18c2a1-000002-5e6f7a8b", "ts": 1_700_000_000_001.0, "topic": "b", "payload": 2 },
    ];
    events.insert_many(made).await.expect("inserted");
    let cursors = [
        doc! { "_id": "a::ops", "topic": "a", "lastId": id(2).to_string() },
        doc! { "_id": "b::ops", "topic": "b", "lastId": "18c2a1-000001-1a2b3c4d" },
    ];
    database.collection::<Document>("cursors").insert_many(cursors).await.expect("inserted");
}

#[test]
fn events_without_a_number_are_refused_with_the_remedy_and_nothing_is_made_over_them() {
    run(60, async {
        let scratch = Scratch::new();
        let database = seen(&scratch).await;
        seeds_events(&database).await;
        let before = names(&database.collection("events")).await;
        let error = refused(scratch.url()).await;
        let said = error.to_string();
        assert!(said.contains("have no number (seq)") && said.contains("docs/mongodb.md"), "{said}");
        assert!(!said.contains("E11000"), "{said}");
        assert_eq!(names(&database.collection("events")).await, before);
        let there = database.list_collection_names().await.expect("listed");
        assert!(!there.iter().any(|name| name == "counters"), "{there:?}");
    });
}

/// Even one event a topic, over which MongoDB would make the index.
#[test]
fn a_single_event_without_a_number_is_found_before_the_index_is_made() {
    run(60, async {
        let scratch = Scratch::new();
        let events = seen(&scratch).await.collection::<Document>("events");
        events.insert_one(doc! { "id": id(1).to_string(), "ts": 1.0, "topic": "a" }).await.expect("inserted");
        let error = refused(scratch.url()).await;
        assert!(matches!(error, OpenError::Unnumbered(_)), "{error:?}");
    });
}

/// The block of a page that begins with this.
fn block(page: &str, first: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(page).expect("the page");
    let blocks = text.split("\n```").map(|part| part.split_once('\n').map_or("", |(_, block)| block));
    blocks.into_iter().find(|block| block.starts_with(first)).expect("the block").to_owned()
}

/// MongoDB's shell: that of the machine, or the one for the tests, which is installed where there is none.
fn mongosh(url: &str, script: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = Command::new(root.join("scripts/install-mongosh.sh")).status().expect("it runs");
    assert!(installed.success(), "mongosh is not there, and cannot be installed");
    let path = format!(
        "{}:{}",
        std::env::var("PATH").expect("a PATH"),
        root.join("target/mongosh/node_modules/.bin").display()
    );
    let ran = Command::new("mongosh").env("PATH", path).args([url, "--quiet", "--eval", script]).output();
    let ran = ran.expect("it runs");
    assert!(ran.status.success(), "{ran:?}");
}

#[test]
fn the_script_of_the_page_numbers_the_seeds_events_and_groups_go_on() {
    run(120, async {
        let scratch = Scratch::new();
        let database = seen(&scratch).await;
        seeds_events(&database).await;
        let script = block("docs/mongodb.md", "// Gives the events of the seed");
        // Once more does no harm: it may have been cut off.
        for _ in 0..2 {
            mongosh(scratch.url(), &script);
        }
        let hub = open(scratch.url()).await;
        let told = read_all(&hub, "a").await;
        let told: Vec<_> = told.iter().map(|event| (event.seq, event.id, event.ts, event.is_tombstone())).collect();
        let at = |n: u64| Millis(1_700_000_000_000 + n);
        assert_eq!(told, [(1, id(1), at(1), false), (2, id(2), at(2), false), (3, id(3), at(3), true)]);
        let info = hub.info(&topic("a")).await.expect("known").expect("exists");
        assert_eq!((info.events, info.first_seq, info.last_seq, info.last), (3, 1, 3, Some((id(3), at(3)))));
        assert!(info.bytes > 100, "{info:?}");
        let other = read_all(&hub, "b").await;
        assert_eq!(other.iter().map(|event| (event.seq, event.payload())).collect::<Vec<_>>(), [(1, "1"), (2, "2")]);
        let group = Group::parse("ops").expect("a group");
        for (name, floor) in [("a", 2), ("b", 1)] {
            let (state, _) = hub.load(&topic(name), &group).await.expect("loaded").expect("there");
            assert_eq!(state.floor, floor, "{name}");
        }
        assert_eq!(append(&hub, &[event("a"), event("b")]).await.iter().map(|one| one.seq).collect::<Vec<_>>(), [4, 3]);
        let again = std::panic::catch_unwind(|| mongosh(scratch.url(), &script));
        assert!(again.is_err(), "what a hub has numbered is not numbered anew");
        assert_eq!(read_all(&hub, "a").await.len(), 4);
    });
}

/// A group, its cursor's `lastId` and `lastTs`, and the seq and time it goes on behind.
type Case = (&'static str, Bson, Bson, Option<(u64, Option<Millis>)>);

#[test]
fn a_cursor_whose_event_is_not_there_goes_on_by_its_time() {
    run(60, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        append(
            &hub,
            &[event("a").id(1).ts(5), event("a").id(2).ts(9), event("a").id(3).ts(9), event("a").id(4).ts(12)],
        )
        .await;
        append(&hub, &[event("b").id(5).ts(10)]).await;
        let cursors = hub.database().collection::<Document>("cursors");
        // What is unread of the millisecond itself comes too: whether an event of it was acked is not known.
        let cases: [Case; 7] = [
            ("gone", id(77).to_string().into(), 9.0.into(), Some((1, Some(Millis(5))))),
            ("foreign", id(5).to_string().into(), 10_i64.into(), Some((3, Some(Millis(9))))),
            ("no-uuid", "18c2a1-000001-1a2b3c4d".into(), 9_i32.into(), Some((1, Some(Millis(5))))),
            ("no-id", Bson::Null, 4.0.into(), Some((0, None))),
            ("ahead", Bson::Null, 99.0.into(), Some((4, Some(Millis(12))))),
            ("no-time", id(77).to_string().into(), Bson::Null, None),
            ("nonsense", id(77).to_string().into(), "yesterday".into(), None),
        ];
        for (name, last, ts, _) in &cases {
            let written = doc! { "_id": format!("a::{name}"), "topic": "a", "lastId": last, "lastTs": ts };
            cursors.insert_one(written).await.expect("written");
        }
        for (name, _, _, expected) in cases {
            let group = Group::parse(name).expect("a group");
            let loaded = hub.load(&topic("a"), &group).await.expect("loaded");
            let loaded = loaded.map(|(state, _)| (state.floor, state.last.map(|(_, ts)| ts)));
            assert_eq!(loaded, expected, "{name}");
        }
    });
}
