//! What a journal frame holds: entries, in the order in which they happened.
//!
//! ```text
//!  1 topic     number:varint · name
//!  2 event     topic:varint · event (see codec)
//!  3 save      topic:varint · group · version:varint · state
//!  4 forget    topic:varint · group · version:varint
//!  5 settings  topic:varint · JSON
//!  6 trim      topic:varint · first_seq:varint
//!  7 create    topic:varint
//!  8 delete    topic:varint · last_seq:varint · version:varint    events up to last_seq, settings and groups are gone
//! ```
//! Names, states and JSON are a length (varint) and bytes.

use bytes::Bytes;
use promethean_event::{Group, Seq, Topic};

use crate::log::commit::codec::{Held, Reader, put, put_bytes};
use crate::log::flush::manifest::TopicEntry;
use crate::log::memtable::TopicState;
use crate::{TopicSettings, Version};

const TOPIC: u8 = 1;
pub(in crate::log) const EVENT: u8 = 2;
const SAVE: u8 = 3;
const FORGET: u8 = 4;
const SETTINGS: u8 = 5;
const TRIM: u8 = 6;
const CREATE: u8 = 7;
const DELETE: u8 = 8;

/// One entry of a frame.
#[derive(Debug)]
pub(in crate::log) enum Entry {
    Topic(u32, Topic),
    Event(u32, Seq, Held),
    Save(u32, Group, Version, Bytes),
    Forget(u32, Group, Version),
    Settings(u32, TopicSettings),
    Trim(u32, Seq),
    Create(u32),
    Delete(u32, Seq, Version),
}

pub(in crate::log) fn put_topic(out: &mut Vec<u8>, number: u32, name: &Topic) {
    out.push(TOPIC);
    put(out, u64::from(number));
    put_bytes(out, name.as_str().as_bytes());
}

pub(in crate::log) fn put_save(out: &mut Vec<u8>, topic: u32, group: &Group, version: Version, state: &[u8]) {
    out.push(SAVE);
    put(out, u64::from(topic));
    put_group(out, group, version);
    put_bytes(out, state);
}

pub(in crate::log) fn put_forget(out: &mut Vec<u8>, topic: u32, group: &Group, version: Version) {
    out.push(FORGET);
    put(out, u64::from(topic));
    put_group(out, group, version);
}

pub(in crate::log) fn put_settings(out: &mut Vec<u8>, topic: u32, settings: &TopicSettings) {
    out.push(SETTINGS);
    put(out, u64::from(topic));
    put_bytes(out, &serde_json::to_vec(settings).unwrap_or_default());
}

pub(in crate::log) fn put_trim(out: &mut Vec<u8>, topic: u32, first_seq: Seq) {
    out.push(TRIM);
    put(out, u64::from(topic));
    put(out, first_seq);
}

pub(in crate::log) fn put_create(out: &mut Vec<u8>, topic: u32) {
    out.push(CREATE);
    put(out, u64::from(topic));
}

pub(in crate::log) fn put_delete(out: &mut Vec<u8>, topic: u32, last_seq: Seq, version: Version) {
    out.push(DELETE);
    put(out, u64::from(topic));
    put(out, last_seq);
    put(out, version);
}

fn put_group(out: &mut Vec<u8>, group: &Group, version: Version) {
    put_bytes(out, group.as_str().as_bytes());
    put(out, version);
}

impl Entry {
    pub(in crate::log) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let kind = reader.byte()?;
        let topic = reader.small()?;
        Some(match kind {
            TOPIC => Self::Topic(topic, Topic::parse(&reader.text()?).ok()?),
            EVENT => {
                let (seq, held) = reader.event(0, 0)?;
                Self::Event(topic, seq, held)
            }
            SAVE => {
                let (group, version) = (Group::parse(&reader.text()?).ok()?, reader.number()?);
                Self::Save(topic, group, version, Bytes::copy_from_slice(&reader.bytes()?))
            }
            FORGET => Self::Forget(topic, Group::parse(&reader.text()?).ok()?, reader.number()?),
            SETTINGS => Self::Settings(topic, serde_json::from_slice(&reader.bytes()?).ok()?),
            TRIM => Self::Trim(topic, reader.number()?),
            CREATE => Self::Create(topic),
            DELETE => Self::Delete(topic, reader.number()?, reader.number()?),
            _ => return None,
        })
    }
}

/// What the manifest will know of a topic, but for its segments.
pub(in crate::log) fn snapshot(state: &TopicState) -> TopicEntry {
    let inner = state.inner.lock();
    TopicEntry {
        name: state.name.clone(),
        settings: inner.settings.clone(),
        life: inner.life,
        first_seq: inner.first_seq,
        last_seq: inner.last_seq,
        last: inner.last,
        segments: Vec::new(),
        groups: inner.groups.clone(),
    }
}
