//! A backup as a stream of bytes: what a running hub writes, and what a data directory is made of again.
//!
//! ```text
//!  "PROMETHEAN BACKUP 1\n" · record · record · … · end
//!  record = kind:u8 · length:u32 · bytes · crc:u32        crc is of kind, length and bytes; numbers little-endian
//!  G  a group's state on a topic        T  a topic: settings, seqs        E  an event of the last topic        Z  the end
//! ```
//!
//! Invariant of the order: **every group's state comes before any topic.** A hub saves what a group has done after the
//! events that led to it are in the log (a dead letter before the event counts as done, a letter sent back before the
//! letter does), so states that were read first never speak of an event that the backup does not have. A stream
//! without its end is not whole and is refused.

use std::io::{self, Read};

use bytes::Bytes;
use promethean_event::{Event, EventId, Group, Millis, Seq, Spans, Topic};
use serde::{Deserialize, Serialize};

use crate::{GroupState, TopicInfo, TopicSettings};

/// How every backup begins.
pub const MAGIC: &[u8] = b"PROMETHEAN BACKUP 1\n";
/// Longest record that is read: far more than any event may have.
const MAX_RECORD: u32 = 2 << 30;

/// A topic, before its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopicHead {
    /// The name.
    pub topic: Topic,
    /// The settings.
    pub settings: TopicSettings,
    /// The first event's seq.
    pub first_seq: Seq,
    /// The last seq given out; the backup has everything up to it that was there.
    pub last_seq: Seq,
    /// The last event's id and time.
    pub last: Option<(EventId, Millis)>,
}

impl TopicHead {
    /// The head of a topic that has never had an event.
    pub fn empty(topic: Topic, settings: TopicSettings) -> Self {
        Self { topic, settings, first_seq: 1, last_seq: 0, last: None }
    }

    /// The head of a topic.
    pub fn new(info: TopicInfo, settings: TopicSettings) -> Self {
        let TopicInfo { topic, first_seq, last_seq, last, .. } = info;
        Self { topic, settings, first_seq, last_seq, last }
    }
}

/// What a backup has, as its end says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Topics.
    pub topics: u64,
    /// Groups' states.
    pub groups: u64,
    /// Events.
    pub events: u64,
}

/// A record of a backup.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A group's state.
    Group(Topic, Group, GroupState),
    /// A topic; its events follow.
    Topic(Box<TopicHead>),
    /// An event of the topic before it.
    Event(Box<Event>),
    /// The end.
    End(Totals),
}

/// Why a backup cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The system refuses.
    #[error("the backup cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is none, or not whole.
    #[error("the backup is not whole: at byte {offset} {what}; make another one")]
    Damaged {
        /// Where.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// Writes records and counts them.
#[derive(Debug, Default)]
pub struct Writer {
    totals: Totals,
}

impl Writer {
    /// Appends a group's state.
    pub fn group(&mut self, out: &mut Vec<u8>, topic: &Topic, group: &Group, state: &GroupState) {
        self.totals.groups += 1;
        record(out, b'G', |out| {
            for name in [topic.as_str(), group.as_str()] {
                out.extend_from_slice(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            out.extend_from_slice(&state.encode());
        });
    }

    /// Appends a topic.
    pub fn topic(&mut self, out: &mut Vec<u8>, head: &TopicHead) {
        self.totals.topics += 1;
        record(out, b'T', |out| out.extend_from_slice(&serde_json::to_vec(head).unwrap_or_default()));
    }

    /// Appends an event of the last topic.
    pub fn event(&mut self, out: &mut Vec<u8>, event: &Event) {
        self.totals.events += 1;
        record(out, b'E', |out| {
            for number in [event.seq, event.ts.0, event.appended.0] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(event.id.as_bytes());
            for span in [event.spans.key_start, event.spans.key_len, event.spans.payload] {
                out.extend_from_slice(&span.to_le_bytes());
            }
            out.extend_from_slice(&event.body);
        });
    }

    /// Appends the end.
    pub fn end(self, out: &mut Vec<u8>) -> Totals {
        record(out, b'Z', |out| out.extend_from_slice(&serde_json::to_vec(&self.totals).unwrap_or_default()));
        self.totals
    }
}

fn record(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.push(kind);
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = u32::try_from(out.len() - start - 5).unwrap_or(u32::MAX).to_le_bytes();
    out[start + 1..start + 5].copy_from_slice(&length);
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Reads records; checks every checksum, and at the end that nothing is missing.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    offset: u64,
    topic: Option<Topic>,
    totals: Totals,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// A reader over a whole backup.
    ///
    /// # Errors
    /// It does not begin like one.
    pub fn new(mut from: R) -> Result<Self, Unreadable> {
        let mut magic = [0; MAGIC.len()];
        match from.read_exact(&mut magic) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
            Ok(()) if magic == *MAGIC => {}
            _ => return Err(Unreadable::Damaged { offset: 0, what: "it does not begin like a backup" }),
        }
        Ok(Self { from, offset: MAGIC.len() as u64, topic: None, totals: Totals::default(), ended: false })
    }

    /// The next record; nothing after the end, behind which nothing may stand.
    ///
    /// # Errors
    /// [`Unreadable`], with the place.
    pub fn next_record(&mut self) -> Result<Option<Record>, Unreadable> {
        if self.ended {
            return Ok(None);
        }
        let mut head = [0; 5];
        self.fill(&mut head)?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        if length > MAX_RECORD {
            return Err(self.damaged("a record has no sensible length"));
        }
        let mut bytes = Vec::new();
        // By and by: a wrong length must not ask for all the memory at once.
        let read = (&mut self.from).take(u64::from(length)).read_to_end(&mut bytes)?;
        if read < length as usize {
            return Err(self.damaged("it ends within a record"));
        }
        let mut crc = [0; 4];
        self.fill(&mut crc)?;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&head);
        hasher.update(&bytes);
        if hasher.finalize() != u32::from_le_bytes(crc) {
            return Err(self.damaged("a record does not have its checksum"));
        }
        let record = self.decode(head[0], bytes).ok_or_else(|| self.damaged("a record makes no sense"))?;
        self.offset += 9 + u64::from(length);
        match &record {
            Record::Group(..) => self.totals.groups += 1,
            Record::Topic(_) => self.totals.topics += 1,
            Record::Event(_) => self.totals.events += 1,
            Record::End(totals) if *totals == self.totals => self.end()?,
            Record::End(_) => return Err(self.damaged("the end counts other records than there are")),
        }
        Ok(Some(record))
    }

    /// Two files in one, or one that something was appended to, are not what was backed up.
    fn end(&mut self) -> Result<(), Unreadable> {
        self.ended = true;
        match (&mut self.from).take(1).read_to_end(&mut Vec::new())? {
            0 => Ok(()),
            _ => Err(self.damaged("there is more behind its end")),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Unreadable> {
        match self.from.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damaged("it ends without its end")),
            other => Ok(other?),
        }
    }

    fn damaged(&self, what: &'static str) -> Unreadable {
        Unreadable::Damaged { offset: self.offset, what }
    }

    fn decode(&mut self, kind: u8, bytes: Vec<u8>) -> Option<Record> {
        match kind {
            b'G' => {
                let (topic, rest) = name(&bytes)?;
                let (group, state) = name(rest)?;
                let (topic, group) = (Topic::parse(topic).ok()?, Group::parse(group).ok()?);
                Some(Record::Group(topic, group, GroupState::decode(state)?))
            }
            b'T' => {
                let head: TopicHead = serde_json::from_slice(&bytes).ok()?;
                self.topic = Some(head.topic.clone());
                Some(Record::Topic(Box::new(head)))
            }
            b'E' => {
                let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
                let span = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
                let (seq, ts, appended) = (number(0)?, Millis(number(8)?), Millis(number(16)?));
                let id = EventId::from_bytes(bytes.get(24..40)?.try_into().ok()?);
                let spans = Spans { key_start: span(40)?, key_len: span(44)?, payload: span(48)? };
                let body = Bytes::from(bytes).slice(52..);
                std::str::from_utf8(&body).ok()?;
                Some(Record::Event(Box::new(Event { id, seq, ts, appended, topic: self.topic.clone()?, spans, body })))
            }
            b'Z' => serde_json::from_slice(&bytes).ok().map(Record::End),
            _ => None,
        }
    }
}

/// A name and what comes after it.
fn name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let text = std::str::from_utf8(bytes.get(4..4 + length)?).ok()?;
    Some((text, bytes.get(4 + length..)?))
}

/// Reads a backup to its end and says what it has.
///
/// # Errors
/// It is not whole.
pub fn verify(from: impl Read) -> Result<Totals, Unreadable> {
    let mut reader = Reader::new(from)?;
    while reader.next_record()?.is_some() {}
    Ok(reader.totals)
}

#[cfg(test)]
pub(crate) mod tests {
    use promethean_event::{Draft, Limits, PublishOptions, Sealer, payload_of};

    use super::*;

    pub(crate) fn event(topic: &Topic, seq: Seq, key: &str) -> Event {
        let options = PublishOptions { key: Some(key.to_owned().into()), ..PublishOptions::default() };
        let payload = payload_of(&seq).expect("JSON");
        let draft = Draft { topic: topic.clone(), payload: std::borrow::Cow::Owned(payload), options };
        let mut sealer = Sealer::new(Limits::default());
        let mut id = [0; 16];
        id[..8].copy_from_slice(&seq.to_be_bytes());
        sealer.seal(&draft, EventId::from_bytes(id), Millis(seq), 16, 0).expect("valid");
        sealer.finish().remove(0).at(seq)
    }

    pub(crate) fn sample() -> (Vec<u8>, Vec<Event>) {
        let (topic, group) = (Topic::parse("a.b").expect("a topic"), Group::parse("g").expect("a group"));
        let events: Vec<Event> = [2, 3, 7].map(|seq| event(&topic, seq, &format!("k{}", seq % 2))).to_vec();
        let (mut out, mut writer) = (MAGIC.to_vec(), Writer::default());
        writer.group(&mut out, &topic, &group, &GroupState { floor: 3, ..GroupState::default() });
        let settings = TopicSettings { partitions: 4, ..TopicSettings::default() };
        writer.topic(&mut out, &TopicHead { topic, settings, first_seq: 2, last_seq: 9, last: None });
        for event in &events {
            writer.event(&mut out, event);
        }
        writer.end(&mut out);
        (out, events)
    }

    #[test]
    fn what_was_written_is_read_and_anything_less_or_more_is_refused() {
        let (bytes, events) = sample();
        let mut reader = Reader::new(&bytes[..]).expect("a backup");
        let mut read = Vec::new();
        while let Some(record) = reader.next_record().expect("whole") {
            if let Record::Event(event) = record {
                read.push(*event);
            }
        }
        assert_eq!(read, events);
        assert_eq!(verify(&bytes[..]).expect("whole"), Totals { topics: 1, groups: 1, events: 3 });
        for cut in 0..bytes.len() {
            assert!(verify(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut bent = bytes.clone();
            bent[at] ^= 1;
            assert!(verify(&bent[..]).is_err(), "a bit at {at}");
        }
        for more in [b"\n", &bytes[..]] {
            let refused = verify(&[&bytes, more].concat()[..]).expect_err("more than one backup");
            assert!(refused.to_string().contains("there is more behind its end"), "{refused}");
        }
    }
}
