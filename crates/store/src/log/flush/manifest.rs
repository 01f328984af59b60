//! The manifest: what is flushed, in one small file that is replaced as a whole.
//!
//! ```text
//!  file = "PRMTHMAN" · version:u32 · crc:u32 · body          crc is of the body
//! ```
//!
//! It names every segment with its length, every id table, every topic with its settings, and every group's state as
//! of the end of journal file `flushed`. Everything younger is in the journal files after that one.
//! Invariant: what the manifest names is durable before the manifest is.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bytes::Bytes;
use promethean_event::{EventId, Group, Millis, Seq, Topic};

use crate::life::{self, Life};
use crate::log::commit::codec::{Reader, put, put_bytes, u32_at};
use crate::log::disk::{Disk, read_all, replace};
use crate::log::flush::ids::TableMeta;
use crate::log::flush::segment::Meta;
use crate::{TopicSettings, Version};

pub(in crate::log) const NAME: &str = "MANIFEST";
const MAGIC: &[u8; 8] = b"PRMTHMAN";
const VERSION: u32 = 1;

/// A group's state as bytes, with its version.
pub(in crate::log) type Saved = (Version, Bytes);

/// What is flushed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::log) struct Manifest {
    /// Journal files up to this one are flushed.
    pub(in crate::log) flushed: u64,
    /// The last version given to a group's state.
    pub(in crate::log) version: Version,
    /// The last generation given to a rewritten segment.
    pub(in crate::log) generation: u64,
    pub(in crate::log) tables: Vec<TableMeta>,
    pub(in crate::log) topics: BTreeMap<u32, TopicEntry>,
}

/// A topic in the manifest.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::log) struct TopicEntry {
    pub(in crate::log) name: Topic,
    pub(in crate::log) settings: TopicSettings,
    pub(in crate::log) life: Life,
    /// Events before this one are gone.
    pub(in crate::log) first_seq: Seq,
    pub(in crate::log) last_seq: Seq,
    pub(in crate::log) last: Option<(EventId, Millis)>,
    pub(in crate::log) segments: Vec<Meta>,
    pub(in crate::log) groups: BTreeMap<Group, Saved>,
}

impl TopicEntry {
    pub(in crate::log) fn new(name: Topic) -> Self {
        Self {
            name,
            settings: TopicSettings::default(),
            life: Life::default(),
            first_seq: 1,
            last_seq: 0,
            last: None,
            segments: Vec::new(),
            groups: BTreeMap::new(),
        }
    }
}

impl Manifest {
    /// Replaces the manifest of `dir`, durably.
    pub(in crate::log) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let body = self.encode();
        let mut file = Vec::with_capacity(body.len() + 16);
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&VERSION.to_le_bytes());
        file.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        file.extend_from_slice(&body);
        replace(disk, dir, NAME, &file)
    }

    /// Reads the manifest of `dir`; the inner error says what is wrong with its bytes.
    pub(in crate::log) fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Result<Self, &'static str>> {
        let bytes = Bytes::from(read_all(disk, &dir.join(NAME))?);
        if bytes.len() < 16 || &bytes[..8] != MAGIC {
            return Ok(Err("it does not begin like a manifest"));
        }
        if u32_at(&bytes, 8) != VERSION {
            return Ok(Err("it has another version"));
        }
        let body = bytes.slice(16..);
        if crc32fast::hash(&body) != u32_at(&bytes, 12) {
            return Ok(Err("it does not have its checksum"));
        }
        Ok(Self::decode(&body).ok_or("it ends too early"))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for field in [self.flushed, self.version, self.generation, self.tables.len() as u64] {
            put(&mut out, field);
        }
        for table in &self.tables {
            for field in [table.number, table.pages, table.topics] {
                put(&mut out, field);
            }
            out.extend_from_slice(table.min.as_bytes());
            out.extend_from_slice(table.max.as_bytes());
        }
        put(&mut out, self.topics.len() as u64);
        for (number, topic) in &self.topics {
            put(&mut out, u64::from(*number));
            put_bytes(&mut out, topic.name.as_str().as_bytes());
            put_bytes(&mut out, &life::to_json(&topic.settings, topic.life));
            put(&mut out, topic.first_seq);
            put(&mut out, topic.last_seq);
            match topic.last {
                None => out.push(0),
                Some((id, ts)) => {
                    out.push(1);
                    out.extend_from_slice(id.as_bytes());
                    put(&mut out, ts.0);
                }
            }
            put(&mut out, topic.segments.len() as u64);
            for meta in &topic.segments {
                let fields = [
                    meta.first_seq,
                    meta.last_seq,
                    meta.generation,
                    meta.len,
                    meta.events,
                    meta.bytes,
                    meta.max_ts,
                    meta.first_appended,
                    meta.max_appended,
                    u64::from(meta.indexed),
                ];
                fields.into_iter().for_each(|field| put(&mut out, field));
            }
            put(&mut out, topic.groups.len() as u64);
            for (group, (version, state)) in &topic.groups {
                put_bytes(&mut out, group.as_str().as_bytes());
                put(&mut out, *version);
                put_bytes(&mut out, state);
            }
        }
        out
    }

    fn decode(body: &Bytes) -> Option<Self> {
        let mut reader = Reader::new(body);
        let mut manifest = Self {
            flushed: reader.number()?,
            version: reader.number()?,
            generation: reader.number()?,
            ..Self::default()
        };
        for _ in 0..reader.number()? {
            let (number, pages, topics) = (reader.number()?, reader.number()?, reader.number()?);
            manifest.tables.push(TableMeta { number, pages, topics, min: reader.id()?, max: reader.id()? });
        }
        for _ in 0..reader.number()? {
            let number = reader.small()?;
            let mut topic = TopicEntry::new(Topic::parse(&reader.text()?).ok()?);
            (topic.settings, topic.life) = life::from_json(&reader.bytes()?)?;
            topic.first_seq = reader.number()?;
            topic.last_seq = reader.number()?;
            if reader.byte()? == 1 {
                topic.last = Some((reader.id()?, Millis(reader.number()?)));
            }
            for _ in 0..reader.number()? {
                topic.segments.push(Meta {
                    first_seq: reader.number()?,
                    last_seq: reader.number()?,
                    generation: reader.number()?,
                    len: reader.number()?,
                    events: reader.number()?,
                    bytes: reader.number()?,
                    max_ts: reader.number()?,
                    first_appended: reader.number()?,
                    max_appended: reader.number()?,
                    indexed: reader.number()? != 0,
                });
            }
            for _ in 0..reader.number()? {
                let group = Group::parse(&reader.text()?).ok()?;
                let version = reader.number()?;
                // A copy, so that a state of a few bytes does not keep the whole manifest in memory.
                topic.groups.insert(group, (version, Bytes::copy_from_slice(&reader.bytes()?)));
            }
            manifest.topics.insert(number, topic);
        }
        reader.is_empty().then_some(manifest)
    }
}
