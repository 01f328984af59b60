//! Resuming a live tail: nothing is skipped on any topic, whatever the order in which topics were handed over.

use std::collections::BTreeSet;
use std::time::Duration;

use promethean_bus::{Bus, Code, From, SubscribeOptions, Subscription};

use crate::common::{bus, earliest, group, publish, publish_keyed};

async fn tail(bus: &Bus, name: &str, options: SubscribeOptions) -> Subscription {
    bus.subscribe(name, None, options).await.expect("subscribed")
}

fn at(resume: &str) -> SubscribeOptions {
    SubscribeOptions { resume: Some(resume.into()), ..Default::default() }
}

/// The next delivery: topic, seq, place after it; none if nothing comes.
async fn step(events: &mut Subscription) -> Option<(String, u64, String)> {
    let next = tokio::time::timeout(Duration::from_secs(5), events.next()).await.ok()?.expect("open");
    let given = next.given();
    let resume = given.resume.clone().expect("a place");
    assert!(resume.len() <= 1_024, "{}", resume.len());
    Some((given.event.topic.to_string(), given.event.seq, resume.into()))
}

#[tokio::test(start_paused = true)]
async fn the_first_place_and_the_place_of_a_delivery_resume_exactly() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let mut events = tail(&bus, "t", SubscribeOptions::default()).await;
    let first = events.membership().resume().expect("a place");
    for n in 2..=4 {
        publish(&bus, "t", n).await;
    }
    let (_, seq, second) = step(&mut events).await.expect("an event");
    assert_eq!(seq, 2);
    drop(events);
    for (place, from) in [(&*first, 2), (&*second, 3)] {
        let mut events = tail(&bus, "t", at(place)).await;
        for seq in from..=4 {
            assert_eq!(step(&mut events).await.expect("an event").1, seq);
        }
        assert!(step(&mut events).await.is_none());
    }
}

/// A backlog on one topic, while another one is at its end (delivery H4).
#[tokio::test(start_paused = true)]
async fn a_resumed_pattern_skips_nothing_of_a_topic_that_was_behind() {
    let bus = bus();
    for n in 0..3_000 {
        publish(&bus, "w.b", n).await;
    }
    let mut events = tail(&bus, "w.*", earliest()).await;
    let mut last = step(&mut events).await.expect("an event");
    publish(&bus, "w.a", 0).await;
    while last.0 != "w.a" {
        last = step(&mut events).await.expect("an event");
    }
    drop(events);
    publish(&bus, "w.c", 0).await;
    let mut events = tail(&bus, "w.*", at(&last.2)).await;
    let mut seen = BTreeSet::new();
    while let Some((topic, seq, _)) = step(&mut events).await {
        seen.insert((topic, seq));
    }
    assert!(seen.contains(&("w.b".to_owned(), 3_000)) && seen.contains(&("w.c".to_owned(), 1)), "{}", seen.len());
}

/// At each delivery of a tail over many topics: those before it and those after a resume are all.
#[tokio::test(start_paused = true)]
async fn every_place_of_a_tail_over_many_topics_skips_nothing() {
    for topics in [3, 40, 120] {
        let bus = bus();
        let name = |n: u64| format!("m.{}", (n * n + n / 7) % topics);
        for n in 0..200 {
            publish(&bus, &name(n), n).await;
        }
        let mut all = BTreeSet::new();
        let mut events = tail(&bus, "m.*", earliest()).await;
        let (mut had, mut places) = (BTreeSet::new(), Vec::new());
        for n in 0..400 {
            if n % 2 == 0 {
                publish(&bus, &name(n * 3), n).await;
            }
            let (topic, seq, place) = step(&mut events).await.expect("an event");
            had.insert((topic, seq));
            if n % 9 == 0 {
                places.push((had.clone(), place));
            }
        }
        for topic in bus.store().topics().await.expect("topics") {
            let last = bus.store().info(&topic).await.expect("read").expect("there").last_seq;
            all.extend((1..=last).map(|seq| (topic.to_string(), seq)));
        }
        for (mut had, place) in places {
            let mut events = tail(&bus, "m.*", at(&place)).await;
            let (before, mut came) = (had.len(), 0);
            while let Some((topic, seq, _)) = step(&mut events).await {
                had.insert((topic, seq));
                came += 1;
            }
            assert_eq!(had, all, "{topics} topics, after {before}");
            if topics == 3 {
                assert_eq!(before + came, all.len(), "few topics are resumed exactly");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_tail_resumes_where_it_was() {
    let bus = bus();
    for n in 0..50 {
        publish(&bus, "p.a", n).await;
    }
    let mut events = tail(&bus, "p.*", earliest()).await;
    let (_, seq, _) = step(&mut events).await.expect("an event");
    events.pause(true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let place = events.membership().resume().expect("a place");
    drop(events);
    let mut events = tail(&bus, "p.*", at(&place)).await;
    assert_eq!(step(&mut events).await.expect("an event").1, seq + 1);
}

#[tokio::test(start_paused = true)]
async fn within_a_snapshot_the_snapshot_begins_again_and_after_it_the_tail_goes_on() {
    let bus = bus();
    for key in ["a", "b", "c"] {
        publish_keyed(&bus, "s", key, 1).await;
    }
    let options = SubscribeOptions { from: From::Snapshot, ..Default::default() };
    let mut events = tail(&bus, "s", options).await;
    let (_, _, within) = step(&mut events).await.expect("a key");
    step(&mut events).await.expect("a key");
    let (_, _, after) = step(&mut events).await.expect("a key");
    drop(events);
    publish_keyed(&bus, "s", "d", 1).await;
    let mut events = tail(&bus, "s", at(&within)).await;
    for seq in 1..=4 {
        assert_eq!(step(&mut events).await.expect("a key").1, seq);
    }
    let mut events = tail(&bus, "s", at(&after)).await;
    assert_eq!(step(&mut events).await.expect("an event").1, 4);
}

#[tokio::test(start_paused = true)]
async fn a_place_of_another_log_and_one_that_is_none_are_refused() {
    let (bus, other) = (crate::common::bus(), crate::common::bus());
    for n in 0..5 {
        publish(&bus, "t", n).await;
    }
    publish(&other, "t", 0).await;
    let place = tail(&bus, "t", SubscribeOptions::default()).await.membership().resume().expect("a place");
    let refused = other.subscribe("t", None, at(&place)).await.err().expect("refused");
    assert_eq!(refused.code, Code::UnknownId);
    let refused = bus.subscribe("t", None, at("what?")).await.err().expect("refused");
    assert_eq!(refused.code, Code::BadRequest);
    assert!(refused.message.contains("opts.resume"), "{}", refused.message);
    let refused = bus.subscribe("t", Some(group("g")), at(&place)).await.err().expect("refused");
    assert_eq!(refused.code, Code::BadRequest);
}
