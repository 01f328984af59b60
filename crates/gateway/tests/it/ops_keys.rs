//! `GET /latest-by-key`: the state of a keyed topic, as it is and as it was.

use crate::harness::{Served, Setup};
use promethean_gateway::EdgeConfig;
use promethean_gateway::ops::router;
use serde_json::{Value, json};

async fn open_hub() -> Served {
    Setup::default().start(router).await
}

/// Publishes to `t` and gives the id.
async fn publish(hub: &Served, query: &str, payload: &str) -> String {
    let stored = hub.post(&format!("/publish/t?{query}"), payload.to_owned()).await.ok();
    stored["id"].as_str().expect("an id").to_owned()
}

async fn keyed(hub: &Served, key: &str, payload: &str) -> String {
    publish(hub, &format!("key={}", key.replace(' ', "%20")), payload).await
}

/// An event with a key and a time.
async fn at(hub: &Served, key: &str, ts: u64, payload: &str) {
    publish(hub, &format!("key={key}&ts={ts}"), payload).await;
}

#[tokio::test]
async fn latest_by_key_is_one_event_several_or_all() {
    let hub = open_hub().await;
    let missing = hub.get("/latest-by-key?topic=t&key=a").await;
    assert_eq!((missing.status.as_u16(), missing.text()), (200, "null"));
    keyed(&hub, "a", "1").await;
    let a = keyed(&hub, "a", "{\"x\":  2}").await;
    let b = keyed(&hub, "b b", "3").await;
    keyed(&hub, "gone", "1").await;
    keyed(&hub, "gone", "null").await;
    let one = hub.get("/latest-by-key?topic=t&key=a").await;
    assert_eq!(one.ok()["id"], a.as_str());
    assert!(one.text().contains("{\"x\":  2}"), "bytes are kept: {}", one.text());
    let several = hub.get("/latest-by-key?topic=t&key=a&key=b%20b&key=none").await.ok();
    assert_eq!((&several["a"]["id"], &several["b b"]["id"], &several["none"]), (&json!(a), &json!(b), &Value::Null));

    let all = hub.get("/latest-by-key?topic=t").await.ok();
    assert_eq!(all["topic"], "t");
    let mut keys: Vec<&String> = all["entries"].as_object().expect("an object").keys().collect();
    keys.sort();
    assert_eq!(keys, ["a", "b b"], "live keys only");
    assert!(all.get("next").is_none(), "{all}");
    let first = hub.get("/latest-by-key?topic=t&limit=1").await.ok();
    assert_eq!((first["entries"]["a"]["id"].as_str(), &first["next"]), (Some(a.as_str()), &json!("a")));
    let second = hub.get("/latest-by-key?topic=t&limit=1&after=a").await.ok();
    assert_eq!((second["entries"]["b b"]["id"].as_str(), second.get("next")), (Some(b.as_str()), None));
}

#[tokio::test]
async fn all_keys_come_page_by_page_each_once() {
    let hub = open_hub().await;
    for n in 0..250 {
        keyed(&hub, &format!("k{n:03}"), "1").await;
    }
    let (mut seen, mut after) = (0, String::new());
    loop {
        let page = hub.get(&format!("/latest-by-key?topic=t&limit=120&after={after}")).await.ok();
        seen += page["entries"].as_object().expect("an object").len();
        match page.get("next") {
            Some(next) => after = next.as_str().expect("a key").to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, 250);
}

#[tokio::test]
async fn the_state_as_of_a_time_is_what_events_up_to_it_made() {
    let hub = open_hub().await;
    for (key, ts, payload) in [
        ("a", 10, "1"),
        ("b", 20, "2"),
        ("c", 25, "9"),
        ("a", 30, "3"),
        ("b", 40, "null"),
        // Late, but of an earlier time: it counts from then on, by its place in the log.
        ("a", 15, "4"),
        ("d", 50, "5"),
    ] {
        at(&hub, key, ts, payload).await;
    }
    let state = |at: u64| format!("/latest-by-key?topic=t&at={at}");
    for (time, expected) in [
        (9, json!({})),
        (10, json!({ "a": 1 })),
        (15, json!({ "a": 4 })),
        (20, json!({ "a": 4, "b": 2 })),
        (35, json!({ "a": 4, "b": 2, "c": 9 })),
        (45, json!({ "a": 4, "c": 9 })),
        (99, json!({ "a": 4, "c": 9, "d": 5 })),
    ] {
        let answer = hub.get(&state(time)).await;
        assert_eq!(answer.header("x-promethean-complete"), "true");
        let page = answer.ok();
        let entries = page["entries"].as_object().expect("entries");
        let payloads: Value = entries.iter().map(|(key, event)| (key.clone(), event["payload"].clone())).collect();
        assert_eq!((payloads, &page["at"], &page["complete"]), (expected, &json!(time), &json!(true)), "{time}");
    }

    // Page by page the same; a key that is gone takes a place and is not shown.
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = hub.get(&format!("{}&limit=1{after}", state(45))).await.ok();
        seen.extend(page["entries"].as_object().expect("entries").keys().cloned());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "c"]);

    // Single keys: the event, a tombstone too, or null.
    let one = |key: &'static str, time: u64| format!("{}&key={key}", state(time));
    assert_eq!(hub.get(&one("a", 12)).await.ok()["payload"], 1);
    assert_eq!(hub.get(&one("b", 45)).await.ok()["payload"], Value::Null);
    assert_eq!(hub.get(&one("b", 45)).await.ok()["ts"], 40);
    assert_eq!(hub.get(&one("d", 45)).await.ok(), Value::Null);
    let several = hub.get(&format!("{}&key=a&key=d", state(12))).await.ok();
    assert_eq!((&several["a"]["payload"], &several["d"]), (&json!(1), &Value::Null));
    hub.get("/latest-by-key?topic=t&at=soon").await.refused(400, "bad_request");
    assert_eq!(hub.get("/latest-by-key?topic=none&at=5").await.ok()["entries"], json!({}));
}

#[tokio::test]
async fn a_past_that_was_compacted_away_is_said_to_be_incomplete() {
    let hub = open_hub().await;
    for (ts, payload) in [(10, "1"), (20, "2")] {
        at(&hub, "a", ts, payload).await;
    }
    let (store, topic) = (hub.hub.bus.store(), promethean_bus::Topic::parse("t").expect("a topic"));
    let settings = promethean_store::TopicSettings { compaction: Some(Default::default()), ..store.settings(&topic) };
    store.set_settings(&topic, settings).await.expect("set");
    store.maintain(promethean_event::Millis::now()).await.expect("compacted");
    let answer = hub.get("/latest-by-key?topic=t&at=15&key=a").await;
    assert_eq!((answer.header("x-promethean-complete"), answer.ok()), ("false", Value::Null));
    assert_eq!(hub.get("/latest-by-key?topic=t&at=25").await.ok()["complete"], false);
}

/// A hub whose answers have at most 64 KiB, and 20 keys with 10 KiB each on `t`, all of time 10.
async fn hub_with_large_events() -> Served {
    let edge = EdgeConfig { max_frame_bytes: 64 * 1024, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    for n in 0..20 {
        at(&hub, &format!("k{n:02}"), 10, &format!("\"{}\"", "x".repeat(10 * 1024))).await;
    }
    hub
}

#[tokio::test]
async fn a_page_ends_where_its_bytes_do() {
    let hub = hub_with_large_events().await;
    for at in ["", "&at=10"] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let answer = hub.get(&format!("/latest-by-key?topic=t{at}{after}")).await;
            assert!(answer.body.len() <= 64 * 1024, "{} bytes", answer.body.len());
            let page = answer.ok();
            let entries = page["entries"].as_object().expect("an object");
            assert!(!entries.is_empty(), "it goes on");
            seen.extend(entries.keys().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen, (0..20).map(|n| format!("k{n:02}")).collect::<Vec<_>>(), "{at}");
    }
    // An event that is larger than a page is one.
    at(&hub, "a", 10, &format!("\"{}\"", "x".repeat(100 * 1024))).await;
    for at in ["", "&at=10"] {
        let page = hub.get(&format!("/latest-by-key?topic=t{at}")).await.ok();
        assert_eq!((page["entries"].as_object().expect("an object").len(), &page["next"]), (1, &json!("a")));
        assert_eq!(hub.get(&format!("/latest-by-key?topic=t{at}&key=a")).await.ok()["key"], "a");
    }
}

#[tokio::test]
async fn more_than_an_answer_holds_of_named_keys_is_refused_with_the_remedy() {
    let hub = hub_with_large_events().await;
    for at in ["", "&at=10"] {
        let ask = |keys: std::ops::Range<u32>| {
            let keys: String = keys.map(|n| format!("&key=k{n:02}")).collect();
            format!("/latest-by-key?topic=t{at}{keys}")
        };
        assert_eq!(hub.get(&ask(0..5)).await.ok().as_object().expect("an object").len(), 5);
        let message = hub.get(&ask(0..20)).await.refused(413, "too_large");
        assert!(message.contains("ask for fewer"), "{message}");
        let many: String = (0..1_001).map(|n| format!("&key={n}")).collect();
        let message = hub.get(&format!("/latest-by-key?topic=t{at}{many}")).await.refused(400, "bad_request");
        assert!(message.contains("1000"), "{message}");
    }
}

#[tokio::test]
async fn the_empty_key_is_a_key() {
    let hub = open_hub().await;
    let topic = promethean_event::Topic::parse("t").expect("a topic");
    for key in ["", "a", "b"] {
        let payload = promethean_event::payload_of(&key).expect("JSON");
        let mut draft = promethean_event::Draft::new(topic.clone(), std::borrow::Cow::Owned(payload));
        (draft.options.key, draft.options.ts) = (Some(key.into()), Some(promethean_event::Millis(10)));
        hub.hub.bus.publish(&draft).await.expect("published");
    }
    for at in ["", "&at=10"] {
        let get = async |query: &str| hub.get(&format!("/latest-by-key?topic=t{at}{query}")).await.ok();
        assert_eq!(get("&key=").await["payload"], "");
        let both = get("&key=&key=a").await;
        assert_eq!((&both[""]["payload"], &both["a"]["payload"]), (&json!(""), &json!("a")), "{at}");
        for (after, shown, next) in [("", "", json!("")), ("&after=", "a", json!("a")), ("&after=a", "b", Value::Null)]
        {
            let page = get(&format!("&limit=1{after}")).await;
            let keys: Vec<_> = page["entries"].as_object().expect("an object").keys().map(String::as_str).collect();
            assert_eq!((keys, &page["next"]), (vec![shown], &next), "{at}{after}");
        }
    }
}
