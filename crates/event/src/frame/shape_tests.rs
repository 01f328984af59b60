//! What the types tell of themselves is what the hub does.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::split::{self, Split};
use super::super::{Answer, Item, Op, Request, decode};
use super::*;
use crate::limits;

#[test]
fn every_name_that_the_splitter_knows_is_a_field_of_a_type_and_no_other_is() {
    let names =
        |fields: &mut dyn Iterator<Item = &'static Field>| fields.map(|field| field.name).collect::<BTreeSet<_>>();
    let of = |part: &str| names(&mut parts().find(|one| one.name == part).expect(part).fields());
    let all = |all: &'static [&'static str]| all.iter().copied().collect::<BTreeSet<_>>();
    let mut frames = names(&mut ASKED.iter().flat_map(Shape::fields));
    frames.insert(split::FrameFields::NAMES.op);
    assert_eq!(frames, all(split::FrameFields::ALL));
    assert_eq!(of("BatchItem"), all(split::EventFields::ALL));
    assert_eq!(of("SubscribeOptions"), all(split::SubscribeFields::ALL));
    assert_eq!(of("Filter"), all(split::FilterFields::ALL));
}

/// Why the hub refuses the frame, by its form.
fn refusal(frame: &Value) -> Option<String> {
    let text = frame.to_string();
    match decode(&text).request {
        Err(refused) => Some(refused.to_string()),
        Ok(Request::Publish(publish)) => {
            let (within, options) = match publish.events {
                Item::One { options, .. } => ("opts.", vec![options]),
                Item::Batch(items) => ("events[].", items.into_iter().map(|(_, options)| options).collect()),
            };
            let refused = options.iter().find_map(|options| options.check().err());
            refused.map(|refused| refused.within(within).to_string())
        }
        Ok(_) => None,
    }
}

/// Values that are just inside of what a kind may be, and values that are just outside or something else.
fn edges(kind: Kind) -> (Vec<Value>, Vec<Value>) {
    let others = |is: &str| {
        let all = [
            ("flag", json!(true)),
            ("number", json!(7)),
            ("text", json!("x")),
            ("list", json!([])),
            ("map", json!({})),
        ];
        all.into_iter().filter(|(kind, _)| *kind != is).map(|(_, value)| value).collect::<Vec<_>>()
    };
    let long = |len: usize| json!("x".repeat(len));
    let id = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    let pairs = |count: usize| (0..count).map(|n| (format!("h{n}"), json!("v"))).collect::<Value>();
    let (inside, mut outside, is) = match kind {
        Kind::Any => return (others(""), Vec::new()),
        Kind::Flag => (vec![json!(true), json!(false)], vec![], "flag"),
        Kind::Text(0) => (vec![json!(""), long(5_000)], vec![], "text"),
        Kind::Text(most) => (vec![json!(""), long(most)], vec![long(most + 1)], "text"),
        Kind::Word(words) => (words.iter().map(|word| json!(word)).collect(), vec![json!("x")], "text"),
        Kind::Number(least, most) => {
            let below = least.checked_sub(1).map_or(json!(-1), |below| json!(below));
            (vec![json!(least), json!(most)], vec![below, json!(most + 1), json!(7.5)], "number")
        }
        Kind::Mark(most) => {
            let outside = [json!(true), json!([]), json!({}), long(most - 1)];
            return (vec![json!(7), long(most - 2)], outside.into());
        }
        Kind::Id => (vec![json!(id), json!(id.replace('-', "").to_uppercase())], vec![json!("x")], "text"),
        Kind::Topic => (vec![json!("a.b"), long(limits::MAX_TOPIC_BYTES)], vec![], "text"),
        Kind::Selector => (vec![json!("a.b"), json!("a.*.**")], vec![], "text"),
        Kind::Group => (vec![json!("g"), long(limits::MAX_GROUP_BYTES)], vec![], "text"),
        Kind::Code => unreachable!("no client says a code"),
        Kind::List(of, least, most) => {
            let (good, bad) = edges(*of);
            let list = |value: &Value, count: usize| Value::Array(vec![value.clone(); count]);
            let mut outside: Vec<Value> = bad.iter().map(|bad| list(bad, least.max(1))).collect();
            outside.push(list(&good[0], most + 1));
            outside.extend(least.checked_sub(1).map(|below| list(&good[0], below)));
            let inside = good.iter().map(|good| list(good, least.max(1))).chain([list(&good[0], most)]).collect();
            (inside, outside, "list")
        }
        Kind::Map(most) => (vec![json!({}), pairs(most)], vec![pairs(most + 1), json!({ "a": 1 })], "map"),
        Kind::Headers => {
            let reserved = json!({ "Promethean-x": "1" });
            let (most, long) = (limits::MAX_HEADERS, json!({ "a": "x".repeat(limits::MAX_HEADER_BYTES) }));
            (vec![json!({}), pairs(most)], vec![pairs(most + 1), json!({ "a": 1 }), reserved, long], "map")
        }
        Kind::Object(part) => {
            let needed = part.fields().filter(|field| field.needed);
            let bare: Value = needed.map(|field| (field.name.to_owned(), edges(field.kind).0[0].clone())).collect();
            let with = |field: &Field, value: &Value| {
                let mut object = bare.clone();
                object[field.name] = value.clone();
                object
            };
            let (mut inside, mut outside) = (vec![bare.clone()], Vec::new());
            for field in part.fields() {
                let (good, bad) = edges(field.kind);
                let alone = |value: &&Value| !part.needs.iter().any(|(word, _)| **value == *word);
                inside.extend(good.iter().filter(alone).map(|value| with(field, value)));
                outside.extend(bad.iter().map(|value| with(field, value)));
                outside.extend(good.iter().filter(|value| !alone(value)).map(|value| with(field, value)));
            }
            outside.extend((!bare.as_object().is_some_and(serde_json::Map::is_empty)).then(|| json!({})));
            (inside, outside, "map")
        }
        Kind::Either(..) => unreachable!("no client says either of two"),
    };
    outside.extend(others(is));
    (inside, outside)
}

#[test]
fn what_a_type_tells_is_what_is_taken_and_one_step_past_it_is_refused() {
    let mut tried = 0;
    for shape in ASKED {
        let example: Value = serde_json::from_str(shape.example).expect(shape.name);
        for field in shape.fields() {
            let with = |value: Option<&Value>| {
                let mut frame = example.clone();
                let members = frame.as_object_mut().expect("an object");
                members.retain(|name, _| {
                    !shape.one_of().any(|one| one == name) || !shape.one_of().any(|one| one == field.name)
                });
                members.remove(field.name);
                members.extend(value.map(|value| (field.name.to_owned(), value.clone())));
                frame
            };
            let chosen = shape.one_of().any(|one| one == field.name);
            let (inside, outside) = edges(field.kind);
            for value in &inside {
                let why = refusal(&with(Some(value)));
                assert_eq!(
                    why,
                    None,
                    "{} {}: {}",
                    shape.name,
                    field.name,
                    &value.to_string()[..value.to_string().len().min(80)]
                );
            }
            for value in &outside {
                // Too long an extension is cut, whatever its number.
                if field.name == "extend_ms" && value.is_u64() {
                    continue;
                }
                let why = refusal(&with(Some(value))).unwrap_or_default();
                let shown: String = value.to_string().chars().take(80).collect();
                assert!(
                    why.contains(field.name) || field.name == "opts",
                    "{} {}: {shown} is {why:?}",
                    shape.name,
                    field.name
                );
                assert!(!why.is_empty(), "{} {}: {shown} is taken", shape.name, field.name);
            }
            assert_eq!(refusal(&with(None)).is_some(), field.needed || chosen, "{} without {}", shape.name, field.name);
            let null = refusal(&with(Some(&Value::Null))).is_some();
            assert_eq!(
                null,
                (field.needed || chosen) && !matches!(field.kind, Kind::Any),
                "{} {}: null",
                shape.name,
                field.name
            );
            tried += inside.len() + outside.len();
        }
    }
    assert!(tried > 400, "{tried} values");
}

#[test]
fn every_op_has_a_shape_whose_example_is_understood() {
    for op in Op::ALL {
        assert!(ASKED.iter().any(|shape| shape.op == op.as_str()), "{op:?}");
    }
    for shape in ASKED {
        let frame = decode(shape.example);
        assert_eq!((frame.op.as_str(), frame.request.err()), (shape.op, None), "{}", shape.name);
        assert!(SAID.iter().any(|said| said.name == shape.answer), "{}", shape.answer);
    }
}

#[test]
fn a_client_reads_the_examples_of_the_hubs_frames() {
    for shape in SAID {
        let answer = Answer::parse(shape.example).expect(shape.name).expect("known");
        let op = match &answer {
            Answer::Ok(_) => "OK",
            Answer::Error(_) => "ERR",
            Answer::Events { .. } => "EVENT",
        };
        assert!(shape.op.starts_with(op), "{} is read as {answer:?}", shape.name);
    }
}
