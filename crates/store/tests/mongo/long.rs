//! However many there are: what is due goes in one round.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use promethean_event::Millis;
use promethean_store::suite::{append, event, read_all, seqs, topic};
use promethean_store::{Compaction, EventLog as _, TopicSettings};
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
