//! Writing a run: what one flush or one compaction adds to a segment.

use std::io;
use std::path::Path;
use std::sync::Arc;

use promethean_event::{Seq, Topic};

use super::{BLOCK, BLOCK_HEAD, CHUNK, END, ENTRY, Entry, FOOTER, FOOTER_HEAD, MAGIC, Meta, TRAILER, VERSION};
use crate::log::commit::codec::{Held, put_event, u64_at};
use crate::log::disk::{Disk, File, Mode};

/// Adds one run to a segment.
pub(in crate::log) struct Writer {
    pub(in crate::log) file: Arc<dyn File>,
    pub(in crate::log) meta: Meta,
    /// Not written yet; its first byte belongs at `at`.
    out: Vec<u8>,
    at: u64,
    previous_footer: u64,
    entries: Vec<Entry>,
    /// Where in `out` the block that is being filled begins, with its head.
    block: usize,
    current: Entry,
    base_ts: u64,
    /// Bytes of a block, and whether they are compressed.
    block_bytes: usize,
    compress: bool,
}

impl Writer {
    /// A new segment that begins with `first_seq`.
    pub(in crate::log) fn create(
        disk: &dyn Disk,
        dir: &Path,
        topic: (u32, &Topic),
        first_seq: Seq,
        generation: u64,
        form: (usize, bool),
    ) -> io::Result<Self> {
        let meta = Meta { first_seq, generation, ..Meta::default() };
        let file = disk.open(&meta.path(dir, topic.0), Mode::Create)?;
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&topic.0.to_le_bytes());
        let name = topic.1.as_str().as_bytes();
        out.extend_from_slice(&u32::try_from(name.len()).map_err(io::Error::other)?.to_le_bytes());
        out.extend_from_slice(name);
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        Ok(Self::over(file, meta, out, 0, form))
    }

    /// Goes on with a segment.
    pub(in crate::log) fn extend(
        disk: &dyn Disk,
        dir: &Path,
        topic: u32,
        meta: Meta,
        form: (usize, bool),
    ) -> io::Result<Self> {
        let file = disk.open(&meta.path(dir, topic), Mode::Write)?;
        let mut trailer = [0; TRAILER];
        file.read_at(meta.len.saturating_sub(TRAILER as u64), &mut trailer)?;
        let (at, previous) = (meta.len, u64_at(&trailer, 0));
        let mut writer = Self::over(file, meta, Vec::new(), previous, form);
        writer.at = at;
        Ok(writer)
    }

    fn over(file: Arc<dyn File>, meta: Meta, out: Vec<u8>, previous_footer: u64, form: (usize, bool)) -> Self {
        let current = Entry { offset: 0, len: 0, count: 0, first_seq: 0, last_seq: 0, max_ts: 0 };
        Self {
            file,
            meta,
            out,
            at: 0,
            previous_footer,
            entries: Vec::new(),
            block: 0,
            current,
            base_ts: 0,
            block_bytes: form.0,
            compress: form.1,
        }
    }

    /// Collects its bytes in `memory`, which another writer is done with.
    pub(in crate::log) fn reuse(mut self, mut memory: Vec<u8>) -> Self {
        memory.clear();
        memory.append(&mut self.out);
        self.out = memory;
        self
    }

    /// Bytes of the segment with what was pushed so far, about.
    pub(in crate::log) fn size(&self) -> u64 {
        self.at + self.out.len() as u64
    }

    pub(in crate::log) fn push(&mut self, seq: Seq, event: &Held) -> io::Result<()> {
        if self.current.count == 0 {
            self.current.first_seq = seq;
            self.current.max_ts = 0;
            self.base_ts = event.ts.0;
            self.block = self.out.len();
            self.out.resize(self.block + BLOCK_HEAD, 0);
        }
        put_event(&mut self.out, event, seq, self.current.first_seq, self.base_ts);
        self.current.count += 1;
        self.current.last_seq = seq;
        self.current.max_ts = self.current.max_ts.max(event.ts.0);
        let meta = &mut self.meta;
        if meta.events == 0 {
            meta.first_seq = seq;
            meta.first_appended = event.appended.0;
        }
        meta.last_seq = seq;
        meta.events += 1;
        meta.bytes += event.wire_len();
        meta.max_ts = meta.max_ts.max(event.ts.0);
        meta.max_appended = meta.max_appended.max(event.appended.0);
        meta.indexed |= event.client || event.spans.key_start != 0;
        if self.out.len() - self.block - BLOCK_HEAD >= self.block_bytes { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.current.count == 0 {
            return Ok(());
        }
        let start = self.block + BLOCK_HEAD;
        let raw = u32::try_from(self.out.len() - start).map_err(io::Error::other)?;
        let packed = self.compress.then(|| lz4_flex::block::compress(&self.out[start..]));
        let packed = packed.filter(|packed| packed.len() < raw as usize);
        let codec = u32::from(packed.is_some());
        if let Some(packed) = packed {
            self.out.truncate(start);
            self.out.extend_from_slice(&packed);
        }
        let stored = u32::try_from(self.out.len() - start).map_err(io::Error::other)?;
        self.current.offset = self.at + self.block as u64;
        self.current.len = stored + BLOCK_HEAD as u32;
        let block = &mut self.out[self.block..];
        block[..4].copy_from_slice(BLOCK);
        block[8..12].copy_from_slice(&stored.to_le_bytes());
        block[12..16].copy_from_slice(&raw.to_le_bytes());
        block[16..24].copy_from_slice(&self.current.first_seq.to_le_bytes());
        block[24..32].copy_from_slice(&self.base_ts.to_le_bytes());
        block[32..36].copy_from_slice(&self.current.count.to_le_bytes());
        block[36..40].copy_from_slice(&codec.to_le_bytes());
        let crc = crc32fast::hash(&block[8..]);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        self.entries.push(self.current);
        self.current.count = 0;
        if self.out.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_at(self.at, &self.out)?;
        self.file.start_writing(self.at, self.out.len() as u64);
        self.at += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Ends the run: writes the footer. The caller syncs the file, then the manifest may name the new length. The last
    /// of what it returns is memory for the next writer.
    pub(in crate::log) fn finish(mut self) -> io::Result<(Arc<dyn File>, Meta, Vec<u8>)> {
        self.end_block()?;
        let start = self.at + self.out.len() as u64;
        let mut footer = Vec::with_capacity(FOOTER_HEAD + self.entries.len() * ENTRY + TRAILER);
        footer.extend_from_slice(FOOTER);
        footer.extend_from_slice(&[0; 4]);
        footer.extend_from_slice(&u32::try_from(self.entries.len()).map_err(io::Error::other)?.to_le_bytes());
        footer.extend_from_slice(&[0; 4]);
        footer.extend_from_slice(&self.previous_footer.to_le_bytes());
        for entry in &self.entries {
            footer.extend_from_slice(&entry.offset.to_le_bytes());
            footer.extend_from_slice(&entry.len.to_le_bytes());
            footer.extend_from_slice(&entry.count.to_le_bytes());
            for field in [entry.first_seq, entry.last_seq, entry.max_ts] {
                footer.extend_from_slice(&field.to_le_bytes());
            }
        }
        let crc = crc32fast::hash(&footer[8..]);
        footer[4..8].copy_from_slice(&crc.to_le_bytes());
        let trailer = footer.len();
        footer.extend_from_slice(&start.to_le_bytes());
        footer.extend_from_slice(END);
        footer.extend_from_slice(&crc32fast::hash(&footer[trailer..]).to_le_bytes());
        self.out.extend_from_slice(&footer);
        self.flush()?;
        self.meta.len = self.at;
        Ok((self.file, self.meta, self.out))
    }
}
