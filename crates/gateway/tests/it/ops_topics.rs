//! Topics that are created, deleted and purged over the ops port.

use crate::harness::{Answer, Served, Setup};
use http::Method;
use promethean_bus::{From, Group, SubscribeOptions};
use promethean_gateway::EdgeConfig;
use promethean_gateway::ops::router;
use serde_json::{Value, json};

async fn send(hub: &Served, method: Method, path: &str, body: &str) -> Answer {
    hub.send(method, path, &[("content-type", "application/json")], body.to_owned()).await
}

#[tokio::test]
async fn a_topic_is_created_with_settings_and_deleted_after_a_dry_run() {
    let hub = Setup::default().start(router).await;
    for body in ["", "{}", r#"{"maxEvents":9}"#] {
        let made = send(&hub, Method::PUT, "/topics?topic=t", body).await.ok();
        assert_eq!((&made["topic"], &made["partitions"]), (&json!("t"), &json!(16)), "{body}");
    }
    let refused = send(&hub, Method::PUT, "/topics?topic=u", r#"{"maxEvents":0}"#).await;
    assert_eq!(refused.status, 400);
    let listed = hub.get("/topics").await.ok();
    assert_eq!(listed["topics"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!((&listed["topics"][0]["events"], &listed["topics"][0]["firstSeq"]), (&json!(0), &json!(1)));

    hub.fill("t", 5).await;
    hub.fill("dlq.t", 2).await;
    let options = SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() };
    drop(hub.hub.bus.subscribe("t", Group::parse("g").ok(), options).await.expect("subscribed"));
    let bytes = hub.get("/topics?topic=t").await.ok()["topics"][0]["bytes"].clone();
    let expected = json!({ "topic": "t", "events": 5, "bytes": bytes, "groups": 1 });
    let mut dry = expected.clone();
    dry["dryRun"] = json!(true);
    assert_eq!(send(&hub, Method::DELETE, "/topics?topic=t&dryRun=1", "").await.ok(), dry);
    assert_eq!(hub.get("/topics?topic=t").await.ok()["topics"][0]["events"], 5);
    let mut gone = send(&hub, Method::DELETE, "/topics?topic=t&dlq=1", "").await.ok();
    let letters = gone.as_object_mut().and_then(|gone| gone.remove("dlq")).expect("dead letters");
    assert_eq!((gone, &letters["topic"], &letters["events"]), (expected, &json!("dlq.t"), &json!(2)));
    assert_eq!(hub.get("/topics").await.ok(), json!({ "topics": [] }));
    assert_eq!(hub.get("/groups").await.ok(), json!({ "groups": [] }));
    assert_eq!(hub.get("/settings?topic=t").await.ok().get("maxEvents"), None);
    let again = send(&hub, Method::DELETE, "/topics?topic=t", "").await;
    assert_eq!((again.status.as_u16(), again.json()["code"].clone()), (404, json!("unknown_topic")));
    hub.fill("t", 1).await;
    assert_eq!(hub.get("/topics?topic=t").await.ok()["topics"][0]["lastSeq"], 6);
}

#[tokio::test]
async fn a_purge_needs_exactly_one_of_three_and_says_how_much_went() {
    let hub = Setup::default().start(router).await;
    hub.fill("t", 6).await;
    for body in ["{}", r#"{"beforeSeq":1,"keys":["a"]}"#, r#"{"beforeSeq":1,"beforeTs":1}"#, r#"{"before":1}"#, ""] {
        let refused = send(&hub, Method::POST, "/purge?topic=t", body).await;
        assert_eq!(refused.status, 400, "{body}");
    }
    let dry = send(&hub, Method::POST, "/purge?topic=t&dryRun=1", r#"{"beforeSeq":4}"#).await.ok();
    assert_eq!((&dry["events"], &dry["dryRun"]), (&json!(3), &json!(true)));
    let done = send(&hub, Method::POST, "/purge?topic=t", r#"{"beforeSeq":4}"#).await.ok();
    assert_eq!((&done["topic"], &done["events"], done.get("dryRun")), (&json!("t"), &json!(3), None));
    let row = hub.get("/topics?topic=t").await.ok()["topics"][0].clone();
    assert_eq!((&row["events"], &row["firstSeq"], &row["lastSeq"]), (&json!(3), &json!(4), &json!(6)));
    let unknown = send(&hub, Method::POST, "/purge?topic=u", r#"{"beforeSeq":4}"#).await;
    assert_eq!((unknown.status.as_u16(), unknown.json()["code"].clone()), (404, json!("unknown_topic")));
}

#[tokio::test]
async fn without_auto_create_a_topic_has_to_be_created() {
    let edge = EdgeConfig { auto_create: false, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    let publish = async || send(&hub, Method::POST, "/publish/t", "1").await;
    let refused = publish().await;
    assert_eq!((refused.status.as_u16(), refused.json()["code"].clone()), (404, Value::from("unknown_topic")));
    send(&hub, Method::PUT, "/topics?topic=t", "").await.ok();
    assert_eq!(publish().await.ok()["seq"], 1);
}
