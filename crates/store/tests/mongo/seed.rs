//! What scripts of the seed see: its collections, its names, its indexes; and its cursors go on.

use mongodb::bson::{Bson, Document, doc};
use promethean_event::{Group, Millis};
use promethean_store::suite::{append, event, id, topic};
use promethean_store::{GroupState, GroupStore as _, Saved};
use promethean_testmongo::Scratch;

use crate::{open, run};

#[test]
fn events_and_cursors_have_the_names_of_the_seed() {
    run(30, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        let appended = append(&hub, &[event("a").key("k").payload(r#"{"pid":1,"deep":{"x":[true]}}"#).ts(7)]).await;
        let found = hub.database().collection::<Document>("events").find_one(doc! { "topic": "a" }).await;
        let found = found.expect("asked").expect("an event");
        assert_eq!(found.get_str("id").expect("an id"), appended[0].id.to_string());
        let payload = found.get_document("payload").expect("a value");
        assert_eq!(*payload, doc! { "pid": 1, "deep": { "x": [true] } });
        let group = Group::parse("ops").expect("a group");
        let state = GroupState { floor: 1, last: Some((appended[0].id, Millis(7))), ..GroupState::default() };
        hub.compare_and_set(&topic("a"), &group, 0, state).await.expect("saved");
        let cursor = hub.database().collection::<Document>("cursors").find_one(doc! { "_id": "a::ops" }).await;
        let cursor = cursor.expect("asked").expect("a cursor");
        assert_eq!(cursor.get_str("lastId").expect("an id"), appended[0].id.to_string());
        assert_eq!(cursor.get_i64("lastTs").expect("a time"), 7);
    });
}

#[test]
fn a_cursor_that_the_seed_wrote_goes_on_where_it_was() {
    run(30, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        append(&hub, &[event("a").id(1), event("a").id(2).ts(9), event("a").id(3)]).await;
        let cursors = hub.database().collection::<Document>("cursors");
        let written = doc! { "_id": "a::ops", "topic": "a", "lastId": id(2).to_string(), "lastTs": 9.0 };
        cursors.insert_one(written).await.expect("written");
        let group = Group::parse("ops").expect("a group");
        let (state, version) = hub.load(&topic("a"), &group).await.expect("loaded").expect("there");
        assert_eq!((state.floor, state.last, version), (2, Some((id(2), Millis(9))), 0));
        assert_eq!(hub.groups(&topic("a")).await.expect("listed"), [(group.clone(), state.clone())]);
        let saved = hub.compare_and_set(&topic("a"), &group, version, state.clone()).await.expect("saved");
        let Saved::Yes(version) = saved else { panic!("nobody else saved") };
        assert_eq!(hub.load(&topic("a"), &group).await.expect("loaded"), Some((state, version)));
    });
}

/// The names of the indexes that a query would walk.
fn used(plan: &Document) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in plan {
        if name == "indexName" {
            names.extend(value.as_str().map(str::to_owned));
        }
        if name == "stage" {
            assert_ne!(value.as_str(), Some("COLLSCAN"), "{plan}");
        }
        let inner =
            value.as_document().into_iter().chain(value.as_array().into_iter().flatten().filter_map(Bson::as_document));
        inner.for_each(|inner| names.extend(used(inner)));
    }
    names
}

#[test]
fn the_hubs_questions_and_the_seeds_go_by_an_index() {
    run(30, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        append(&hub, &(0..50).map(|n| event("a").key((n % 9).to_string())).collect::<Vec<_>>()).await;
        let asked = [
            (doc! { "topic": "a", "seq": { "$gte": 5_i64 } }, doc! { "seq": 1 }, "topic_1_seq_1"),
            (doc! { "id": { "$in": [id(1).to_string()] } }, doc! {}, "id_1"),
            (doc! { "topic": "a", "ts": { "$gte": 5 } }, doc! { "ts": 1, "id": 1 }, "topic_1_ts_1_id_1"),
            (
                doc! { "topic": "a", "key": { "$in": ["3", "4"] } },
                doc! { "key": 1, "ts": -1 },
                "promethean_topic_key_ts",
            ),
            (doc! { "headers.correlationId": "c" }, doc! {}, "promethean_correlation"),
        ];
        for (filter, sort, index) in asked {
            let find = doc! { "find": "events", "filter": filter.clone(), "sort": sort, "limit": 10 };
            let explained = hub.database().run_command(doc! { "explain": find, "verbosity": "queryPlanner" }).await;
            let explained = explained.expect("explained");
            let plan =
                explained.get_document("queryPlanner").expect("a plan").get_document("winningPlan").expect("one");
            let names = used(plan);
            assert!(names.iter().any(|name| name == index), "{filter}: {names:?} and not {index}");
        }
    });
}
