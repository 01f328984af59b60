//! A place in payloads where events that bring no key have one: a JSON Pointer (RFC 6901).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longest pointer in bytes.
const MAX_BYTES: usize = 1024;

/// A JSON Pointer to the key in payloads. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyPath {
    text: Arc<str>,
    steps: Arc<[Box<str>]>,
}

impl KeyPath {
    /// Reads a pointer: empty for the whole payload, else `/` before each step, with `~0` for `~` and `~1` for `/`.
    ///
    /// # Errors
    /// The reason why the text is no pointer.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("must have at most {MAX_BYTES} bytes, has {}", text.len()));
        }
        let mut parts = text.split('/');
        if parts.next() != Some("") {
            return Err(format!("{text:?} is no JSON Pointer; write / before each step, as in /order/id"));
        }
        let steps = parts.map(step).collect::<Option<_>>();
        let steps = steps.ok_or_else(|| format!("{text:?}: after ~ must come 0 (for ~) or 1 (for /)"))?;
        Ok(Self { text: text.into(), steps })
    }

    /// The pointer as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the string at the pointer, or the number there as it is written; `None` for anything else.
    pub fn key_of<'p>(&self, payload: &'p RawValue) -> Option<Cow<'p, str>> {
        let mut at = payload;
        for step in &*self.steps {
            at = member(at, step)?;
        }
        let text = at.get();
        match text.as_bytes().first()? {
            b'"' => serde_json::from_str::<Text<'p>>(text).ok().map(|text| text.0),
            b'-' | b'0'..=b'9' => Some(Cow::Borrowed(text)),
            _ => None,
        }
    }
}

impl TryFrom<String> for KeyPath {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<KeyPath> for String {
    fn from(path: KeyPath) -> Self {
        path.text.as_ref().to_owned()
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Decodes a step.
fn step(text: &str) -> Option<Box<str>> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        out.push(match char {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            _ => char,
        });
    }
    Some(out.into())
}

/// The member of an object, or the entry of a list, that `step` names. Of a name that is there twice, the last.
fn member<'p>(value: &'p RawValue, step: &str) -> Option<&'p RawValue> {
    let mut reader = serde_json::Deserializer::from_str(value.get());
    match value.get().as_bytes().first()? {
        b'{' => reader.deserialize_map(Members(step)).ok()?,
        b'[' => {
            let plain = step == "0" || !step.starts_with('0');
            let digits = plain && step.bytes().all(|byte| byte.is_ascii_digit());
            let index = digits.then(|| step.parse().ok()).flatten()?;
            reader.deserialize_seq(Entries(index)).ok()?
        }
        _ => None,
    }
}

struct Members<'s>(&'s str);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Option<&'de RawValue>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(same) = map.next_key_seed(Is(self.0))? {
            if same {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Reads a name as `true` if it is this one.
struct Is<'s>(&'s str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        // As bytes: a name may have lone surrogates, which are no text.
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }
    fn visit_bytes<E>(self, name: &[u8]) -> Result<bool, E> {
        Ok(name == self.0.as_bytes())
    }
    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

struct Entries(usize);

impl<'de> Visitor<'de> for Entries {
    type Value = Option<&'de RawValue>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut index, mut found) = (0, None);
        loop {
            if index == self.0 {
                found = seq.next_element()?;
                if found.is_none() {
                    return Ok(None);
                }
            } else if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(found);
            }
            index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str, payload: &str) -> Option<String> {
        let payload = RawValue::from_string(payload.to_owned()).expect("JSON");
        KeyPath::parse(path).expect("a pointer").key_of(&payload).map(Cow::into_owned)
    }

    #[test]
    fn strings_and_numbers_at_the_place_are_keys() {
        let order = r#"{"order":{"id":"o-1","n":1.50,"big":12345678901234567890123},"id":7}"#;
        assert_eq!(key("/order/id", order).as_deref(), Some("o-1"));
        assert_eq!(key("/order/n", order).as_deref(), Some("1.50"), "as it is written");
        assert_eq!(key("/order/big", order).as_deref(), Some("12345678901234567890123"));
        assert_eq!(key("/id", order).as_deref(), Some("7"));
        assert_eq!(key("", "\"whole\"").as_deref(), Some("whole"));
        assert_eq!(key("", " -3 ").as_deref(), Some("-3"));
        assert_eq!(key("/a", r#"{"a":"\u00e9\n"}"#).as_deref(), Some("é\n"));
        assert_eq!(key("/a", r#"{"a":1,"a":"last"}"#).as_deref(), Some("last"));
    }

    #[test]
    fn anything_else_at_the_place_is_no_key() {
        for (path, payload) in [
            ("/a", r#"{"b":1}"#),
            ("/a", r#"{"a":null}"#),
            ("/a", r#"{"a":true}"#),
            ("/a", r#"{"a":{"b":1}}"#),
            ("/a", r#"{"a":[1]}"#),
            ("/a", "7"),
            ("/a", "null"),
            ("/a/b", r#"{"a":"b"}"#),
            ("/a", r#"{"a":"\ud800"}"#),
            ("", "{}"),
        ] {
            assert_eq!(key(path, payload), None, "{path} of {payload}");
        }
    }

    /// The examples of RFC 6901, section 5, and its rules for lists.
    #[test]
    fn pointers_are_those_of_rfc_6901() {
        let document = r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
        for (path, expected) in [
            ("/foo/0", "bar"),
            ("/foo/1", "baz"),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ] {
            assert_eq!(key(path, document).as_deref(), Some(expected), "{path}");
        }
        for path in ["/foo/2", "/foo/-", "/foo/01", "/foo/+1", "/foo/", "/foo/99999999999999999999999"] {
            assert_eq!(key(path, document), None, "{path}");
        }
        assert_eq!(key("/x", r#"{"\ud800":1,"x":"y"}"#).as_deref(), Some("y"), "names need not be text");
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for path in ["id", "a/b", "/a~", "/a~2", "#/a"] {
            assert!(KeyPath::parse(path).is_err(), "{path}");
        }
        assert!(KeyPath::parse(&format!("/{}", "a".repeat(1024))).is_err());
        let read: KeyPath = serde_json::from_str("\"/a~1b\"").expect("a pointer");
        assert_eq!((read.as_str(), serde_json::to_string(&read).expect("JSON")), ("/a~1b", "\"/a~1b\"".to_owned()));
        assert!(serde_json::from_str::<KeyPath>("\"a\"").is_err());
    }
}
