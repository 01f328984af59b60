//! What each frame holds, as data: what machine-readable documents are made of.
//!
//! Nothing is listed here. [`ASKED`], [`SAID`] and [`parts`] are put together by the declarations of the types that
//! [`decode`](super::decode) reads and [`write`](mod@super::write) writes: a field's name, what it may hold, whether it
//! is needed, its bounds and its words come from the field itself (see `wire`). What a type cannot say, a name, the
//! answer, an example, stands beside it. Over a socket `e2e/browser/asyncapi.test.ts` proves it: what a schema refuses
//! the hub refuses too, what it allows the hub takes, and no frame of the hub holds what is not written here.

use crate::wire::Object;
use crate::{Code, Event};

/// A frame.
#[derive(Debug)]
pub struct Shape {
    /// What documents call it.
    pub name: &'static str,
    /// What stands in its `op`.
    pub op: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// What every frame of its side may have.
    pub(crate) head: &'static [Field],
    /// The fields of the types that it is read as or written by.
    pub(crate) fields: &'static [&'static [Field]],
    pub(crate) one_of: &'static [&'static [Field]],
    /// Fields that make it another frame.
    pub without: &'static [&'static str],
    /// Of a client's frame: the hub's frame that says it was done. Empty for a hub's frame.
    pub answer: &'static str,
    /// One of them, as JSON.
    pub example: &'static str,
}

/// A field of a frame or of an object in it.
#[derive(Debug)]
pub struct Field {
    /// As it stands on the wire.
    pub name: &'static str,
    /// Another name that the hub takes for it; empty where there is none.
    pub alias: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// True if it has to be there.
    pub needed: bool,
    /// What it says.
    pub about: &'static str,
}

/// What a field may hold.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Any JSON value, kept byte for byte.
    Any,
    /// `true` or `false`.
    Flag,
    /// A string of at most this many bytes; 0: as long as the frame allows.
    Text(usize),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number in this range.
    Number(u64, u64),
    /// A string or a number that marks a frame, at most so many bytes of JSON.
    Mark(usize),
    /// An event's id.
    Id,
    /// A topic's name.
    Topic,
    /// A topic's name or a pattern.
    Selector,
    /// A group's name.
    Group,
    /// A reason to refuse.
    Code,
    /// A list of so many entries.
    List(&'static Kind, usize, usize),
    /// Names and strings, at most so many.
    Map(usize),
    /// The same, without names that are the hub's own.
    Headers,
    /// An object.
    Object(&'static Part),
    /// Either of them.
    Either(&'static Kind, &'static Kind),
}

/// An object that stands in frames.
#[derive(Debug)]
pub struct Part {
    /// What documents call it.
    pub name: &'static str,
    pub(crate) fields: &'static [&'static [Field]],
    /// Where the first field is the one word, the other field is needed.
    pub needs: &'static [(&'static str, &'static str)],
    /// True if a client says it: then `null` is the same as left out.
    pub asked: bool,
}

impl Shape {
    /// Everything in it but `op`.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> + Clone {
        self.head.iter().chain(self.fields.iter().copied().flatten())
    }

    /// The names of fields of which exactly one is there.
    pub fn one_of(&self) -> impl Iterator<Item = &'static str> {
        self.one_of.iter().copied().flatten().map(|field| field.name)
    }
}

impl Part {
    /// What is in it.
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> + Clone {
        self.fields.iter().copied().flatten()
    }
}

/// The frames of a client. A batch is a frame of its own here: it holds something else and is answered with it.
pub static ASKED: &[Shape] = super::decode::ASKED;

/// The frames of a hub.
pub static SAID: &[Shape] = super::write::SAID;

/// An event as it is stored and delivered.
pub static EVENT: &Part = Event::PART;

/// Every object that stands in frames.
pub fn parts() -> impl Iterator<Item = &'static Part> {
    [super::write::PARTS, super::publish::PARTS, super::subscribe::PARTS].into_iter().flatten().copied()
}

/// The words of [`Kind::Code`].
pub fn codes() -> impl Iterator<Item = &'static str> {
    Code::ALL.iter().map(|code| code.as_str())
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
