//! Subscriptions that the hub ends for a while, deliveries that it gives out again while they wait or run here.

use super::stage::{Stage, id};
use super::*;
use tokio::sync::mpsc;

#[tokio::test]
async fn a_subscription_that_the_hub_could_not_serve_for_a_while_comes_back_and_so_does_an_ack() {
    for code in ["ack_failed", "rate_limited"] {
        let mut stage = Stage::new().await;
        let (_client, mut events, hub) = stage.subscribed().await;
        hub.give(1, 1, 30_000);
        let held = next(&mut events).await;
        hub.give(2, 2, 30_000);
        hub.end(code);
        let (asked, hub) = stage.asks("SUBSCRIBE").await;
        hub.refuse(&asked, code);
        let hub = async {
            // Refused until an ack was refused too.
            let (mut early, mut granted) = (false, false);
            loop {
                let (asked, hub) = stage.frame().await;
                match asked["op"].as_str().expect("an op") {
                    "SUBSCRIBE" if early => {
                        hub.ok(&asked);
                        granted = true;
                    }
                    "SUBSCRIBE" => hub.refuse(&asked, code),
                    "ACK" if granted => {
                        assert_eq!(asked["ids"], json!([id(1)]));
                        hub.give(3, 3, 30_000);
                        hub.ok(&asked);
                        break;
                    }
                    "ACK" => {
                        hub.refuse(&asked, "not_subscribed");
                        early = true;
                    }
                    other => panic!("{other}"),
                }
            }
        };
        let (acked, ()) = patient(async { tokio::join!(held.ack(), hub) }).await;
        acked.expect("acked in the end");
        assert_eq!(next(&mut events).await.event().seq, 3, "the hub has given 2 to somebody else");
    }
}

#[tokio::test]
async fn a_subscription_that_the_hub_ends_for_good_says_why() {
    let mut stage = Stage::new().await;
    let (_client, mut events, hub) = stage.subscribed().await;
    hub.end("forbidden");
    let error = patient(events.next()).await.expect_err("ended");
    assert_eq!(error.code(), Some(Code::Forbidden));
    assert!(patient(events.next()).await.expect("ended").is_none());
}

#[tokio::test]
async fn after_a_reconnect_no_more_handlers_run_than_were_asked_for_and_none_for_an_event_that_one_has() {
    for (most, at_once) in [(1, vec![1]), (2, vec![1, 2])] {
        let mut stage = Stage::new().await;
        let client = connect(&stage.url).await;
        let (start, mut started) = mpsc::unbounded_channel();
        let finish = watch::Sender::new(false);
        let finished = finish.subscribe();
        let handler = move |delivery: Arc<promethean_client::Delivery>| {
            let (start, mut finished) = (start.clone(), finished.clone());
            async move {
                start.send(delivery.event().seq).expect("the test waits");
                finished.wait_for(|done| *done).await.map(|_| ())
            }
        };
        let options = SubscribeOptions { max_in_flight: most, ..SubscribeOptions::default() };
        let (handling, hub) =
            patient(async { tokio::join!(client.handle("a", "g", options, handler), stage.grants()) }).await;
        let _handling = handling.expect("subscribed");
        hub.give(1, 1, 60_000);
        assert_eq!(patient(started.recv()).await, Some(1));
        hub.hang_up();
        // The hub of the new connection knows nothing of what runs.
        let hub = stage.grants().await;
        for (n, lease) in [(1, 7), (2, 8), (3, 9)].into_iter().take(most + 1) {
            hub.give(n, lease, 60_000);
        }
        let published = async {
            let (asked, hub) = stage.asks("PUBLISH").await;
            hub.say(json!({"op": "OK", "corr": asked["corr"], "id": id(9), "seq": 1}));
        };
        // Its answer comes behind the deliveries.
        let (published, ()) = patient(async { tokio::join!(client.publish("b", &1), published) }).await;
        published.expect("published");
        let mut running = vec![1];
        while running.len() < at_once.len() {
            running.push(patient(started.recv()).await.expect("a handler"));
        }
        assert_eq!((running, started.try_recv().ok()), (at_once, None), "{most} at a time");
        finish.send_replace(true);
        let mut acked = std::collections::BTreeSet::new();
        while acked.len() < most + 1 {
            let (asked, hub) = stage.asks("ACK").await;
            let ids = asked["ids"].as_array().cloned().unwrap_or_else(|| vec![asked["id"].clone()]);
            for one in ids {
                assert!(acked.insert(one.to_string()), "{one} is acked twice: it was handled twice");
            }
            hub.ok(&asked);
        }
        assert_eq!(patient(started.recv()).await, Some(most as u64 + 1), "what waited");
        assert_eq!(started.try_recv().ok(), None, "each once");
    }
}

#[tokio::test]
async fn an_event_that_a_handler_gave_back_is_handled_again_though_it_comes_before_the_answer_to_that() {
    let mut stage = Stage::new().await;
    let client = connect(&stage.url).await;
    let handler = |delivery: Arc<promethean_client::Delivery>| async move {
        if delivery.context().lease == 1 { Err("not yet") } else { Ok(()) }
    };
    let options = SubscribeOptions { max_in_flight: 2, ..SubscribeOptions::default() };
    let (handling, hub) =
        patient(async { tokio::join!(client.handle("a", "g", options, handler), stage.grants()) }).await;
    let _handling = handling.expect("subscribed");
    hub.give(1, 1, 60_000);
    let (nack, hub) = stage.asks("NACK").await;
    hub.give(1, 2, 60_000);
    let (ack, hub) = stage.asks("ACK").await;
    hub.ok(&nack);
    hub.ok(&ack);
}
