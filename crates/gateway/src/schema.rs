//! JSON Schemas of what is in frames and events, from what their Rust types tell (`event::frame::shape`).
//!
//! Lengths are counted in characters by JSON Schema and in bytes by the hub: the description says so where it matters.

use promethean_event::frame::shape::{self, Field, Kind, Part, Shape};
use promethean_event::limits;
use serde_json::{Map, Value, json};

/// The schema of a frame. A client's frame may have `null` for what it leaves out.
pub(crate) fn frame(shape: &Shape, asked: bool) -> Value {
    let mut schema = object(shape.fields(), asked);
    let properties = schema["properties"].as_object_mut().map(std::mem::take).unwrap_or_default();
    let op = ("op".to_owned(), json!({ "const": shape.op }));
    schema["properties"] = std::iter::once(op).chain(properties).collect();
    if let Some(required) = schema["required"].as_array_mut() {
        required.insert(0, json!("op"));
    }
    if shape.one_of().next().is_some() {
        let there = |name: &str| json!({ "required": [name], "properties": { name: { "not": { "type": "null" } } } });
        schema["oneOf"] = shape.one_of().map(there).collect();
    }
    if !shape.without.is_empty() {
        let there: Vec<Value> = shape.without.iter().map(|name| json!({ "required": [name] })).collect();
        schema["not"] = json!({ "anyOf": there });
    }
    schema
}

/// The schema of an object in frames.
pub(crate) fn part(part: &Part) -> Value {
    let mut schema = object(part.fields(), part.asked);
    if let (Some(first), false) = (part.fields().next(), part.needs.is_empty()) {
        let rule = |(word, name): &(&str, &str)| {
            json!({
                "if": { "required": [first.name], "properties": { first.name: { "const": word } } },
                "then": { "required": [name], "properties": { *name: { "not": { "type": "null" } } } },
            })
        };
        schema["allOf"] = part.needs.iter().map(rule).collect();
    }
    schema
}

fn object(fields: impl Iterator<Item = &'static Field> + Clone, asked: bool) -> Value {
    let properties: Map<String, Value> =
        fields.clone().map(|field| (field.name.to_owned(), of(field, asked))).collect();
    let needed: Vec<&str> = fields.filter(|field| field.needed).map(|field| field.name).collect();
    json!({ "type": "object", "required": needed, "properties": properties })
}

fn of(field: &Field, asked: bool) -> Value {
    let mut schema = kind(field.kind, asked);
    if asked && !field.needed {
        schema = json!({ "anyOf": [schema, { "type": "null" }] });
    }
    schema["description"] = json!(field.about);
    schema
}

fn kind(kind: Kind, asked: bool) -> Value {
    match kind {
        Kind::Any => json!({}),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Text(0) => json!({ "type": "string" }),
        Kind::Text(most) => json!({ "type": "string", "maxLength": most }),
        Kind::Word(words) => json!({ "enum": words }),
        Kind::Number(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        // JSON text: with the quotes.
        Kind::Mark(most) => json!({ "type": ["string", "number"], "maxLength": most - 2 }),
        Kind::Id if asked => json!({ "type": "string", "pattern": ANY_ID }),
        Kind::Id => json!({ "type": "string", "format": "uuid", "pattern": ID }),
        Kind::Topic => json!({ "type": "string", "pattern": dotted(SEGMENT) }),
        Kind::Selector => json!({ "type": "string", "pattern": dotted(&format!("({SEGMENT}|\\*\\*?)")) }),
        Kind::Group => {
            json!({ "type": "string", "pattern": format!("^[A-Za-z0-9._:-]{{1,{}}}$", limits::MAX_GROUP_BYTES) })
        }
        Kind::Code => json!({ "enum": shape::codes().collect::<Vec<_>>() }),
        Kind::List(of, least, usize::MAX) => {
            json!({ "type": "array", "items": self::kind(*of, asked), "minItems": least })
        }
        Kind::List(of, least, most) => {
            json!({ "type": "array", "items": self::kind(*of, asked), "minItems": least, "maxItems": most })
        }
        Kind::Map(0) => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Kind::Map(most) => {
            json!({ "type": "object", "additionalProperties": { "type": "string" }, "maxProperties": most })
        }
        Kind::Headers => {
            let own: String = limits::RESERVED_HEADER.chars().map(either_case).collect();
            let mut schema = self::kind(Kind::Map(limits::MAX_HEADERS), asked);
            schema["propertyNames"] = json!({ "not": { "pattern": format!("^{own}") } });
            schema
        }
        Kind::Object(part) => json!({ "$ref": format!("#/components/schemas/{}", part.name) }),
        Kind::Either(one, other) => json!({ "anyOf": [self::kind(*one, asked), self::kind(*other, asked)] }),
    }
}

const SEGMENT: &str = "[A-Za-z0-9_-]+";
const ID: &str = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$";
/// As clients may write it: in any case, also without the dashes.
const ANY_ID: &str = "^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$";

/// Segments between dots; `dlq.` at the front does not count for the length.
fn dotted(segment: &str) -> String {
    format!("^(?=(dlq\\.)?.{{1,{}}}$){segment}(\\.{segment})*$", limits::MAX_TOPIC_BYTES)
}

fn either_case(letter: char) -> String {
    if letter.is_ascii_alphabetic() { format!("[{}{letter}]", letter.to_ascii_uppercase()) } else { letter.to_string() }
}
