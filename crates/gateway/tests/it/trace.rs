//! Traces: the header is kept on the way through the hub, and the hub's spans reach a collector.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ws_support::{PATIENCE, Server};
use promethean_bus::{Bus, BusOptions};
use promethean_gateway::auth::{AuthConfig, Authenticator};
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::trace::Tracer;
use promethean_gateway::{EdgeConfig, Hub, http, ws};
use promethean_store::memory::Memory;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// A hub for WebSockets and HTTP on one port.
async fn serve(tracer: Option<Tracer>) -> Server {
    let bus = Bus::new(Arc::new(Memory::new()), BusOptions::default());
    let auth = Authenticator::new(&AuthConfig::default()).expect("a configuration");
    let mut hub = Hub::new(bus, auth, Quotas::default(), EdgeConfig::default());
    hub.tracer = tracer;
    let hub = Arc::new(hub);
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let addr = listener.local_addr();
    let router = ws::in_front_of(http::router(Arc::clone(&hub)), Arc::clone(&hub));
    tokio::spawn(listener.serve(router, Intake::new(100, None), hub.drain.watch()));
    Server { hub, addr }
}

/// Takes requests as a collector does, answers them with `status`, and hands on their bodies.
async fn collector(status: &'static str) -> (String, mpsc::UnboundedReceiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (bodies, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (head, body) = request(&mut stream).await;
            assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
            assert!(head.contains("content-type: application/json"), "{head}");
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
            stream.write_all(answer.as_bytes()).await.expect("answered");
            let _ = bodies.send(serde_json::from_slice(&body).expect("JSON"));
        }
    });
    (url, received)
}

async fn request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).await.expect("read");
        bytes.extend_from_slice(&part[..read]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end])
            .to_lowercase()
            .replace("post /v1/traces http/1.1", "POST /v1/traces HTTP/1.1");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if bytes.len() >= end + 4 + length.expect("a length") {
            return (head, bytes.split_off(end + 4));
        }
    }
}

/// The attributes of a span, as text.
fn attributes(span: &Value) -> BTreeMap<String, String> {
    let text =
        |value: &Value| value["stringValue"].as_str().or(value["intValue"].as_str()).unwrap_or_default().to_owned();
    let all = span["attributes"].as_array().expect("attributes").iter();
    all.map(|one| (one["key"].as_str().unwrap_or_default().to_owned(), text(&one["value"]))).collect()
}

/// The spans that come, until there are `count`.
async fn spans(received: &mut mpsc::UnboundedReceiver<Value>, count: usize) -> Vec<Value> {
    let mut spans = Vec::new();
    while spans.len() < count {
        let body = tokio::time::timeout(PATIENCE, received.recv()).await.expect("in time").expect("a request");
        spans.extend(body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").iter().cloned());
    }
    spans
}

async fn publish_over_http(server: &Server, traceparent: &str) -> Value {
    let mut stream = TcpStream::connect(server.addr).await.expect("connected");
    let request = format!(
        "POST /publish/orders HTTP/1.1\r\nhost: h\r\ntraceparent: {traceparent}\r\ntracestate: a=b\r\n\
         content-length: 1\r\nconnection: close\r\n\r\n1"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("read");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.rsplit("\r\n").next().unwrap_or_default()).expect("JSON")
}

#[tokio::test]
async fn a_traceparent_is_carried_into_deliveries_over_http_and_websocket() {
    let server = serve(None).await;
    let mut client = server.connect().await;
    client.ask(json!({"op": "SUBSCRIBE", "topic": "orders", "group": "g", "opts": {"from": "earliest"}})).await;
    publish_over_http(&server, &traceparent("01")).await;
    let event = client.event().await;
    assert_eq!(event["event"]["headers"]["traceparent"], json!(traceparent("01")));
    assert_eq!(event["event"]["headers"]["tracestate"], json!("a=b"));
    let opts = json!({"headers": {"traceparent": traceparent("00")}});
    client.ask(json!({"op": "PUBLISH", "topic": "orders", "payload": 2, "opts": opts})).await;
    let event = client.event().await;
    assert_eq!(event["event"]["headers"]["traceparent"], json!(traceparent("00")));
}

#[tokio::test]
async fn publish_deliver_ack_and_nack_are_spans_of_the_events_trace() {
    let (url, mut received) = collector("200 OK").await;
    let server = serve(Some(Tracer::start(&url).expect("an address"))).await;
    let mut client = server.connect().await;
    client.ask(json!({"op": "SUBSCRIBE", "topic": "orders", "group": "g", "opts": {"from": "earliest"}})).await;
    let stored = publish_over_http(&server, &traceparent("01")).await;
    let of = |event: &Value| event["event"]["id"].clone();
    let nacked = client.event().await;
    client.ask(json!({"op": "NACK", "topic": "orders", "group": "g", "id": of(&nacked)})).await;
    let again = client.event().await;
    client.ask(json!({"op": "ACK", "topic": "orders", "group": "g", "id": of(&again)})).await;
    // Without a trace, or without the wish to have it recorded, there are no spans.
    let unsampled = json!({"headers": {"traceparent": traceparent("00")}});
    client.ask(json!({"op": "PUBLISH", "topic": "orders", "payload": 2, "opts": unsampled})).await;
    client.ask(json!({"op": "PUBLISH", "topic": "orders", "payload": 3})).await;
    let opts = json!({"headers": {"traceparent": traceparent("01")}});
    client.ask(json!({"op": "PUBLISH", "topic": "last", "payload": 4, "opts": opts})).await;

    let spans = spans(&mut received, 6).await;
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(
        names,
        ["publish orders", "deliver orders", "nack orders", "deliver orders", "ack orders", "publish last"]
    );
    for span in &spans {
        assert_eq!(span["traceId"], json!(TRACE));
        let time = |name: &str| span[name].as_str().and_then(|nanos| nanos.parse::<u128>().ok()).expect("nanoseconds");
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
        assert_eq!(span["status"], json!({}), "{span}");
    }
    let parents: Vec<&Value> = spans.iter().map(|span| &span["parentSpanId"]).collect();
    let root = json!(PARENT);
    assert_eq!(parents, [&root, &root, &spans[1]["spanId"], &root, &spans[3]["spanId"], &root]);
    assert_eq!(
        [4, 5, 5, 5, 5, 4].map(Value::from).to_vec(),
        spans.iter().map(|s| s["kind"].clone()).collect::<Vec<_>>()
    );
    let acked = attributes(&spans[4]);
    let id = stored["id"].as_str().unwrap_or_default();
    for (name, value) in [
        ("messaging.system", "promethean"),
        ("messaging.destination.name", "orders"),
        ("messaging.consumer.group.name", "g"),
        ("messaging.message.id", id),
        ("messaging.operation.type", "settle"),
        ("promethean.seq", "1"),
        ("promethean.attempt", "2"),
    ] {
        assert_eq!(acked.get(name).map(String::as_str), Some(value), "{name} of {acked:?}");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_or_refuses_costs_spans_and_no_events() {
    let (url, mut received) = collector("503 Service Unavailable").await;
    let tracer = Tracer::start(&url).expect("an address");
    let server = serve(Some(tracer.clone())).await;
    publish_over_http(&server, &traceparent("01")).await;
    spans(&mut received, 1).await;
    let counted = async {
        while tracer.dropped() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.expect("counted as lost");
    let nobody = Tracer::start("http://127.0.0.1:1").expect("an address");
    let server = serve(Some(nobody)).await;
    assert_eq!(publish_over_http(&server, &traceparent("01")).await["seq"], json!(1));
}

#[tokio::test]
async fn an_endpoint_that_is_no_address_is_refused_with_the_reason() {
    for (bad, why) in [("", "URL"), ("collector:4318", "http"), ("ftp://collector", "https://")] {
        let refused = Tracer::start(bad).expect_err(bad);
        assert!(refused.contains(why), "{bad:?}: {refused}");
    }
}
