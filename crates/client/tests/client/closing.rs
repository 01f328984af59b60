//! The end of a client, of a call that its caller gave up, and of an address.

use super::stage::Stage;
use super::*;

#[tokio::test]
async fn closing_ends_at_its_limit_whatever_the_hub_does() {
    let mut stage = Stage::new().await;
    let client = connect(&stage.url).await;
    let id = EventId::from_bytes([7; 16]);
    let publish = client.send("a", Publish::new(&1).expect("JSON").id(id));
    let close = async {
        stage.asks("PUBLISH").await;
        client.clone().close_within(Duration::from_millis(50)).await.expect("closed");
    };
    let (published, ()) = patient(async { tokio::join!(publish, close) }).await;
    let error = published.expect_err("no answer");
    assert!(matches!(error.cause(), promethean_client::Error::Closed), "{error}");
    assert_eq!(error.ids(), [id]);
    let late = client.publish("a", &1).await.expect_err("closed");
    assert!(matches!(late.cause(), promethean_client::Error::Closed), "{late}");
    client.close().await.expect_err("closed before");
}

#[tokio::test]
async fn closing_waits_for_what_was_published_while_the_connection_was_away() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    proxy.shut.store(true, Ordering::SeqCst);
    proxy.cut();
    let publish = client.publish("a", &1);
    let close = async {
        let (closed, ()) = tokio::join!(client.clone().close(), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            proxy.shut.store(false, Ordering::SeqCst);
        });
        closed.expect("closed");
    };
    let (published, ()) = patient(async { tokio::join!(publish, close) }).await;
    assert_eq!(published.expect("published").seq, 1);
}

#[tokio::test]
async fn a_subscribe_that_its_caller_gave_up_frees_its_name() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    let subscribe = || client.subscribe("a", Some("g"), SubscribeOptions::default());
    let given_up = async |proxy: &Proxy| {
        proxy.deaf.store(true, Ordering::SeqCst);
        let ended = tokio::time::timeout(Duration::from_millis(50), subscribe()).await;
        assert!(ended.is_err(), "no answer comes: {ended:?}");
    };
    // Asked on a connection that stays, and on one that goes.
    given_up(&proxy).await;
    proxy.shut.store(true, Ordering::SeqCst);
    proxy.cut();
    given_up(&proxy).await;
    given_up(&proxy).await;
    proxy.deaf.store(false, Ordering::SeqCst);
    proxy.shut.store(false, Ordering::SeqCst);
    patient(subscribe()).await.expect("the name is free");
}

#[tokio::test]
async fn a_client_that_has_ended_names_the_reason() {
    let (url, _) = scripted(|connection, op| match (connection, op) {
        (1, "SUBSCRIBE") => json!({"op": "OK", "bye": true}),
        (2.., "AUTH") => json!({"op": "ERR", "code": "bad_token", "msg": "no"}),
        _ => json!({"op": "OK"}),
    })
    .await;
    let client = Client::builder(&url).token("t").connect().await.expect("connected");
    let mut events = client.subscribe("a", Some("g"), SubscribeOptions::default()).await.expect("subscribed");
    assert_eq!(patient(events.next()).await.expect_err("refused").code(), Some(Code::BadToken));
    assert_eq!(client.publish("a", &1).await.expect_err("ended").code(), Some(Code::BadToken));
    assert_eq!(events.pause().await.expect_err("ended").code(), Some(Code::BadToken));
    assert_eq!(client.close().await.expect_err("ended").code(), Some(Code::BadToken));
}

#[tokio::test]
async fn the_next_address_is_tried_after_a_failure() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let (first, second) = (Proxy::start(addr).await, Proxy::start(addr).await);
    let builder = Client::builder("ws://127.0.0.1:9").address(first.url()).address(second.url());
    let client = patient(builder.connect()).await.expect("the second address answers");
    client.publish("a", &1).await.expect("published");
    first.shut.store(true, Ordering::SeqCst);
    first.cut();
    assert_eq!(patient(client.publish("a", &2)).await.expect("published elsewhere").seq, 2);
}
