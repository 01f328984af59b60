//! CloudEvents 1.0 over a real port: binary, structured, batch.

use crate::harness::{Served, Setup};
use http::Method;
use serde_json::{Value, json};

const ID: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";

async fn hub() -> Served {
    Setup::default().start(promethean_gateway::http::router).await
}

async fn post(hub: &Served, content_type: &str, body: &str) -> crate::harness::Answer {
    hub.send(Method::POST, "/publish/a", &[("content-type", content_type)], body.to_owned()).await
}

async fn last(hub: &Served) -> Value {
    serde_json::from_str(&hub.stored("a").await.pop().expect("stored").to_json()).expect("JSON")
}

#[tokio::test]
async fn a_structured_event_is_mapped_and_its_data_kept_byte_for_byte() {
    let hub = hub().await;
    let body = format!(
        r#"{{"specversion":"1.0","id":"{ID}","source":"/s","type":"t","subject":"sub","time":"2018-04-05T17:31:00Z",
            "partitionkey":"k","comexampleother":5,"flag":true,"nothing":null,"dataschema":"http://s",
            "datacontenttype":"application/json","data":{{"b": 1.50,"a" :[1e400]}}}}"#
    );
    assert_eq!(
        post(&hub, "application/cloudevents+json; charset=utf-8", &body).await.ok(),
        json!({ "id": ID, "seq": 1 })
    );
    assert_eq!(hub.stored("a").await[0].payload(), r#"{"b": 1.50,"a" :[1e400]}"#);
    let event = hub.stored("a").await[0].to_json().replace("1e400", "0");
    let event: Value = serde_json::from_str(&event).expect("JSON");
    assert_eq!((&event["id"], &event["ts"], &event["key"]), (&json!(ID), &json!(1_522_949_460_000_u64), &json!("k")));
    let expected = json!({
        "content-type": "application/json", "ce-specversion": "1.0", "ce-source": "/s", "ce-type": "t",
        "ce-subject": "sub", "ce-comexampleother": "5", "ce-flag": "true", "ce-dataschema": "http://s",
    });
    assert_eq!(event["headers"], expected);
}

#[tokio::test]
async fn a_binary_event_has_its_attributes_in_headers() {
    let hub = hub().await;
    let headers = [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", ID),
        ("ce-source", "/s%C3%A9"),
        ("ce-type", "t"),
        ("ce-time", "1970-01-01T00:00:00.005Z"),
        ("ce-partitionkey", "k"),
        ("ce-ext", "e"),
        ("x-kept", "1"),
        ("authorization", "Bearer canary"),
    ];
    hub.send(Method::POST, "/publish/a", &headers, r#"{"a": 1}"#).await.ok();
    let event = last(&hub).await;
    assert_eq!((&event["id"], &event["ts"], &event["key"]), (&json!(ID), &json!(5), &json!("k")));
    let expected = json!({
        "content-type": "application/json", "ce-specversion": "1.0", "ce-source": "/sé", "ce-type": "t", "ce-ext": "e",
        "x-kept": "1",
    });
    assert_eq!(event["headers"], expected);
    assert_eq!(hub.stored("a").await[0].payload(), r#"{"a": 1}"#);
}

#[tokio::test]
async fn data_that_is_no_json_becomes_a_string() {
    let hub = hub().await;
    let binary = async |content_type: &str, id: &str, body: &'static [u8]| {
        let headers = [
            ("content-type", content_type),
            ("ce-specversion", "1.0"),
            ("ce-id", id),
            ("ce-source", "/s"),
            ("ce-type", "t"),
        ];
        hub.send(Method::POST, "/publish/a", &headers, body).await.ok();
        last(&hub).await
    };
    assert_eq!(binary("text/plain", "1", b"hello \"you\"").await["payload"], "hello \"you\"");
    assert_eq!(binary("application/json", "2", b"").await["payload"], Value::Null);
    assert_eq!(binary("application/vnd.x+json", "3", b"[1]").await["payload"], json!([1]));
    let bytes = binary("application/octet-stream", "4", b"\xff\x00").await;
    assert_eq!((&bytes["payload"], &bytes["headers"]["ce-datacontentencoding"]), (&json!("/wA="), &json!("base64")));

    let base64 = r#"{"specversion":"1.0","id":"5","source":"/s","type":"t","data_base64":"/wA="}"#;
    post(&hub, "application/cloudevents+json", base64).await.ok();
    let event = last(&hub).await;
    assert_eq!((&event["payload"], &event["headers"]["ce-datacontentencoding"]), (&json!("/wA="), &json!("base64")));
}

#[tokio::test]
async fn an_id_that_is_no_uuid_is_kept_and_sending_it_again_is_once() {
    let hub = hub().await;
    let event =
        |source: &str| format!(r#"{{"specversion":"1.0","id":"A234-1234-1234","source":"{source}","type":"t"}}"#);
    let first = post(&hub, "application/cloudevents+json", &event("/s")).await.ok();
    let again = post(&hub, "application/cloudevents+json", &event("/s")).await.ok();
    assert_eq!(again, json!({ "id": first["id"], "seq": 1, "duplicate": true }));
    let other = post(&hub, "application/cloudevents+json", &event("/other")).await.ok();
    assert_ne!(other["id"], first["id"], "ids are unique within a source only");
    assert_eq!(last(&hub).await["headers"]["ce-id"], "A234-1234-1234");
    assert_eq!(hub.stored("a").await.len(), 2);
}

#[tokio::test]
async fn a_batch_is_all_or_none() {
    let hub = hub().await;
    let one = |id: &str| format!(r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"t","data":"{id}"}}"#);
    let batch = format!("[{},{}]", one("1"), one("2"));
    let answer = post(&hub, "application/cloudevents-batch+json", &batch).await.ok();
    let ids: Vec<String> = hub.stored("a").await.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(answer, json!({ "ids": ids, "count": 2 }));

    let broken = format!(r#"[{},{{"specversion":"1.0","id":"4","source":"/s"}}]"#, one("3"));
    let message = post(&hub, "application/cloudevents-batch+json", &broken).await.refused(400, "bad_request");
    assert!(message.contains("[1]") && message.contains("type"), "{message}");
    post(&hub, "application/cloudevents-batch+json", "[]").await.refused(400, "bad_request");
    post(&hub, "application/cloudevents-batch+json", &one("5")).await.refused(400, "bad_request");
    assert_eq!(hub.stored("a").await.len(), 2);
}

#[tokio::test]
async fn what_is_no_cloud_event_is_refused_and_the_attribute_named() {
    let hub = hub().await;
    for (body, named) in [
        (r#"{"id":"1","source":"/s","type":"t"}"#, "specversion"),
        (r#"{"specversion":"0.3","id":"1","source":"/s","type":"t"}"#, "specversion"),
        (r#"{"specversion":"1.0","source":"/s","type":"t"}"#, "id"),
        (r#"{"specversion":"1.0","id":"","source":"/s","type":"t"}"#, "id"),
        (r#"{"specversion":"1.0","id":"1","type":"t"}"#, "source"),
        (r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"noon"}"#, "time"),
        (r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","ext":{}}"#, "ext"),
        (r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","Ext":"1"}"#, "Ext"),
        (r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1,"data_base64":""}"#, "data_base64"),
        (r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":1}"#, "data_base64"),
        ("[]", "object"),
    ] {
        let message = post(&hub, "application/cloudevents+json", body).await.refused(400, "bad_request");
        assert!(message.contains(named), "{message}");
    }
    post(&hub, "application/cloudevents+json", "{").await.refused(400, "bad_json");
    assert!(hub.stored("a").await.is_empty());
}

#[tokio::test]
async fn what_the_request_says_comes_before_the_attributes() {
    let hub = hub().await;
    let body = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","partitionkey":"inner","time":"2018-04-05T17:31:00Z"}"#;
    let path = format!("/publish/a?key=outer&ts=7&tag=x&id={ID}");
    hub.send(Method::POST, &path, &[("content-type", "application/cloudevents+json")], body).await.ok();
    let event = last(&hub).await;
    assert_eq!((&event["id"], &event["key"], &event["ts"]), (&json!(ID), &json!("outer"), &json!(7)));
    assert_eq!(event["tags"], json!(["x"]));
}
