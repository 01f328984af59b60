//! `PUBLISH`: one event, or a batch that is stored all or none.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::split::{EventFields, Events, FrameFields};
use crate::frame::shape::{Kind, Part};
use crate::wire::{Any, Described, List, Members, Name, Object, OrDefault, Read, asked};
use crate::{Invalid, PublishOptions, Topic, limits};

/// How deep a payload is in its frame at most: in an event, in the list, in the frame.
pub(super) const LEVELS: usize = 3;

/// A `PUBLISH`.
#[derive(Debug)]
pub struct Publish<'a> {
    /// The topic's name, not checked yet: who reads many frames keeps a map of the names it knows.
    pub topic: Cow<'a, str>,
    /// What to store.
    pub events: Item<'a>,
}

/// What a `PUBLISH` brings.
#[derive(Debug)]
pub enum Item<'a> {
    /// One event.
    One {
        /// The payload, byte for byte.
        payload: &'a RawValue,
        /// Everything optional.
        options: PublishOptions<'a>,
    },
    /// A batch, 1 to 10,000 events.
    Batch(Vec<(&'a RawValue, PublishOptions<'a>)>),
}

impl<'a> Publish<'a> {
    /// The payloads that it brings.
    pub(super) fn payloads(&self) -> impl Iterator<Item = &'a RawValue> {
        let (one, batch) = match &self.events {
            Item::One { payload, .. } => (Some(*payload), None),
            Item::Batch(events) => (None, Some(events)),
        };
        one.into_iter().chain(batch.into_iter().flatten().map(|(payload, _)| *payload))
    }
}

asked! {
    /// A `PUBLISH` of one event.
    pub(super) struct One<'a> from FrameFields {
        /// The topic.
        topic: Cow<'a, str> as Name<Topic>,
        /// Any JSON value.
        payload: &'a RawValue as Any,
        /// Everything optional of the event.
        opts: PublishOptions<'a> as OrDefault<PublishOptions<'a>>,
    }
}

asked! {
    /// A `PUBLISH` of a batch.
    pub(super) struct Batch<'a> from FrameFields {
        /// The topic.
        topic: Cow<'a, str> as Name<Topic>,
        /// The events.
        events: Vec<(&'a RawValue, PublishOptions<'a>)> as List<BatchItem<'a>, 1, { limits::MAX_BATCH }>,
    }
}

asked! {
    /// An entry of a batch.
    pub(super) struct BatchItem<'a> from EventFields named "BatchItem" {
        all of {
            options: PublishOptions<'a>,
        }
        /// Any JSON value.
        payload: &'a RawValue as Any,
    }
}

impl Described for BatchItem<'_> {
    const KIND: Kind = Kind::Object(<Self as Object>::PART);
}

/// The objects of a `PUBLISH`.
pub(super) static PARTS: &[&Part] = &[PublishOptions::PART, BatchItem::PART];

impl<'a> Members<'a> for Publish<'a> {
    type Split = FrameFields<'a>;
    fn read(split: &mut FrameFields<'a>) -> Result<Self, Invalid> {
        if matches!(split.events, None | Some(Events::Null)) {
            let One { topic, payload, opts } = One::read(split)?;
            return Ok(Self { topic, events: Item::One { payload, options: opts } });
        }
        if split.payload.is_some() {
            return Err(Invalid::request("events", "a frame has either payload or events, not both"));
        }
        let Batch { topic, events } = Batch::read(split)?;
        Ok(Self { topic, events: Item::Batch(events) })
    }
}

impl<'a, const LEAST: usize, const MOST: usize> Read<'a, Vec<(&'a RawValue, PublishOptions<'a>)>, Option<Events<'a>>>
    for List<BatchItem<'a>, LEAST, MOST>
{
    fn take(split: &mut Option<Events<'a>>, name: &str) -> Result<Vec<(&'a RawValue, PublishOptions<'a>)>, Invalid> {
        let list = match split.take() {
            None | Some(Events::Null) => return Err(Invalid::request(name, "is missing")),
            Some(Events::NoList) => return Err(Invalid::request(name, "must be a list of objects")),
            Some(Events::BadItem(index)) => {
                return Err(Invalid::request(format!("{name}[{index}]"), "must be an object with a payload"));
            }
            Some(Events::List(list)) => list,
        };
        if !(LEAST..=MOST).contains(&list.len()) {
            return Err(Invalid::request(name, format!("must have {LEAST} to {MOST} entries")));
        }
        let read = |(index, mut item): (usize, EventFields<'a>)| match BatchItem::read(&mut item) {
            Ok(BatchItem { options, payload }) => Ok((payload, options)),
            Err(refused) => Err(refused.within(&format!("{name}[{index}]."))),
        };
        list.into_iter().enumerate().map(read).collect()
    }
}
