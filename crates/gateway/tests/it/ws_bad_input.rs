//! What a client must not send, one test each: the right answer, and everybody else notices nothing.

use std::time::Duration;

use crate::ws_support::{PATIENCE, Server, Setup, frame};
use promethean_gateway::EdgeConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The answer to a text that is refused; the connection goes on.
async fn refused(text: &str, code: &str) -> Value {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.send_text(text).await;
    let answer = client.answer().await;
    assert_eq!((&answer["op"], &answer["code"]), (&json!("ERR"), &json!(code)), "{answer}");
    client.ok(json!({"op": "PING"})).await;
    answer
}

fn message(answer: &Value) -> &str {
    answer["msg"].as_str().expect("text")
}

#[tokio::test]
async fn not_json() {
    refused("hello", "bad_json").await;
    refused("", "bad_json").await;
    refused(r#"{"op":"PING""#, "bad_json").await;
}

#[tokio::test]
async fn an_array() {
    refused(r#"[{"op":"PING"}]"#, "bad_json").await;
}

#[tokio::test]
async fn a_binary_frame() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.send(&frame(0x82, br#"{"op":"PING"}"#)).await;
    assert_eq!(raw.text().await["code"], "bad_json");
    raw.send(&frame(0x81, br#"{"op":"PING"}"#)).await;
    assert_eq!(raw.text().await["op"], "OK");
}

#[tokio::test]
async fn a_text_that_is_not_utf8_closes_with_1007() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.send(&[frame(0x81, br#"{"op":"PING"}"#), frame(0x81, b"{\"op\":\"\xff\"}")].concat()).await;
    assert_eq!(raw.text().await["op"], "OK", "what came before is answered");
    assert_eq!(raw.closed().await, 1007);
}

#[tokio::test]
async fn nesting_10_000_deep() {
    let nested = "[".repeat(10_000) + &"]".repeat(10_000);
    refused(&format!(r#"{{"op":"PUBLISH","topic":"a","payload":{nested}}}"#), "bad_json").await;
    let open = "[".repeat(1_000_000);
    refused(&format!(r#"{{"op":"PUBLISH","topic":"a","payload":{open}"#), "bad_json").await;
}

#[tokio::test]
async fn payloads_that_json_allows_come_back_byte_for_byte() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    for payload in ["1e400", r#""\ud800""#, r#"{"a":1,"a":2}"#, "[1 ,\t2]", "null", "-0.0", "12345678901234567890123"] {
        client.send_text(&format!(r#"{{"op":"PUBLISH","topic":"a","payload":{payload},"corr":"p"}}"#)).await;
        let texts = [client.text().await, client.text().await];
        let event = texts.iter().find(|text| text.contains("EVENT")).expect("delivered");
        assert!(event.contains(&format!(r#""payload":{payload}}}"#)), "{payload}: {event}");
    }
}

#[tokio::test]
async fn a_missing_field_is_named() {
    assert!(message(&refused(r#"{"op":"PUBLISH","payload":1}"#, "bad_request").await).starts_with("topic:"));
    assert!(message(&refused(r#"{"op":"PUBLISH","topic":"a"}"#, "bad_request").await).starts_with("payload:"));
    assert!(message(&refused(r#"{"op":"ACK","topic":"a","group":"g"}"#, "bad_request").await).starts_with("id:"));
    assert!(message(&refused(r#"{"topic":"a"}"#, "bad_request").await).starts_with("op:"));
}

#[tokio::test]
async fn a_field_of_the_wrong_type_is_named_and_corr_comes_back() {
    let answer =
        refused(r#"{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"ackTimeoutMs":"1"},"corr":[]}"#, "bad_request")
            .await;
    assert!(message(&answer).starts_with("corr:") && answer.get("corr").is_none(), "{answer}");
    let answer =
        refused(r#"{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"ackTimeoutMs":"1"},"corr":"é"}"#, "bad_request")
            .await;
    assert!(message(&answer).starts_with("opts.ackTimeoutMs:"), "{answer}");
    assert_eq!(answer["corr"], "é");
    let answer =
        refused(r#"{"op":"PUBLISH","topic":"a","payload":1,"opts":{"headers":{"a":1}},"corr":-1.5}"#, "bad_request")
            .await;
    assert_eq!((message(&answer).starts_with("opts.headers:"), &answer["corr"]), (true, &json!(-1.5)));
}

#[tokio::test]
async fn an_option_out_of_range_is_named() {
    for (option, value) in [("maxInFlight", 0), ("batchSize", 0), ("ackTimeoutMs", 99), ("maxAttempts", -1)] {
        let frame = json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": {option: value}}).to_string();
        assert!(message(&refused(&frame, "bad_request").await).starts_with(&format!("opts.{option}")));
    }
    let group = json!({"op": "SUBSCRIBE", "topic": "a", "group": "a b"}).to_string();
    assert!(message(&refused(&group, "bad_request").await).starts_with("group:"));
}

#[tokio::test]
async fn a_group_of_the_hubs_own_is_not_subscribed_to() {
    let group = json!({"op": "SUBSCRIBE", "topic": "dlq.a", "group": "promethean:redrive"}).to_string();
    assert!(message(&refused(&group, "bad_request").await).contains("belong to the hub"));
}

#[tokio::test]
async fn an_unknown_op_is_refused_and_corr_comes_back() {
    let answer = refused(r#"{"op":"SHOUT","corr":7}"#, "bad_request").await;
    assert_eq!((message(&answer).starts_with("op:"), &answer["corr"]), (true, &json!(7)));
}

#[tokio::test]
async fn topics_ids_and_sizes_that_are_refused_store_nothing() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let publish = |topic: &str, more: Value| json!({"op": "PUBLISH", "topic": topic, "payload": 1, "opts": more});
    for topic in ["../etc/passwd", "a/b", "a..b", "", "a*", "**", "é", &"x".repeat(256)] {
        client.err(publish(topic, json!({})), "bad_topic").await;
    }
    client.err(publish("a", json!({"id": "not-a-uuid"})), "bad_id").await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "a*", "group": "g"}), "bad_topic").await;
    let large = json!({"op": "PUBLISH", "topic": "a", "payload": "x".repeat(1024 * 1024)});
    client.err(large, "too_large").await;
    assert_eq!(client.publish("a", json!(1)).await["seq"], 1);
}

#[tokio::test]
async fn headers_of_the_hubs_own_are_refused_from_clients() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for name in ["promethean-dead-letter", "Promethean-Attempts"] {
        let frame = json!({"op": "PUBLISH", "topic": "a", "payload": 1, "opts": {"headers": {name: "1"}}});
        let answer = client.err(frame, "bad_request").await;
        assert!(message(&answer).starts_with("opts.headers"), "{answer}");
    }
}

#[tokio::test]
async fn a_frame_over_the_limit_closes_with_1009_by_its_header_alone() {
    let server = Server::configured(EdgeConfig { max_frame_bytes: 64 * 1024, ..EdgeConfig::default() }).await;
    let mut raw = server.raw().await;
    raw.send(&[&[0x81, 0xff][..], &(65_537_u64).to_be_bytes()].concat()).await;
    assert_eq!(raw.closed().await, 1009);
    let mut other = server.connect().await;
    other.ok(json!({"op": "PING"})).await;
}

#[tokio::test]
async fn who_goes_on_sending_a_frame_over_the_limit_still_sees_1009() {
    let server = Server::configured(EdgeConfig { max_frame_bytes: 64 * 1024, ..EdgeConfig::default() }).await;
    let mut client = server.connect().await;
    client.send(json!({"op": "PUBLISH", "topic": "a", "payload": "x".repeat(4 * 1024 * 1024)})).await;
    assert_eq!(client.closed().await, 1009);
}

#[tokio::test]
async fn a_fragment_bomb_closes_with_1009() {
    let server = Server::configured(EdgeConfig { max_frame_bytes: 64 * 1024, ..EdgeConfig::default() }).await;
    let mut raw = server.raw().await;
    raw.send(&frame(0x01, &[b' '; 1024])).await;
    for _ in 0..64 {
        raw.send(&frame(0x00, &[b' '; 1024])).await;
    }
    assert_eq!(raw.closed().await, 1009);
}

#[tokio::test]
async fn fragments_of_one_message_are_one_frame_and_a_ping_may_come_between() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.send(&[frame(0x01, br#"{"op":"#), frame(0x89, b"hi"), frame(0x80, br#""PING"}"#)].concat()).await;
    let frames = [raw.frame().await, raw.frame().await];
    assert!(frames.contains(&(0xa, b"hi".to_vec())), "{frames:?}");
    assert!(frames.contains(&(0x1, br#"{"op":"OK"}"#.to_vec())), "{frames:?}");
}

#[tokio::test]
async fn what_is_not_rfc_6455_closes_with_1002() {
    for bytes in
        [vec![0x81, 0x02, b'{', b'}'], frame(0xc1, b"{}"), frame(0x83, b"{}"), frame(0x80, b"{}"), frame(0x09, b"x")]
    {
        let server = Server::start().await;
        let mut raw = server.raw().await;
        raw.send(&bytes).await;
        assert_eq!(raw.closed().await, 1002, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_slow_handshake_is_cut_off_and_others_come_in_meanwhile() {
    let setup = Setup { header_deadline: Duration::from_millis(300), ..Setup::default() };
    let server = Server::with(setup).await;
    let mut slow = tokio::net::TcpStream::connect(server.addr).await.expect("connected");
    slow.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: webso").await.expect("sent");
    server.connect().await.ok(json!({"op": "PING"})).await;
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection was cut off");
}

#[tokio::test]
async fn a_page_of_another_site_gets_403() {
    let server = Server::start().await;
    for (origin, allowed) in [("https://evil.example", false), ("null", false), ("http://localhost:3000", true)] {
        let result = server.connect_with(&[("origin", origin)]).await;
        match result {
            Ok(_) => assert!(allowed, "{origin}"),
            Err(tokio_tungstenite::tungstenite::Error::Http(response)) => {
                assert_eq!((allowed, response.status().as_u16()), (false, 403), "{origin}");
                let body: Value = serde_json::from_slice(response.body().as_deref().unwrap_or_default()).expect("JSON");
                assert_eq!(body["code"], "forbidden");
            }
            Err(other) => panic!("{origin}: {other}"),
        }
    }
}

#[tokio::test]
async fn an_http_request_on_this_port_is_told_what_it_is() {
    let server = Server::start().await;
    let mut tcp = tokio::net::TcpStream::connect(server.addr).await.expect("connected");
    tcp.write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 426") && answer.contains("WebSocket"), "{answer}");
}

#[tokio::test]
async fn a_handshake_without_a_key_or_of_another_version_is_refused() {
    let server = Server::start().await;
    for (head, status) in [
        ("Sec-WebSocket-Version: 13\r\n", "400"),
        ("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n", "400"),
        ("Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "426"),
    ] {
        let mut tcp = tokio::net::TcpStream::connect(server.addr).await.expect("connected");
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{head}\r\n");
        tcp.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = [0; 12];
        tcp.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(std::str::from_utf8(&answer).expect("text"), format!("HTTP/1.1 {status}"));
    }
}

#[tokio::test]
async fn the_subprotocol_is_echoed_where_it_is_offered() {
    let server = Server::start().await;
    let (_, response) = server.connect_with(&[("sec-websocket-protocol", "promethean.v1")]).await.expect("connected");
    assert_eq!(response.headers()["sec-websocket-protocol"], "promethean.v1");
    let (_, response) = server.connect_with(&[]).await.expect("connected");
    assert!(!response.headers().contains_key("sec-websocket-protocol"));
}

#[tokio::test]
async fn ten_thousand_subscriptions_end_at_the_bound_and_the_connection_works_on() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for n in 0..10_000 {
        client.feed(json!({"op": "SUBSCRIBE", "topic": format!("t{n}"), "group": "g", "corr": n})).await;
        if n % 500 == 499 {
            client.flush().await;
            for expected in n - 499..=n {
                let answer = client.recv().await;
                assert_eq!((&answer["corr"], answer["op"] == "OK"), (&json!(expected), expected < 1_000), "{answer}");
            }
        }
    }
    client.publish("t999", json!(1)).await;
    assert_eq!(client.event().await["topic"], "t999");
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "t0", "group": "g"})).await;
    client.subscribe("t5000", "g").await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_closed_with_4429_and_its_events_go_to_others() {
    let config = EdgeConfig {
        max_outbound_bytes: 64 * 1024,
        stall_deadline: Duration::from_millis(500),
        ..EdgeConfig::default()
    };
    let server = Server::configured(config).await;
    let (mut stuck, mut other) = (server.raw().await, server.connect().await);
    let opts = json!({"maxInFlight": 1000, "ackTimeoutMs": 600_000});
    let subscribe = json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts});
    stuck.send(&frame(0x81, subscribe.to_string().as_bytes())).await;
    assert_eq!(stuck.text().await["op"], "OK");
    // Far more than the sockets' buffers hold.
    let payload = "x".repeat(100_000);
    let mut publisher = server.connect().await;
    for _ in 0..400 {
        publisher.send(json!({"op": "PUBLISH", "topic": "a", "payload": payload})).await;
        assert_eq!(publisher.recv().await["op"], "OK", "the publisher notices nothing");
    }
    other.ok(json!({"op": "AUTH", "quiet": true})).await;
    other.send(subscribe).await;
    let mut seen = std::collections::HashSet::new();
    while seen.len() < 400 {
        let event = other.event().await;
        seen.insert(event["event"]["seq"].as_u64().expect("a number"));
        other.send(json!({"op": "ACK", "topic": "a", "group": "g", "id": event["event"]["id"]})).await;
    }
    assert_eq!(stuck.closed().await, 4429);
}

#[tokio::test]
async fn a_misspelt_field_is_named_in_the_answer_of_every_kind() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let published = client.ok(json!({"op": "PUBLISH", "topic": "a", "payload": 1, "key": "x"})).await;
    assert_eq!(published["warnings"], json!(["key: not a field of PUBLISH; did you mean opts.key?"]));
    assert_eq!(published["seq"], 1, "it is stored all the same");
    let options = json!({"from": "earliest", "maxInflight": 1, "filter": {"tag": []}});
    let subscribed = client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": options})).await;
    let expected = [
        "opts.filter.tag: not a field of SUBSCRIBE; did you mean opts.filter.tags?",
        "opts.maxInflight: not a field of SUBSCRIBE; did you mean opts.maxInFlight?",
    ];
    assert_eq!(subscribed["warnings"], json!(expected));
    let id = client.event().await["event"]["id"].clone();
    let nacked = json!({"op": "NACK", "topic": "a", "group": "g", "id": id, "delay": 7, "delayMs": 60_000});
    let nacked = client.ok(nacked).await;
    assert_eq!(nacked["warnings"], json!(["delay: not a field of NACK; did you mean delay_ms?"]));
    let answer = client.ok(json!({"op": "PING", "corr": 7})).await;
    assert_eq!((&answer["corr"], answer.get("warnings")), (&json!(7), None));
}

#[tokio::test]
async fn a_strict_connection_refuses_misspelt_fields_and_does_nothing() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.send_text(r#"{"op":"AUTH","token":"x","strict":true,"quite":true,"corr":1}"#).await;
    let refused = client.answer().await;
    assert_eq!(
        (&refused["code"], message(&refused)),
        (&json!("bad_request"), "quite: not a field of AUTH; did you mean quiet?")
    );
    client.ok(json!({"op": "AUTH", "token": "x", "strict": true})).await;
    client.send_text(r#"{"op":"PUBLISH","topic":"a","payload":1,"key":"x","corr":"c"}"#).await;
    let refused = client.answer().await;
    assert_eq!((&refused["code"], &refused["corr"]), (&json!("bad_request"), &json!("c")));
    assert_eq!(message(&refused), "key: not a field of PUBLISH; did you mean opts.key?");
    let published = client.ok(json!({"op": "PUBLISH", "topic": "a", "payload": 1, "opts": {"key": "x"}})).await;
    assert_eq!(published["seq"], 1, "the refused frame stored nothing");
}
