//! Fields that no type reads: a sentence for each, with the nearest field that is read. Runs only for frames that have one.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Op;
use super::shape::{ASKED, Field, Kind, Shape};
use super::split::FrameFields;

/// Most sentences about one frame.
pub(super) const MAX_WARNINGS: usize = 20;
/// Most characters of a name that are shown.
const SHOWN: usize = 64;

/// The members of an object, in order; a name that is no text is shown with replacement characters.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key_seed(super::split::any_name())? {
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// A name, whatever its bytes.
pub(super) struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Name, E> {
                Ok(Name(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// A sentence for each field of the frame that no type reads. Of the entries of a batch, each name counts once.
pub(super) fn sentences(text: &str, op: Op) -> Vec<String> {
    let Ok(Members(members)) = serde_json::from_str(text) else { return Vec::new() };
    let has = |name: &&str| members.iter().any(|(this, _)| this == name);
    let mut shapes = ASKED.iter().filter(|shape| shape.op == op.as_str());
    let Some(shape) = shapes.find(|shape| !shape.without.iter().any(has)) else { return Vec::new() };
    let mut strays = Strays { shape, names: Vec::new(), sentences: Vec::new(), more: 0 };
    strays.look(&members, "", &shape.fields().collect::<Vec<_>>());
    if strays.more > 0 {
        strays.sentences.push(format!("{} more unknown fields", strays.more));
    }
    strays.sentences
}

struct Strays {
    shape: &'static Shape,
    /// Reported already, without indexes.
    names: Vec<String>,
    sentences: Vec<String>,
    more: usize,
}

impl Strays {
    /// Looks through the object at `path` and the objects inside.
    fn look(&mut self, members: &[(String, &RawValue)], path: &str, fields: &[&'static Field]) {
        for (name, value) in members {
            match fields
                .iter()
                .copied()
                .find(|field| field.name == name || !field.alias.is_empty() && field.alias == name)
            {
                Some(Field { kind: Kind::Object(part), .. }) => {
                    if let Ok(Members(inner)) = serde_json::from_str(value.get()) {
                        self.look(&inner, &format!("{path}{name}."), &part.fields().collect::<Vec<_>>());
                    }
                }
                Some(Field { kind: Kind::List(Kind::Object(part), ..), .. }) => {
                    let fields: Vec<_> = part.fields().collect();
                    let entries: Vec<&RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
                    for (index, entry) in entries.into_iter().enumerate() {
                        if let Ok(Members(inner)) = serde_json::from_str(entry.get()) {
                            self.look(&inner, &format!("{path}{name}[{index}]."), &fields);
                        }
                    }
                }
                Some(_) => {}
                None if path.is_empty() && name == FrameFields::NAMES.op => {}
                None => self.add(path, name),
            }
        }
    }

    fn add(&mut self, path: &str, name: &str) {
        let shown: String = name.chars().take(SHOWN).collect();
        let plain = path.split_once('[').map_or(path, |(list, _)| list);
        let known = format!("{plain}\0{shown}");
        if self.names.contains(&known) {
            return;
        }
        if self.names.len() >= MAX_WARNINGS - 1 {
            self.more += 1;
            return;
        }
        self.names.push(known);
        let op = self.shape.op;
        let likely = self.nearest(path, &shown).map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        self.sentences.push(format!("{path}{shown}: not a field of {op}{likely}"));
    }

    /// The path of the field that is most like `name`: one of the same object where it is as good as any.
    fn nearest(&self, path: &str, name: &str) -> Option<String> {
        let index = path.find('[').and_then(|at| path.get(at..=path.find(']')?)).unwrap_or("[]");
        let mut paths = Vec::new();
        collect(&mut self.shape.fields(), "", index, &mut paths);
        paths.sort_by_key(|(parent, _)| parent != path);
        let nearest = crate::nearest(name, paths.iter().map(|(_, name)| *name))?;
        let (parent, name) = paths.iter().find(|(_, name)| *name == nearest)?;
        Some(format!("{parent}{name}"))
    }
}

/// The names of `fields` and of the objects in them, each with the path of its object.
fn collect(
    fields: &mut dyn Iterator<Item = &'static Field>,
    path: &str,
    index: &str,
    paths: &mut Vec<(String, &'static str)>,
) {
    for field in fields {
        paths.push((path.to_owned(), field.name));
        let (part, index_here) = match field.kind {
            Kind::Object(part) => (part, ""),
            Kind::List(Kind::Object(part), ..) => (*part, index),
            _ => continue,
        };
        collect(&mut part.fields(), &format!("{path}{}{index_here}.", field.name), index, paths);
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode;

    fn warnings(text: &str) -> Vec<String> {
        decode(text).corr.map(|corr| corr.warnings().to_vec()).unwrap_or_default()
    }

    #[test]
    fn a_misspelt_field_is_named_with_the_nearest_one() {
        for (text, expected) in [
            (
                r#"{"op":"PUBLISH","topic":"a","payload":1,"key":"x"}"#,
                "key: not a field of PUBLISH; did you mean opts.key?",
            ),
            (
                r#"{"op":"PUBLISH","topic":"a","payload":1,"opts":{"kye":"x"}}"#,
                "opts.kye: not a field of PUBLISH; did you mean opts.key?",
            ),
            (
                r#"{"op":"PUBLISH","topic":"a","payload":1,"opts":{"payload":1}}"#,
                "opts.payload: not a field of PUBLISH; did you mean payload?",
            ),
            (
                r#"{"op":"PUBLISH","topic":"a","events":[{"payload":1},{"payload":2,"tag":"x"},{"payload":3,"tag":"x"}]}"#,
                "events[1].tag: not a field of PUBLISH; did you mean events[1].tags?",
            ),
            (
                r#"{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"max_in_flight":1}}"#,
                "opts.max_in_flight: not a field of SUBSCRIBE; did you mean opts.maxInFlight?",
            ),
            (
                r#"{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"filter":{"tag":["x"]}}}"#,
                "opts.filter.tag: not a field of SUBSCRIBE; did you mean opts.filter.tags?",
            ),
            (r#"{"op":"PING","payload":1}"#, "payload: not a field of PING"),
            (r#"{"op":"PING","\ud800":1}"#, "\u{fffd}\u{fffd}\u{fffd}: not a field of PING"),
        ] {
            assert_eq!(warnings(text), [expected], "{text}");
        }
    }

    #[test]
    fn known_fields_and_their_aliases_are_not_named() {
        for shape in super::ASKED {
            assert!(warnings(shape.example).is_empty(), "{}", shape.example);
        }
        let nack = r#"{"op":"NACK","topic":"a","group":"g","id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","delayMs":7}"#;
        assert!(warnings(nack).is_empty());
        let batch = r#"{"op":"PUBLISH","topic":"a","events":[{"payload":1}],"opts":{"key":"x"}}"#;
        assert_eq!(warnings(batch), ["opts: not a field of PUBLISH"], "a batch has no opts of its own");
    }

    #[test]
    fn a_flood_of_unknown_fields_has_few_sentences() {
        let many: String = (0..1_000).map(|n| format!(",\"x{n}\":0")).collect();
        let found = warnings(&format!("{{\"op\":\"PING\"{many}}}"));
        assert_eq!((found.len(), found.last().map(String::as_str)), (20, Some("981 more unknown fields")));
    }
}
