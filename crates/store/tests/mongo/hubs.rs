//! Several hubs on one database.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use promethean_event::{Event, Group, Millis, Topic};
use promethean_store::mongo::Mongo;
use promethean_store::suite::{append, event, id, topic};
use promethean_store::{
    Compaction, EventLog as _, GroupState, GroupStore as _, Outcome, ReadMax, Retention, Saved, TopicSettings,
};
use promethean_testmongo::Scratch;

use crate::{open, run};

const WRITERS: u128 = 4;
const CALLS: u128 = 25;
const EACH: u128 = 3;

/// Follows the topic by its watch, as a group's runner does.
async fn follow(hub: Mongo, name: Topic, until: u64) -> Vec<Event> {
    let (mut watch, mut seen) = (hub.watch(&name), Vec::<Event>::new());
    while (seen.len() as u64) < until {
        let next = seen.len() as u64 + 1;
        watch.wait_for(|tail| tail.seq >= next).await.expect("open");
        let part = hub.read(&name, next, ReadMax::events(50)).await.expect("read");
        assert!(!part.is_empty(), "what was announced is there");
        for event in part {
            assert_eq!(event.seq, seen.len() as u64 + 1, "no hole, whatever is being written");
            seen.push(event);
        }
    }
    seen
}

#[test]
fn two_hubs_with_four_writers_each_make_one_gapless_log_that_both_read_alike() {
    run(60, async {
        let scratch = Scratch::new();
        let hubs = [open(scratch.url()).await, open(scratch.url()).await];
        let total = 2 * WRITERS * CALLS * EACH;
        let readers: Vec<_> =
            hubs.iter().map(|hub| tokio::spawn(follow(hub.clone(), topic("busy"), total as u64))).collect();
        let mut writers = Vec::new();
        for (number, hub) in (0..).zip(&hubs) {
            for writer in 0..WRITERS {
                let (hub, writer) = (hub.clone(), number * WRITERS + writer);
                writers.push(tokio::spawn(async move {
                    let mut last = 0;
                    for call in 0..CALLS {
                        let made = (0..EACH).map(|n| event("busy").id(writer * 1_000 + call * EACH + n + 1));
                        let appended = append(&hub, &made.collect::<Vec<_>>()).await;
                        for one in appended {
                            assert!(!one.duplicate && one.seq > last, "a writer's events are in its order");
                            last = one.seq;
                        }
                    }
                }));
            }
        }
        for writer in writers {
            writer.await.expect("no panic");
        }
        let mut logs = Vec::new();
        for reader in readers {
            logs.push(reader.await.expect("no panic"));
        }
        assert_eq!(logs[0], logs[1]);
        let ids: HashSet<_> = logs[0].iter().map(|event| event.id).collect();
        assert_eq!(ids.len(), total as usize);
        for writer in 0..2 * WRITERS {
            let of_writer = |event: &&Event| u128::from_be_bytes(*event.id.as_bytes()) / 1_000 == writer;
            let own: Vec<_> = logs[0].iter().filter(of_writer).map(|event| event.id).collect();
            let sent: Vec<_> = (1..=CALLS * EACH).map(|n| id(writer * 1_000 + n)).collect();
            assert_eq!(own, sent);
        }
    });
}

#[test]
fn hubs_that_start_at_once_only_look_which_indexes_there_are() {
    run(60, async {
        let scratch = Scratch::new();
        let first = open(scratch.url()).await;
        let database = first.database();
        let indexes = database.collection::<Document>("events").list_index_names().await.expect("listed");
        assert_eq!(indexes.len(), 8, "{indexes:?}");
        // The profiler writes down what the server is asked for in this database.
        database.run_command(doc! { "profile": 2 }).await.expect("profiling");
        let starting: Vec<_> = (0..4)
            .map(|_| {
                let url = scratch.url().to_owned();
                tokio::spawn(async move { open(&url).await })
            })
            .collect();
        for hub in starting {
            hub.await.expect("it opens");
        }
        database.run_command(doc! { "profile": 0 }).await.expect("no more");
        let asked = database.collection::<Document>("system.profile");
        let count =
            async |name: &str| asked.count_documents(doc! { name: { "$exists": true } }).await.expect("counted");
        assert_eq!(count("command.listIndexes").await, 4, "they looked");
        assert_eq!((count("command.createIndexes").await, count("command.create").await), (0, 0));
    });
}

#[test]
fn an_index_of_the_operators_own_on_the_same_fields_is_left_as_it_is() {
    run(60, async {
        let scratch = Scratch::new();
        let client = mongodb::Client::with_uri_str(scratch.url()).await.expect("a client");
        let events = client.default_database().expect("named").collection::<Document>("events");
        let own = IndexOptions::builder().name("mine".to_owned()).build();
        let index = IndexModel::builder().keys(doc! { "topic": 1.0, "seq": 1.0 }).options(own).build();
        events.create_index(index).await.expect("made");
        let (one, two) = (open(scratch.url()).await, open(scratch.url()).await);
        let names = events.list_index_names().await.expect("listed");
        assert!(names.len() == 8 && names.iter().any(|name| name == "mine"), "{names:?}");
        let (made, more) = ([event("a"), event("a")], [event("a")]);
        let (left, right) = tokio::join!(append(&one, &made), append(&two, &more));
        let mut seqs: Vec<_> = left.iter().chain(&right).map(|stored| stored.seq).collect();
        seqs.sort_unstable();
        assert_eq!(seqs, [1, 2, 3]);
    });
}

#[test]
fn what_one_hub_does_the_other_hears_of() {
    run(30, async {
        let scratch = Scratch::new();
        let (one, two) = (open(scratch.url()).await, open(scratch.url()).await);
        let (mut topics, mut tail) = (two.watch_topics(), two.watch(&topic("a")));
        topics.borrow_and_update();
        append(&one, &vec![event("a"); 3]).await;
        tail.wait_for(|tail| tail.seq == 3).await.expect("the end");
        topics.changed().await.expect("announced");
        assert_eq!(append(&two, &[event("a")]).await[0].seq, 4);
        let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
        one.set_settings(&topic("b"), settings.clone()).await.expect("set");
        while two.settings(&topic("b")) != settings {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(two.topics().await.expect("listed"), [topic("a")]);
    });
}

#[test]
fn the_same_ids_through_two_hubs_are_stored_once() {
    run(30, async {
        let scratch = Scratch::new();
        let hubs = [open(scratch.url()).await, open(scratch.url()).await];
        let mut calls = Vec::new();
        for hub in &hubs {
            for _ in 0..4 {
                let hub = hub.clone();
                let ids = (1..=50).map(|n| event("d").id(n));
                let made: Vec<_> = ids.map(|made| made.new_event()).collect();
                calls.push(tokio::spawn(async move { hub.append(made).await }));
            }
        }
        let mut first = 0;
        for call in calls {
            let outcomes = call.await.expect("no panic").expect("answered");
            for (n, outcome) in (1..).zip(outcomes) {
                let Outcome::Stored(stored) = outcome else { panic!("{outcome:?}") };
                assert_eq!((stored.id, stored.seq), (id(n), n as u64), "all are told the same place");
                first += usize::from(!stored.duplicate);
            }
        }
        assert_eq!(first, 50, "each was new once");
        let elsewhere = hubs[1].append(vec![event("e").id(7).new_event()]).await.expect("answered");
        assert_eq!(elsewhere, [Outcome::DuplicateId { id: id(7), topic: topic("d") }]);
    });
}

#[test]
fn of_two_hubs_one_saves_a_group() {
    run(30, async {
        let scratch = Scratch::new();
        let (one, two) = (open(scratch.url()).await, open(scratch.url()).await);
        let (name, group) = (topic("t"), Group::parse("g").expect("a group"));
        let state = |floor| GroupState { floor, last: Some((id(9), Millis(5))), ..GroupState::default() };
        let Saved::Yes(first) = one.compare_and_set(&name, &group, 0, state(1)).await.expect("saved") else {
            panic!("there was none")
        };
        let Saved::Yes(second) = two.compare_and_set(&name, &group, first, state(2)).await.expect("saved") else {
            panic!("the version was right")
        };
        let late = one.compare_and_set(&name, &group, first, state(3)).await.expect("answered");
        assert_eq!(late, Saved::Conflict);
        assert_eq!(one.load(&name, &group).await.expect("loaded"), Some((state(2), second)));
    });
}

#[test]
fn two_hubs_that_maintain_at_once_remove_and_count_each_event_once() {
    run(30, async {
        let scratch = Scratch::new();
        let (one, two) = (open(scratch.url()).await, open(scratch.url()).await);
        let retention = Retention { max_events: Some(100), ..Retention::default() };
        let settings = TopicSettings { retention, compaction: Some(Compaction::default()), ..TopicSettings::default() };
        one.set_settings(&topic("t"), settings.clone()).await.expect("set");
        while two.settings(&topic("t")) != settings {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let made: Vec<_> = (0..2_000).map(|n| event("t").key((n % 300).to_string())).collect();
        append(&one, &made).await;
        let (left, right) = tokio::join!(one.maintain(Millis(2_000)), two.maintain(Millis(2_000)));
        left.and(right).expect("maintained");
        let info = two.info(&topic("t")).await.expect("known").expect("exists");
        let left = one.read(&topic("t"), 0, ReadMax::events(5_000)).await.expect("read");
        assert_eq!((info.events, info.first_seq, info.last_seq), (100, 1_901, 2_000));
        assert_eq!(left.len(), 100);
        assert_eq!(info.bytes, left.iter().map(|event| event.body.len() as u64 + 53).sum::<u64>());
    });
}

#[test]
fn however_many_hubs_maintain_at_once_what_retention_keeps_is_kept() {
    run(60, async {
        let scratch = Scratch::new();
        let mut hubs = Vec::new();
        for _ in 0..4 {
            hubs.push(open(scratch.url()).await);
        }
        let retention = Retention { max_events: Some(100), ..Retention::default() };
        let settings = TopicSettings { retention, ..TopicSettings::default() };
        hubs[0].set_settings(&topic("t"), settings.clone()).await.expect("set");
        for hub in &hubs {
            while hub.settings(&topic("t")) != settings {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        for round in 1..=6 {
            let made: Vec<_> = (0..2_400).map(|_| event("t")).collect();
            append(&hubs[0], &made).await;
            for done in join_all(hubs.iter().map(|hub| hub.maintain(Millis(2_000)))).await {
                done.expect("maintained");
            }
            let info = hubs[1].info(&topic("t")).await.expect("known").expect("exists");
            let end = round * 2_400;
            assert_eq!((info.events, info.first_seq, info.last_seq), (100, end - 99, end), "round {round}");
        }
    });
}
