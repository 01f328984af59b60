//! The doctor: checks every checksum of a data directory, and saves what can be saved.
//!
//! [`check`] changes nothing and needs no lock, for a hub may be at work there: a look at a file that is being written, or
//! put away, may see what is no damage. So what a look finds counts only where the next look finds it again, with the
//! MANIFEST that the first one began with:
//!
//! - Under one manifest, what it names does not change, and no journal file after its `flushed` is put away.
//! - A frame of the last journal file that a look has missed was durable by its end, and is whole to the next one.
//! - The index is changed in its place: its bytes have to be the same as well.
//!
//! [`rebuild_index`] and [`salvage`] take the lock.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use promethean_event::Seq;
use serde::Serialize;

use crate::log::commit::codec::Reader;
use crate::log::commit::entry::Entry;
use crate::log::commit::journal;
use crate::log::disk::{Disk, File, Mode, Real, read_all, read_around};
use crate::log::flush::ids::Table;
use crate::log::flush::index::Index;
use crate::log::flush::manifest::{Manifest, TopicEntry};
use crate::log::flush::segment::{Segment, decode, head};
use crate::log::open::rebuild;
use crate::log::open::recovery;
use crate::log::options::{OpenError, Options};

mod salvage;
mod sources;

pub use salvage::{Salvaged, salvage, salvage_on};

/// How often a directory is looked at that changes meanwhile.
const LOOKS: usize = 5;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// True if it can be made anew from the rest: nothing is lost then.
    pub rebuildable: bool,
}

/// The state of a data directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Topics.
    pub topics: u64,
    /// Whole events, flushed or not.
    pub events: u64,
    /// Segments read.
    pub segments: u64,
    /// Journal files read.
    pub journal_files: u64,
    /// What is wrong; empty: the directory is sound.
    pub damage: Vec<Finding>,
    /// What is worth knowing and no damage.
    pub notes: Vec<String>,
}

impl Report {
    /// True if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }

    fn unreadable(&mut self, file: &Path, sectors: &[u64]) {
        for offset in sectors {
            self.found(file, *offset, "the disk cannot read it", false);
        }
    }

    fn found(&mut self, file: &Path, offset: u64, what: impl Into<String>, rebuildable: bool) {
        self.damage.push(Finding { file: file.to_owned(), offset, what: what.into(), rebuildable });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} topics, {} events, {} segments, {} journal files",
            self.topics, self.events, self.segments, self.journal_files
        )?;
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for finding in &self.damage {
            writeln!(f, "damaged: {} at offset {}: {}", finding.file.display(), finding.offset, finding.what)?;
        }
        let remedy = match (self.is_sound(), self.damage.iter().all(|finding| finding.rebuildable)) {
            (true, _) => "sound",
            (_, true) => "damaged; nothing is lost: run the doctor with --rebuild-index",
            _ => "damaged; put the files back from a backup, or save the rest with --salvage TO",
        };
        f.write_str(remedy)
    }
}

/// Checks every checksum. Changes nothing.
///
/// # Errors
/// The directory is not one of ours, a hub changes it faster than it can be looked at, or the system refuses to read it.
pub fn check(dir: &Path) -> Result<Report, OpenError> {
    check_on(&Real, dir)
}

/// As [`check`], on any disk.
///
/// # Errors
/// As [`check`].
pub fn check_on(disk: &dyn Disk, dir: &Path) -> Result<Report, OpenError> {
    recognise(disk, dir)?;
    let mut before: Option<Look> = None;
    for _ in 0..LOOKS {
        let look = Look::take(disk, dir)?;
        if look.report.is_sound() {
            return Ok(look.report);
        }
        let damage =
            before.map_or_else(Vec::new, |before| look.confirms(before, &dir.join(crate::log::flush::index::NAME)));
        if !damage.is_empty() {
            return Ok(Report { damage, ..look.report });
        }
        before = Some(look);
    }
    Err(OpenError::Busy { dir: dir.to_owned() })
}

/// What was seen of a directory once.
struct Look {
    report: Report,
    /// The bytes of the MANIFEST before anything else was read, where they could be.
    manifest: Option<Vec<u8>>,
    /// The checksum of the index's bytes, where they could be read.
    index: Option<u32>,
}

impl Look {
    fn take(disk: &dyn Disk, dir: &Path) -> Result<Self, OpenError> {
        let bytes = read_all(disk, &dir.join(crate::log::flush::manifest::NAME)).ok();
        let mut look = Self { report: Report::default(), manifest: bytes, index: None };
        let report = &mut look.report;
        let manifest = match recovery::read_manifest(disk, dir) {
            Ok(manifest) => manifest,
            Err(OpenError::Damaged { file, offset, what }) => {
                report.found(&file, offset, what, false);
                check_without_manifest(disk, dir, report)?;
                return Ok(look);
            }
            Err(error) => return Err(error),
        };
        report.topics = manifest.topics.len() as u64;
        for (number, topic) in &manifest.topics {
            check_segments(disk, dir, *number, topic, report);
        }
        check_journal(disk, dir, manifest.flushed, report)?;
        look.index = check_caches(disk, dir, &manifest, report);
        Ok(look)
    }

    /// What the look before has found and this one finds again: it is so, whatever a hub did meanwhile.
    fn confirms(&self, before: Self, index: &Path) -> Vec<Finding> {
        if self.manifest != before.manifest {
            return Vec::new();
        }
        let still = |finding: &Finding| finding.file != index || self.index == before.index;
        let again = |finding: &Finding| self.report.damage.contains(finding) && still(finding);
        before.report.damage.into_iter().filter(again).collect()
    }
}

/// What can be told of the rest: every block of every segment file, and the journal. Where a segment ends is not known, so
/// what a flush left that did not come to its end is named as well.
fn check_without_manifest(disk: &dyn Disk, dir: &Path, report: &mut Report) -> Result<(), OpenError> {
    let files = sources::segment_files(disk, dir);
    report.topics = files.iter().map(|(number, _)| number).collect::<BTreeSet<_>>().len() as u64;
    for (_, path) in files {
        report.segments += 1;
        let bytes = match read_around(disk, &path) {
            Ok((bytes, bad)) => {
                report.unreadable(&path, &bad);
                Bytes::from(bytes)
            }
            Err(error) => {
                report.found(&path, 0, error.to_string(), false);
                continue;
            }
        };
        if head(&bytes).is_none() {
            report.found(&path, 0, "its head is damaged", false);
        }
        for (start, events) in starts(&bytes) {
            match events {
                Some(events) => report.events += events.len() as u64,
                None => report.found(&path, start as u64, "a block is damaged, or was never finished", false),
            }
        }
    }
    let journal = journal::files(disk, &dir.join("journal")).unwrap_or_default();
    let flushed = journal.first().map_or(0, |(number, _)| number - 1);
    check_journal(disk, dir, flushed, report)
}

/// True if the directory is one of ours.
fn recognise(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let reading = |error| recovery::io_error(format!("{} could not be read", dir.display()))(error);
    if recovery::recognise(disk, dir, reading)? { Ok(()) } else { Err(OpenError::Empty { dir: dir.to_owned() }) }
}

fn check_segments(disk: &dyn Disk, dir: &Path, number: u32, topic: &TopicEntry, report: &mut Report) {
    let mut last = 0;
    for meta in &topic.segments {
        report.segments += 1;
        let path = meta.path(dir, number);
        let read = read_around(disk, &path).map(|(bytes, bad)| {
            report.unreadable(&path, &bad);
            bytes
        });
        let bytes = match read {
            Ok(mut bytes) if bytes.len() as u64 >= meta.len => {
                bytes.truncate(usize::try_from(meta.len).unwrap_or(usize::MAX));
                Bytes::from(bytes)
            }
            Ok(bytes) => {
                report.found(&path, bytes.len() as u64, format!("it ends here, before its {} bytes", meta.len), false);
                Bytes::from(bytes)
            }
            Err(error) => {
                report.found(&path, 0, error.to_string(), false);
                continue;
            }
        };
        if head(&bytes).is_none_or(|(this, name, _)| this != number || name != topic.name) {
            report.found(&path, 0, "its head is damaged or another topic's", false);
        }
        let mut events = 0;
        for block in blocks(&bytes) {
            for (seq, _) in block.1 {
                if seq <= last {
                    report.found(&path, block.0 as u64, format!("event {seq} comes after {last}"), false);
                }
                (last, events) = (seq, events + 1);
            }
        }
        match Segment::open(disk, path.clone(), meta.len) {
            Err(error) => report.found(&path, meta.len, error.to_string(), false),
            Ok(segment) => {
                for entry in &segment.blocks {
                    let start = usize::try_from(entry.offset).unwrap_or(usize::MAX);
                    let whole = bytes.get(start..).is_some_and(|_| decode(&bytes.slice(start..)).is_some());
                    if !whole {
                        report.found(&path, entry.offset, "a block does not have its checksum", false);
                    }
                }
            }
        }
        if events != meta.events {
            let what = format!("{events} whole events, the manifest says {}", meta.events);
            report.found(&path, 0, what, false);
        }
        report.events += events;
    }
}

type Events = Vec<(Seq, crate::log::commit::codec::Held)>;

/// The whole blocks of a segment file, with their offsets, also around damage.
fn blocks(bytes: &Bytes) -> impl Iterator<Item = (usize, Events)> + '_ {
    starts(bytes).filter_map(|(start, events)| Some((start, events?)))
}

/// Where blocks begin, and the events of those that are whole.
fn starts(bytes: &Bytes) -> impl Iterator<Item = (usize, Option<Events>)> + '_ {
    let mut at = head(bytes).map_or(0, |(_, _, start)| start);
    std::iter::from_fn(move || {
        let start = at + bytes.get(at..)?.windows(4).position(|word| word == crate::log::flush::segment::BLOCK)?;
        let (len, events) = decode(&bytes.slice(start..)).map_or((1, None), |(len, events)| (len, Some(events)));
        at = start + len;
        Some((start, events))
    })
}

fn check_journal(disk: &dyn Disk, dir: &Path, flushed: u64, report: &mut Report) -> Result<(), OpenError> {
    match recovery::unflushed(disk, dir, flushed) {
        Err(OpenError::Damaged { file, offset, what }) => report.found(&file, offset, what, false),
        files => drop(files?),
    }
    // Also those around one that is missing.
    let files = journal::files(disk, &dir.join("journal")).unwrap_or_default();
    let (mut sealed_end, mut after) = (None, None);
    for (number, path) in files.iter().rev().filter(|(number, _)| *number > flushed) {
        report.journal_files += 1;
        if after.replace(*number).is_some_and(|after| after != number + 1) {
            sealed_end = None;
        }
        let bytes = match read_around(disk, path) {
            Ok((bytes, bad)) => {
                report.unreadable(path, &bad);
                Bytes::from(bytes)
            }
            Err(error) => {
                report.found(path, 0, error.to_string(), false);
                sealed_end = None;
                continue;
            }
        };
        match journal::scan(&bytes, *number, sealed_end) {
            Err(damage) => {
                report.found(path, damage.offset, damage.what, false);
                sealed_end = None;
            }
            Ok(scan) => {
                sealed_end = Some(scan.previous_end);
                if scan.torn || scan.holes {
                    let at = format!("{} ends at {} with a frame that is not whole", path.display(), scan.end);
                    report.notes.push(format!("{at}: it was never promised and is cut at the next start"));
                }
                for frame in &scan.frames {
                    let mut reader = Reader::within(&bytes, frame.clone());
                    while !reader.is_empty() {
                        match Entry::read(&mut reader) {
                            Some(Entry::Event(..)) => report.events += 1,
                            Some(Entry::Topic(..)) => report.topics += 1,
                            Some(_) => {}
                            None => {
                                report.found(path, frame.start as u64, "a frame with entries of another kind", false);
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The checksum of the index's bytes, where they can be read.
fn check_caches(disk: &dyn Disk, dir: &Path, manifest: &Manifest, report: &mut Report) -> Option<u32> {
    for meta in &manifest.tables {
        let path = crate::log::flush::ids::path(dir, meta.number);
        match Table::open_to_check(disk, dir, meta.clone()) {
            Err(error) => report.found(&path, 0, error.to_string(), true),
            Ok(table) => {
                if let Err(error) = table.check() {
                    report.found(&path, 0, error.to_string(), true);
                }
            }
        }
    }
    let path = dir.join(crate::log::flush::index::NAME);
    let opened = disk.open(&path, Mode::Read).and_then(|file| Ok((checksum(&*file)?, file)));
    let seen = opened.as_ref().ok().map(|(seen, _)| *seen);
    let flushed = opened.map_err(|error| error.to_string());
    match flushed.and_then(|(_, file)| Index::check(&file).map_err(|error| error.to_string())) {
        Err(what) => report.found(&path, 0, what, true),
        Ok(flushed) if flushed.unwrap_or(0) < manifest.flushed => {
            let flushed = flushed.unwrap_or(0);
            let what = format!("it ends at journal file {flushed}, the manifest at {}", manifest.flushed);
            report.found(&path, 0, what, true);
        }
        Ok(_) => {}
    }
    seen
}

/// The checksum of a file's bytes, which are read a part at a time.
fn checksum(file: &dyn File) -> io::Result<u32> {
    const PART: u64 = 1 << 20;
    let (len, mut at, mut hash) = (file.len()?, 0, crc32fast::Hasher::new());
    let mut part = Vec::new();
    while at < len {
        part.resize(usize::try_from(PART.min(len - at)).map_err(io::Error::other)?, 0);
        file.read_at(at, &mut part)?;
        hash.update(&part);
        at += part.len() as u64;
    }
    Ok(hash.finalize())
}

/// Makes the index and the id tables anew from the segments.
///
/// # Errors
/// The directory is in use, or its segments are damaged.
pub fn rebuild_index(dir: &Path) -> Result<(), OpenError> {
    rebuild_index_on(Arc::new(Real), dir)
}

/// As [`rebuild_index`], on any disk.
///
/// # Errors
/// As [`rebuild_index`].
pub fn rebuild_index_on(disk: Arc<dyn Disk>, dir: &Path) -> Result<(), OpenError> {
    recognise(&*disk, dir)?;
    let options = Options { disk, ..Options::new(dir) };
    let lock = lock(&*options.disk, dir)?;
    let manifest = recovery::read_manifest(&*options.disk, dir)?;
    rebuild::rebuild(&options, manifest, None, false, rebuild::Damage::Refused)?;
    drop(lock);
    Ok(())
}

fn lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn std::any::Any + Send + Sync>, OpenError> {
    let doing = recovery::io_error(format!("{} could not be locked", dir.display()));
    disk.lock(&dir.join(recovery::LOCK)).map_err(doing)?.ok_or_else(|| OpenError::InUse { dir: dir.to_owned() })
}
