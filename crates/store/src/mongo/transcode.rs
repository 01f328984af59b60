//! JSON to BSON and back, so that an event's fields and payload are values that scripts can query.
//!
//! Not every JSON text has a BSON value that gives the same text again (`1e400`, `"\ud800"`, white space): the caller
//! compares, and keeps the text beside the value where they differ.

use std::borrow::Cow;
use std::fmt;

use mongodb::bson::RawBsonRef;
use promethean_event::json;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// MongoDB takes 100 levels; the event's own take a few.
const MAX_DEPTH: u32 = 80;

/// Appends the element `name` with the value of this JSON text.
///
/// # Errors
/// BSON has no such value; what was appended so far stays and is to be cut off.
pub(super) fn append(out: &mut Vec<u8>, name: &str, text: &str) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Element { out, name, depth: 0 }.deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Begins an element and returns where its type stands.
fn begin(out: &mut Vec<u8>, name: &str) -> usize {
    let at = out.len();
    out.push(0);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    at
}

pub(super) fn string(out: &mut Vec<u8>, name: &str, text: &str) {
    let at = begin(out, name);
    out[at] = 0x02;
    out.extend_from_slice(&(i32::try_from(text.len() + 1).unwrap_or(i32::MAX)).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

pub(super) fn int64(out: &mut Vec<u8>, name: &str, number: i64) {
    let at = begin(out, name);
    out[at] = 0x12;
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn boolean(out: &mut Vec<u8>, name: &str, value: bool) {
    let at = begin(out, name);
    out[at] = 0x08;
    out.push(u8::from(value));
}

/// 16 bytes that are a UUID.
pub(super) fn uuid(out: &mut Vec<u8>, name: &str, bytes: &[u8; 16]) {
    let at = begin(out, name);
    out[at] = 0x05;
    out.extend_from_slice(&16_i32.to_le_bytes());
    out.push(4);
    out.extend_from_slice(bytes);
}

/// Writes a document: its length, what `fill` appends, its end.
pub(super) fn document<T>(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    let filled = fill(out);
    out.push(0);
    let len = i32::try_from(out.len() - at).unwrap_or(i32::MAX);
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    filled
}

struct Element<'a, 'n> {
    out: &'a mut Vec<u8>,
    name: &'n str,
    depth: u32,
}

impl<'de> DeserializeSeed<'de> for Element<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom("nests deeper than MongoDB takes"));
        }
        if self.name.contains('\0') {
            return Err(D::Error::custom("a name with a NUL"));
        }
        let at = begin(self.out, self.name);
        deserializer.deserialize_any(Value { out: self.out, at, depth: self.depth })
    }
}

struct Value<'a> {
    out: &'a mut Vec<u8>,
    /// Where the type goes.
    at: usize,
    depth: u32,
}

impl Value<'_> {
    fn put(self, kind: u8, bytes: &[u8]) {
        self.out[self.at] = kind;
        self.out.extend_from_slice(bytes);
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.put(0x0A, &[]);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.put(0x08, &[u8::from(value)]);
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        match i32::try_from(number) {
            Ok(small) => self.put(0x10, &small.to_le_bytes()),
            Err(_) => self.put(0x12, &number.to_le_bytes()),
        }
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        match i64::try_from(number) {
            Ok(number) => self.visit_i64(number),
            Err(_) => self.visit_f64(number as f64),
        }
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.put(0x01, &number.to_le_bytes());
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let len = i32::try_from(text.len() + 1).unwrap_or(i32::MAX);
        self.out[self.at] = 0x02;
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out.extend_from_slice(text.as_bytes());
        self.out.push(0);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.out[self.at] = 0x04;
        let depth = self.depth + 1;
        document(self.out, |out| {
            let mut name = String::new();
            for index in 0_usize.. {
                name.clear();
                let _ = fmt::Write::write_fmt(&mut name, format_args!("{index}"));
                if seq.next_element_seed(Element { out, name: &name, depth })?.is_none() {
                    break;
                }
            }
            Ok(())
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        #[derive(Deserialize)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
        self.out[self.at] = 0x03;
        let depth = self.depth + 1;
        document(self.out, |out| {
            while let Some(Name(name)) = map.next_key()? {
                map.next_value_seed(Element { out, name: &name, depth })?;
            }
            Ok(())
        })
    }
}

/// Appends a BSON value as JSON. Types that JSON has not are written as MongoDB's relaxed extended JSON.
pub(super) fn write(out: &mut Vec<u8>, value: RawBsonRef<'_>) -> Option<()> {
    match value {
        RawBsonRef::Null | RawBsonRef::Undefined => out.extend_from_slice(b"null"),
        RawBsonRef::Boolean(true) => out.extend_from_slice(b"true"),
        RawBsonRef::Boolean(false) => out.extend_from_slice(b"false"),
        RawBsonRef::Int32(number) => signed(out, i64::from(number)),
        RawBsonRef::Int64(number) => signed(out, number),
        RawBsonRef::Double(number) => out.extend_from_slice(serde_json::to_string(&number).ok()?.as_bytes()),
        RawBsonRef::String(text) => json::write_string(out, text),
        RawBsonRef::Array(array) => {
            out.push(b'[');
            for (index, item) in array.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(out, item.ok()?)?;
            }
            out.push(b']');
        }
        RawBsonRef::Document(document) => {
            out.push(b'{');
            for (index, item) in document.iter().enumerate() {
                let (name, value) = item.ok()?;
                if index > 0 {
                    out.push(b',');
                }
                json::write_string(out, name.as_str());
                out.push(b':');
                write(out, value)?;
            }
            out.push(b'}');
        }
        other => {
            let owned = mongodb::bson::Bson::try_from(other).ok()?;
            out.extend_from_slice(serde_json::to_string(&owned).ok()?.as_bytes());
        }
    }
    Some(())
}

fn signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    json::write_number(out, number.unsigned_abs());
}
