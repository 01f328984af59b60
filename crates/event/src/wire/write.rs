//! Writes what the hub says, each field by its wire type, straight into a buffer.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::kinds::{Any, Filled, List, Name, Number, Pairs, Text};
use super::read::Counted;
use super::{Described, Fields};
use crate::{Code, EventId, Headers, Topic, json};

/// A wire type that a `V` is written as.
pub(crate) trait Write<V: ?Sized>: Described {
    /// Appends the value.
    fn write(value: &V, out: &mut Vec<u8>);

    /// Appends the member, its `name` with comma and colon before it, unless it is left out.
    #[inline(always)]
    fn member(value: &V, name: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(name.as_bytes());
        Self::write(value, out);
    }
}

/// A struct that the hub writes: a frame, an object in one, or members of either.
pub(crate) trait Said: Fields {
    /// Of a frame: what stands in its `op`.
    const OP: &'static str;
    /// Of a frame: its beginning, `op` included.
    const BEGIN: &'static str;

    /// Appends the members, with a comma before each.
    fn members(&self, out: &mut Vec<u8>);

    /// Appends the members as the beginning of an object.
    fn open(&self, out: &mut Vec<u8>);

    /// Appends the frame.
    #[inline(always)]
    fn frame(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(Self::BEGIN.as_bytes());
        self.members(out);
        out.push(b'}');
    }
}

/// Appends `said` as an object.
#[inline(always)]
pub(crate) fn object(said: &impl Said, out: &mut Vec<u8>) {
    said.open(out);
    out.push(b'}');
}

impl<T: Write<V>, V> Write<Option<V>> for Option<T> {
    #[inline(always)]
    fn write(value: &Option<V>, out: &mut Vec<u8>) {
        if let Some(value) = value {
            T::write(value, out);
        }
    }
    #[inline(always)]
    fn member(value: &Option<V>, name: &str, out: &mut Vec<u8>) {
        if let Some(value) = value {
            T::member(value, name, out);
        }
    }
}

/// `false` is left out.
impl Write<bool> for Option<bool> {
    #[inline(always)]
    fn write(value: &bool, out: &mut Vec<u8>) {
        out.extend_from_slice(if *value { b"true" } else { b"false" });
    }
    #[inline(always)]
    fn member(value: &bool, name: &str, out: &mut Vec<u8>) {
        if *value {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"true");
        }
    }
}

impl<V: Counted, const LEAST: u64, const MOST: u64> Write<V> for Number<LEAST, MOST> {
    #[inline(always)]
    fn write(value: &V, out: &mut Vec<u8>) {
        json::write_number(out, value.number());
    }
}

impl<V: AsRef<str>, const MOST: usize> Write<V> for Text<MOST> {
    #[inline(always)]
    fn write(value: &V, out: &mut Vec<u8>) {
        json::write_string(out, value.as_ref());
    }
}

impl<T: Described> Write<&str> for Name<T> {
    #[inline(always)]
    fn write(value: &&str, out: &mut Vec<u8>) {
        json::write_string(out, value);
    }
}

impl Write<EventId> for EventId {
    #[inline(always)]
    fn write(value: &EventId, out: &mut Vec<u8>) {
        out.extend_from_slice(value.quoted(&mut [b'"'; 38]));
    }
}

impl Write<Topic> for Topic {
    #[inline(always)]
    fn write(value: &Topic, out: &mut Vec<u8>) {
        // Nothing in a topic's name needs an escape.
        out.push(b'"');
        out.extend_from_slice(value.as_str().as_bytes());
        out.push(b'"');
    }
}

impl Write<&Topic> for Topic {
    #[inline(always)]
    fn write(value: &&Topic, out: &mut Vec<u8>) {
        <Topic as Write<Topic>>::write(value, out);
    }
}

impl Write<Code> for Code {
    fn write(value: &Code, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(value.as_str().as_bytes());
        out.push(b'"');
    }
}

impl Write<&RawValue> for Any {
    #[inline(always)]
    fn write(value: &&RawValue, out: &mut Vec<u8>) {
        out.extend_from_slice(value.get().as_bytes());
    }
}

impl Write<&Headers<'_>> for Pairs<0> {
    fn write(value: &&Headers<'_>, out: &mut Vec<u8>) {
        out.push(b'{');
        for (index, (name, value)) in value.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            json::write_string(out, name);
            out.push(b':');
            json::write_string(out, value);
        }
        out.push(b'}');
    }
    #[inline(always)]
    fn member(value: &&Headers<'_>, name: &str, out: &mut Vec<u8>) {
        if !value.is_empty() {
            out.extend_from_slice(name.as_bytes());
            Self::write(value, out);
        }
    }
}

/// The entries of a list, one by one.
pub(crate) struct Each<I>(pub(crate) I);

/// A member whose value, or whose entries, are written after it.
pub(crate) struct Open;

fn entries<T: Write<V>, V>(values: impl Iterator<Item = V>, out: &mut Vec<u8>) {
    for (index, value) in values.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        T::write(&value, out);
    }
    out.push(b']');
}

impl<I, T, const LEAST: usize, const MOST: usize> Write<Each<I>> for List<T, LEAST, MOST>
where
    I: Iterator + Clone,
    T: Write<I::Item>,
{
    fn write(value: &Each<I>, out: &mut Vec<u8>) {
        out.push(b'[');
        entries::<T, _>(value.0.clone(), out);
    }
}

impl<T: Described, const LEAST: usize, const MOST: usize> Write<Open> for List<T, LEAST, MOST> {
    fn write(_: &Open, out: &mut Vec<u8>) {
        out.push(b'[');
    }
}

impl<I, T, const MOST: usize> Write<Each<I>> for Filled<T, MOST>
where
    I: Iterator + Clone,
    T: Write<I::Item>,
{
    fn write(value: &Each<I>, out: &mut Vec<u8>) {
        out.push(b'[');
        entries::<T, _>(value.0.clone(), out);
    }
    #[inline]
    fn member(value: &Each<I>, name: &str, out: &mut Vec<u8>) {
        let mut rest = value.0.clone();
        if let Some(first) = rest.next() {
            out.extend_from_slice(name.as_bytes());
            out.push(b'[');
            entries::<T, _>(std::iter::once(first).chain(rest), out);
        }
    }
}

impl<V, T: Write<V>, const MOST: usize> Write<&[V]> for Filled<T, MOST> {
    fn write(value: &&[V], out: &mut Vec<u8>) {
        out.push(b'[');
        for (index, value) in value.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            T::write(value, out);
        }
        out.push(b']');
    }
    #[inline(always)]
    fn member(value: &&[V], name: &str, out: &mut Vec<u8>) {
        if !value.is_empty() {
            out.extend_from_slice(name.as_bytes());
            Self::write(value, out);
        }
    }
}

/// Where a member's text stands in what is being written, for who wants to find it again.
#[derive(Default)]
pub(crate) struct Place(std::cell::Cell<(usize, usize)>);

impl Place {
    /// From where to where the text goes, inside its quotes.
    pub(crate) fn get(&self) -> (usize, usize) {
        self.0.get()
    }
}

/// A text whose place is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Marked<'a> {
    /// The text.
    pub(crate) text: &'a Cow<'a, str>,
    /// Set when it is written.
    pub(crate) place: &'a Place,
}

impl<const MOST: usize> Write<Marked<'_>> for Text<MOST> {
    #[inline(always)]
    fn write(value: &Marked<'_>, out: &mut Vec<u8>) {
        let start = out.len() + 1;
        json::write_string(out, value.text);
        value.place.0.set((start, out.len() - 1));
    }
}
