//! Patterns and topic lists: one subscription, many topics, each with its own cursor.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{bus, earliest, group, next, nothing, publish, subscribe, topic};
use promethean_bus::{Code, Inbox, Request, Selector, SubscribeOptions};

#[tokio::test(start_paused = true)]
async fn a_pattern_takes_in_topics_that_exist_and_ones_that_turn_up_later() {
    let bus = bus();
    publish(&bus, "a.one", 1).await;
    publish(&bus, "b.other", 0).await;
    let mut events = subscribe(&bus, "a.**", "g", earliest()).await;
    publish(&bus, "a.two", 2).await;
    publish(&bus, "dlq.a.one", 0).await;
    publish(&bus, "a.x.three", 3).await;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let delivery = next(&mut events).await;
        seen.insert(delivery.event().topic.to_string());
        delivery.ack().await.expect("acked");
    }
    assert_eq!(seen, BTreeSet::from(["a.one", "a.two", "a.x.three"].map(str::to_owned)));
    nothing(&mut events, Duration::from_secs(60)).await;
    for name in ["a.one", "a.two", "a.x.three"] {
        let cursor = bus.cursor(&topic(name), &group("g")).await.expect("ok").expect("its own cursor");
        assert_eq!(cursor.seq, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn topics_of_one_subscription_share_its_in_flight_limit() {
    let bus = bus();
    let topics = ["p", "q", "r"].map(|name| Selector::parse(name).expect("a topic")).to_vec();
    let options = SubscribeOptions { topics, max_in_flight: 4, ..earliest() };
    let mut events = subscribe(&bus, "p", "g", options).await;
    for n in 0..20 {
        for name in ["p", "q", "r"] {
            publish(&bus, name, n).await;
        }
    }
    let (mut held, mut seen) = (Vec::new(), 0);
    while seen < 60 {
        while held.len() < 4 && seen + held.len() < 60 {
            held.push(next(&mut events).await);
        }
        nothing(&mut events, Duration::from_millis(50)).await;
        held.remove(0).ack().await.expect("acked");
        seen += 1;
        if held.len() + seen == 60 {
            for delivery in held.drain(..) {
                delivery.ack().await.expect("acked");
                seen += 1;
            }
        }
    }
    nothing(&mut events, Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_is_asked_for_every_topic_also_for_later_ones() {
    let bus = bus();
    publish(&bus, "a.secret", 0).await;
    publish(&bus, "a.open", 1).await;
    let inbox = Inbox::new();
    let request = Request {
        topic: Selector::parse("a.*").expect("a pattern"),
        group: None,
        options: earliest(),
        gate: Some(Arc::new(|topic| !topic.as_str().contains("secret"))),
        relayed: None,
    };
    let (_membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
    publish(&bus, "a.secret2", 0).await;
    publish(&bus, "a.open2", 2).await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        tokio::time::timeout(Duration::from_secs(60), inbox.ready()).await.expect("deliveries");
        inbox.take(10, usize::MAX, bus.now(), &mut seen);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    inbox.take(10, usize::MAX, bus.now(), &mut seen);
    let topics: BTreeSet<_> = seen.iter().map(|given| given.event.topic.to_string()).collect();
    assert_eq!(topics, BTreeSet::from(["a.open", "a.open2"].map(str::to_owned)));
}

#[tokio::test(start_paused = true)]
async fn a_cumulative_ack_reaches_only_topics_that_the_subscription_is_on() {
    let bus = bus();
    let secret = publish(&bus, "secret", 1).await.id;
    let hidden = publish(&bus, "a.secret", 1).await.id;
    let open = publish(&bus, "a.open", 1).await.id;
    let _victim = subscribe(&bus, "secret", "g", earliest()).await;
    let _other = subscribe(&bus, "a.secret", "g", earliest()).await;
    for (name, topics) in [("a.*", vec![]), ("a.open", vec![Selector::parse("a.more").expect("a topic")])] {
        let inbox = Inbox::new();
        let request = Request {
            topic: Selector::parse(name).expect("a selector"),
            group: Some(group("g")),
            options: SubscribeOptions { topics, ..earliest() },
            gate: Some(Arc::new(|topic| !topic.as_str().contains("secret"))),
            relayed: None,
        };
        let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
        for id in [secret, hidden] {
            let refused = membership.ack_up_to(id, None).await.expect_err("not its topic");
            assert_eq!(refused.code, Code::UnknownId, "{refused}");
        }
        membership.ack_up_to(open, None).await.expect("its own topic");
    }
    for name in ["secret", "a.secret"] {
        assert_eq!(bus.lag(&topic(name), &group("g")).await.expect("readable").events, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_one_topic_keeps_what_waits_of_the_others() {
    let bus = bus();
    publish(&bus, "a.one", 1).await;
    publish(&bus, "a.two", 2).await;
    let inbox = Inbox::new();
    let topic_name = Selector::parse("a.*").expect("a pattern");
    let request =
        Request { topic: topic_name, group: Some(group("g")), options: earliest(), gate: None, relayed: None };
    let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
    tokio::time::sleep(Duration::from_millis(50)).await;
    membership.leave(&topic("a.one"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut given = Vec::new();
    inbox.take(10, usize::MAX, bus.now(), &mut given);
    let topics: Vec<&str> = given.iter().map(|one| one.event.topic.as_str()).collect();
    assert_eq!(topics, ["a.two"]);
}
