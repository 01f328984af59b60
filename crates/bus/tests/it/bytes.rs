//! What waits for one connection is bounded in bytes, whatever its subscriptions (PROTOCOL.md 9.14, "Bytes").

use std::time::Duration;

use crate::common::{bus, earliest, group, publish};
use promethean_bus::{Answer, Bus, Code, Given, Inbox, InboxOptions, Membership, Request, Selector, SubscribeOptions};

const EVENT: usize = 10_000;
/// What an event has around its payload, at most.
const HEAD: usize = 500;
const MOST: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

async fn fill(bus: &Bus, topics: &[&str], count: usize) {
    for n in 0..count {
        for topic in topics {
            publish(bus, topic, format!("{n:0EVENT$}")).await;
        }
    }
}

fn connection() -> Inbox {
    Inbox::with(InboxOptions { bytes: MOST, connection: true, patience: Some(PATIENCE) })
}

async fn attach(bus: &Bus, inbox: &Inbox, topic: &str, of: Option<&str>) -> Membership {
    let request = Request {
        topic: Selector::parse(topic).expect("a selector"),
        group: of.map(group),
        options: SubscribeOptions { max_in_flight: 10_000, ..earliest() },
        gate: None,
        relayed: None,
    };
    let (membership, _) = bus.attach(request, inbox).await.expect("subscribed");
    membership.open();
    membership
}

/// Lets everything happen that happens by itself.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Takes some events and writes them.
async fn take(bus: &Bus, inbox: &Inbox, events: usize) -> Vec<Given> {
    let mut given = Vec::new();
    inbox.ready().await;
    inbox.take(events, usize::MAX, bus.now(), &mut given);
    inbox.set_sending(0);
    given
}

fn is_bounded(inbox: &Inbox) {
    let buffered = inbox.buffered();
    assert!((MOST..=MOST + EVENT + HEAD).contains(&buffered), "{buffered} bytes wait");
}

#[tokio::test(start_paused = true)]
async fn members_patterns_and_tails_that_do_not_read_share_one_bound() {
    const ALL: [(&str, Option<&str>); 4] = [("t.a", Some("g")), ("t.*", Some("h")), ("t.*", None), ("t.b", None)];
    for which in [&ALL[..1], &ALL[1..2], &ALL[2..3], &ALL[..]] {
        let bus = bus();
        fill(&bus, &["t.a", "t.b", "t.c"], 20).await;
        let inbox = connection();
        let mut memberships = Vec::new();
        for (topic, of) in which {
            memberships.push(attach(&bus, &inbox, topic, *of).await);
        }
        settle().await;
        is_bounded(&inbox);
        let expected: usize = which.iter().map(|(topic, _)| if topic.ends_with('*') { 60 } else { 20 }).sum();
        let mut seen = Vec::new();
        while seen.len() < expected {
            seen.extend(take(&bus, &inbox, 1).await);
            settle().await;
            assert!(inbox.buffered() <= MOST + EVENT + HEAD);
        }
        let shown: Vec<_> = seen
            .iter()
            .map(|given| (given.subscription, given.event.topic.to_string(), given.event.seq, given.attempt))
            .collect();
        assert_eq!(inbox.buffered(), 0, "{shown:?}");
        for (membership, (_, of)) in memberships.iter().zip(which) {
            let its = |given: &&Given| given.subscription == membership.id();
            assert!(seen.iter().filter(its).all(|given| given.attempt == 1), "{of:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn redeliveries_too_wait_for_bytes() {
    let bus = bus();
    fill(&bus, &["t"], 30).await;
    let inbox = connection();
    let membership = attach(&bus, &inbox, "t", Some("g")).await;
    let mut taken = Vec::new();
    while taken.len() < 30 {
        taken.extend(take(&bus, &inbox, 1).await);
    }
    let ids = taken.iter().map(|given| (given.event.id, Some(given.lease))).collect();
    let release = Answer::Nack { reason: None, delay: None, release: true };
    membership.answer(ids, release).await.expect("released");
    settle().await;
    is_bounded(&inbox);
    let mut again = Vec::new();
    while again.len() < 30 {
        again.extend(take(&bus, &inbox, 1).await);
    }
    assert_eq!(again.iter().map(|given| given.event.seq).collect::<Vec<_>>(), (1..=30).collect::<Vec<_>>());
    assert!(again.iter().all(|given| given.attempt == 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_and_not_written_counts() {
    let bus = bus();
    fill(&bus, &["t"], 30).await;
    let inbox = connection();
    let _tail = attach(&bus, &inbox, "t", None).await;
    settle().await;
    let mut given = Vec::new();
    inbox.take(usize::MAX, usize::MAX, bus.now(), &mut given);
    settle().await;
    assert!(inbox.is_empty(), "nothing more is read for it");
    is_bounded(&inbox);
    inbox.set_sending(0);
    settle().await;
    assert!(!inbox.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_tail_of_which_nothing_is_taken_for_10_s_ends_and_holds_nothing() {
    let bus = bus();
    fill(&bus, &["t"], 30).await;
    let inbox = connection();
    let _tail = attach(&bus, &inbox, "t", None).await;
    settle().await;
    for _ in 0..10 {
        // A slow one is no reason.
        tokio::time::sleep(PATIENCE / 2).await;
        assert_eq!(take(&bus, &inbox, 1).await.len(), 1);
    }
    settle().await;
    is_bounded(&inbox);
    assert!(inbox.take_ended().is_empty());
    tokio::time::sleep(PATIENCE).await;
    let ended = inbox.take_ended();
    assert_eq!(ended.iter().map(|(_, error)| error.code).collect::<Vec<_>>(), [Code::RateLimited]);
    assert_eq!(inbox.buffered(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_tail_that_is_paused_does_not_hold_up_the_connection_and_misses_nothing() {
    let bus = bus();
    fill(&bus, &["t", "other"], 20).await;
    let inbox = connection();
    let tail = attach(&bus, &inbox, "t", None).await;
    settle().await;
    assert_eq!(take(&bus, &inbox, 2).await.len(), 2);
    tail.pause(true);
    let _member = attach(&bus, &inbox, "other", Some("g")).await;
    for _ in 0..20 {
        assert_eq!(&*take(&bus, &inbox, 1).await[0].event.topic.to_string(), "other");
    }
    tail.pause(false);
    let mut seqs = Vec::new();
    while seqs.len() < 18 {
        seqs.extend(take(&bus, &inbox, 5).await.iter().map(|given| given.event.seq));
    }
    assert_eq!(seqs, (3..=20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_tail_that_had_read_everything_goes_on_after_a_pause() {
    let bus = bus();
    fill(&bus, &["t"], 3).await;
    let inbox = connection();
    let tail = attach(&bus, &inbox, "t", None).await;
    settle().await;
    tail.pause(true);
    settle().await;
    assert!(inbox.is_empty());
    tail.pause(false);
    assert_eq!(take(&bus, &inbox, 5).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_connection_gets_nothing_before_it_knows_the_subscription() {
    let bus = bus();
    fill(&bus, &["t"], 3).await;
    for of in [None, Some("g")] {
        let inbox = connection();
        let request = Request {
            topic: Selector::parse("t").expect("a topic"),
            group: of.map(group),
            options: earliest(),
            gate: None,
            relayed: None,
        };
        let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
        settle().await;
        assert!(inbox.is_empty());
        membership.open();
        assert_eq!(take(&bus, &inbox, 5).await.len(), 3);
    }
}
