//! `corr`: the client's mark on a frame, echoed in the answer as it was written.

use std::fmt;

use serde_json::value::RawValue;

use super::shape::Kind;
use crate::Invalid;
use crate::wire::{Described, Value, Write};

/// Longest `corr` in bytes of JSON.
const MAX: usize = 1024;
/// What fits without an allocation: a number, a UUID in quotes.
const INLINE: usize = 46;

/// A `corr` as JSON text: a string or a number, at most 1 KiB. Outlives its frame, mostly without an allocation.
#[derive(Clone)]
pub struct Corr(Text);

#[derive(Clone)]
enum Text {
    Short { bytes: [u8; INLINE], len: u8 },
    Long(Box<str>),
}

impl Corr {
    /// Checks a `corr`.
    ///
    /// # Errors
    /// `bad_request`: neither a string nor a number, or longer than 1 KiB.
    fn parse(raw: &RawValue, name: &str) -> Result<Self, Invalid> {
        let text = raw.get();
        if !matches!(text.as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9')) {
            return Err(Invalid::request(name, "must be a string or a number"));
        }
        if text.len() > MAX {
            return Err(Invalid::request(name, format!("may have at most {MAX} bytes, has {}", text.len())));
        }
        let mut bytes = [0; INLINE];
        Ok(Self(match bytes.get_mut(..text.len()) {
            Some(room) => {
                room.copy_from_slice(text.as_bytes());
                Text::Short { bytes, len: u8::try_from(text.len()).unwrap_or(0) }
            }
            None => Text::Long(text.into()),
        }))
    }

    /// The JSON text.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short { bytes, len } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Text::Long(text) => text.as_bytes(),
        }
    }
}

impl Described for Corr {
    const KIND: Kind = Kind::Mark(MAX);
}

impl<'a> Value<'a, Corr> for Corr {
    fn read(raw: &'a RawValue, name: &str) -> Result<Corr, Invalid> {
        Corr::parse(raw, name)
    }
}

impl Write<&Corr> for Corr {
    #[inline(always)]
    fn write(value: &&Corr, out: &mut Vec<u8>) {
        out.extend_from_slice(value.as_bytes());
    }
}

impl fmt::Debug for Corr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl PartialEq for Corr {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}
