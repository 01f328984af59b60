//! The query of a request, decoded; a refusal names the parameter.
//!
//! A parameter that is there but empty counts as left out, as in the seed, except for keys, which may be empty. Unknown
//! ones are refused before the handler ([`with_routes`](super::with_routes)).

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;
use percent_encoding::percent_decode_str;
use promethean_event::{Code, EventId, From, Group, Invalid, Millis, Topic, limits};

use crate::rejection::Rejection;

/// The query of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, Option<String>)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

/// Decodes `%41` and `+`; `None`: it is not UTF-8.
fn decode(text: &str) -> Option<String> {
    percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name)?, decode(value)))
        });
        Self(pairs.collect())
    }

    /// The names that are there.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// All values of a parameter that may come more than once.
    pub(crate) fn all(&self, name: &str) -> Result<Vec<&str>, Rejection> {
        let values = self.0.iter().filter(|(this, _)| this == name);
        let values = values.map(|(_, value)| {
            value.as_deref().ok_or_else(|| Rejection::new(Code::BadRequest, format!("{name}: is not UTF-8")))
        });
        values.collect()
    }

    /// A parameter that may come once.
    pub(crate) fn one(&self, name: &str) -> Result<Option<&str>, Rejection> {
        Ok(self.once(name)?.filter(|value| !value.is_empty()))
    }

    /// A parameter that may come once and of which the empty text is a value like others.
    pub(crate) fn once(&self, name: &str) -> Result<Option<&str>, Rejection> {
        match self.all(name)?.as_slice() {
            [] => Ok(None),
            [value] => Ok(Some(value)),
            _ => Err(Rejection::new(Code::BadRequest, format!("{name}: may be given once only"))),
        }
    }

    /// A whole number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Rejection> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(number) if number <= limits::MAX_SAFE_INTEGER && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Some(number))
            }
            _ => {
                let most = limits::MAX_SAFE_INTEGER;
                Err(Rejection::new(
                    Code::BadRequest,
                    format!("{name}: must be a whole number up to {most}, is {text:?}"),
                ))
            }
        }
    }

    /// A number from 1 to `most`; `default` where it is left out.
    pub(crate) fn limit(&self, default: usize, most: usize) -> Result<usize, Rejection> {
        match self.number("limit")? {
            None => Ok(default),
            Some(limit) => usize::try_from(limit)
                .ok()
                .filter(|limit| (1..=most).contains(limit))
                .ok_or_else(|| Rejection::new(Code::BadRequest, format!("limit: must be 1 to {most}, is {limit}"))),
        }
    }

    /// `1` or `0`.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, Rejection> {
        match self.one(name)? {
            None => Ok(default),
            Some("1" | "true") => Ok(true),
            Some("0" | "false") => Ok(false),
            Some(_) => Err(Rejection::new(Code::BadRequest, format!("{name}: must be 1 or 0"))),
        }
    }

    /// An event's id.
    pub(crate) fn id(&self, name: &str) -> Result<Option<EventId>, Rejection> {
        self.one(name)?.map(|text| parse_id(name, text)).transpose()
    }

    /// The topic, which has to be there.
    pub(crate) fn topic(&self) -> Result<Topic, Rejection> {
        match self.one("topic")? {
            Some(text) => Ok(Topic::parse(text)?),
            None => Err(Rejection::new(Code::BadRequest, "topic required")),
        }
    }

    /// The topic and the group, which both have to be there.
    pub(crate) fn topic_and_group(&self) -> Result<(Topic, Group), Rejection> {
        match (self.one("topic")?, self.one("group")?) {
            (Some(topic), Some(group)) => Ok((Topic::parse(topic)?, Group::parse(group)?)),
            _ => Err(Rejection::new(Code::BadRequest, "topic and group required")),
        }
    }

    /// The place of `from=seq`: the event with this seq, or the first one after it. `None`: something else is asked for.
    pub(crate) fn seq(&self) -> Result<Option<u64>, Rejection> {
        match (self.one("from")?, self.number("seq")?) {
            (Some("seq"), None) => Err(Rejection::new(Code::BadRequest, "seq required")),
            (Some("seq"), Some(seq)) => Ok(Some(seq.max(1))),
            _ => Ok(None),
        }
    }

    /// `from`, `ts` and `afterId` together. Where `from` is left out, what is there says it, else `default`. `other` is the
    /// word that the route takes besides: `snapshot`, or `seq`, which is looked at before ([`Query::seq`]).
    pub(crate) fn from(&self, default: From, other: &str) -> Result<From, Rejection> {
        let (ts, after) = (self.number("ts")?.map(Millis), self.id("afterId")?);
        let required = |name: &str| Rejection::new(Code::BadRequest, format!("{name} required"));
        match self.one("from")? {
            Some("earliest") => Ok(From::Earliest),
            Some("latest") => Ok(From::Latest),
            Some("snapshot") if other == "snapshot" => Ok(From::Snapshot),
            Some("ts") => ts.map(From::Ts).ok_or_else(|| required("ts")),
            Some("afterId") => after.map(From::AfterId).ok_or_else(|| required("afterId")),
            Some(_) => {
                let words = format!("from: must be earliest, latest, ts, afterId or {other}");
                Err(Rejection::new(Code::BadRequest, words))
            }
            None => Ok(after.map(From::AfterId).or(ts.map(From::Ts)).unwrap_or(default)),
        }
    }
}

/// An event's id; a refusal names `name`.
pub(crate) fn parse_id(name: &str, text: &str) -> Result<EventId, Rejection> {
    EventId::parse(text).map_err(|invalid| Invalid { field: name.to_owned(), ..invalid }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_empty_ones_are_left_out() {
        let query = Query::parse("a=x%20y+z&b=&c&tag=1&tag=%232&&bad=%ff");
        assert_eq!(query.one("a"), Ok(Some("x y z")));
        assert_eq!((query.one("b"), query.one("c"), query.one("d")), (Ok(None), Ok(None), Ok(None)));
        assert_eq!(query.all("tag"), Ok(vec!["1", "#2"]));
        assert_eq!(query.one("tag").expect_err("twice").msg, "tag: may be given once only");
        assert_eq!(query.one("bad").expect_err("not UTF-8").code, Code::BadRequest);
    }

    #[test]
    fn numbers_and_limits_are_whole_and_in_range() {
        for bad in ["-1", "1.5", "x", "+1", "9007199254740992", "99999999999999999999999"] {
            assert!(Query::parse(&format!("ts={}", bad.replace('+', "%2B"))).number("ts").is_err(), "{bad}");
        }
        assert_eq!(Query::parse("limit=10").limit(100, 10), Ok(10));
        assert!(Query::parse("limit=11").limit(100, 10).is_err() && Query::parse("limit=0").limit(100, 10).is_err());
        assert_eq!(Query::parse("").limit(100, 10), Ok(100));
    }

    #[test]
    fn from_needs_what_it_names() {
        let from = |text: &str| Query::parse(text).from(From::Earliest, "snapshot");
        assert_eq!((from(""), from("from=latest")), (Ok(From::Earliest), Ok(From::Latest)));
        assert_eq!((from("from=ts&ts=5"), from("ts=5")), (Ok(From::Ts(Millis(5))), Ok(From::Ts(Millis(5)))));
        assert_eq!(from("from=ts").expect_err("no ts").msg, "ts required");
        assert_eq!(from("from=afterId").expect_err("no id").msg, "afterId required");
        assert_eq!(from("from=afterId&afterId=x").expect_err("no UUID").code, Code::BadId);
        assert_eq!(from("from=nowhere").expect_err("unknown").code, Code::BadRequest);
        let seq = |text: &str| Query::parse(text).seq();
        assert_eq!((seq("from=seq&seq=7"), seq("from=seq&seq=0"), seq("seq=7")), (Ok(Some(7)), Ok(Some(1)), Ok(None)));
        assert_eq!(seq("from=seq").expect_err("no seq").msg, "seq required");
    }
}
