//! Frames over the hub's limit: answered, not sent for ever, and everything else goes its way.

use super::*;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// A client and a hub that takes frames of `max_frame_bytes` at most.
async fn narrow(max_frame_bytes: usize) -> (Arc<Hub>, Client) {
    let edge = EdgeConfig { max_frame_bytes, ..EdgeConfig::default() };
    let (hub, addr) = hub_of(AuthConfig::default(), Quotas::default(), edge).await;
    let client = connect(&format!("ws://{addr}")).await;
    (hub, client)
}

#[tokio::test]
async fn a_frame_over_the_hubs_limit_is_refused_and_the_others_are_stored() {
    let (hub, client) = narrow(64 << 10).await;
    // Larger than what sockets hold on the way, so that the hub closes while it is still being written.
    let sizes = [10, 70 << 10, 20, 12 << 20, 60 << 10, 65 << 10, 30];
    let sent = sizes.map(|size| {
        let client = client.clone();
        async move { client.publish("a", &"x".repeat(size)).await }
    });
    let answers = patient(futures_util::future::join_all(sent)).await;
    for (size, answer) in sizes.into_iter().zip(&answers) {
        match answer {
            Ok(_) => assert!(size < 64 << 10, "{size} was stored"),
            Err(error) => {
                assert!(size > 64 << 10, "{size}: {error}");
                assert_eq!(error.code(), Some(Code::TooLarge));
                let said = error.to_string();
                assert!(said.contains("max_frame_bytes") && !said.contains("unknown"), "{said}");
            }
        }
    }
    let batch = (0..10).map(|_| Publish::new(&"x".repeat(10 << 10)).expect("a payload"));
    let error = patient(client.publish_batch("a", batch.collect())).await.expect_err("too much at once");
    assert_eq!(error.code(), Some(Code::TooLarge));
    let stored = hub.bus.store().info(&topic("a")).await.expect("readable").expect("there").last_seq;
    assert_eq!(stored, 4, "each that fits, once, and no other");
}

#[tokio::test]
async fn a_subscription_over_the_hubs_limit_is_refused_and_publishes_beside_it_are_stored() {
    let (_hub, client) = narrow(64 << 10).await;
    let topics = (0..900).map(|n| Selector::parse(&format!("{}{n}", "t".repeat(100))).expect("a topic"));
    let options = SubscribeOptions { topics: topics.collect(), ..SubscribeOptions::default() };
    let big = "x".repeat(50 << 10);
    let both = async { tokio::join!(client.subscribe("a", None, options), client.publish("a", &big)) };
    let (subscribed, published) = patient(both).await;
    assert_eq!(subscribed.expect_err("too large").code(), Some(Code::TooLarge));
    published.expect("it fits");
}

#[tokio::test]
async fn of_a_frame_that_was_sent_before_a_smaller_limit_it_is_said_that_the_outcome_is_unknown() {
    let (url, _) = closing(|connection| if connection == 1 { None } else { Some(CloseCode::Size) }).await;
    let client = connect(&url).await;
    let error = patient(client.publish("a", &1)).await.expect_err("refused");
    assert_eq!(error.code(), Some(Code::TooLarge));
    assert!(error.to_string().contains("unknown"), "{error}");
}

/// A hub that hangs up at the first frame of a connection (the first is 1), with the code that `how` says.
async fn closing(how: impl Fn(u32) -> Option<CloseCode> + Send + 'static) -> (String, watch::Receiver<u32>) {
    use futures_util::{SinkExt, StreamExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("an address"));
    let (counter, count) = watch::channel(0);
    tokio::spawn(async move {
        for connection in 1.. {
            let (stream, _) = listener.accept().await.expect("a client");
            counter.send_replace(connection);
            let upgraded = tokio_tungstenite::accept_hdr_async(stream, promethean_v1).await;
            let mut wire = upgraded.expect("a WebSocket");
            let _ = wire.next().await;
            if let Some(code) = how(connection) {
                let frame = CloseFrame { code, reason: "".into() };
                let _ = wire.send(Message::Close(Some(frame))).await;
                while let Some(Ok(_)) = wire.next().await {}
            }
        }
    });
    (url, count)
}
