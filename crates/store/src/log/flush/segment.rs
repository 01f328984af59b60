//! Segments: the flushed events of one topic.
//!
//! ```text
//!  file   = head · run · run · …                 a run is what one flush added
//!  head   = "PRMTHSEG" · version:u32 · topic:u32 · name_len:u32 · name · crc:u32
//!  run    = block · block · … · footer
//!  block  = "BLK1" · crc:u32 · stored:u32 · raw:u32 · first_seq:u64 · base_ts:u64 · count:u32 · codec:u32 · data
//!  footer = "IDX1" · crc:u32 · entries:u32 · 0:u32 · previous:u64 · entry… · start:u64 · "END1" · crc:u32
//!  entry  = offset:u64 · len:u32 · count:u32 · first_seq:u64 · last_seq:u64 · max_ts:u64
//! ```
//!
//! Invariants: seqs ascend through the file, with holes where compaction or a trim took events away. The manifest
//! says how long the file is; what lies behind that is left from a flush that was cut short, and is written over.
//! A block is served only if its checksum is right.

mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use promethean_event::{Event, Millis, Seq, Topic};

use crate::log::commit::codec::{Held, Reader, u32_at, u64_at};
use crate::log::disk::{Disk, File, Mode};
use crate::{Error, ReadMax, Result};
pub(in crate::log) use writer::Writer;

const MAGIC: &[u8; 8] = b"PRMTHSEG";
const VERSION: u32 = 1;
pub(in crate::log) const BLOCK: &[u8; 4] = b"BLK1";
const FOOTER: &[u8; 4] = b"IDX1";
const END: &[u8; 4] = b"END1";
pub(in crate::log) const BLOCK_HEAD: usize = 40;
const FOOTER_HEAD: usize = 24;
const ENTRY: usize = 40;
const TRAILER: usize = 16;
/// How much is read or written with one call.
const CHUNK: usize = 1 << 20;

/// What the manifest knows of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::log) struct Meta {
    pub(in crate::log) first_seq: Seq,
    pub(in crate::log) last_seq: Seq,
    /// How often its events were rewritten; part of the name.
    pub(in crate::log) generation: u64,
    /// Bytes that count.
    pub(in crate::log) len: u64,
    pub(in crate::log) events: u64,
    /// Of the events in the wire form.
    pub(in crate::log) bytes: u64,
    pub(in crate::log) max_ts: u64,
    pub(in crate::log) first_appended: u64,
    pub(in crate::log) max_appended: u64,
    /// True if any event has a key, or an id that a client made: then the index has entries of it.
    pub(in crate::log) indexed: bool,
}

impl Meta {
    pub(in crate::log) fn path(&self, dir: &Path, topic: u32) -> PathBuf {
        let name = match self.generation {
            0 => format!("{:018}.seg", self.first_seq),
            generation => format!("{:018}.{generation}.seg", self.first_seq),
        };
        topic_dir(dir, topic).join(name)
    }
}

pub(in crate::log) fn topic_dir(dir: &Path, topic: u32) -> PathBuf {
    dir.join("topics").join(topic.to_string())
}

/// One block, as the footer has it.
#[derive(Debug, Clone, Copy)]
pub(in crate::log) struct Entry {
    pub(in crate::log) offset: u64,
    len: u32,
    count: u32,
    first_seq: Seq,
    pub(in crate::log) last_seq: Seq,
    max_ts: u64,
}

/// A segment that is open for reading.
#[derive(Debug)]
pub(in crate::log) struct Segment {
    file: Arc<dyn File>,
    path: PathBuf,
    len: u64,
    pub(in crate::log) blocks: Vec<Entry>,
}

impl Segment {
    pub(in crate::log) fn open(disk: &dyn Disk, path: PathBuf, len: u64) -> Result<Self> {
        let file = disk.open(&path, Mode::Read).map_err(|error| failed(&path, 0, &error))?;
        let mut open = Self { file, path, len, blocks: Vec::new() };
        open.blocks = open.load_blocks()?;
        Ok(open)
    }

    /// Bytes that count when it was opened.
    pub(in crate::log) fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_at(offset, &mut bytes).map_err(|error| failed(&self.path, offset, &error))?;
        Ok(bytes)
    }

    fn damaged(&self, offset: u64, what: &str) -> Error {
        damaged(&self.path, offset, what)
    }

    /// Reads the footers, from the last to the first.
    fn load_blocks(&self) -> Result<Vec<Entry>> {
        let (mut runs, mut end) = (Vec::new(), self.len);
        loop {
            let at = end.checked_sub(TRAILER as u64).ok_or_else(|| self.damaged(end, "a footer is missing"))?;
            let trailer = self.bytes(at, TRAILER)?;
            let start = u64_at(&trailer, 0);
            if &trailer[8..12] != END || crc32fast::hash(&trailer[..12]) != u32_at(&trailer, 12) || start >= at {
                return Err(self.damaged(at, "the end of a run is not whole"));
            }
            let footer = self.bytes(start, usize::try_from(at - start).unwrap_or(usize::MAX))?;
            let head = footer.get(..FOOTER_HEAD).ok_or_else(|| self.damaged(start, "a footer is too short"))?;
            if &head[..4] != FOOTER || crc32fast::hash(&footer[8..]) != u32_at(head, 4) {
                return Err(self.damaged(start, "a footer does not have its checksum"));
            }
            let (entries, _) = footer[FOOTER_HEAD..].as_chunks::<ENTRY>();
            runs.push(entries.iter().map(Entry::read).collect::<Vec<_>>());
            let previous = u64_at(head, 16);
            if previous == 0 {
                break;
            }
            // The run before ends where its footer ends: its start is known, its length follows from its count.
            let head = self.bytes(previous, FOOTER_HEAD)?;
            let before = previous + (FOOTER_HEAD + u32_at(&head, 8) as usize * ENTRY + TRAILER) as u64;
            if before >= end {
                return Err(self.damaged(previous, "a footer points forward"));
            }
            end = before;
        }
        Ok(runs.into_iter().rev().flatten().collect())
    }

    /// The block that has `seq`, or the first one after it.
    fn block_of(&self, seq: Seq) -> usize {
        self.blocks.partition_point(|block| block.last_seq < seq)
    }

    /// Calls `each` with the events from `seq` on until it says stop (`false`).
    pub(in crate::log) fn scan(&self, seq: Seq, want: usize, mut each: impl FnMut(Seq, Held) -> bool) -> Result<()> {
        let mut next = self.block_of(seq);
        let mut want = want.max(1);
        while next < self.blocks.len() {
            // Neighbouring blocks are read with one call.
            let (first, mut last) = (self.blocks[next], next);
            let span = |last: usize| {
                let block = &self.blocks[last];
                usize::try_from(block.offset + u64::from(block.len) - first.offset).unwrap_or(usize::MAX)
            };
            while last + 1 < self.blocks.len() && span(last) < want.min(CHUNK) && span(last + 1) <= 2 * CHUNK {
                last += 1;
            }
            let bytes = Bytes::from(self.bytes(first.offset, span(last))?);
            want = want.saturating_sub(bytes.len()).max(1);
            for block in &self.blocks[next..=last] {
                let start = usize::try_from(block.offset - first.offset).unwrap_or(usize::MAX);
                // Footers may stand between blocks of different runs.
                let stored = bytes.get(start..start + block.len as usize).map(|_| bytes.slice(start..));
                let stored = stored.ok_or_else(|| self.damaged(block.offset, "a block is too short"))?;
                let (_, events) =
                    decode(&stored).ok_or_else(|| self.damaged(block.offset, "a block does not have its checksum"))?;
                for (at, event) in events {
                    if at >= seq && !each(at, event) {
                        return Ok(());
                    }
                }
            }
            next = last + 1;
        }
        Ok(())
    }

    /// Adds events from `seq` on to `out`; whether there is room for more.
    pub(in crate::log) fn read(&self, topic: &Topic, seq: Seq, max: ReadMax, out: &mut Vec<Event>) -> Result<bool> {
        let mut bytes: usize = out.iter().map(|event| event.body.len()).sum();
        let mut room = out.len() < max.events;
        if !room {
            return Ok(false);
        }
        self.scan(seq, max.bytes.saturating_sub(bytes), |seq, held| {
            if !out.is_empty() && bytes + held.body.len() > max.bytes {
                room = false;
                return false;
            }
            bytes += held.body.len();
            out.push(held.at(topic, seq));
            room = out.len() < max.events;
            room
        })?;
        Ok(room)
    }

    /// The events at exactly these seqs, which ascend.
    pub(in crate::log) fn pick(&self, topic: &Topic, seqs: &[Seq], out: &mut Vec<Event>) -> Result<()> {
        let mut rest = seqs;
        while let Some(&first) = rest.first() {
            let Some(block) = self.blocks.get(self.block_of(first)) else { return Ok(()) };
            let stored = Bytes::from(self.bytes(block.offset, block.len as usize)?);
            let (_, events) =
                decode(&stored).ok_or_else(|| self.damaged(block.offset, "a block does not have its checksum"))?;
            for (seq, event) in events {
                while rest.first().is_some_and(|&wanted| wanted < seq) {
                    rest = &rest[1..];
                }
                if rest.first() == Some(&seq) {
                    out.push(event.at(topic, seq));
                    rest = &rest[1..];
                }
            }
            while rest.first().is_some_and(|&wanted| wanted <= block.last_seq) {
                rest = &rest[1..];
            }
        }
        Ok(())
    }

    /// The seqs of the block that has `seq`, or would have it.
    pub(in crate::log) fn seqs_about(&self, seq: Seq) -> Result<Seqs> {
        let at = self.block_of(seq);
        let first = at.checked_sub(1).map_or(0, |before| self.blocks[before].last_seq + 1);
        let Some(block) = self.blocks.get(at) else { return Ok(Seqs { first, last: Seq::MAX, seqs: Vec::new() }) };
        let mut seqs = Vec::with_capacity(block.count as usize);
        if block.last_seq - block.first_seq + 1 == u64::from(block.count) {
            seqs.extend(block.first_seq..=block.last_seq);
        } else {
            self.scan(block.first_seq, 1, |seq, _| {
                seqs.push(seq);
                seq < block.last_seq
            })?;
        }
        Ok(Seqs { first, last: block.last_seq, seqs })
    }

    /// The first event from `from` on whose time is ≥ `ts`.
    pub(in crate::log) fn first_since(&self, ts: Millis, from: Seq) -> Result<Option<Seq>> {
        let start = self.block_of(from);
        for block in self.blocks[start..].iter().filter(|block| block.max_ts >= ts.0) {
            let mut found = None;
            self.scan(block.first_seq.max(from), 1, |seq, event| {
                if event.ts >= ts {
                    found = Some(seq);
                }
                found.is_none() && seq < block.last_seq
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// How many events there are from `from` on and before `before`, and their bytes in the wire form.
    pub(in crate::log) fn between(&self, from: Seq, before: Seq) -> Result<(u64, u64)> {
        let (mut events, mut bytes) = (0, 0);
        self.scan(from, CHUNK, |at, event| {
            if at < before {
                events += 1;
                bytes += event.wire_len();
            }
            at < before
        })?;
        Ok((events, bytes))
    }

    /// The first of its youngest events that are at most `events` and have at most `bytes` together. Looks at blocks from
    /// the last one back, and into those only where the count in the footer does not decide.
    pub(in crate::log) fn last_within(&self, mut events: u64, mut bytes: u64) -> Result<Seq> {
        let mut first = self.blocks.last().map_or(0, |block| block.last_seq + 1);
        for block in self.blocks.iter().rev() {
            if bytes == u64::MAX && u64::from(block.count) <= events {
                (first, events) = (block.first_seq, events - u64::from(block.count));
                continue;
            }
            let mut sizes = Vec::with_capacity(block.count as usize);
            self.scan(block.first_seq, 1, |seq, held| {
                sizes.push((seq, held.wire_len()));
                seq < block.last_seq
            })?;
            for (seq, size) in sizes.into_iter().rev() {
                if events == 0 || size > bytes {
                    return Ok(first);
                }
                (first, events) = (seq, events - 1);
                bytes -= if bytes == u64::MAX { 0 } else { size };
            }
        }
        Ok(first)
    }
}

/// The events between two seqs.
#[derive(Debug, Default)]
pub(in crate::log) struct Seqs {
    first: Seq,
    last: Seq,
    /// Ascending.
    seqs: Vec<Seq>,
}

impl Seqs {
    pub(in crate::log) fn covers(&self, seq: Seq) -> bool {
        (self.first..=self.last).contains(&seq)
    }

    pub(in crate::log) fn has(&self, seq: Seq) -> bool {
        self.seqs.binary_search(&seq).is_ok()
    }
}

impl Entry {
    fn read(bytes: &[u8; ENTRY]) -> Self {
        Self {
            offset: u64_at(bytes, 0),
            len: u32_at(bytes, 8),
            count: u32_at(bytes, 12),
            first_seq: u64_at(bytes, 16),
            last_seq: u64_at(bytes, 24),
            max_ts: u64_at(bytes, 32),
        }
    }
}

impl Held {
    pub(in crate::log) fn at(self, topic: &Topic, seq: Seq) -> Event {
        let Held { id, ts, appended, spans, body, .. } = self;
        Event { id, seq, ts, appended, topic: topic.clone(), spans, body }
    }
}

/// The block at the beginning of `bytes`: its length and its events.
pub(in crate::log) fn decode(bytes: &Bytes) -> Option<(usize, Vec<(Seq, Held)>)> {
    let head = bytes.get(..BLOCK_HEAD)?;
    let end = BLOCK_HEAD + u32_at(head, 8) as usize;
    if &head[..4] != BLOCK || crc32fast::hash(bytes.get(8..end)?) != u32_at(head, 4) {
        return None;
    }
    let raw = u32_at(head, 12) as usize;
    let data = match u32_at(head, 36) {
        0 => bytes.slice(BLOCK_HEAD..end),
        1 => Bytes::from(lz4_flex::block::decompress(&bytes[BLOCK_HEAD..end], raw).ok()?),
        _ => return None,
    };
    let (first, base, count) = (u64_at(head, 16), u64_at(head, 24), u32_at(head, 32));
    let mut reader = Reader::new(&data);
    let mut events = Vec::with_capacity((count as usize).min(data.len()));
    for _ in 0..count {
        events.push(reader.event(first, base)?);
    }
    reader.is_empty().then_some((end, events))
}

/// The topic that a segment file says it is of, and where its first block is.
pub(in crate::log) fn head(bytes: &[u8]) -> Option<(u32, Topic, usize)> {
    let name_end = 20_usize.checked_add(u32_at(bytes, 16) as usize)?;
    let name = std::str::from_utf8(bytes.get(20..name_end)?).ok()?;
    if &bytes[..8] != MAGIC || crc32fast::hash(&bytes[..name_end]) != u32_at(bytes, name_end) {
        return None;
    }
    Some((u32_at(bytes, 12), Topic::parse(name).ok()?, name_end + 4))
}

pub(in crate::log) fn damaged(path: &Path, offset: u64, what: &str) -> Error {
    Error::Damaged(format!(
        "{} is damaged at offset {offset}: {what}; `promethean doctor` says what can be saved",
        path.display()
    ))
}

pub(in crate::log) fn failed(path: &Path, offset: u64, error: &io::Error) -> Error {
    Error::Damaged(format!("{} could not be read at offset {offset}: {error}", path.display()))
}
