//! Deliveries without a subscription: leased by one call, answered by another.

use std::time::Duration;

use promethean_bus::{Answer, Bus, Error, Given, Receipt, Request, Selector, SubscribeOptions};
use promethean_event::{Code, EventId, From, Ordered};
use tokio::time::timeout;

use crate::common::{bus, earliest, group, next, nothing, publish, publish_keyed, subscribe};

const NACK: Answer = Answer::Nack { reason: None, delay: None, release: false };

fn name(of: &str) -> Selector {
    Selector::parse(of).expect("a topic or pattern")
}

async fn try_pull(
    bus: &Bus,
    of: &str,
    max: usize,
    wait: Duration,
    options: SubscribeOptions,
) -> Result<Vec<Given>, Error> {
    let request = Request { topic: name(of), group: Some(group("g")), options, gate: None, relayed: None };
    bus.pull(request, max, wait).await
}

async fn pull(bus: &Bus, of: &str, max: usize) -> Vec<Given> {
    try_pull(bus, of, max, Duration::ZERO, earliest()).await.expect("pulled")
}

fn ids(given: &[Given]) -> Vec<(EventId, Option<u64>)> {
    given.iter().map(|given| (given.event.id, None)).collect()
}

fn payloads(given: &[Given]) -> Vec<&str> {
    given.iter().map(|given| given.event.payload()).collect()
}

async fn answer(bus: &Bus, of: &str, ids: &[(EventId, Option<u64>)], answer: Answer) -> Vec<Receipt> {
    bus.answer(&name(of), &group("g"), ids, answer).await.expect("answered")
}

#[tokio::test(start_paused = true)]
async fn events_that_are_there_come_at_once_and_stay_leased_after_the_call() {
    let bus = bus();
    for n in 0..5 {
        publish(&bus, "t", n).await;
    }
    let first = pull(&bus, "t", 3).await;
    assert_eq!(payloads(&first), ["0", "1", "2"]);
    let second = pull(&bus, "t", 3).await;
    assert_eq!(payloads(&second), ["3", "4"]);
    assert_eq!(pull(&bus, "t", 3).await.len(), 0, "all are leased");
    assert_eq!(answer(&bus, "t", &ids(&first), Answer::Ack).await, [Receipt::Done; 3]);
    // The second call's leases end, and its events come again as the next attempt.
    tokio::time::sleep(Duration::from_secs(31)).await;
    let again = pull(&bus, "t", 10).await;
    assert_eq!(payloads(&again), ["3", "4"]);
    assert!(again.iter().all(|given| given.attempt == 2));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_the_first_event_and_returns_empty_after_its_time() {
    let bus = bus();
    let empty = try_pull(&bus, "t", 10, Duration::from_secs(5), earliest()).await.expect("in time");
    assert!(empty.is_empty());
    let waiting = tokio::spawn({
        let bus = bus.clone();
        async move { try_pull(&bus, "t", 10, Duration::from_secs(60), earliest()).await.expect("pulled") }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    publish(&bus, "t", 1).await;
    let given = timeout(Duration::from_secs(1), waiting).await.expect("at once").expect("no panic");
    assert_eq!(payloads(&given), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_while_it_waits_leases_nothing() {
    let bus = bus();
    let waiting = try_pull(&bus, "t", 10, Duration::from_secs(60), earliest());
    assert!(timeout(Duration::from_secs(2), waiting).await.is_err());
    publish(&bus, "t", 1).await;
    let given = pull(&bus, "t", 10).await;
    assert_eq!((payloads(&given), given[0].attempt), (vec!["1"], 1));
}

#[tokio::test(start_paused = true)]
async fn pulls_and_subscribers_compete_and_each_event_has_one_holder() {
    let bus = bus();
    let mut member = subscribe(&bus, "t", "g", SubscribeOptions { max_in_flight: 2, ..earliest() }).await;
    for n in 0..4 {
        publish(&bus, "t", n).await;
    }
    let held = [next(&mut member).await, next(&mut member).await];
    let given = pull(&bus, "t", 10).await;
    let mut all: Vec<_> = held.iter().map(|one| one.event().payload()).chain(payloads(&given)).collect();
    all.sort_unstable();
    assert_eq!(all, ["0", "1", "2", "3"]);
    // A nack of the caller gives nothing of the member away, and the member's answer counts.
    let theirs: Vec<_> = held.iter().map(|one| (one.event().id, None)).collect();
    assert_eq!(answer(&bus, "t", &theirs, NACK).await, [Receipt::NotInFlight; 2]);
    let extend = Answer::Extend { by: Some(Duration::from_secs(60)) };
    assert_eq!(answer(&bus, "t", &theirs, extend).await, [Receipt::NotInFlight; 2]);
    for one in &held {
        one.ack().await.expect("still its own");
    }
}

#[tokio::test(start_paused = true)]
async fn a_nack_brings_the_event_back_and_an_extension_keeps_it() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let given = pull(&bus, "t", 1).await;
    assert_eq!(answer(&bus, "t", &ids(&given), NACK).await, [Receipt::Done]);
    let again = pull(&bus, "t", 1).await;
    assert_eq!(again[0].attempt, 2);
    let extend = Answer::Extend { by: Some(Duration::from_secs(120)) };
    assert_eq!(answer(&bus, "t", &ids(&again), extend).await, [Receipt::Done]);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(pull(&bus, "t", 1).await.is_empty(), "the lease was extended");
    let leased: Vec<_> = again.iter().map(|given| (given.event.id, Some(given.lease))).collect();
    assert_eq!(answer(&bus, "t", &leased, Answer::Ack).await, [Receipt::Done]);
    let stale: Vec<_> = given.iter().map(|given| (given.event.id, Some(given.lease))).collect();
    assert_eq!(answer(&bus, "t", &stale, NACK).await, [Receipt::NotInFlight], "it is done");
}

#[tokio::test(start_paused = true)]
async fn an_old_lease_is_lost_and_a_late_ack_without_one_counts() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let given = pull(&bus, "t", 1).await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    let again = pull(&bus, "t", 1).await;
    assert_eq!(again.len(), 1);
    let old = [(given[0].event.id, Some(given[0].lease))];
    assert_eq!(answer(&bus, "t", &old, Answer::Ack).await, [Receipt::LeaseLost]);
    assert_eq!(answer(&bus, "t", &ids(&given), Answer::Ack).await, [Receipt::Done]);
    let lag = bus.lag(&crate::common::topic("t"), &group("g")).await.expect("known");
    assert_eq!(lag.events, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pattern_is_pulled_and_answered_by_its_name() {
    let bus = bus();
    for topic in ["a.x", "a.y"] {
        publish(&bus, topic, 1).await;
    }
    let given = pull(&bus, "a.*", 10).await;
    assert_eq!(given.len(), 2);
    assert_eq!(answer(&bus, "a.*", &ids(&given), Answer::Ack).await, [Receipt::Done; 2]);
    assert_eq!(answer(&bus, "b.*", &ids(&given), Answer::Ack).await, [Receipt::NotInFlight; 2]);
    assert!(pull(&bus, "a.*", 10).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn up_to_counts_events_that_were_not_done() {
    let bus = bus();
    for n in 0..5 {
        publish(&bus, "t", n).await;
    }
    let given = pull(&bus, "t", 4).await;
    assert_eq!(answer(&bus, "t", &ids(&given[..1]), Answer::Ack).await, [Receipt::Done]);
    let up_to = given[2].event.id;
    let done = bus.ack_up_to(&name("t"), &group("g"), up_to, None).await.expect("acked");
    assert_eq!(done, 2, "the first was done before");
    let unknown = bus.ack_up_to(&name("u"), &group("g"), up_to, None).await.expect_err("on another topic");
    assert_eq!(unknown.code, Code::UnknownId);
}

#[tokio::test(start_paused = true)]
async fn an_answered_pull_leaves_the_group_without_members() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let given = pull(&bus, "t", 1).await;
    answer(&bus, "t", &ids(&given), Answer::Ack).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let options = SubscribeOptions { ordered: Ordered::Key, from: From::Earliest, ..Default::default() };
    let mut ordered = subscribe(&bus, "t", "g", options).await;
    nothing(&mut ordered, Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_key_does_not_keep_an_empty_call() {
    let bus = bus();
    for n in 0..2 {
        publish_keyed(&bus, "t", "k", n).await;
    }
    let options = || SubscribeOptions { ordered: Ordered::Key, ..earliest() };
    let first = try_pull(&bus, "t", 10, Duration::ZERO, options()).await.expect("pulled");
    assert_eq!(payloads(&first), ["0"]);
    let started = tokio::time::Instant::now();
    assert!(try_pull(&bus, "t", 10, Duration::ZERO, options()).await.expect("pulled").is_empty());
    assert!(started.elapsed() <= Duration::from_millis(200), "{:?} of the runtime's time", started.elapsed());
}
