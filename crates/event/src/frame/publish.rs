//! `PUBLISH`: one event, or a batch that is stored all or none.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::field;
use super::split::{EventFields, Events, FrameFields};
use crate::{Invalid, Millis, PublishOptions, limits};

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

pub(super) fn read<'a>(fields: FrameFields<'a>) -> Result<Publish<'a>, Invalid> {
    let topic = field::text(field::required(fields.topic, "topic")?, "topic")?;
    let events = match fields.events {
        None | Some(Events::Null) => {
            let payload = fields.payload.ok_or_else(|| Invalid::request("payload", "is missing"))?;
            let options = match field::present(fields.opts) {
                None => PublishOptions::default(),
                Some(raw) => {
                    let opts: EventFields<'a> =
                        serde_json::from_str(raw.get()).map_err(|_| Invalid::request("opts", "must be an object"))?;
                    options(&opts).map_err(|refused| refused.within("opts."))?
                }
            };
            Item::One { payload, options }
        }
        Some(Events::NoList) => return Err(Invalid::request("events", "must be a list of objects")),
        Some(Events::BadItem(index)) => {
            return Err(Invalid::request(format!("events[{index}]"), "must be an object with a payload"));
        }
        Some(Events::List(list)) => {
            if fields.payload.is_some() {
                return Err(Invalid::request("events", "a frame has either payload or events, not both"));
            }
            if list.is_empty() || list.len() > limits::MAX_BATCH {
                let message = format!("must have 1 to {} entries", limits::MAX_BATCH);
                return Err(Invalid::request("events", message));
            }
            let read = |(index, item): (usize, EventFields<'a>)| {
                let within = |refused: Invalid| refused.within(&format!("events[{index}]."));
                let payload = item.payload.ok_or_else(|| within(Invalid::request("payload", "is missing")))?;
                options(&item).map(|options| (payload, options)).map_err(within)
            };
            Item::Batch(list.into_iter().enumerate().map(read).collect::<Result<_, _>>()?)
        }
    };
    Ok(Publish { topic, events })
}

fn options<'a>(fields: &EventFields<'a>) -> Result<PublishOptions<'a>, Invalid> {
    let optional = |raw, name| field::present(raw).map(|raw| field::text(raw, name)).transpose();
    // One over the limit is let through: the check of the options says what the limit is.
    Ok(PublishOptions {
        id: field::present(fields.id).map(|raw| field::id(raw, "id")).transpose()?,
        ts: field::present(fields.ts).map(|raw| field::number(raw, "ts").map(Millis)).transpose()?,
        key: optional(fields.key, "key")?,
        headers: field::pairs(fields.headers, "headers")?,
        tags: field::list(fields.tags, "tags", limits::MAX_LIST, field::text)?,
        caused_by: field::list(fields.caused_by, "caused_by", limits::MAX_LIST, field::id)?,
        sid: optional(fields.sid, "sid")?,
    })
}
