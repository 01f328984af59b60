//! What a client's frame may and may not say.

use proptest::prelude::*;

use super::*;
use crate::frame::{Item, ask};
use crate::{Filter, From, Group, Millis, Ordered, PublishOptions, Selector, SubscribeOptions};

const ID: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";

fn refused(text: &str) -> Invalid {
    decode(text).request.expect_err(text)
}

#[test]
fn what_is_not_one_json_object_is_bad_json() {
    for bad in ["", "x", "[]", "1", "null", "\"op\"", r#"{"op":"PING"} x"#, r#"{"op":"PING""#, "{\"op\":\"PING\",}"] {
        assert_eq!(refused(bad).code, Code::BadJson, "{bad}");
    }
    let deep = format!(r#"{{"op":"PING","x":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(refused(&deep).code, Code::BadJson);
}

#[test]
fn a_refusal_names_the_field() {
    for (frame, field) in [
        (r#"{}"#.to_owned(), "op"),
        (r#"{"op":1}"#.to_owned(), "op"),
        (r#"{"op":"NOPE"}"#.to_owned(), "op"),
        (r#"{"op":"ping"}"#.to_owned(), "op"),
        (r#"{"op":"PING","corr":{}}"#.to_owned(), "corr"),
        (format!(r#"{{"op":"PING","corr":"{}"}}"#, "x".repeat(1025)), "corr"),
        (r#"{"op":"AUTH","token":1}"#.to_owned(), "token"),
        (r#"{"op":"AUTH","token":"t","quiet":1}"#.to_owned(), "quiet"),
        (r#"{"op":"PUBLISH","payload":1}"#.to_owned(), "topic"),
        (r#"{"op":"PUBLISH","topic":"t"}"#.to_owned(), "payload"),
        (r#"{"op":"PUBLISH","topic":7,"payload":1}"#.to_owned(), "topic"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":[]}"#.to_owned(), "opts"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"id":7}}"#.to_owned(), "opts.id"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"ts":-1}}"#.to_owned(), "opts.ts"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"ts":1.5}}"#.to_owned(), "opts.ts"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"ts":1e400}}"#.to_owned(), "opts.ts"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"key":{}}}"#.to_owned(), "opts.key"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"key":"\ud800"}}"#.to_owned(), "opts.key"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"headers":{"a":1}}}"#.to_owned(), "opts.headers"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"tags":"a"}}"#.to_owned(), "opts.tags"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"tags":["a",1]}}"#.to_owned(), "opts.tags[1]"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"caused_by":["x"]}}"#.to_owned(), "opts.caused_by[0]"),
        (r#"{"op":"PUBLISH","topic":"t","events":[]}"#.to_owned(), "events"),
        (r#"{"op":"PUBLISH","topic":"t","events":{}}"#.to_owned(), "events"),
        (r#"{"op":"PUBLISH","topic":"t","events":1e400}"#.to_owned(), "events"),
        (r#"{"op":"PUBLISH","topic":"t","events":"x"}"#.to_owned(), "events"),
        (r#"{"op":"PUBLISH","topic":"t","events":[{"payload":1},[2]]}"#.to_owned(), "events[1]"),
        (r#"{"op":"PUBLISH","topic":"t","events":[{"payload":1},{}]}"#.to_owned(), "events[1].payload"),
        (r#"{"op":"PUBLISH","topic":"t","events":[{"payload":1,"id":"x"}]}"#.to_owned(), "events[0].id"),
        (r#"{"op":"PUBLISH","topic":"t","payload":1,"events":[{"payload":1}]}"#.to_owned(), "events"),
        (
            format!(r#"{{"op":"PUBLISH","topic":"t","events":[{}]}}"#, vec![r#"{"payload":1}"#; 10_001].join(",")),
            "events",
        ),
        (r#"{"op":"SUBSCRIBE","group":"g"}"#.to_owned(), "topic"),
        (r#"{"op":"SUBSCRIBE","topic":"a*","group":"g"}"#.to_owned(), "topic"),
        (r#"{"op":"SUBSCRIBE","topic":"t","group":""}"#.to_owned(), "group"),
        (r#"{"op":"SUBSCRIBE","topic":"t","group":7}"#.to_owned(), "group"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":1}"#.to_owned(), "opts"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"from":"now"}}"#.to_owned(), "opts.from"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"from":"ts"}}"#.to_owned(), "opts.ts"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"from":"afterId"}}"#.to_owned(), "opts.afterId"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"from":"afterId","afterId":"x"}}"#.to_owned(), "opts.afterId"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"topics":["b","a*"]}}"#.to_owned(), "opts.topics[1]"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"maxInFlight":0}}"#.to_owned(), "opts.maxInFlight"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"batchSize":0}}"#.to_owned(), "opts.batchSize"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"ackTimeoutMs":99}}"#.to_owned(), "opts.ackTimeoutMs"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"ackTimeoutMs":"1"}}"#.to_owned(), "opts.ackTimeoutMs"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"maxAttempts":-1}}"#.to_owned(), "opts.maxAttempts"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"maxAttempts":99999999999}}"#.to_owned(), "opts.maxAttempts"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"ordered":"yes"}}"#.to_owned(), "opts.ordered"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"batch":1}}"#.to_owned(), "opts.batch"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"filter":[]}}"#.to_owned(), "opts.filter"),
        (r#"{"op":"SUBSCRIBE","topic":"t","opts":{"filter":{"tags":[1]}}}"#.to_owned(), "opts.filter.tags[0]"),
        (r#"{"op":"UNSUBSCRIBE","group":"g"}"#.to_owned(), "topic"),
        (r#"{"op":"PAUSE","topic":"t","group":1}"#.to_owned(), "group"),
        (r#"{"op":"ACK","topic":"t","id":"x"}"#.to_owned(), "group"),
        (r#"{"op":"ACK","topic":"t","group":"g"}"#.to_owned(), "id"),
        (r#"{"op":"ACK","topic":"t","group":"g","id":"x"}"#.to_owned(), "id"),
        (r#"{"op":"ACK","topic":"t","group":"g","ids":[]}"#.to_owned(), "ids"),
        (format!(r#"{{"op":"ACK","topic":"t","group":"g","ids":["{ID}",7]}}"#), "ids[1]"),
        (format!(r#"{{"op":"ACK","topic":"t","group":"g","id":"{ID}","ids":["{ID}"]}}"#), "ids"),
        (format!(r#"{{"op":"ACK","topic":"t","group":"g","id":"{ID}","upTo":"{ID}"}}"#), "upTo"),
        (format!(r#"{{"op":"ACK","topic":"t","group":"g","id":"{ID}","lease":"1"}}"#), "lease"),
        (format!(r#"{{"op":"NACK","topic":"t","group":"g","upTo":"{ID}"}}"#), "id"),
        (format!(r#"{{"op":"NACK","topic":"t","group":"g","id":"{ID}","delay_ms":43200001}}"#), "delay_ms"),
        (format!(r#"{{"op":"NACK","topic":"t","group":"g","id":"{ID}","reason":1}}"#), "reason"),
        (format!(r#"{{"op":"NACK","topic":"t","group":"g","id":"{ID}","release":"yes"}}"#), "release"),
        (format!(r#"{{"op":"MODACK","topic":"t","group":"g","id":"{ID}","extend_ms":-1}}"#), "extend_ms"),
    ] {
        let refused = refused(&frame);
        assert_eq!(refused.field, field, "{frame}: {refused}");
        let expected = match field {
            _ if refused.message.contains("UUID") => Code::BadId,
            _ if frame.contains("a*") => Code::BadTopic,
            _ => Code::BadRequest,
        };
        assert_eq!(refused.code, expected, "{frame}");
    }
}

#[test]
fn corr_comes_back_as_it_was_written_even_from_a_frame_that_is_refused() {
    for corr in ["7", "-1.50", "1e400", r#""a\u00e9""#, &format!("\"{}\"", "x".repeat(500)), r#""""#] {
        for rest in [r#""op":"PING""#, r#""op":"NOPE""#, r#""x":1"#, r#""op":"PUBLISH","events":1e400"#] {
            let text = format!(r#"{{"corr": {corr} ,{rest}}}"#);
            let frame = decode(&text);
            assert_eq!(frame.corr.expect("has one").as_bytes(), corr.as_bytes());
        }
    }
    assert!(decode(r#"{"op":"PING","corr":null}"#).corr.is_none());
}

#[test]
fn unknown_fields_are_ignored_nulls_are_absent_and_the_last_of_two_counts() {
    let frame =
        decode(r#"{"op":"PING","op":"PUBLISH","extra":{"a":[1]},"topic":"a","topic":"b","payload":null,"opts":null}"#);
    let Ok(Request::Publish(publish)) = frame.request else { panic!("{frame:?}") };
    assert_eq!(publish.topic, "b");
    let Item::One { payload, options } = publish.events else { panic!("one event") };
    assert_eq!((payload.get(), options), ("null", PublishOptions::default()));
}

#[test]
fn numbers_may_be_written_as_whole_floats() {
    let frame = decode(r#"{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"ackTimeoutMs":3e4,"maxInFlight":7.0}}"#);
    let Ok(Request::Subscribe(subscribe)) = frame.request else { panic!("{frame:?}") };
    assert_eq!((subscribe.options.ack_timeout, subscribe.options.max_in_flight), (Duration::from_secs(30), 7));
}

#[test]
fn the_gateway_has_its_own_default_in_flight() {
    let frame = decode(r#"{"op":"SUBSCRIBE","topic":"t.**"}"#);
    let Ok(Request::Subscribe(subscribe)) = frame.request else { panic!("{frame:?}") };
    assert_eq!((subscribe.options.max_in_flight, subscribe.batch, subscribe.group), (100, false, None));
}

#[test]
fn an_extension_is_clamped_and_a_reason_is_cut() {
    for (sent, becomes) in [(0, 1_000), (5_000, 5_000), (999_999_999_999_u64, 43_200_000)] {
        let text = format!(r#"{{"op":"MODACK","topic":"t","group":"g","ids":["{ID}"],"extend_ms":{sent}}}"#);
        let Ok(Request::Modack(modack)) = decode(&text).request else { panic!("{text}") };
        assert_eq!(modack.extend, Some(Duration::from_millis(becomes)));
    }
    let text = format!(r#"{{"op":"NACK","topic":"t","group":"g","id":"{ID}","reason":"{}"}}"#, "é".repeat(5_000));
    let Ok(Request::Nack(nack)) = decode(&text).request else { panic!("{text}") };
    assert_eq!(nack.reason.expect("kept").len(), 4 * 1024);
}

#[test]
fn payload_bytes_are_kept_in_single_and_batch_frames() {
    for payload in [r#""\ud800""#, "1e400", r#"{"a":1,"a":2}"#, "[1 ,\t2]", "null", "\"é\\u00e9\""] {
        let single = format!(r#"{{"op":"PUBLISH","topic":"t","payload": {payload} }}"#);
        let Ok(Request::Publish(publish)) = decode(&single).request else { panic!("{single}") };
        let Item::One { payload: kept, .. } = publish.events else { panic!("{single}") };
        assert_eq!(kept.get(), payload);

        let batch =
            format!(r#"{{"op":"PUBLISH","topic":"t","events":[{{"payload":{payload},"key":"k"}},{{"payload":0}}]}}"#);
        let Ok(Request::Publish(publish)) = decode(&batch).request else { panic!("{batch}") };
        let Item::Batch(items) = publish.events else { panic!("{batch}") };
        assert_eq!((items[0].0.get(), items[0].1.key.as_deref(), items.len()), (payload, Some("k"), 2));
    }
}

#[test]
fn what_a_client_writes_is_what_the_hub_reads() {
    let options = PublishOptions {
        id: Some(EventId::parse(ID).expect("id")),
        ts: Some(Millis(5)),
        key: Some("k\"1".into()),
        headers: vec![("x-trace".into(), "1".into()), ("b".into(), "\n".into())],
        tags: vec!["#stt".into(), "b".into()],
        caused_by: vec![EventId::from_bytes([2; 16])],
        sid: Some("s".into()),
    };
    let raw = serde_json::value::RawValue::from_string("[1]".to_owned()).expect("JSON");
    let mut out = Vec::new();
    ask::publish(&mut out, 7, "a.b", &raw, &options);
    let text = String::from_utf8(out).expect("text");
    let Ok(Request::Publish(publish)) = decode(&text).request else { panic!("{text}") };
    let Item::One { options: read, .. } = publish.events else { panic!("{text}") };
    assert_eq!(read, options);

    let mut out = Vec::new();
    ask::publish_batch(&mut out, 7, "a.b", [(&*raw, &options), (&*raw, &PublishOptions::default())].into_iter());
    let text = String::from_utf8(out).expect("text");
    let Ok(Request::Publish(publish)) = decode(&text).request else { panic!("{text}") };
    let Item::Batch(items) = publish.events else { panic!("{text}") };
    assert_eq!((&items[0].1, &items[1].1), (&options, &PublishOptions::default()));

    for from in
        [From::Latest, From::Earliest, From::Snapshot, From::Ts(Millis(9)), From::AfterId(options.id.expect("id"))]
    {
        let wanted = SubscribeOptions {
            from,
            topics: vec![Selector::parse("b.*").expect("pattern")],
            batch_size: 3,
            max_in_flight: 4,
            ack_timeout: Duration::from_millis(1_500),
            max_attempts: 0,
            filter: Filter {
                tags: vec!["t".into()],
                keys: vec!["k".into()],
                headers: vec![("h".into(), "v".into()), ("i".into(), "w".into())],
            },
            ordered: Ordered::Key,
            resume: None,
        };
        let group = Group::parse("g").expect("group");
        let mut out = Vec::new();
        ask::subscribe(&mut out, 7, "a.b", Some(&group), &wanted, true);
        let text = String::from_utf8(out).expect("text");
        let frame = decode(&text);
        let Ok(Request::Subscribe(read)) = frame.request else { panic!("{frame:?}") };
        assert_eq!((&read.options, read.batch, read.group), (&wanted, true, Some(group)));
    }
}

proptest! {
    #[test]
    fn decoding_any_text_never_panics(text in any::<String>()) {
        let _ = decode(&text);
    }

    #[test]
    fn decoding_any_members_never_panics_and_keeps_corr(
        op in prop_oneof!["AUTH", "PUBLISH", "SUBSCRIBE", "ACK", "NACK", "MODACK", "PAUSE", "x"],
        members in proptest::collection::vec((
            prop_oneof!["topic", "payload", "opts", "events", "group", "id", "ids", "upTo", "lease", "token", "extend_ms"],
            prop_oneof!["null", "1", "-1", "1e400", "\"a\"", "\\[\\]", "\\{\\}", "\\[\\{\\}\\]", "true", "\\[1\\]", "\\{\"from\":1\\}"],
        ), 0..6),
        corr in any::<u32>(),
    ) {
        let rest: String = members.iter().map(|(name, value)| format!(",\"{name}\":{value}")).collect();
        let text = format!(r#"{{"op":"{op}","corr":{corr}{rest}}}"#);
        let frame = decode(&text);
        let expected = corr.to_string();
        prop_assert_eq!(frame.corr.as_ref().map(Corr::as_bytes), Some(expected.as_bytes()));
        if let Err(refused) = frame.request {
            prop_assert!(refused.code != Code::BadJson);
        }
    }
}

#[test]
fn an_unknown_field_is_ignored_whatever_its_name_holds() {
    for text in [
        r#"{"op":"PING","\ud800":1,"corr":1}"#,
        r#"{"op":"PUBLISH","topic":"t","payload":1,"opts":{"\udc00x":[1],"key":"k"},"corr":1}"#,
        r#"{"op":"PUBLISH","topic":"t","events":[{"payload":1,"\ud800":{}}],"corr":1}"#,
        r#"{"op":"SUBSCRIBE","topic":"t","opts":{"\ud800":0,"filter":{"\ud800":0}},"corr":1}"#,
        r#"{"\u006fp":"PING","corr":1}"#,
    ] {
        let frame = decode(text);
        assert!(frame.request.is_ok() && frame.corr.is_some(), "{text}: {:?}", frame.request);
    }
}

#[test]
fn a_payload_may_nest_as_deep_alone_as_in_a_batch_and_who_nests_deeper_is_told_by_its_mark() {
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let one = |payload: &str| format!(r#"{{"op":"PUBLISH","corr":"c","topic":"a","payload":{payload}}}"#);
    let batch = |payload: &str| {
        format!(r#"{{"op":"PUBLISH","corr":"c","topic":"a","events":[{{"payload":1}},{{"payload":{payload}}}]}}"#)
    };
    let ping = |field: &str| format!(r#"{{"op":"PING","corr":"c","more":{field}}}"#);
    for frame in [one(&nested(128)), batch(&nested(128)), ping(&nested(127))] {
        assert!(decode(&frame).request.is_ok(), "{frame}");
    }
    for frame in [one(&nested(129)), batch(&nested(129)), batch(&nested(10_000)), ping(&nested(128))] {
        let read = decode(&frame);
        assert_eq!(read.request.expect_err("too deep").code, Code::BadJson);
        assert!(read.corr.is_some(), "whoever asked is told");
    }
}
