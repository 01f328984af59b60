//! Reads what a client says, each field by its wire type; a refusal names the field.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::kinds::{Any, Clamped, Cut, List, Name, Number, OrDefault, OwnHeaders, Pairs, Text};
use super::{Described, Object};
use crate::frame::field;
use crate::frame::split::{self, Inner, Split};
use crate::{EventId, Group, Headers, Invalid, Millis, Selector};

/// A wire type that is read as a `V`.
pub(crate) trait Value<'a, V>: Described {
    /// What is there.
    fn read(raw: &'a RawValue, name: &str) -> Result<V, Invalid>;

    /// What it is where it is left out.
    fn left_out(name: &str) -> Result<V, Invalid> {
        Err(Invalid::request(name, "is missing"))
    }

    /// The field, whether it is there or not; `null` is the same as left out.
    #[inline]
    fn field(raw: Option<&'a RawValue>, name: &str) -> Result<V, Invalid> {
        match field::present(raw) {
            Some(raw) => Self::read(raw, name),
            None => Self::left_out(name),
        }
    }
}

/// A wire type that is read as a `V` from what the splitter kept of the field: its text, nearly always.
pub(crate) trait Read<'a, V, R>: Described {
    /// The field, whether it is there or not.
    fn take(split: &mut R, name: &str) -> Result<V, Invalid>;
}

impl<'a, V, T: Value<'a, V>> Read<'a, V, Option<&'a RawValue>> for T {
    #[inline]
    fn take(split: &mut Option<&'a RawValue>, name: &str) -> Result<V, Invalid> {
        T::field(*split, name)
    }
}

/// A struct that is read from the fields of a frame or of an object in it.
pub(crate) trait Members<'a>: Sized {
    /// The fields, split.
    type Split;
    /// Reads what is its.
    fn read(split: &mut Self::Split) -> Result<Self, Invalid>;
}

impl<'a, T: Members<'a>> Members<'a> for Box<T> {
    type Split = T::Split;
    fn read(split: &mut Self::Split) -> Result<Self, Invalid> {
        T::read(split).map(Box::new)
    }
}

impl<'a, T: Value<'a, V>, V> Value<'a, Option<V>> for Option<T> {
    #[inline]
    fn read(raw: &'a RawValue, name: &str) -> Result<Option<V>, Invalid> {
        T::read(raw, name).map(Some)
    }
    #[inline]
    fn left_out(_: &str) -> Result<Option<V>, Invalid> {
        Ok(None)
    }
}

/// Left out is `false`.
impl<'a> Value<'a, bool> for Option<bool> {
    fn read(raw: &'a RawValue, name: &str) -> Result<bool, Invalid> {
        <bool as Value<'a, bool>>::read(raw, name)
    }
    fn left_out(_: &str) -> Result<bool, Invalid> {
        Ok(false)
    }
}

impl<'a> Value<'a, bool> for bool {
    fn read(raw: &'a RawValue, name: &str) -> Result<bool, Invalid> {
        field::flag(raw, name)
    }
}

impl<'a> Value<'a, EventId> for EventId {
    fn read(raw: &'a RawValue, name: &str) -> Result<EventId, Invalid> {
        field::id(raw, name)
    }
}

impl<'a> Value<'a, Selector> for Selector {
    fn read(raw: &'a RawValue, name: &str) -> Result<Selector, Invalid> {
        Selector::parse(&field::text(raw, name)?)
    }
}

impl<'a> Value<'a, Group> for Group {
    fn read(raw: &'a RawValue, name: &str) -> Result<Group, Invalid> {
        Group::parse(&field::text(raw, name)?)
    }
}

impl<'a, T: Described> Value<'a, Cow<'a, str>> for Name<T> {
    #[inline]
    fn read(raw: &'a RawValue, name: &str) -> Result<Cow<'a, str>, Invalid> {
        field::text(raw, name)
    }
}

impl<'a, const MOST: usize> Value<'a, Cow<'a, str>> for Text<MOST> {
    #[inline]
    fn read(raw: &'a RawValue, name: &str) -> Result<Cow<'a, str>, Invalid> {
        let text = field::text(raw, name)?;
        if MOST > 0 && text.len() > MOST {
            return Err(Invalid::request(name, format!("may have at most {MOST} bytes, has {}", text.len())));
        }
        Ok(text)
    }
}

impl<'a, const MOST: usize> Value<'a, String> for Text<MOST> {
    fn read(raw: &'a RawValue, name: &str) -> Result<String, Invalid> {
        <Self as Value<'a, Cow<'a, str>>>::read(raw, name).map(Cow::into_owned)
    }
}

impl<'a, const MOST: usize> Value<'a, Cow<'a, str>> for Cut<MOST> {
    fn read(raw: &'a RawValue, name: &str) -> Result<Cow<'a, str>, Invalid> {
        let text = field::text(raw, name)?;
        if text.len() <= MOST {
            return Ok(text);
        }
        Ok(Cow::Owned(text.get(..text.floor_char_boundary(MOST)).unwrap_or_default().to_owned()))
    }
}

/// What a number of the wire is in Rust. A number that is in its field's range is kept as it is.
pub(crate) trait Counted {
    /// From the wire.
    fn of(number: u64) -> Self;
    /// To the wire.
    fn number(&self) -> u64;
}

impl Counted for u64 {
    #[inline]
    fn of(number: u64) -> Self {
        number
    }
    #[inline]
    fn number(&self) -> u64 {
        *self
    }
}

impl Counted for u32 {
    fn of(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
    #[inline]
    fn number(&self) -> u64 {
        u64::from(*self)
    }
}

impl Counted for usize {
    fn of(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
    #[inline]
    fn number(&self) -> u64 {
        *self as u64
    }
}

impl Counted for Millis {
    #[inline]
    fn of(number: u64) -> Self {
        Self(number)
    }
    #[inline]
    fn number(&self) -> u64 {
        self.0
    }
}

impl Counted for Duration {
    fn of(number: u64) -> Self {
        Self::from_millis(number)
    }
    #[inline]
    fn number(&self) -> u64 {
        u64::try_from(self.as_millis()).unwrap_or(u64::MAX)
    }
}

impl<'a, V: Counted, const LEAST: u64, const MOST: u64> Value<'a, V> for Number<LEAST, MOST> {
    fn read(raw: &'a RawValue, name: &str) -> Result<V, Invalid> {
        let number = field::number(raw, name)?;
        if !(LEAST..=MOST).contains(&number) {
            return Err(Invalid::request(name, format!("must be {LEAST} to {MOST}, is {number}")));
        }
        Ok(V::of(number))
    }
}

impl<'a, const LEAST: u64, const MOST: u64> Value<'a, Duration> for Clamped<LEAST, MOST> {
    fn read(raw: &'a RawValue, name: &str) -> Result<Duration, Invalid> {
        field::number(raw, name).map(|number| Duration::from_millis(number.clamp(LEAST, MOST)))
    }
}

impl<'a, T: Value<'a, V>, V, const LEAST: usize, const MOST: usize> Value<'a, Vec<V>> for List<T, LEAST, MOST> {
    fn read(raw: &'a RawValue, name: &str) -> Result<Vec<V>, Invalid> {
        let list = field::list(raw, name, MOST, T::read)?;
        if list.len() < LEAST {
            return Err(Invalid::request(name, format!("must have at least {LEAST} entries, has {}", list.len())));
        }
        Ok(list)
    }
    #[inline]
    fn left_out(name: &str) -> Result<Vec<V>, Invalid> {
        if LEAST == 0 { Ok(Vec::new()) } else { Err(Invalid::request(name, "is missing")) }
    }
}

/// One over the limit is let through: the check of the options says what the limit is, and which names are the hub's.
impl<'a> Value<'a, Headers<'a>> for OwnHeaders {
    fn read(raw: &'a RawValue, name: &str) -> Result<Headers<'a>, Invalid> {
        field::pairs(raw, name)
    }
    #[inline]
    fn left_out(_: &str) -> Result<Headers<'a>, Invalid> {
        Ok(Vec::new())
    }
}

impl<'a, const MOST: usize> Value<'a, Vec<(String, String)>> for Pairs<MOST> {
    fn read(raw: &'a RawValue, name: &str) -> Result<Vec<(String, String)>, Invalid> {
        let pairs = field::pairs(raw, name)?;
        if MOST > 0 && pairs.len() > MOST {
            return Err(Invalid::request(name, format!("may have at most {MOST} entries, has {}", pairs.len())));
        }
        Ok(pairs.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }
    fn left_out(_: &str) -> Result<Vec<(String, String)>, Invalid> {
        Ok(Vec::new())
    }
}

/// `null` is a payload.
impl<'a> Value<'a, &'a RawValue> for Any {
    fn read(raw: &'a RawValue, _: &str) -> Result<&'a RawValue, Invalid> {
        Ok(raw)
    }
    #[inline]
    fn field(raw: Option<&'a RawValue>, name: &str) -> Result<&'a RawValue, Invalid> {
        raw.ok_or_else(|| Invalid::request(name, "is missing"))
    }
}

impl<'a, T> Read<'a, T, Inner<'a>> for OrDefault<T>
where
    T: Object + Default + Members<'a>,
    T::Split: Deserialize<'a> + Split,
{
    #[inline]
    fn take(inner: &mut Inner<'a>, name: &str) -> Result<T, Invalid> {
        let Some(raw) = field::present(inner.raw) else { return Ok(T::default()) };
        let mut split: T::Split =
            serde_json::from_str(raw.get()).map_err(|_| Invalid::request(name, "must be an object"))?;
        let read = T::read(&mut split).map_err(|refused| refused.within(&format!("{name}.")))?;
        inner.is_strange = split.is_strange(const { split::known(T::Split::ALL, T::FIELDS) });
        Ok(read)
    }
}
