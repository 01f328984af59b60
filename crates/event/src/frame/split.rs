//! One pass over a frame that checks its JSON and splits it into its fields, each still text.
//!
//! Of a field that comes twice the last counts; unknown ones are skipped. This is the one place where the names of a
//! client's fields are written: `wire::asked!` finds them here by the identifiers beside them, and a name that no type
//! reads does not compile (it is dead code).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

use super::shape::Field;
use crate::limits;

type Raw<'a> = Option<&'a RawValue>;

/// The fields of an object, split.
pub(crate) trait Split {
    /// The names on the wire.
    const ALL: &'static [&'static str];

    /// True if it has a name besides those with these bits, itself or in an object that was read of it.
    fn is_strange(&self, known: u32) -> bool;
}

/// The bits of the names in `all` that are among `fields`.
pub(crate) const fn known(all: &[&str], fields: &[&[Field]]) -> u32 {
    let (mut bits, mut list) = (0, 0);
    while list < fields.len() {
        let mut field = 0;
        while field < fields[list].len() {
            bits |= bit(all, fields[list][field].name);
            field += 1;
        }
        list += 1;
    }
    bits
}

/// The bit of a name in `all`; none if it is not there.
pub(crate) const fn bit(all: &[&str], name: &str) -> u32 {
    let mut place = 0;
    while place < all.len() {
        if is(all[place].as_bytes(), name.as_bytes()) {
            return 1 << place;
        }
        place += 1;
    }
    0
}

const fn is(one: &[u8], other: &[u8]) -> bool {
    let (mut at, mut same) = (0, one.len() == other.len());
    while same && at < one.len() {
        same = one[at] == other[at];
        at += 1;
    }
    same
}

/// An object in another one.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Inner<'a> {
    pub(crate) raw: Raw<'a>,
    /// It has a field that no type reads. Known once it is read.
    pub(crate) is_strange: bool,
}

impl<'a> From<&'a RawValue> for Inner<'a> {
    fn from(raw: &'a RawValue) -> Self {
        Self { raw: Some(raw), is_strange: false }
    }
}

/// Part of a split object.
trait Kept {
    fn is_strange(&self) -> bool;
}

impl Kept for Raw<'_> {
    #[inline(always)]
    fn is_strange(&self) -> bool {
        false
    }
}

impl Kept for Inner<'_> {
    #[inline(always)]
    fn is_strange(&self) -> bool {
        self.is_strange
    }
}

/// Reads a name by its bytes: one that no text can hold (half of a surrogate pair) is an unknown name like any other.
struct Name<K>(PhantomData<K>);

impl<'de, K: Deserialize<'de>> DeserializeSeed<'de> for Name<K> {
    type Value = K;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K, D::Error> {
        K::deserialize(AsBytes(deserializer))
    }
}

/// Reads a name as its bytes.
pub(super) fn any_name<'de, K: Deserialize<'de>>() -> impl DeserializeSeed<'de, Value = K> {
    Name(PhantomData)
}

struct AsBytes<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AsBytes<D> {
    type Error = D::Error;
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_bytes(visitor)
    }
    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The names of an object's fields, as the parser knows them and as documents and refusals say them.
macro_rules! keys {
    ($fields:ident, $key:ident, $names:ident: $($variant:ident $field:ident = $wire:literal $(or $alias:literal)?,)*) => {
        #[derive(Deserialize, Clone, Copy)]
        #[serde(field_identifier)]
        enum $key { $(#[serde(rename = $wire $(, alias = $alias)?)] $variant,)* #[serde(other)] Other }

        /// The names on the wire.
        pub(crate) struct $names { $(pub(crate) $field: &'static str,)* }

        impl $fields<'_> {
            /// The names on the wire.
            pub(crate) const NAMES: $names = $names { $($field: $wire,)* };
            /// Other names that mean the same; empty where there is none.
            pub(crate) const ALIASES: $names = $names { $($field: concat!($($alias)?),)* };
        }

        impl $key {
            const ALL: &'static [&'static str] = &[$($wire,)*];
        }
    };
}

macro_rules! kept {
    ($life:lifetime) => { Raw<$life> };
    ($life:lifetime $kept:ident) => { $kept<$life> };
}

macro_rules! split {
    ($(#[$doc:meta])* $name:ident, $key:ident, $names:ident, $visitor:ident:
        $($variant:ident $field:ident $(as $kept:ident)? = $wire:literal $(or $alias:literal)?,)*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Default, Clone, Copy)]
        pub(crate) struct $name<'a> {
            $(pub(crate) $field: kept!('a $($kept)?),)*
            /// The bits of the names it has, by their places in `ALL`; an unknown name has the bit after the last.
            seen: u32,
        }

        keys! { $name, $key, $names: $($variant $field = $wire $(or $alias)?,)* }

        impl Split for $name<'_> {
            const ALL: &'static [&'static str] = $key::ALL;
            #[inline]
            fn is_strange(&self, known: u32) -> bool {
                self.seen & !known != 0 $(|| self.$field.is_strange())*
            }
        }

        struct $visitor;

        impl<'de> Visitor<'de> for $visitor {
            type Value = $name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = $name::default();
                while let Some(key) = map.next_key_seed(Name(PhantomData))? {
                    fields.seen |= 1 << (key as u32);
                    match key {
                        $($key::$variant => fields.$field = map.next_value::<&'de RawValue>()?.into(),)*
                        $key::Other => { map.next_value::<IgnoredAny>()?; }
                    }
                }
                Ok(fields)
            }
        }

        impl<'de> Deserialize<'de> for $name<'de> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map($visitor)
            }
        }
    };
}

split! {
    /// What stands beside the payload of an event: `opts`, or the rest of a batch's item.
    EventFields, EventKey, EventNames, EventVisitor:
    Payload payload = "payload", Id id = "id", Ts ts = "ts", Key key = "key", Headers headers = "headers",
    Tags tags = "tags", CausedBy caused_by = "caused_by" or "causedBy", Sid sid = "sid",
}

split! {
    /// `opts` of a `SUBSCRIBE`.
    SubscribeFields, SubscribeKey, SubscribeNames, SubscribeVisitor:
    From from = "from", Ts ts = "ts", AfterId after_id = "afterId", Topics topics = "topics",
    MaxInFlight max_in_flight = "maxInFlight", BatchSize batch_size = "batchSize",
    AckTimeout ack_timeout = "ackTimeoutMs", MaxAttempts max_attempts = "maxAttempts", Filter filter as Inner = "filter",
    Ordered ordered = "ordered", Resume resume = "resume", Batch batch = "batch",
}

split! {
    /// `opts.filter` of a `SUBSCRIBE`.
    FilterFields, FilterKey, FilterNames, FilterVisitor:
    Tags tags = "tags", Keys keys = "keys", Headers headers = "headers",
}

/// The fields of a client's frame.
#[derive(Debug, Default)]
pub(crate) struct FrameFields<'a> {
    pub(crate) op: Raw<'a>,
    pub(crate) corr: Raw<'a>,
    pub(crate) topic: Raw<'a>,
    pub(crate) payload: Raw<'a>,
    pub(crate) opts: Inner<'a>,
    pub(crate) events: Option<Events<'a>>,
    pub(crate) group: Raw<'a>,
    pub(crate) id: Raw<'a>,
    pub(crate) ids: Raw<'a>,
    pub(crate) up_to: Raw<'a>,
    pub(crate) lease: Raw<'a>,
    pub(crate) reason: Raw<'a>,
    pub(crate) delay: Raw<'a>,
    pub(crate) release: Raw<'a>,
    pub(crate) extend: Raw<'a>,
    pub(crate) token: Raw<'a>,
    pub(crate) quiet: Raw<'a>,
    pub(crate) strict: Raw<'a>,
    /// The bits of the names it has, by their places in `ALL`; an unknown name has the bit after the last.
    seen: u32,
    /// An entry of `events` has a field that no type reads.
    strange_items: bool,
}

/// `events` of a batch, split in the same pass: a batch's payloads are read once.
#[derive(Debug)]
pub(crate) enum Events<'a> {
    /// A list of objects; one more than the contract allows is kept so that the check can say so.
    List(Vec<EventFields<'a>>),
    /// A list whose entry at this place is no object.
    BadItem(usize),
    /// No list at all.
    NoList,
    /// `null`: as if it were left out.
    Null,
}

impl FrameFields<'_> {
    /// The names on the wire.
    pub(crate) const ALL: &'static [&'static str] = FrameKey::ALL;

    /// True if it has one of the names with these bits.
    pub(crate) fn has(&self, names: u32) -> bool {
        self.seen & names != 0
    }

    /// True if it has a name besides those with these bits, itself or in an object that was read of it.
    pub(crate) fn is_strange(&self, known: u32) -> bool {
        self.seen & !known != 0 || self.opts.is_strange || self.strange_items
    }
}

keys! {
    FrameFields, FrameKey, FrameNames:
    Op op = "op", Corr corr = "corr", Topic topic = "topic", Payload payload = "payload", Opts opts = "opts",
    Events events = "events", Group group = "group", Id id = "id", Ids ids = "ids", UpTo up_to = "upTo",
    Lease lease = "lease", Reason reason = "reason", Delay delay = "delay_ms" or "delayMs", Release release = "release",
    Extend extend = "extend_ms" or "extendMs", Token token = "token", Quiet quiet = "quiet", Strict strict = "strict",
}

struct FrameVisitor {
    /// True if `events` is split as it is read. Off, a frame is only split and checked.
    events: bool,
}

impl<'de> Visitor<'de> for FrameVisitor {
    type Value = FrameFields<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = FrameFields::default();
        while let Some(key) = map.next_key_seed(Name(PhantomData))? {
            fields.seen |= 1 << (key as u32);
            let field = match key {
                FrameKey::Op => &mut fields.op,
                FrameKey::Corr => &mut fields.corr,
                FrameKey::Topic => &mut fields.topic,
                FrameKey::Payload => &mut fields.payload,
                FrameKey::Opts => &mut fields.opts.raw,
                FrameKey::Group => &mut fields.group,
                FrameKey::Id => &mut fields.id,
                FrameKey::Ids => &mut fields.ids,
                FrameKey::UpTo => &mut fields.up_to,
                FrameKey::Lease => &mut fields.lease,
                FrameKey::Reason => &mut fields.reason,
                FrameKey::Delay => &mut fields.delay,
                FrameKey::Release => &mut fields.release,
                FrameKey::Extend => &mut fields.extend,
                FrameKey::Token => &mut fields.token,
                FrameKey::Quiet => &mut fields.quiet,
                FrameKey::Strict => &mut fields.strict,
                FrameKey::Events if self.events => {
                    fields.events = Some(map.next_value_seed(EventsSeed { strange: &mut fields.strange_items })?);
                    continue;
                }
                FrameKey::Events => {
                    map.next_value::<IgnoredAny>()?;
                    fields.events = Some(Events::NoList);
                    continue;
                }
                FrameKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = Some(map.next_value()?);
        }
        Ok(fields)
    }
}

struct EventsSeed<'s> {
    /// Set if an entry has a field that no type reads.
    strange: &'s mut bool,
}

impl<'de> DeserializeSeed<'de> for EventsSeed<'_> {
    type Value = Events<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EventsSeed<'_> {
    type Value = Events<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (mut list, mut bad) = (Vec::new(), None);
        while list.len() <= limits::MAX_BATCH {
            match seq.next_element_seed(ItemSeed)? {
                Some(Some(item)) => {
                    *self.strange |= item.is_strange(ITEM);
                    list.push(item);
                }
                Some(None) => {
                    bad = Some(list.len());
                    break;
                }
                None => return Ok(Events::List(list)),
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(bad.map_or(Events::List(list), Events::BadItem))
    }
    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Events::Null)
    }
}

/// An entry of a batch may have every name of an event.
const ITEM: u32 = (1 << EventFields::ALL.len()) - 1;

struct ItemSeed;

impl<'de> DeserializeSeed<'de> for ItemSeed {
    type Value = Option<EventFields<'de>>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed {
    type Value = Option<EventFields<'de>>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        EventVisitor.visit_map(map).map(Some)
    }
    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// Splits a frame.
///
/// # Errors
/// The parser's words: not JSON, or not an object.
pub(crate) fn frame(text: &str) -> Result<FrameFields<'_>, serde_json::Error> {
    split_frame(text, true).or_else(|error| {
        // `events` may be a thing that the one pass cannot take (a string, 1e400): the rest of the frame still counts.
        split_frame(text, false).map_err(|_| error)
    })
}

fn split_frame(text: &str, events: bool) -> Result<FrameFields<'_>, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let fields = reader.deserialize_map(FrameVisitor { events })?;
    reader.end()?;
    Ok(fields)
}
