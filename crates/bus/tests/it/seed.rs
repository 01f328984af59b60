//! The seed's two tests, as they stand there, against the bus.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{bus, earliest, group, publish, topic};
use parking_lot::Mutex;
use promethean_bus::{Delivery, Event, Handling, SubscribeOptions, only};

/// Waits until `done` says so, for at most a generous while.
async fn until(done: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("it did not come to pass");
}

#[tokio::test]
async fn publish_then_subscribe_earliest_delivers_and_advances_the_cursor() {
    let bus = bus();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let _running = bus
        .subscribe_with("t.a", group("g1"), earliest(), Handling::AutoAck, move |delivery| {
            let seen = Arc::clone(&seeing);
            async move {
                seen.lock().push(delivery.event().payload_as::<String>().map_err(|error| error.to_string())?);
                Ok::<(), String>(())
            }
        })
        .await
        .expect("subscribed");
    publish(&bus, "t.a", "one").await;
    let two = publish(&bus, "t.a", "two").await;

    until(|| seen.lock().len() == 2).await;
    assert_eq!(*seen.lock(), ["one", "two"]);
    for _ in 0..10_000 {
        let cursor = bus.cursor(&topic("t.a"), &group("g1")).await.expect("readable").expect("a cursor");
        if cursor.last_id == Some(two.id) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the cursor did not reach the last event");
}

#[tokio::test]
async fn a_nack_leaves_the_cursor_and_the_event_is_retried() {
    let bus = bus();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&attempts);
    let _running = bus
        .subscribe_with("t.b", group("g1"), earliest(), Handling::AutoAck, move |_| {
            let first = counting.fetch_add(1, Ordering::SeqCst) == 0;
            async move { if first { Err("boom") } else { Ok(()) } }
        })
        .await
        .expect("subscribed");
    publish(&bus, "t.b", "x").await;
    until(|| attempts.load(Ordering::SeqCst) >= 2).await;
}

#[tokio::test]
async fn with_manual_ack_the_handler_answers_and_an_error_is_still_a_nack() {
    let bus = bus();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let _running = bus
        .subscribe_with("t.c", group("g1"), earliest(), Handling::ManualAck, move |delivery| {
            let seen = Arc::clone(&seeing);
            async move {
                let number: u64 = delivery.event().payload_as().map_err(|error| error.to_string())?;
                seen.lock().push((number, delivery.attempt()));
                match (number, delivery.attempt()) {
                    (1, _) => delivery.ack().await.map_err(|error| error.to_string()),
                    (2, 1) => Err("not yet".to_owned()),
                    (2, _) => delivery.ack().await.map_err(|error| error.to_string()),
                    // Neither acked nor failed: it stays with the handler until its lease runs out.
                    _ => Ok(()),
                }
            }
        })
        .await
        .expect("subscribed");
    for number in 1..=3 {
        publish(&bus, "t.c", number).await;
    }
    until(|| seen.lock().len() == 4).await;
    let mut attempts = seen.lock().clone();
    attempts.sort_unstable();
    assert_eq!(attempts, [(1, 1), (2, 1), (2, 2), (3, 1)]);
    for _ in 0..10_000 {
        let lag = bus.lag(&topic("t.c"), &group("g1")).await.expect("readable");
        if (lag.events, lag.cursor.map(|cursor| cursor.seq)) == (1, Some(2)) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the third event has to stay unfinished, the others done");
}

/// The documents' `filter?(e)`: a function, whose events count as done where it says no.
#[tokio::test]
async fn what_a_predicate_does_not_want_is_done_for_handlers_and_for_streams() {
    let bus = bus();
    for number in 1..=6_u64 {
        publish(&bus, "t.e", number).await;
    }
    let even = |event: &Event| event.payload_as::<u64>().is_ok_and(|number| number % 2 == 0);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let handler = only(even, move |delivery: Arc<Delivery>| {
        let seen = Arc::clone(&seeing);
        async move {
            seen.lock().push(delivery.event().payload_as::<u64>().map_err(|error| error.to_string())?);
            delivery.ack().await.map_err(|error| error.to_string())
        }
    });
    let _running =
        bus.subscribe_with("t.e", group("g1"), earliest(), Handling::ManualAck, handler).await.expect("subscribed");
    let stream = bus.subscribe("t.e", Some(group("g2")), earliest()).await.expect("subscribed");
    let mut stream = stream.only(even);
    for number in [2, 4, 6_u64] {
        let delivery = stream.next().await.expect("delivered");
        assert_eq!(delivery.event().payload_as::<u64>().expect("a number"), number);
        delivery.ack().await.expect("acked");
    }
    for name in ["g1", "g2"] {
        for _ in 0..10_000 {
            if bus.lag(&topic("t.e"), &group(name)).await.expect("readable").events == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(bus.lag(&topic("t.e"), &group(name)).await.expect("readable").events, 0, "{name}");
    }
    assert_eq!(*seen.lock(), [2, 4, 6]);
}

#[tokio::test]
async fn a_handler_that_panics_nacks_its_event_and_disturbs_no_other() {
    let bus = bus();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let once = SubscribeOptions { max_attempts: 1, ..earliest() };
    let _running = bus
        .subscribe_with("t.d", group("g1"), once, Handling::AutoAck, move |delivery| {
            let number: u64 = delivery.event().payload_as().expect("a number");
            assert!(number != 1, "no use for 1");
            let seen = Arc::clone(&seeing);
            async move {
                tokio::task::yield_now().await;
                assert!(number != 2, "nor for 2");
                seen.lock().push(number);
                Ok::<(), String>(())
            }
        })
        .await
        .expect("subscribed");
    let mut letters = bus.subscribe("dlq.t.d", Some(group("look")), earliest()).await.expect("subscribed");
    for number in 1..=3 {
        publish(&bus, "t.d", number).await;
    }
    until(|| *seen.lock() == [3]).await;
    let mut reasons = Vec::new();
    for _ in 0..2 {
        let letter = letters.next().await.expect("a letter");
        let payload: serde_json::Value = letter.event().payload_as().expect("JSON");
        reasons.push(payload["err"].as_str().expect("text").to_owned());
    }
    reasons.sort_unstable();
    assert_eq!(reasons, ["the handler panicked: no use for 1", "the handler panicked: nor for 2"]);
}
