//! However many there are: no request over a long topic grows with it, and what is due goes in one round.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use promethean_event::Millis;
use promethean_store::suite::{append, event, read_all, seqs, topic};
use promethean_store::{Compaction, EventLog as _, Seek, TopicSettings};
use promethean_testmongo::Scratch;

use crate::{open, run};

#[test]
fn all_tombstones_that_are_due_go_in_one_round_and_many_at_once() {
    run(120, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        let compaction = Some(Compaction { tombstone_grace: Duration::from_secs(10) });
        hub.set_settings(&topic("t"), TopicSettings { compaction, ..TopicSettings::default() }).await.expect("set");
        let due = (0..2_500).map(|n| event("t").key(n.to_string()).payload("null").appended(5_000));
        append(&hub, &due.collect::<Vec<_>>()).await;
        append(&hub, &[event("t").key("fresh").payload("null").appended(9_000)]).await;
        // Superseded before its time, and one that compaction has not looked at.
        append(&hub, &[event("t").key("7").payload("1").appended(9_000)]).await;
        let database = hub.database();
        database.run_command(doc! { "profile": 2 }).await.expect("profiling");
        hub.maintain(Millis(15_001)).await.expect("maintained");
        database.run_command(doc! { "profile": 0 }).await.expect("no more");
        assert_eq!(seqs(&hub, "t").await, [2_501, 2_502]);
        let info = hub.info(&topic("t")).await.expect("known").expect("exists");
        let bytes = read_all(&hub, "t").await.iter().map(|event| event.body.len() as u64 + 53).sum::<u64>();
        assert_eq!((info.events, info.bytes), (2, bytes));
        let profiled = database.collection::<Document>("system.profile");
        let removals = profiled.count_documents(doc! { "op": "remove" }).await.expect("counted");
        assert!((3..20).contains(&removals), "{removals} requests that remove");
    });
}

/// Two requests a key, and all of it again after a round that was cut short.
#[test]
fn compaction_takes_many_keys_at_once_and_remembers_how_far_it_came() {
    run(120, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        let settings = TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() };
        hub.set_settings(&topic("t"), settings).await.expect("set");
        let of = |key: usize| event("t").key(format!("k{key:04}"));
        append(&hub, &vec![of(1_500); 5_000]).await;
        for _ in 0..2 {
            append(&hub, &(0..2_500).map(of).collect::<Vec<_>>()).await;
        }
        let database = hub.database();
        database.run_command(doc! { "profile": 2 }).await.expect("profiling");
        hub.maintain(Millis(2_000)).await.expect("maintained");
        database.run_command(doc! { "profile": 0 }).await.expect("no more");
        assert_eq!(seqs(&hub, "t").await, (7_501..=10_000).collect::<Vec<_>>());
        let info = hub.info(&topic("t")).await.expect("known").expect("exists");
        assert_eq!((info.events, info.first_seq), (2_500, 7_501));
        let profiled = database.collection::<Document>("system.profile");
        let removals = profiled.count_documents(doc! { "op": "remove" }).await.expect("counted");
        assert!((8..60).contains(&removals), "{removals} requests that remove");
        let marks = doc! { "command.u.$max.compacted": { "$exists": true } };
        let marks = profiled.count_documents(marks).await.expect("counted");
        assert!(marks > 3, "{marks} marks");
    });
}

/// What lies before a tombstone goes with it, also where compaction has passed it over; what came after it stays.
#[test]
fn a_tombstone_does_not_go_before_what_it_has_replaced_nor_take_what_came_after_it() {
    run(60, async {
        let scratch = Scratch::new();
        let (hub, other) = (open(scratch.url()).await, open(scratch.url()).await);
        let compaction = Some(Compaction { tombstone_grace: Duration::from_secs(10) });
        let settings = TopicSettings { compaction, ..TopicSettings::default() };
        hub.set_settings(&topic("t"), settings.clone()).await.expect("set");
        while other.settings(&topic("t")) != settings {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let at = |key: &str, payload: &str| event("t").key(key).payload(payload).appended(5_000);
        append(&hub, &[at("a", "1"), at("a", "null"), at("b", "null"), at("b", "2"), at("c", "null")]).await;
        append(&hub, &(0..1_200).map(|n| at(&format!("n{n}"), "null")).collect::<Vec<_>>()).await;
        let trims = hub.database().collection::<Document>("trims");
        let passed = doc! { "$set": { "compacted": 1_205_i64 } };
        trims.update_one(doc! { "_id": "t" }, passed).upsert(true).await.expect("set");
        // Two at once: each event is counted once.
        let (left, right) = tokio::join!(hub.maintain(Millis(15_001)), other.maintain(Millis(15_001)));
        left.and(right).expect("maintained");
        assert_eq!(seqs(&hub, "t").await, [4]);
        let info = hub.info(&topic("t")).await.expect("known").expect("exists");
        let bytes = read_all(&hub, "t").await.iter().map(|event| event.body.len() as u64 + 53).sum::<u64>();
        assert_eq!((info.events, info.bytes), (1, bytes));
    });
}

#[test]
fn a_place_by_time_is_looked_for_in_pieces_and_by_its_fields_alone() {
    run(60, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        append(&hub, &[event("t").ts(10), event("t").ts(20)]).await;
        // A long topic that has lost most of its events.
        let events = hub.database().collection::<Document>("events");
        let mut sample = events.find_one(doc! { "seq": 2_i64 }).await.expect("asked").expect("there");
        for (n, seq, ts) in [(1, 150_000_i64, 15), (2, 250_000, 40), (3, 250_001, 30), (4, 950_000, 50)] {
            let id = promethean_store::suite::id(100 + n);
            sample.insert("_id", id.to_string());
            sample.insert("id", id.to_string());
            sample.insert("seq", seq);
            sample.insert("ts", i64::from(ts));
            events.insert_one(&sample).await.expect("inserted");
        }
        let late = (1..=1_000_i64).map(|n| {
            let (mut late, id) = (sample.clone(), promethean_store::suite::id(1_000 + n.unsigned_abs() as u128));
            late.insert("_id", id.to_string());
            late.insert("id", id.to_string());
            late.insert("seq", 950_000 + n);
            late.insert("ts", 60_i64);
            late
        });
        events.insert_many(late).await.expect("inserted");
        let counters = hub.database().collection::<Document>("counters");
        let end = doc! { "$set": { "next": 951_000_i64 } };
        counters.update_one(doc! { "_id": "t" }, end).await.expect("moved");
        let database = hub.database();
        database.run_command(doc! { "profile": 2 }).await.expect("profiling");
        for (ts, done, last) in
            [(0, 0, None), (10, 0, None), (11, 1, Some(10)), (21, 249_999, None), (30, 249_999, None)]
        {
            let start = hub.seek(&topic("t"), Seek::Ts(Millis(ts))).await.expect("sought").expect("a place");
            assert_eq!((start.done, start.last.map(|(_, ts)| ts.0)), (done, last), "{ts}");
        }
        for (ts, done) in [(41, 949_999), (50, 949_999), (51, 950_000), (61, 951_000)] {
            let start = hub.seek(&topic("t"), Seek::Ts(Millis(ts))).await.expect("sought").expect("a place");
            assert_eq!(start.done, done, "{ts}");
        }
        database.run_command(doc! { "profile": 0 }).await.expect("no more");
        let profiled = database.collection::<Document>("system.profile");
        let mut asked = profiled.find(doc! { "command.filter.ts": { "$exists": true } }).await.expect("found");
        let (mut count, mut by_time) = (0, 0);
        while asked.advance().await.expect("an answer") {
            let asked = asked.deserialize_current().expect("a document");
            let command = asked.get_document("command").expect("a command");
            let filter = command.get_document("filter").expect("a filter");
            assert!(command.get_document("projection").is_ok_and(|fields| !fields.is_empty()), "{command}");
            let Ok(seq) = filter.get_document("seq") else {
                assert!(command.get_i64("limit").is_ok_and(|limit| limit <= 1_000), "all of the topic: {command}");
                assert_eq!(command.get_document("hint").expect("an index"), &doc! { "topic": 1, "ts": 1, "id": 1 });
                by_time += 1;
                continue;
            };
            let width = seq.get_i64("$lt").expect("an end") - seq.get_i64("$gte").expect("a beginning");
            assert!(width <= 100_000, "{command}");
            count += 1;
        }
        assert_eq!((by_time, count), (9, 21), "a window begins where there is an event, and ends at the first by time");
    });
}
