//! Wire types for what a Rust type alone does not say: bounds, and how what is left out counts.

use std::marker::PhantomData;

use super::{Described, Object};
use crate::frame::shape::Kind;
use crate::{Code, EventId, Group, Selector, Topic, limits};

/// A whole number in a range. In Rust a number, a time or a duration in milliseconds.
pub(crate) struct Number<const LEAST: u64, const MOST: u64>;

/// Times, counts and numbers that every JSON reader keeps exactly.
pub(crate) type Whole = Number<0, { limits::MAX_SAFE_INTEGER }>;

/// A duration in milliseconds; outside this range the nearest in it counts.
pub(crate) struct Clamped<const LEAST: u64, const MOST: u64>;

/// A string of at most this many bytes; 0: as long as the frame allows.
pub(crate) struct Text<const MOST: usize>;

/// A string of which at most this many bytes are kept.
pub(crate) struct Cut<const MOST: usize>;

/// The name of a `T`, read as it is: who has a list of the names needs no check.
pub(crate) struct Name<T>(PhantomData<T>);

/// So many `T`s. One that may be empty may be left out.
pub(crate) struct List<T, const LEAST: usize, const MOST: usize>(PhantomData<T>);

/// At most so many `T`s, left out where there is none.
pub(crate) struct Filled<T, const MOST: usize>(PhantomData<T>);

/// Names and strings, at most so many, or any number for 0; left out where there is none.
pub(crate) struct Pairs<const MOST: usize>;

/// The headers of a publisher: none of them is the hub's own.
pub(crate) struct OwnHeaders;

/// Any JSON value, byte for byte.
pub(crate) struct Any;

/// An object; left out, it is as if it were empty.
pub(crate) struct OrDefault<T>(PhantomData<T>);

impl<const LEAST: u64, const MOST: u64> Described for Number<LEAST, MOST> {
    const KIND: Kind = Kind::Number(LEAST, MOST);
}

impl<const LEAST: u64, const MOST: u64> Described for Clamped<LEAST, MOST> {
    const KIND: Kind = Whole::KIND;
}

impl<const MOST: usize> Described for Text<MOST> {
    const KIND: Kind = Kind::Text(MOST);
}

impl<const MOST: usize> Described for Cut<MOST> {
    const KIND: Kind = Kind::Text(0);
}

impl<T: Described> Described for Name<T> {
    const KIND: Kind = T::KIND;
}

impl<T: Described, const LEAST: usize, const MOST: usize> Described for List<T, LEAST, MOST> {
    const KIND: Kind = Kind::List(&T::KIND, LEAST, MOST);
    const NEEDED: bool = LEAST > 0;
}

impl<T: Described, const MOST: usize> Described for Filled<T, MOST> {
    const KIND: Kind = Kind::List(&T::KIND, 1, MOST);
    const NEEDED: bool = false;
}

impl<const MOST: usize> Described for Pairs<MOST> {
    const KIND: Kind = Kind::Map(MOST);
    const NEEDED: bool = false;
}

impl Described for OwnHeaders {
    const KIND: Kind = Kind::Headers;
    const NEEDED: bool = false;
}

impl Described for Any {
    const KIND: Kind = Kind::Any;
}

impl<T: Object> Described for OrDefault<T> {
    const KIND: Kind = Kind::Object(T::PART);
    const NEEDED: bool = false;
}

impl Described for bool {
    const KIND: Kind = Kind::Flag;
}

impl Described for EventId {
    const KIND: Kind = Kind::Id;
}

impl Described for Topic {
    const KIND: Kind = Kind::Topic;
}

impl Described for Selector {
    const KIND: Kind = Kind::Selector;
}

impl Described for Group {
    const KIND: Kind = Kind::Group;
}

impl Described for Code {
    const KIND: Kind = Kind::Code;
}
