//! Reads one field of a frame by its type; a refusal names the field.
//!
//! `null` is the same as left out. A number may be written `30000`, `30000.0` or `3e4`: JSON has one kind of number, and
//! some languages write all of them as floats. Negative and fractional ones are refused.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{EventId, Invalid, limits};

/// The field's text, unless it is left out or `null`.
pub(crate) fn present(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

/// A string.
pub(crate) fn text<'a>(raw: &'a RawValue, name: &str) -> Result<Cow<'a, str>, Invalid> {
    let json = raw.get();
    let Some(inside) = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Err(Invalid::request(name, "must be a string"));
    };
    if !inside.contains('\\') {
        return Ok(Cow::Borrowed(inside));
    }
    serde_json::from_str::<String>(json)
        .map(Cow::Owned)
        .map_err(|_| Invalid::request(name, "holds an escape that is no Unicode character (a lone surrogate)"))
}

/// A whole number, zero or more.
pub(crate) fn number(raw: &RawValue, name: &str) -> Result<u64, Invalid> {
    let json = raw.get();
    if let Ok(number) = json.parse() {
        return Ok(number);
    }
    let refused = || Invalid::request(name, "must be a whole number, zero or more");
    if !json.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return Err(refused());
    }
    let float: f64 = json.parse().map_err(|_| refused())?;
    let largest = limits::MAX_SAFE_INTEGER as f64;
    if float.fract() != 0.0 || !(0.0..=largest).contains(&float) {
        return Err(refused());
    }
    Ok(float as u64)
}

/// `true` or `false`.
pub(crate) fn flag(raw: &RawValue, name: &str) -> Result<bool, Invalid> {
    match raw.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Invalid::request(name, "must be true or false")),
    }
}

/// An event's id.
pub(crate) fn id(raw: &RawValue, name: &str) -> Result<EventId, Invalid> {
    let mut refused = match EventId::parse(&text(raw, name)?) {
        Ok(id) => return Ok(id),
        Err(refused) => refused,
    };
    name.clone_into(&mut refused.field);
    Err(refused)
}

/// A list, each entry read by `read`; at most `most` entries.
pub(crate) fn list<'a, T>(
    raw: &'a RawValue,
    name: &str,
    most: usize,
    read: impl Fn(&'a RawValue, &str) -> Result<T, Invalid>,
) -> Result<Vec<T>, Invalid> {
    let entries: Vec<&'a RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| Invalid::request(name, "must be a list"))?;
    if entries.len() > most {
        let message = format!("may have at most {most} entries, has {}", entries.len());
        return Err(Invalid::request(name, message));
    }
    let read = |(index, entry)| {
        read(entry, name).map_err(|mut refused: Invalid| {
            refused.field = format!("{name}[{index}]");
            refused
        })
    };
    entries.into_iter().enumerate().map(read).collect()
}

/// An object of strings, in order.
pub(crate) fn pairs<'a>(raw: &'a RawValue, name: &str) -> Result<crate::Headers<'a>, Invalid> {
    #[derive(Deserialize)]
    struct Pairs<'a>(#[serde(borrow, deserialize_with = "crate::record::headers")] crate::Headers<'a>);
    serde_json::from_str(raw.get())
        .map(|Pairs(pairs)| pairs)
        .map_err(|_| Invalid::request(name, "must be an object whose values are strings"))
}
