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

/// Part of a frame that its answer carries: the mark as JSON text, a string or a number of at most 1 KiB, and warnings
/// about the frame. Outlives its frame, mostly without an allocation.
#[derive(Clone)]
pub struct Corr {
    /// Empty where the frame has none.
    mark: Text,
    warnings: Option<Box<[String]>>,
}

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
        let mark = match bytes.get_mut(..text.len()) {
            Some(room) => {
                room.copy_from_slice(text.as_bytes());
                Text::Short { bytes, len: u8::try_from(text.len()).unwrap_or(0) }
            }
            None => Text::Long(text.into()),
        };
        Ok(Self { mark, warnings: None })
    }

    /// Adds warnings to what an answer carries.
    pub(super) fn warned(corr: Option<Self>, warnings: Vec<String>) -> Self {
        let mark = corr.map_or(Text::Short { bytes: [0; INLINE], len: 0 }, |corr| corr.mark);
        Self { mark, warnings: Some(warnings.into()) }
    }

    /// Adds warnings to those that an answer carries already.
    pub fn and_warnings(corr: Option<Self>, more: Vec<String>) -> Option<Self> {
        if more.is_empty() {
            return corr;
        }
        let before = corr.as_ref().map_or(&[][..], Self::warnings).to_vec();
        Some(Self::warned(corr, [before, more].concat()))
    }

    /// Sentences about the frame: one for each unknown field, and for each value that the hub lowered.
    pub fn warnings(&self) -> &[String] {
        self.warnings.as_deref().unwrap_or_default()
    }

    /// True if the client marked the frame.
    pub fn is_mark(&self) -> bool {
        !self.as_bytes().is_empty()
    }

    /// The JSON text.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.mark {
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
    #[inline(always)]
    fn member(value: &&Corr, name: &str, out: &mut Vec<u8>) {
        if value.is_mark() {
            out.extend_from_slice(name.as_bytes());
            Self::write(value, out);
        }
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
