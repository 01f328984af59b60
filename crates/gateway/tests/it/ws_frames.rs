//! Every client frame of the contract, over a real port.

use crate::ws_support::{Client, Server, id_of};
use promethean_gateway::EdgeConfig;
use serde_json::{Value, json};

const UNKNOWN: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";

#[tokio::test]
async fn a_published_event_is_answered_delivered_and_acked() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let answer = client.ok(json!({"op": "SUBSCRIBE", "topic": "a.b", "group": "g", "corr": "s1"})).await;
    assert_eq!(answer, json!({"op": "OK", "corr": "s1", "cursor": {"topic": "a.b", "seq": 0}}));
    client
        .send_text(r#"{"op":"PUBLISH","topic":"a.b","payload":{"n": 1.50},"opts":{"key":"k","tags":["t"]},"corr":7}"#)
        .await;
    let (mut ok, mut event) = (Value::Null, String::new());
    for _ in 0..2 {
        let text = client.text().await;
        let frame: Value = serde_json::from_str(&text).expect("JSON");
        if frame["op"] == "OK" { ok = frame } else { event = text }
    }
    assert_eq!((&ok["corr"], &ok["seq"], ok.get("duplicate")), (&json!(7), &json!(1), None));
    assert!(event.contains(r#""payload":{"n": 1.50}}"#), "byte for byte: {event}");
    let event: Value = serde_json::from_str(&event).expect("JSON");
    assert_eq!((&event["topic"], &event["group"], &event["event"]["id"]), (&json!("a.b"), &json!("g"), &ok["id"]));
    let ctx = &event["ctx"];
    assert_eq!((&ctx["attempt"], &ctx["maxAttempts"], ctx.get("snapshot")), (&json!(1), &json!(5), None));
    assert!(ctx["lease"].as_u64().expect("a number") > 0);
    assert!((1..=30_000).contains(&ctx["ack_deadline_ms"].as_u64().expect("a number")));
    let acked = client.ok(json!({"op": "ACK", "topic": "a.b", "group": "g", "id": id_of(&event), "corr": 8})).await;
    assert_eq!(acked, json!({"op": "OK", "corr": 8}));
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a.b", "group": "g"})).await;
    let again = client.subscribe("a.b", "g").await;
    assert_eq!((&again["cursor"]["seq"], &again["cursor"]["lastId"]), (&json!(1), &id_of(&event)));
}

#[tokio::test]
async fn the_same_id_again_is_a_duplicate_and_on_another_topic_is_refused() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let publish =
        |topic: &str| json!({"op": "PUBLISH", "topic": topic, "payload": 1, "opts": {"id": UNKNOWN.to_uppercase()}});
    let first = client.ok(publish("a")).await;
    assert_eq!((&first["id"], first.get("duplicate")), (&json!(UNKNOWN), None));
    let second = client.ok(publish("a")).await;
    assert_eq!((&second["id"], &second["seq"], &second["duplicate"]), (&json!(UNKNOWN), &json!(1), &json!(true)));
    client.err(publish("b"), "duplicate_id").await;
    let batch = json!({ "op": "PUBLISH", "topic": "a", "events": [{ "payload": 1 }, { "payload": 2, "id": UNKNOWN }] });
    let answer = client.ok(batch).await;
    assert_eq!((&answer["seqs"], &answer["duplicates"]), (&json!([2, 1]), &json!([1])), "by its index in the batch");
}

#[tokio::test]
async fn a_batch_is_stored_all_or_none_and_an_old_id_keeps_its_place() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let batch = |events: Value| json!({"op": "PUBLISH", "topic": "a", "events": events});
    let ok = client.ok(batch(json!([{"payload": 1, "id": UNKNOWN}, {"payload": 2, "key": "k"}]))).await;
    assert_eq!((&ok["ids"][0], &ok["seqs"]), (&json!(UNKNOWN), &json!([1, 2])));
    let ok = client.ok(batch(json!([{"payload": 3}, {"payload": 1, "id": UNKNOWN}]))).await;
    assert_eq!((&ok["ids"][1], &ok["seqs"]), (&json!(UNKNOWN), &json!([3, 1])));
    let refused = client
        .err(batch(json!([{"payload": 4}, {"payload": 5, "headers": {"promethean-x": "1"}}])), "bad_request")
        .await;
    assert!(refused["msg"].as_str().expect("text").starts_with("events[1].headers"), "{refused}");
    assert_eq!(client.publish("a", json!(6)).await["seq"], 4, "nothing of the refused batch was stored");
}

#[tokio::test]
async fn nack_brings_the_event_back_with_the_next_attempt_and_release_does_not_count() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    client.publish("a", json!(1)).await;
    let event = client.event().await;
    let nack = |more: Value| {
        let mut frame = json!({"op": "NACK", "topic": "a", "group": "g", "id": event["event"]["id"]});
        frame.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        frame
    };
    client.ok(nack(json!({"reason": "not now"}))).await;
    assert_eq!(client.event().await["ctx"]["attempt"], 2);
    client.ok(nack(json!({"release": true}))).await;
    assert_eq!(client.event().await["ctx"]["attempt"], 2);
    client.ok(nack(json!({"delay_ms": 43_200_000}))).await;
    client.assert_silent().await;
}

#[tokio::test]
async fn several_ids_and_up_to_are_acked_in_one_frame() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(client.publish("a", json!(n)).await["id"].clone());
    }
    client.ok(json!({"op": "ACK", "topic": "a", "group": "g", "ids": [ids[0], ids[1]]})).await;
    client.ok(json!({"op": "ACK", "topic": "a", "group": "g", "upTo": ids[3]})).await;
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a", "group": "g"})).await;
    assert_eq!(client.subscribe("a", "g").await["cursor"]["seq"], 4);
    let event = client.event().await;
    assert_eq!((id_of(&event), &event["ctx"]["attempt"]), (ids[4].clone(), &json!(2)));
    client.err(json!({"op": "ACK", "topic": "a", "group": "g", "upTo": UNKNOWN}), "unknown_id").await;
}

#[tokio::test]
async fn a_lease_fences_and_an_id_that_is_not_in_flight_is_ok_to_ack_and_unknown_to_extend() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    client.publish("a", json!(1)).await;
    let first = client.event().await;
    let frame = |op: &str, lease: &Value| json!({"op": op, "topic": "a", "group": "g", "id": id_of(&first), "lease": lease, "extend_ms": 5000});
    client.ok(frame("MODACK", &first["ctx"]["lease"])).await;
    client.ok(frame("NACK", &first["ctx"]["lease"])).await;
    let second = client.event().await;
    assert_ne!(first["ctx"]["lease"], second["ctx"]["lease"]);
    for op in ["ACK", "NACK", "MODACK"] {
        client.err(frame(op, &first["ctx"]["lease"]), "lease_lost").await;
    }
    client.ok(frame("ACK", &second["ctx"]["lease"])).await;
    client.ok(frame("ACK", &second["ctx"]["lease"])).await;
    client.ok(json!({"op": "ACK", "topic": "a", "group": "g", "id": UNKNOWN})).await;
    client.ok(json!({"op": "NACK", "topic": "a", "group": "g", "id": UNKNOWN})).await;
    client.err(json!({"op": "MODACK", "topic": "a", "group": "g", "id": UNKNOWN, "extend_ms": 1}), "unknown_id").await;
}

#[tokio::test]
async fn pause_stops_deliveries_and_resume_goes_on() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "a"})).await;
    client.ok(json!({"op": "PAUSE", "topic": "a", "group": "g"})).await;
    client.ok(json!({"op": "PAUSE", "topic": "a"})).await;
    client.publish("a", json!(1)).await;
    client.assert_silent().await;
    client.ok(json!({"op": "RESUME", "topic": "a", "group": "g"})).await;
    assert_eq!(client.event().await["group"], "g");
    client.ok(json!({"op": "RESUME", "topic": "a"})).await;
    assert_eq!(client.event().await.get("group"), None);
}

#[tokio::test]
async fn a_subscription_exists_once_and_only_while_it_is_there() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g"}), "already_subscribed").await;
    client.subscribe("a", "h").await;
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a", "group": "g"})).await;
    for op in ["UNSUBSCRIBE", "PAUSE", "RESUME", "ACK", "NACK", "MODACK"] {
        let frame = json!({"op": op, "topic": "a", "group": "g", "id": UNKNOWN, "extend_ms": 1});
        client.err(frame, "not_subscribed").await;
    }
    client.err(json!({"op": "UNSUBSCRIBE", "topic": "a b"}), "bad_topic").await;
    client.subscribe("a", "g").await;
}

#[tokio::test]
async fn a_tail_needs_no_group_and_its_frames_name_none() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let answer = client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "corr": 1})).await;
    assert_eq!((answer.get("cursor"), answer["resume"].is_string()), (None, true), "{answer}");
    client.publish("a", json!(1)).await;
    let event = client.event().await;
    assert!(event["ctx"]["resume"].is_string(), "{event}");
    assert_eq!((event.get("group"), &event["event"]["payload"]), (None, &json!(1)));
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a"})).await;
    client.publish("a", json!(2)).await;
    client.assert_silent().await;
}

#[tokio::test]
async fn a_tail_resumes_at_the_place_of_its_answer_or_of_a_delivery() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let answer = client.ok(json!({"op": "SUBSCRIBE", "topic": "a.*"})).await;
    client.publish("a.x", json!(1)).await;
    let event = client.event().await;
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a.*"})).await;
    client.publish("a.y", json!(2)).await;
    for (resume, expected) in [(&answer["resume"], vec![1, 2]), (&event["ctx"]["resume"], vec![2])] {
        client.ok(json!({"op": "SUBSCRIBE", "topic": "a.*", "opts": {"resume": resume}})).await;
        let mut seen = Vec::new();
        for _ in &expected {
            seen.push(client.event().await["event"]["payload"].as_i64().expect("a number"));
        }
        seen.sort_unstable();
        assert_eq!(seen, expected);
        client.assert_silent().await;
        client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a.*"})).await;
    }
    let unknown = json!({"op": "SUBSCRIBE", "topic": "a", "opts": {"resume": "what?"}});
    client.err(unknown, "bad_request").await;
    let of_a_group = json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": {"resume": answer["resume"]}});
    client.err(of_a_group, "bad_request").await;
}

#[tokio::test]
async fn a_tail_misses_nothing_of_a_large_burst() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "a"})).await;
    let events: Vec<Value> = (0..5_000).map(|n| json!({"payload": n})).collect();
    client.send(json!({"op": "PUBLISH", "topic": "a", "events": events, "corr": 1})).await;
    let mut next = 0;
    while next < 5_000 {
        let frame = client.recv().await;
        if frame["op"] == "EVENT" {
            assert_eq!(frame["event"]["payload"], next);
            next += 1;
        }
    }
}

#[tokio::test]
async fn patterns_and_lists_name_the_subscription_and_take_in_topics_created_later() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.publish("a.x", json!(0)).await;
    let answer = client.ok(json!({"op": "SUBSCRIBE", "topic": "a.*", "group": "g", "opts": {"topics": ["b"]}})).await;
    assert_eq!(answer["cursor"].as_array().map(Vec::len), Some(2), "{answer}");
    let mut publisher = server.connect().await;
    for topic in ["a.x", "b", "a.later", "c"] {
        publisher.publish(topic, json!(1)).await;
    }
    let mut seen = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let event = client.event().await;
        assert_eq!(event["topic"], "a.*");
        ids.push(id_of(&event));
        seen.push(event["event"]["topic"].as_str().expect("text").to_owned());
    }
    client.ok(json!({"op": "ACK", "topic": "a.*", "group": "g", "ids": ids})).await;
    seen.sort();
    assert_eq!(seen, ["a.later", "a.x", "b"]);
    client.assert_silent().await;
}

#[tokio::test]
async fn what_topics_hand_out_while_others_still_join_is_delivered() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let topics: Vec<String> = (0..20).map(|n| format!("t.n{n:02}")).collect();
    for topic in &topics {
        client.publish(topic, json!(1)).await;
    }
    for frame in [json!({"topic": "t.*", "group": "g"}), json!({"topic": "t.*"})] {
        let mut client = server.connect().await;
        let mut frame = frame;
        (frame["op"], frame["opts"]) = (json!("SUBSCRIBE"), json!({"from": "earliest"}));
        client.ok(frame).await;
        let mut seen = Vec::new();
        for _ in &topics {
            seen.push(client.event().await["event"]["topic"].as_str().expect("text").to_owned());
        }
        seen.sort();
        assert_eq!(seen, topics);
    }
}

#[tokio::test]
async fn deliveries_come_as_batches_where_that_was_asked() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let opts = json!({"batch": true, "maxInFlight": 1000, "from": "earliest"});
    let events: Vec<Value> = (0..500).map(|n| json!({"payload": n})).collect();
    client.ok(json!({"op": "PUBLISH", "topic": "a", "events": events})).await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts})).await;
    let (mut next, mut frames) = (0, 0);
    while next < 500 {
        let frame = client.recv().await;
        assert_eq!((&frame["op"], &frame["topic"], &frame["group"]), (&json!("EVENTS"), &json!("a"), &json!("g")));
        frames += 1;
        for one in frame["events"].as_array().expect("a list") {
            assert_eq!((&one["event"]["payload"], &one["ctx"]["attempt"]), (&json!(next), &json!(1)));
            next += 1;
        }
    }
    assert!(frames < 100, "{frames} frames for 500 events");
}

#[tokio::test]
async fn batch_size_is_the_most_that_an_events_frame_has() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let events: Vec<Value> = (0..100).map(|n| json!({"payload": n})).collect();
    client.ok(json!({"op": "PUBLISH", "topic": "a", "events": events})).await;
    let opts = json!({"batch": true, "batchSize": 3, "maxInFlight": 1000, "from": "earliest"});
    // A group, and a tail of many topics.
    for subscribe in [
        json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts}),
        json!({"op": "SUBSCRIBE", "topic": "**", "opts": opts}),
    ] {
        client.ok(subscribe).await;
        let mut next = 0;
        while next < 100 {
            let frame = client.recv().await;
            let events = frame["events"].as_array().expect("a list");
            assert!((1..=3).contains(&events.len()), "{} in one frame", events.len());
            for one in events {
                assert_eq!(one["event"]["payload"], json!(next));
                next += 1;
            }
        }
    }
}

#[tokio::test]
async fn from_counts_while_the_group_has_no_cursor() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let mut ids = Vec::new();
    for (n, ts) in [(1, 100), (2, 200), (3, 300)] {
        let frame = json!({"op": "PUBLISH", "topic": "a", "payload": n, "opts": {"ts": ts, "key": format!("k{n}")}});
        ids.push(client.ok(frame).await["id"].clone());
    }
    for (group, opts, first) in [
        ("earliest", json!({"from": "earliest"}), 1),
        ("ts", json!({"from": "ts", "ts": 200}), 2),
        ("after", json!({"from": "afterId", "afterId": ids[1]}), 3),
        ("snapshot", json!({"from": "snapshot"}), 1),
    ] {
        client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": group, "opts": opts})).await;
        let event = client.event().await;
        assert_eq!(event["event"]["payload"], first, "{group}");
        assert_eq!(event["ctx"].get("snapshot"), (group == "snapshot").then_some(&json!(true)));
        client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a", "group": group})).await;
        drain(&mut client).await;
    }
    client.subscribe("a", "latest").await;
    client.assert_silent().await;
    let unknown =
        json!({"op": "SUBSCRIBE", "topic": "a", "group": "u", "opts": {"from": "afterId", "afterId": UNKNOWN}});
    client.err(unknown, "unknown_id").await;
}

/// Takes deliveries that were on their way when their subscription ended.
async fn drain(client: &mut Client) {
    client.send(json!({"op": "PING", "corr": "drain"})).await;
    while client.recv().await["corr"] != "drain" {}
}

#[tokio::test]
async fn a_publish_before_a_subscribe_is_before_it_and_one_after_is_after() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for round in 0..20 {
        let topic = format!("t{round}");
        for (op, payload) in [("PUBLISH", 1), ("SUBSCRIBE", 0), ("PUBLISH", 2)] {
            client.send(json!({"op": op, "topic": topic, "group": "g", "payload": payload})).await;
        }
        loop {
            let frame = client.recv().await;
            if frame["op"] == "EVENT" {
                assert_eq!(frame["event"]["payload"], 2);
                break;
            }
        }
        drain(&mut client).await;
    }
}

#[tokio::test]
async fn members_of_a_group_agree_on_order_attempts_and_filter() {
    let server = Server::start().await;
    let (mut one, mut two) = (server.connect().await, server.connect().await);
    let frame = |opts: Value| json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts});
    one.ok(frame(json!({"ordered": "key", "maxAttempts": 3}))).await;
    let refused = two.err(frame(json!({"ordered": "key", "maxAttempts": 4})), "bad_request").await;
    let message = refused["msg"].as_str().expect("text");
    assert!(message.contains("maxAttempts") && message.contains('3'), "{message}");
    two.ok(frame(json!({"ordered": "key", "maxAttempts": 3, "maxInFlight": 7, "ackTimeoutMs": 500, "batch": true})))
        .await;
}

#[tokio::test]
async fn a_subscriber_holds_at_most_max_in_flight() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": {"maxInFlight": 2}})).await;
    let events: Vec<Value> = (0..5).map(|n| json!({"payload": n})).collect();
    client.send(json!({"op": "PUBLISH", "topic": "a", "events": events})).await;
    let mut held = Vec::new();
    while held.len() < 2 {
        let frame = client.recv().await;
        if frame["op"] == "EVENT" {
            held.push(id_of(&frame));
        }
    }
    drain(&mut client).await;
    client.assert_silent().await;
    client.send(json!({"op": "ACK", "topic": "a", "group": "g", "id": held[0], "corr": "ack"})).await;
    let frames = [client.recv().await, client.recv().await];
    assert!(frames.iter().any(|frame| frame["op"] == "EVENT" && frame["event"]["payload"] == 2), "{frames:?}");
}

#[tokio::test]
async fn quiet_leaves_out_the_ok_of_frames_without_corr_and_never_an_err() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ok(json!({"op": "AUTH", "token": "any", "quiet": true})).await;
    client.send(json!({"op": "PING"})).await;
    client.send(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g"})).await;
    client.send(json!({"op": "PUBLISH", "topic": "a", "payload": 1})).await;
    let event = client.event().await;
    client.send(json!({"op": "ACK", "topic": "a", "group": "g", "id": id_of(&event)})).await;
    client.assert_silent().await;
    client.err(json!({"op": "PUBLISH", "topic": "a b", "payload": 1}), "bad_topic").await;
    client.ok(json!({"op": "AUTH", "token": "any", "quiet": false, "corr": 1})).await;
    client.ok(json!({"op": "PING"})).await;
}

#[tokio::test]
async fn quiet_counts_from_the_auth_on_and_not_for_frames_before_it() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g"})).await;
    let quiet = |on: bool| json!({"op": "AUTH", "token": "any", "quiet": on, "corr": "auth"});
    let publish = json!({"op": "PUBLISH", "topic": "b", "payload": 1});
    let ack = json!({"op": "ACK", "topic": "a", "group": "g", "id": UNKNOWN});
    for _ in 0..20 {
        for frame in [publish.clone(), ack.clone(), quiet(true)] {
            client.feed(frame).await;
        }
        client.flush().await;
        let answers = [client.recv().await, client.recv().await, client.recv().await];
        let count = |test: &dyn Fn(&Value) -> bool| answers.iter().filter(|answer| test(answer)).count();
        assert!(answers.iter().all(|answer| answer["op"] == "OK"), "{answers:?}");
        assert_eq!(count(&|answer| answer["corr"] == "auth"), 1, "{answers:?}");
        assert_eq!(count(&|answer| answer["seq"].is_u64()), 1, "{answers:?}");
        // And the other way round: what came while it was quiet stays unanswered.
        for frame in [publish.clone(), ack.clone(), quiet(false)] {
            client.feed(frame).await;
        }
        client.flush().await;
        assert_eq!(client.recv().await["corr"], "auth");
    }
    // Answers come in the order of their kind: none of those before is still on its way.
    let last = client.ok(publish).await;
    assert_eq!(last["seq"], 41);
    client.ok(ack).await;
}

#[tokio::test]
async fn what_was_held_back_at_a_pause_does_not_count_as_an_attempt() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.publish("a", json!(1)).await;
    client.feed(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": {"from": "earliest"}})).await;
    client.feed(json!({"op": "PAUSE", "topic": "a", "group": "g"})).await;
    client.flush().await;
    let mut seen = 0;
    for _ in 0..2 {
        seen += u64::from(client.recv().await["op"] == "EVENT");
    }
    let mut other = server.connect().await;
    client.assert_silent().await;
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "a", "group": "g"})).await;
    other.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g"})).await;
    assert_eq!(other.event().await["ctx"]["attempt"], 1 + seen);
}

#[tokio::test]
async fn answers_of_one_kind_keep_their_order_refusals_included() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.subscribe("a", "g").await;
    for n in 0..300 {
        let topic = if n % 7 == 0 { "not a topic" } else { "a" };
        client.feed(json!({"op": "PUBLISH", "topic": topic, "payload": n, "corr": n})).await;
        let group = if n % 5 == 0 { "nobody" } else { "g" };
        client.feed(json!({"op": "ACK", "topic": "a", "group": group, "id": UNKNOWN, "corr": 1000 + n})).await;
    }
    client.flush().await;
    let (mut published, mut acked) = (0, 0);
    while published < 300 || acked < 300 {
        let frame = client.recv().await;
        let Some(corr) = frame["corr"].as_u64() else { continue };
        if corr < 1000 {
            assert_eq!(corr, published);
            assert_eq!(frame["op"] == "ERR", corr % 7 == 0, "{frame}");
            published += 1;
        } else {
            assert_eq!(corr - 1000, acked);
            assert_eq!(frame["op"] == "ERR", (corr - 1000) % 5 == 0, "{frame}");
            acked += 1;
        }
    }
}

#[tokio::test]
async fn what_was_on_its_way_at_a_pause_comes_in_order_after_it_within_the_outbound_bound() {
    let config = EdgeConfig { max_outbound_bytes: 16 * 1024, ..EdgeConfig::default() };
    let server = Server::configured(config).await;
    let mut client = server.connect().await;
    client.ok(json!({"op": "AUTH", "quiet": true})).await;
    let events: Vec<Value> = (0..300).map(|n| json!({"payload": [n, "x".repeat(1_000)]})).collect();
    client.send(json!({"op": "PUBLISH", "topic": "a", "events": events})).await;
    let opts = json!({"from": "earliest", "maxInFlight": 1_000});
    client.feed(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts})).await;
    client.feed(json!({"op": "PAUSE", "topic": "a", "group": "g", "corr": "paused"})).await;
    client.flush().await;
    let mut next = 0;
    loop {
        let frame = client.recv().await;
        if frame["corr"] == "paused" {
            break;
        }
        assert_eq!(frame["event"]["payload"][0], next);
        next += 1;
    }
    client.assert_silent().await;
    client.send(json!({"op": "RESUME", "topic": "a", "group": "g"})).await;
    for expected in next..300 {
        assert_eq!(client.event().await["event"]["payload"][0], expected);
    }
}
