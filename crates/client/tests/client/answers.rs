//! Answers to deliveries: the leases of what waits, refused answers, handlers that panic.

use super::stage::{Answer, Stage, id};
use super::*;
use promethean_client::Delivery;
use serde_json::Value;
use tokio::sync::mpsc;

/// A frame of these fields, answered with `OK`.
async fn is(stage: &mut Stage, op: &str, fields: Value) -> Answer {
    let (asked, hub) = stage.asks(op).await;
    for (name, value) in fields.as_object().expect("fields") {
        assert_eq!(&asked[name], value, "{name} of {asked}");
    }
    hub.ok(&asked);
    hub
}

/// A client with a subscription of these options.
async fn subscribed(stage: &mut Stage, options: SubscribeOptions) -> (Client, Subscription, Answer) {
    let client = connect(&stage.url).await;
    let subscribe = client.subscribe("a", Some("g"), options);
    let (events, hub) = patient(async { tokio::join!(subscribe, stage.grants()) }).await;
    (client, events.expect("subscribed"), hub)
}

/// Returns once the client has read all frames of the hub so far.
async fn caught_up(stage: &mut Stage, client: &Client) {
    let published = async {
        let (asked, hub) = stage.asks("PUBLISH").await;
        hub.say(json!({"op": "OK", "corr": asked["corr"], "id": id(9), "seq": 1}));
    };
    patient(async { tokio::join!(client.publish("b", &1), published) }).await.0.expect("published");
}

#[tokio::test]
async fn a_subscriber_asks_for_few_events_unless_it_says_otherwise() {
    let mut stage = Stage::new().await;
    let client = connect(&stage.url).await;
    let mut kept = Vec::new();
    for (options, expected) in [
        (SubscribeOptions::default(), 16),
        (SubscribeOptions { concurrency: Some(50), ..SubscribeOptions::default() }, 50),
        (SubscribeOptions { concurrency: Some(1), max_in_flight: 4, ..SubscribeOptions::default() }, 4),
    ] {
        let asked = async {
            let (asked, hub) = stage.asks("SUBSCRIBE").await;
            hub.ok(&asked);
            asked
        };
        let topic = format!("t{expected}");
        let (events, asked) =
            patient(async { tokio::join!(client.subscribe(&topic, Some("g"), options), asked) }).await;
        kept.push(events.expect("subscribed"));
        assert_eq!(asked["opts"]["maxInFlight"], expected);
    }
    let none = SubscribeOptions { concurrency: Some(0), ..SubscribeOptions::default() };
    assert_eq!(client.subscribe("a", Some("g"), none).await.expect_err("none").code(), Some(Code::BadRequest));
}

#[tokio::test]
async fn what_waits_in_the_client_keeps_its_lease_until_it_is_read() {
    let mut stage = Stage::new().await;
    let (_client, mut events, hub) = subscribed(&mut stage, SubscribeOptions::default()).await;
    for n in 1..=3 {
        hub.give(n, n, 600);
    }
    let all = json!([id(1), id(2), id(3)]);
    // Past the first lease.
    for _ in 0..4 {
        is(&mut stage, "MODACK", json!({"ids": all, "extend_ms": 600})).await;
    }
    for n in 1..=3 {
        assert_eq!(next(&mut events).await.event().seq, n);
    }
}

#[tokio::test]
async fn what_waits_for_too_long_goes_back_without_an_attempt() {
    let mut stage = Stage::new().await;
    let options = SubscribeOptions { max_extend: Duration::from_millis(150), ..SubscribeOptions::default() };
    let (_client, mut events, hub) = subscribed(&mut stage, options).await;
    hub.give(1, 1, 300);
    is(&mut stage, "MODACK", json!({"ids": [id(1)]})).await;
    is(&mut stage, "NACK", json!({"ids": [id(1)], "release": true})).await;
    hub.give(1, 2, 300);
    assert_eq!(next(&mut events).await.context().lease, 2);
}

#[tokio::test]
async fn one_lost_lease_among_those_that_wait_loses_no_other() {
    let mut stage = Stage::new().await;
    let (client, mut events, hub) = subscribed(&mut stage, SubscribeOptions::default()).await;
    hub.give(1, 1, 600);
    hub.give(2, 2, 600);
    let (asked, hub) = stage.asks("MODACK").await;
    hub.refuse(&asked, "unknown_id");
    let (asked, hub) = stage.asks("MODACK").await;
    assert_eq!(asked["ids"], json!([id(1)]));
    hub.refuse(&asked, "unknown_id");
    is(&mut stage, "MODACK", json!({"ids": [id(2)]})).await;
    caught_up(&mut stage, &client).await;
    assert_eq!(next(&mut events).await.event().seq, 2);
}

#[tokio::test]
async fn a_waiting_queue_is_bounded_in_bytes() {
    let mut stage = Stage::new().await;
    let (_client, mut events, hub) = subscribed(&mut stage, SubscribeOptions::default()).await;
    let large = "x".repeat(3 << 20);
    for n in 1..=3 {
        let event = json!({"id": id(n), "seq": n, "ts": 1, "topic": "a", "payload": large});
        let ctx = json!({"attempt": 1, "maxAttempts": 5, "ack_deadline_ms": 60_000, "lease": n});
        hub.say(json!({"op": "EVENT", "topic": "a", "group": "g", "event": event, "ctx": ctx}));
    }
    is(&mut stage, "PAUSE", json!({"group": "g"})).await;
    next(&mut events).await;
    next(&mut events).await;
    is(&mut stage, "RESUME", json!({"group": "g"})).await;
}

#[tokio::test]
async fn answers_name_their_lease() {
    let mut stage = Stage::new().await;
    let (_client, mut events, hub) = subscribed(&mut stage, SubscribeOptions::default()).await;
    hub.give(1, 7, 60_000);
    let one = next(&mut events).await;
    let answers = async {
        is(&mut stage, "MODACK", json!({"lease": 7, "extend_ms": 5_000})).await;
        is(&mut stage, "NACK", json!({"lease": 7, "reason": "no"})).await;
        is(&mut stage, "ACK", json!({"lease": 7})).await;
        is(&mut stage, "ACK", json!({"lease": null})).await;
    };
    let asking = async {
        one.extend(Duration::from_secs(5)).await.expect("extended");
        one.nack(GiveBack { reason: Some("no".into()), ..GiveBack::default() }).await.expect("nacked");
        one.ack_fenced().await.expect("acked");
        one.ack().await.expect("acked");
    };
    patient(async { tokio::join!(asking, answers) }).await;
}

#[tokio::test]
async fn answers_that_the_hub_had_no_room_for_are_sent_again_together() {
    let mut stage = Stage::new().await;
    let (client, mut events, hub) = subscribed(&mut stage, SubscribeOptions::default()).await;
    let mut held = Vec::new();
    for n in 1..=6 {
        hub.give(n, n, 60_000);
        held.push(Arc::new(next(&mut events).await));
    }
    let by = Duration::from_secs(9);
    let answer = |delivery: &Arc<Delivery>, how: &'static str| {
        let delivery = Arc::clone(delivery);
        tokio::spawn(async move {
            match how {
                "ACK" => delivery.ack().await,
                "NACK" => delivery.nack(GiveBack::default()).await,
                _ => delivery.extend(by).await,
            }
        })
    };
    let mut answers = vec![answer(&held[0], "ACK")];
    let (asked, hub) = stage.asks("ACK").await;
    let refused =
        json!({"op": "ERR", "corr": asked["corr"], "code": "rate_limited", "msg": "no", "retry_after_ms": 300});
    hub.say(refused);
    caught_up(&mut stage, &client).await;
    for (n, how) in [(1, "NACK"), (2, "ACK"), (3, "NACK"), (4, "MODACK"), (5, "MODACK")] {
        answers.push(answer(&held[n], how));
        // One after another, so that the order is known.
        tokio::task::yield_now().await;
    }
    for (op, ids) in [("ACK", [1, 3]), ("NACK", [2, 4]), ("MODACK", [5, 6])] {
        is(&mut stage, op, json!({"ids": ids.map(id), "lease": null})).await;
    }
    for answer in answers {
        patient(answer).await.expect("ran").expect("taken in the end");
    }
}

#[tokio::test]
async fn a_handler_that_panics_nacks_its_event_and_disturbs_no_other() {
    let mut stage = Stage::new().await;
    let client = connect(&stage.url).await;
    let (start, mut started) = mpsc::unbounded_channel();
    let finish = watch::Sender::new(false);
    let finished = finish.subscribe();
    let handler = move |delivery: Arc<Delivery>| {
        assert!(delivery.event().seq != 1, "no use for the first");
        let (start, mut finished) = (start.clone(), finished.clone());
        async move {
            start.send(delivery.event().seq).expect("the test waits");
            assert!(delivery.event().seq != 2, "nor for the second");
            finished.wait_for(|done| *done).await.map(|_| ())
        }
    };
    let options = SubscribeOptions::default();
    let (handling, hub) =
        patient(async { tokio::join!(client.handle("a", "g", options, handler), stage.grants()) }).await;
    let _handling = handling.expect("subscribed");
    hub.give(3, 3, 60_000);
    assert_eq!(patient(started.recv()).await, Some(3));
    hub.give(1, 1, 60_000);
    let reason = "the handler panicked: no use for the first";
    is(&mut stage, "NACK", json!({"ids": [id(1)], "reason": reason})).await;
    hub.give(2, 2, 60_000);
    assert_eq!(patient(started.recv()).await, Some(2));
    is(&mut stage, "NACK", json!({"ids": [id(2)], "reason": "the handler panicked: nor for the second"})).await;
    finish.send_replace(true);
    is(&mut stage, "ACK", json!({"ids": [id(3)]})).await;
}

#[tokio::test]
async fn a_handler_keeps_the_newest_lease_of_its_event_for_a_while() {
    let mut stage = Stage::new().await;
    let client = connect(&stage.url).await;
    let handler = |_: Arc<Delivery>| std::future::pending::<Result<(), String>>();
    let max_extend = Duration::from_millis(250);
    let options = SubscribeOptions { concurrency: Some(1), max_extend, ..SubscribeOptions::default() };
    let (handling, hub) =
        patient(async { tokio::join!(client.handle("a", "g", options, handler), stage.grants()) }).await;
    let _handling = handling.expect("subscribed");
    hub.give(1, 1, 300);
    hub.give(1, 2, 300);
    // It waits behind the first one: its release says that `max_extend` is over.
    let (mut extended, mut over, mut late) = (0, 0, 0);
    hub.give(2, 3, 300);
    while over < 2 {
        let (asked, hub) = stage.frame().await;
        hub.ok(&asked);
        match asked["op"].as_str().expect("an op") {
            "NACK" => {
                over += 1;
                hub.give(2, 4, 300);
            }
            "MODACK" if asked["ids"] == json!([id(1)]) => {
                assert_eq!(asked["lease"], 2);
                *(if over == 0 { &mut extended } else { &mut late }) += 1;
            }
            op => assert_eq!((op, &asked["ids"]), ("MODACK", &json!([id(2)]))),
        }
    }
    assert!(extended > 0 && late <= 1, "{extended} extensions in time, {late} later");
}
