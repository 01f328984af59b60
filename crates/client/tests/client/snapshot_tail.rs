//! A tail that began with a snapshot, over a lost connection: it goes on exactly where that is possible, and says so where the
//! snapshot begins again.

use super::*;
use futures_util::{SinkExt as _, StreamExt as _};
use promethean_client::Delivery;
use promethean_event::Filter;
use serde_json::Value;
use tokio::sync::mpsc;

fn from_snapshot() -> SubscribeOptions {
    SubscribeOptions { from: From::Snapshot, ..SubscribeOptions::default() }
}

/// The key, the payload, whether it belongs to a snapshot.
fn seen(delivery: &Delivery) -> (String, Value, bool) {
    let event = delivery.event();
    let payload = event.payload_as().expect("JSON");
    (event.key.clone().expect("a key"), payload, delivery.context().snapshot)
}

fn state(key: &str, value: impl Into<Value>) -> Publish {
    Publish::new(&value.into()).expect("JSON").key(key)
}

#[tokio::test]
async fn a_whole_snapshot_is_followed_by_every_change_also_if_none_had_come_before_the_connection_was_lost() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let writer = connect(&format!("ws://{addr}")).await;
    writer.publish_batch("s", vec![state("a", 1), state("b", 2), state("c", 3)]).await.expect("published");
    let proxy = Proxy::start(addr).await;
    let reader = connect(&proxy.url()).await;
    let mut tail = reader.subscribe("s", None, from_snapshot()).await.expect("subscribed");
    for _ in 0..3 {
        assert!(next(&mut tail).await.context().snapshot);
    }
    proxy.cut();
    writer.publish_batch("s", vec![state("b", Value::Null), state("c", 4)]).await.expect("published");
    for expected in [("b".to_owned(), Value::Null, false), ("c".to_owned(), 4.into(), false)] {
        assert_eq!(seen(&next(&mut tail).await), expected, "a deletion is not lost, no key comes twice");
    }
}

#[tokio::test]
async fn a_tail_with_a_filter_goes_on_after_its_snapshot_too() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let writer = connect(&format!("ws://{addr}")).await;
    let many = (0..1_500).map(|n| state(&format!("k{n}"), n));
    writer.publish_batch("s", many.collect()).await.expect("published");
    let proxy = Proxy::start(addr).await;
    let reader = connect(&proxy.url()).await;
    let filter = Filter { keys: vec!["k3".into(), "k7".into()], ..Filter::default() };
    let mut tail =
        reader.subscribe("s", None, SubscribeOptions { filter, ..from_snapshot() }).await.expect("subscribed");
    let mut keys = [seen(&next(&mut tail).await).0, seen(&next(&mut tail).await).0];
    keys.sort();
    assert_eq!(keys, ["k3", "k7"]);
    proxy.cut();
    writer.publish_batch("s", vec![state("k8", 1), state("k7", Value::Null)]).await.expect("published");
    assert_eq!(seen(&next(&mut tail).await), ("k7".to_owned(), Value::Null, false));
}

#[tokio::test]
async fn a_tail_of_a_pattern_says_that_its_snapshot_begins_again() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let writer = connect(&format!("ws://{addr}")).await;
    writer.publish_batch("s.1", vec![state("a", 1), state("b", 2)]).await.expect("published");
    let proxy = Proxy::start(addr).await;
    let reader = connect(&proxy.url()).await;
    let mut tail = reader.subscribe("s.*", None, from_snapshot()).await.expect("subscribed");
    for _ in 0..2 {
        assert!(!next(&mut tail).await.restarted());
    }
    proxy.shut.store(true, Ordering::SeqCst);
    proxy.cut();
    writer.publish_batch("s.1", vec![state("b", Value::Null), state("c", 3)]).await.expect("published");
    proxy.shut.store(false, Ordering::SeqCst);
    let first = next(&mut tail).await;
    assert!(first.restarted() && first.context().snapshot);
    let second = next(&mut tail).await;
    assert!(!second.restarted(), "said once");
    let mut keys = [seen(&first).0, seen(&second).0];
    keys.sort();
    assert_eq!(keys, ["a", "c"]);
}

/// A hub that says what it is told to: the next of `answers` to each frame, and after it closes the connection if the answer ends
/// with nothing. What it was asked comes out of the channel.
async fn saying(answers: &'static [&'static [&'static str]]) -> (String, mpsc::UnboundedReceiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("an address"));
    let (asked, questions) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut answers = answers.iter();
        while let Ok((stream, _)) = listener.accept().await {
            let mut wire = tokio_tungstenite::accept_hdr_async(stream, promethean_v1).await.expect("accepted");
            while let Some(Ok(Message::Text(frame))) = wire.next().await {
                let frame: Value = serde_json::from_str(&frame).expect("JSON");
                let Some(answer) = answers.next() else { return };
                let _ = asked.send(frame["opts"].clone());
                for said in answer.iter().filter(|said| !said.is_empty()) {
                    let said = said.replace("CORR", &frame["corr"].to_string());
                    wire.send(Message::text(said)).await.expect("sent");
                }
                if answer.ends_with(&[""]) {
                    break;
                }
            }
        }
    });
    (url, questions)
}

const OK: &str = r#"{"op":"OK","corr":CORR}"#;
const UNKNOWN: &str = r#"{"op":"ERR","corr":CORR,"code":"unknown_id","msg":"gone"}"#;
/// `a` of a snapshot that is not whole; of one that is; something new.
const PART: &str = r#"{"op":"EVENTS","topic":"s","events":[{"event":{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b01","seq":1,"ts":1,"topic":"s","key":"a","payload":1},"ctx":{"attempt":1,"maxAttempts":0,"ack_deadline_ms":0,"lease":0,"snapshot":true}}]}"#;
const WHOLE: &str = r#"{"op":"EVENTS","topic":"s","events":[{"event":{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b01","seq":1,"ts":1,"topic":"s","key":"a","payload":1},"ctx":{"attempt":1,"maxAttempts":0,"ack_deadline_ms":0,"lease":0,"snapshot":true,"cut":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b09"}}]}"#;
const LIVE: &str = r#"{"op":"EVENTS","topic":"s","events":[{"event":{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b0a","seq":10,"ts":1,"topic":"s","key":"a","payload":2},"ctx":{"attempt":1,"maxAttempts":0,"ack_deadline_ms":0,"lease":0}}]}"#;

#[tokio::test]
async fn a_snapshot_that_was_cut_short_begins_again_and_that_is_said() {
    let (url, mut asked) = saying(&[&[OK, PART, ""], &[OK, ""], &[OK, PART, LIVE]]).await;
    let mut tail = connect(&url).await.subscribe("s", None, from_snapshot()).await.expect("subscribed");
    let said = [next(&mut tail).await, next(&mut tail).await, next(&mut tail).await].map(|one| one.restarted());
    assert_eq!(said, [false, true, false]);
    for _ in 0..3 {
        assert_eq!(asked.recv().await.expect("asked")["from"], "snapshot");
    }
}

#[tokio::test]
async fn a_snapshot_begins_again_where_the_place_to_go_on_at_is_gone_and_that_is_said() {
    // The second snapshot is empty: no key is left.
    let (url, mut asked) = saying(&[&[OK, WHOLE, ""], &[UNKNOWN], &[OK, LIVE]]).await;
    let mut tail = connect(&url).await.subscribe("s", None, from_snapshot()).await.expect("subscribed");
    let said = [next(&mut tail).await, next(&mut tail).await].map(|one| (one.restarted(), one.context().snapshot));
    assert_eq!(said, [(false, true), (true, false)]);
    let mut next = async || asked.recv().await.expect("asked");
    assert_eq!(next().await["from"], "snapshot");
    assert_eq!(next().await["afterId"], "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b09");
    assert_eq!(next().await["from"], "snapshot");
}
