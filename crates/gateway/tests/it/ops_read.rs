//! What the ops port shows, over a real port.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Served, Setup, patient};
use futures_util::{SinkExt, StreamExt};
use http::Method;
use promethean_bus::{Draft, From, Group, PublishOptions, SubscribeOptions, Subscription, Topic};
use promethean_gateway::ops::{self, Addresses};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn open_hub() -> Served {
    Setup::default().start(ops::router).await
}

fn topic(name: &str) -> Topic {
    Topic::parse(name).expect("a topic")
}

fn group(name: &str) -> Group {
    Group::parse(name).expect("a group")
}

async fn publish(hub: &Served, name: &str, payload: &str, options: PublishOptions<'_>) -> String {
    let payload = std::borrow::Cow::Owned(RawValue::from_string(payload.to_owned()).expect("JSON"));
    hub.hub.bus.publish(&Draft { topic: topic(name), payload, options }).await.expect("published").id.to_string()
}

async fn keyed(hub: &Served, name: &str, key: &str, payload: &str) -> String {
    publish(hub, name, payload, PublishOptions { key: Some(key.into()), ..PublishOptions::default() }).await
}

async fn subscribe(hub: &Served, name: &str, of: &str, options: SubscribeOptions) -> Subscription {
    hub.hub.bus.subscribe(name, Some(group(of)), options).await.expect("subscribed")
}

fn earliest() -> SubscribeOptions {
    SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() }
}

/// A WebSocket over the ops port, which has taken a first frame.
async fn socket(hub: &Served, frame: Value) -> Socket {
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/ws", hub.addr)).await.expect("a WebSocket");
    socket.send(Message::text(frame.to_string())).await.expect("sent");
    let answer = frame_of(&mut socket).await;
    assert_eq!(answer["op"], "OK", "{answer}");
    socket
}

async fn frame_of(socket: &mut Socket) -> Value {
    loop {
        match patient("a frame", socket.next()).await.expect("open").expect("a frame") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            _ => continue,
        }
    }
}

/// Asks until `done` says so.
async fn until(hub: &Served, path: &str, done: impl Fn(&Value) -> bool) -> Value {
    patient(path, async {
        loop {
            let shown = hub.get(path).await.ok();
            if done(&shown) {
                return shown;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

#[tokio::test]
async fn topics_are_listed_with_counts_and_places() {
    let hub = open_hub().await;
    assert_eq!(hub.get("/topics").await.ok(), json!({ "topics": [] }));
    let ids = hub.fill("b", 3).await;
    hub.fill("a", 1).await;
    hub.hub.bus.set_cursor(&topic("b"), &group("g"), From::Earliest).await.expect("made");
    let shown = hub.get("/topics").await.ok();
    let rows = shown["topics"].as_array().expect("a list");
    assert_eq!(rows.iter().map(|row| row["topic"].as_str().expect("a name")).collect::<Vec<_>>(), ["a", "b"]);
    let row = &rows[1];
    let stored = hub.stored("b").await;
    let expected = json!({
        "topic": "b", "events": 3, "bytes": row["bytes"], "firstSeq": 1, "lastSeq": 3, "lastId": ids[2],
        "lastTs": stored[2].ts.0, "publishRate": 0.0, "groups": 1,
    });
    assert_eq!(row, &expected);
    assert!(row["bytes"].as_u64().expect("a number") > 100, "{row}");
}

#[tokio::test]
async fn groups_say_how_they_stand() {
    let hub = open_hub().await;
    let ids = hub.fill("t", 4).await;
    let mut events = subscribe(&hub, "t", "g", SubscribeOptions { max_in_flight: 3, ..earliest() }).await;
    for _ in 0..3 {
        events.next().await.expect("delivered");
    }
    events.membership().answer(vec![(ids[0].parse_id(), None)], promethean_bus::Answer::Ack).await.expect("acked");
    events.next().await.expect("the fourth");
    hub.hub.bus.set_cursor(&topic("t"), &group("idle"), From::Earliest).await.expect("made");
    let shown = hub.get("/groups?topic=t").await.ok();
    let (live, idle) = (&shown["groups"][0], &shown["groups"][1]);
    let expected = json!({
        "topic": "t", "group": "g", "members": 1, "inflight": 3, "lag": 3, "lagMs": live["lagMs"], "seq": 1,
        "lastId": ids[0], "redelivered": 0, "deadLettered": 0, "paused": false,
    });
    assert_eq!(live, &expected);
    assert_eq!(
        (&idle["group"], &idle["members"], &idle["lag"], &idle["seq"]),
        (&json!("idle"), &json!(0), &json!(4), &json!(0))
    );
    assert!(idle.get("lastId").is_none(), "{idle}");
    events.pause(true);
    until(&hub, "/groups", |shown| shown["groups"][0]["paused"] == true).await;
    assert_eq!(hub.get("/groups?topic=unknown").await.ok(), json!({ "groups": [] }));
}

trait ParseId {
    fn parse_id(&self) -> promethean_event::EventId;
}

impl ParseId for String {
    fn parse_id(&self) -> promethean_event::EventId {
        promethean_event::EventId::parse(self).expect("an id")
    }
}

#[tokio::test]
async fn cursors_and_lag_are_as_in_the_seed() {
    let hub = open_hub().await;
    let empty = json!({ "topic": "t", "group": "g", "lastCursor": null, "tail": null, "lagMs": null, "lag": null });
    assert_eq!(hub.get("/lag?topic=t&group=g").await.ok(), empty);
    assert_eq!(hub.get("/cursors?topic=t").await.ok(), json!({ "topic": "t", "cursors": [] }));

    let ids = hub.fill("t", 3).await;
    let stored = hub.stored("t").await;
    let mut events = subscribe(&hub, "t", "g", earliest()).await;
    events.next().await.expect("delivered").ack().await.expect("acked");
    let cursor = json!({ "group": "g", "lastId": ids[0], "lastTs": stored[0].ts.0, "seq": 1 });
    assert_eq!(hub.get("/cursors?topic=t").await.ok(), json!({ "topic": "t", "cursors": [cursor] }));
    tokio::time::sleep(Duration::from_millis(30)).await;
    let lag = hub.get("/lag?topic=t&group=g").await.ok();
    let cursor = json!({ "topic": "t", "lastId": ids[0], "lastTs": stored[0].ts.0, "seq": 1 });
    assert_eq!(
        lag,
        json!({ "topic": "t", "group": "g", "lastCursor": cursor, "tail": ids[2], "lagMs": lag["lagMs"], "lag": 2 })
    );
    assert!(lag["lagMs"].as_u64().expect("a number") >= 30, "{lag}");
    for _ in 0..2 {
        events.next().await.expect("delivered").ack().await.expect("acked");
    }
    let done = hub.get("/lag?topic=t&group=g").await.ok();
    assert_eq!((&done["lag"], &done["lagMs"]), (&json!(0), &json!(0)));
    drop(events);
    hub.fill("t", 2).await;
    assert_eq!(hub.get("/lag?topic=t&group=g").await.ok()["lag"], 2);
}

#[tokio::test]
async fn connections_show_who_is_there_and_what_it_holds() {
    let hub = open_hub().await;
    assert_eq!(hub.get("/connections").await.ok(), json!({ "connections": [] }));
    hub.fill("t", 3).await;
    let subscribe =
        json!({ "op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": { "from": "earliest", "maxInFlight": 2 } });
    let mut socket = socket(&hub, subscribe).await;
    for _ in 0..2 {
        assert_eq!(frame_of(&mut socket).await["op"], "EVENT");
    }
    let shown = until(&hub, "/connections", |shown| shown["connections"][0]["subscriptions"][0]["inflight"] == 2).await;
    let row = &shown["connections"][0];
    let expected = json!({ "topic": "t", "group": "g", "inflight": 2, "maxInFlight": 2, "paused": false });
    assert_eq!(row["subscriptions"], json!([expected]));
    assert!(row["id"].as_str().expect("an id").starts_with('c') && row.get("sub").is_none(), "{row}");
    assert!(row["peer"].as_str().expect("an address").starts_with("127.0.0.1:"), "{row}");
    assert!(row["since"].as_u64().is_some() && row["bufferedBytes"].as_u64().is_some(), "{row}");
    socket.send(Message::text(json!({ "op": "PAUSE", "topic": "t", "group": "g" }).to_string())).await.expect("sent");
    until(&hub, "/connections", |shown| shown["connections"][0]["subscriptions"][0]["paused"] == true).await;
    drop(socket);
    until(&hub, "/connections", |shown| shown["connections"].as_array().is_some_and(Vec::is_empty)).await;
}

#[tokio::test]
async fn the_inflight_view_names_holders_leases_and_waits() {
    let hub = open_hub().await;
    let none = hub.get("/inflight?topic=t&group=g").await.ok();
    assert_eq!((&none["total"], &none["inflight"], &none["waiting"]), (&json!(0), &json!([]), &json!([])));
    let id = keyed(&hub, "t", "k", "1").await;
    let nacked = keyed(&hub, "t", "n", "2").await;
    let opts = json!({ "from": "earliest", "ackTimeoutMs": 60_000 });
    let mut socket = socket(&hub, json!({ "op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": opts })).await;
    let first = frame_of(&mut socket).await;
    frame_of(&mut socket).await;
    let nack =
        json!({ "op": "NACK", "topic": "t", "group": "g", "id": nacked, "delay_ms": 3_600_000, "reason": "not now" });
    socket.send(Message::text(nack.to_string())).await.expect("sent");
    assert_eq!(frame_of(&mut socket).await["op"], "OK");
    let shown = hub.get("/inflight?topic=t&group=g").await.ok();
    assert_eq!((&shown["total"], &shown["waitingTotal"], &shown["maxAttempts"]), (&json!(1), &json!(1), &json!(5)));
    let held = &shown["inflight"][0];
    let expected = json!({
        "id": id, "seq": 1, "key": "k", "connection": hub.get("/connections").await.ok()["connections"][0]["id"],
        "attempt": 1, "lease": first["ctx"]["lease"], "since": held["since"], "deadline": held["deadline"],
    });
    assert_eq!(held, &expected);
    let (since, deadline) = (held["since"].as_u64().expect("a time"), held["deadline"].as_u64().expect("a time"));
    assert_eq!(deadline - since, 60_000);
    let waiting = &shown["waiting"][0];
    assert_eq!((&waiting["id"], &waiting["key"], &waiting["attempt"]), (&json!(nacked), &json!("n"), &json!(1)));
    assert_eq!(waiting["reason"], "not now");
    assert!(waiting["until"].as_u64().expect("a time") > since + 3_000_000, "{waiting}");
    assert_eq!(hub.get("/inflight?topic=t&group=g&limit=1").await.ok()["inflight"].as_array().map(Vec::len), Some(1));
}

async fn reason(hub: &Served) -> (Value, String) {
    let shown = hub.get("/explain?topic=t&group=g").await.ok();
    let code = shown["reasons"][0]["code"].as_str().expect("a code").to_owned();
    assert!(shown["reasons"][0]["text"].as_str().is_some_and(|text| text.ends_with('.')), "{shown}");
    (shown, code)
}

#[tokio::test]
async fn explain_says_why_a_group_does_not_move() {
    let hub = open_hub().await;
    let (shown, code) = reason(&hub).await;
    assert_eq!((code.as_str(), &shown["moving"]), ("unknown_group", &json!(false)));
    hub.hub.bus.set_cursor(&topic("t"), &group("g"), From::Earliest).await.expect("made");
    let (shown, code) = reason(&hub).await;
    assert_eq!((code.as_str(), &shown["moving"]), ("caught_up", &json!(true)));
    let id = keyed(&hub, "t", "k", "1").await;
    keyed(&hub, "t", "k", "2").await;
    let (shown, code) = reason(&hub).await;
    assert_eq!((code.as_str(), &shown["moving"], &shown["lag"]), ("no_members", &json!(false), &json!(2)));

    let opts = json!({ "maxInFlight": 1, "ackTimeoutMs": 60_000 });
    let mut socket = socket(&hub, json!({ "op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": opts })).await;
    frame_of(&mut socket).await;
    let (shown, code) = reason(&hub).await;
    assert_eq!((code.as_str(), &shown["inflight"]), ("all_in_flight", &json!(1)));
    let first = &shown["reasons"][0];
    assert_eq!((first["id"].as_str(), first["connection"].as_str().map(|id| &id[..1])), (Some(id.as_str()), Some("c")));
    socket.send(Message::text(json!({ "op": "PAUSE", "topic": "t", "group": "g" }).to_string())).await.expect("sent");
    frame_of(&mut socket).await;
    assert_eq!(reason(&hub).await.1, "paused");
}

#[tokio::test]
async fn explain_knows_blocked_keys_waits_filters_and_groups_that_move() {
    let hub = open_hub().await;
    let id = keyed(&hub, "t", "k", "1").await;
    keyed(&hub, "t", "k", "2").await;
    let options = SubscribeOptions { ordered: promethean_bus::Ordered::Key, ..earliest() };
    let mut events = subscribe(&hub, "t", "g", options).await;
    let first = events.next().await.expect("delivered");
    let (shown, code) = reason(&hub).await;
    let blocked = &shown["reasons"][0];
    assert_eq!(
        (code.as_str(), blocked["id"].as_str(), &blocked["key"]),
        ("blocked_key", Some(id.as_str()), &json!("k"))
    );
    first.nack_after("later", Duration::from_secs(3_600)).await.expect("nacked");
    let (shown, _) = reason(&hub).await;
    let codes: Vec<_> =
        shown["reasons"].as_array().expect("a list").iter().map(|one| one["code"].as_str().expect("a code")).collect();
    assert_eq!(codes, ["blocked_key", "backoff"]);
    assert!(shown["reasons"][1]["until"].as_u64().is_some(), "{shown}");

    let hub = open_hub().await;
    keyed(&hub, "t", "other", "1").await;
    keyed(&hub, "t", "k", "2").await;
    let filter = promethean_bus::Filter { keys: vec!["k".to_owned()], ..Default::default() };
    let mut events = subscribe(&hub, "t", "g", SubscribeOptions { filter, ..earliest() }).await;
    let given = events.next().await.expect("delivered");
    let (shown, code) = reason(&hub).await;
    assert_eq!(
        (code.as_str(), &shown["moving"], &shown["reasons"][1]["code"]),
        ("moving", &json!(true), &json!("filtered"))
    );
    given.ack().await.expect("acked");
    assert_eq!(reason(&hub).await.1, "caught_up");
    hub.hub.bus.store().close().await.expect("closed");
    assert_eq!(reason(&hub).await.1, "store_error");
}

#[tokio::test]
async fn samples_are_taken_every_second_in_columns_of_one_length() {
    let hub = open_hub().await;
    let empty = hub.get("/samples").await.ok();
    assert_eq!((&empty["interval"], &empty["t"]), (&json!(1_000), &json!([])));
    let sampling = tokio::spawn(ops::sample(Arc::clone(&hub.hub)));
    until(&hub, "/samples", |shown| shown["t"].as_array().is_some_and(|t| !t.is_empty())).await;
    hub.fill("t", 7).await;
    let mut events = subscribe(&hub, "t", "g", earliest()).await;
    for _ in 0..3 {
        events.next().await.expect("delivered").ack().await.expect("acked");
    }
    let sum = |column: &Value| column.as_array().expect("a column").iter().filter_map(Value::as_u64).sum::<u64>();
    let shown = until(&hub, "/samples", |shown| sum(&shown["acked"]) == 3).await;
    let length = shown["t"].as_array().expect("times").len();
    for (name, column) in shown.as_object().expect("an object") {
        assert!(
            name == "interval" || column.as_array().is_some_and(|column| column.len() == length),
            "{name}: {shown}"
        );
    }
    assert_eq!((sum(&shown["published"]), sum(&shown["redelivered"])), (7, 0));
    assert!(sum(&shown["delivered"]) >= 3, "{shown}");
    assert!(shown["p99"].as_array().expect("a column").iter().any(Value::is_number), "{shown}");
    assert!(shown["p50"].as_array().expect("a column").iter().any(Value::is_null), "a second without acks: {shown}");
    let group = until(&hub, "/samples?topic=t&group=g", |shown| {
        shown["lag"].as_array().is_some_and(|lag| lag.last() == Some(&json!(4)))
    })
    .await;
    assert_eq!(sum(&group["acked"]), 3);
    let topic = hub.get("/samples?topic=t").await.ok();
    assert_eq!((sum(&topic["published"]), &topic["topic"]), (7, &json!("t")));
    let since = topic["t"].as_array().and_then(|t| t.last()).and_then(Value::as_u64).expect("a time");
    assert!(hub.get(&format!("/samples?since={since}")).await.ok()["t"].as_array().expect("times").len() <= 1 + length);
    assert_eq!(hub.get(&format!("/samples?since={}", u64::MAX >> 12)).await.ok()["t"], json!([]));
    assert_eq!(hub.get("/samples?topic=unknown").await.ok()["published"], json!([]));
    let rate = hub.get("/topics").await.ok()["topics"][0]["publishRate"].as_f64().expect("a rate");
    assert!(rate > 0.0, "{rate}");
    hub.hub.drain.begin();
    patient("the sampler to end", sampling).await.expect("ended");
}

#[tokio::test]
async fn the_hub_says_who_it_is() {
    let hub = open_hub().await;
    let shown = hub.get("/hub").await.ok();
    assert_eq!((&shown["store"], &shown["auth"], &shown["admin"]), (&json!("memory"), &json!(false), &json!(true)));
    assert_eq!(shown["version"], env!("CARGO_PKG_VERSION"));
    assert!(shown["now"].as_u64() >= shown["startedAt"].as_u64() && shown.get("disk").is_none(), "{shown}");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("topics")).expect("a directory");
    std::fs::write(dir.path().join("topics/1"), [0; 1_234]).expect("a file");
    hub.hub.about.set_data_dir(dir.path().to_owned());
    hub.hub.about.set_addresses(Addresses { ws: hub.addr, http: hub.addr, ops: hub.addr });
    let shown = hub.get("/hub").await.ok();
    assert_eq!((&shown["disk"]["used"], shown["ops"].as_str()), (&json!(1_234), Some(hub.addr.to_string().as_str())));
    assert!(shown["disk"]["free"].as_u64().is_some(), "{shown}");
}

#[tokio::test]
async fn an_event_is_found_by_its_id_and_with_what_led_to_it_and_followed() {
    let hub = open_hub().await;
    let caused = async |name: &str, causes: &[&String]| {
        let caused_by = causes.iter().map(|id| id.parse_id()).collect();
        publish(&hub, name, "1", PublishOptions { caused_by, ..PublishOptions::default() }).await
    };
    let gone = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d".to_owned();
    let grandparent = caused("a", &[&gone]).await;
    let parent = caused("b", &[&grandparent]).await;
    caused("b", &[]).await;
    let root = caused("c", &[&parent]).await;
    let child = caused("a", &[&root]).await;
    let grandchild = caused("z.z", &[&child, &parent]).await;
    let sibling = caused("c", &[&parent]).await;

    let event = hub.get(&format!("/event?id={}", root.to_uppercase())).await.ok();
    assert_eq!((event["id"].as_str(), &event["topic"]), (Some(root.as_str()), &json!("c")));
    hub.get(&format!("/event?id={gone}")).await.refused(404, "unknown_id");
    let shown = hub.get(&format!("/causality?id={root}")).await.ok();
    let ids: Vec<&str> =
        shown["events"].as_array().expect("a list").iter().map(|event| event["id"].as_str().expect("an id")).collect();
    let mut expected = vec![grandparent.as_str(), &parent, &root, &child, &grandchild];
    let mut found = ids.clone();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected, "without {sibling}");
    assert_eq!((&shown["missing"], &shown["complete"]), (&json!([gone]), &json!(true)));
    let some = hub.get(&format!("/causality?id={root}&limit=3")).await.ok();
    assert_eq!((some["events"].as_array().map(Vec::len), &some["complete"]), (Some(3), &json!(false)));
    hub.get(&format!("/causality?id={gone}")).await.refused(404, "unknown_id");
}

#[tokio::test]
async fn the_page_needs_one_origin_only() {
    let hub = open_hub().await;
    hub.post("/publish/t", "1").await.ok();
    assert_eq!(hub.get("/replay?topic=t").await.ok()["count"], 1);
    assert_eq!(hub.get("/export?topic=t").await.text().lines().count(), 1);
    hub.get("/healthz").await.ok();
    hub.get("/readyz").await.ok();
    hub.get("/nowhere").await.refused(404, "not_found");
    hub.post("/topics", "").await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn a_group_that_waits_for_the_first_event_is_listed_and_counted() {
    let hub = open_hub().await;
    let _waits = subscribe(&hub, "first.topic", "me", SubscribeOptions::default()).await;
    let groups = hub.get("/groups").await.json();
    assert_eq!(groups["groups"][0]["topic"], "first.topic", "{groups}");
    assert_eq!((&groups["groups"][0]["group"], &groups["groups"][0]["members"]), (&json!("me"), &json!(1)), "{groups}");
    assert_eq!(hub.get("/topics").await.json(), json!({"topics": []}), "that makes no topic");
    let answer = hub.get("/metrics").await;
    let metrics = answer.text();
    assert!(metrics.contains("group_lag{topic=\"first.topic\",group=\"me\"} 0"), "{metrics}");
}

#[tokio::test]
async fn long_lists_come_page_by_page_in_a_stable_order() {
    let hub = open_hub().await;
    for n in 0..5 {
        hub.post(&format!("/publish/page.t{n}"), "1").await.ok();
        for group in ["a", "b"] {
            let path = format!("/cursors?topic=page.t{n}&group={group}");
            hub.send(Method::PUT, &path, &[], r#"{"from":"earliest"}"#).await.ok();
        }
    }
    let walk = async |list: &str, query: &str, name: fn(&Value) -> String| {
        let (mut names, mut pages, mut after) = (Vec::new(), 0, String::new());
        loop {
            let page = hub.get(&format!("/{list}?limit=2{query}{after}")).await.ok();
            names.extend(page[list].as_array().expect("a list").iter().map(name));
            pages += 1;
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return (names, pages),
            }
        }
    };
    let topic = |row: &Value| row["topic"].as_str().expect("a name").to_owned();
    let group =
        |row: &Value| format!("{}/{}", row["topic"].as_str().expect("a name"), row["group"].as_str().expect("a name"));
    let (topics, pages) = walk("topics", "", topic).await;
    assert_eq!((topics, pages), (["page.t0", "page.t1", "page.t2", "page.t3", "page.t4"].map(str::to_owned).into(), 3));
    let (groups, pages) = walk("groups", "", group).await;
    assert_eq!((groups.len(), groups.is_sorted(), pages), (10, true, 5));
    let (groups, pages) = walk("groups", "&q=t3", group).await;
    assert_eq!((groups, pages), (["page.t3/a", "page.t3/b"].map(str::to_owned).into(), 1));
    assert_eq!(walk("topics", "&q=t9", topic).await, (Vec::new(), 1));
    assert_eq!(hub.get("/connections?q=x").await.ok(), json!({ "connections": [] }));
    hub.get("/groups?limit=10001").await.refused(400, "bad_request");
}
