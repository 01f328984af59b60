//! Saving the whole records around damage into a new directory.
//!
//! What is found is in `sources`; here it is written, and what is gone is counted: never is nothing said of a loss.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use promethean_event::{Seq, Topic};
use serde::Serialize;

use super::sources::{Found, Sources};
use super::{blocks, recognise};
use crate::log::commit::codec::Held;
use crate::log::disk::{Disk, Real, read_around};
use crate::log::flush::ids::Table;
use crate::log::flush::manifest::{Manifest, TopicEntry};
use crate::log::flush::segment::{Meta, Writer, topic_dir};
use crate::log::open::rebuild;
use crate::log::open::recovery;
use crate::log::options::{OpenError, Options};

/// What was saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Salvaged {
    /// Topics.
    pub topics: u64,
    /// Events.
    pub events: u64,
    /// Groups.
    pub groups: u64,
    /// Events that were there, by what the manifest, the names of the segments and the seqs say, and are gone. Without a
    /// manifest also those that compaction took before.
    pub missing: u64,
    /// What could not be read, or only in part, and so may have had more than is counted.
    pub losses: Vec<String>,
}

/// Copies every whole record of `from` to the new directory `to`, with its seq, and the groups' states.
///
/// # Errors
/// `from` is in use or not one of ours, `to` is not empty, or the system refuses something.
pub fn salvage(from: &Path, to: &Path) -> Result<Salvaged, OpenError> {
    salvage_on(Arc::new(Real), from, to)
}

/// As [`salvage`], on any disk.
///
/// # Errors
/// As [`salvage`].
pub fn salvage_on(disk: Arc<dyn Disk>, from: &Path, to: &Path) -> Result<Salvaged, OpenError> {
    recognise(&*disk, from)?;
    let locking = recovery::io_error(format!("{} could not be locked", from.display()));
    let lock = disk.lock_to_read(&from.join(recovery::LOCK)).map_err(locking)?;
    let _lock = lock.ok_or_else(|| OpenError::InUse { dir: from.to_owned() })?;
    if let Some(found) = disk.list(to).ok().and_then(|names| names.into_iter().next()) {
        return Err(OpenError::NotEmpty { dir: to.to_owned(), found });
    }
    let doing = |what: &str| recovery::io_error(format!("{what} in {} could not be written", to.display()));
    let Sources { mut topics, losses } = Sources::read(&*disk, from);
    let options = Options { disk: disk.clone(), ..Options::new(to) };
    recovery::begin(&*disk, to, "salvage").map_err(doing("directories"))?;
    let (mut manifest, mut saved) = (Manifest::default(), Salvaged { losses, ..Salvaged::default() });
    for (number, (name, found)) in (1_u32..).zip(&mut topics) {
        write_topic(&options, (number, name), found, &mut saved).map_err(doing("segments"))?;
        for (version, _) in found.entry.groups.values() {
            manifest.version = manifest.version.max(*version);
        }
        saved.topics += 1;
        saved.groups += found.entry.groups.len() as u64;
        manifest.topics.insert(number, found.entry.clone());
    }
    disk.sync_dir(&to.join("topics")).map_err(doing("directories"))?;
    manifest.write(&*disk, to).map_err(doing("the manifest"))?;
    let (_, tables, _): (_, Vec<Arc<Table>>, _) =
        rebuild::rebuild(&options, manifest, None, false, rebuild::Damage::Refused)?;
    drop(tables);
    recovery::finish(&*disk, to).map_err(doing("FORMAT"))?;
    Ok(saved)
}

/// Counts what is gone of a topic.
struct Count<'a> {
    /// The segments that the manifest names, and how many of their events were found.
    segments: &'a [Meta],
    found: Vec<u64>,
    /// The last seq that was flushed, as far as the manifest knows.
    flushed: Seq,
    /// The event that comes next, after the flushed ones.
    next: Seq,
    missing: u64,
}

impl Count<'_> {
    /// Counts an event; they ascend.
    fn saw(&mut self, seq: Seq) {
        if seq <= self.flushed {
            let at = self.segments.partition_point(|meta| meta.last_seq < seq);
            if self.segments.get(at).is_some_and(|meta| meta.first_seq <= seq) {
                self.found[at] += 1;
            }
        } else {
            self.missing += seq.saturating_sub(self.next);
            self.next = seq + 1;
        }
    }

    fn missing(&self) -> u64 {
        let segments = self.segments.iter().zip(&self.found);
        self.missing + segments.map(|(meta, found)| meta.events.saturating_sub(*found)).sum::<u64>()
    }
}

/// Writes a topic's events, ascending, to new segments.
fn write_topic(
    options: &Options,
    topic: (u32, &Topic),
    found: &mut Found,
    saved: &mut Salvaged,
) -> std::io::Result<()> {
    let (disk, to) = (&*options.disk, &options.dir);
    let form = (options.block_bytes, options.compress);
    let Found { entry, expected, first, files, recent } = found;
    let (before, known_last) = (entry.last_seq, entry.last);
    let mut count =
        Count { segments: expected, found: vec![0; expected.len()], flushed: before, next: *first, missing: 0 };
    let (mut writer, mut last): (Option<Writer>, Seq) = (None, 0);
    let (mut events, mut losses) = (0, Vec::new());
    let mut push = |seq: Seq, held: &Held, entry: &mut TopicEntry| {
        if seq <= last {
            return Ok(());
        }
        count.saw(seq);
        last = seq;
        if seq < entry.first_seq {
            return Ok(());
        }
        let open = match writer.take() {
            Some(open) if open.size() < options.segment_bytes => open,
            full => {
                if let Some(full) = full {
                    let (file, meta, _) = full.finish()?;
                    file.sync()?;
                    entry.segments.push(meta);
                }
                disk.create_dir(&topic_dir(to, topic.0))?;
                Writer::create(disk, to, topic, seq, 0, form)?
            }
        };
        writer.insert(open).push(seq, held)?;
        events += 1;
        entry.last_seq = entry.last_seq.max(seq);
        entry.last = Some((held.id, held.ts));
        std::io::Result::Ok(())
    };
    for path in files.iter() {
        let bytes = match read_around(disk, path) {
            Ok((bytes, bad)) => {
                losses.extend(unreadable(path, &bad));
                Bytes::from(bytes)
            }
            Err(error) => {
                losses.push(format!("{} could not be read: {error}", path.display()));
                continue;
            }
        };
        for (_, events) in blocks(&bytes) {
            for (seq, held) in events {
                push(seq, &held, entry)?;
            }
        }
    }
    for (seq, held) in recent.iter() {
        push(*seq, held, entry)?;
    }
    if let Some(open) = writer {
        let (file, meta, _) = open.finish()?;
        file.sync()?;
        entry.segments.push(meta);
        disk.sync_dir(&topic_dir(to, topic.0))?;
    }
    // Seqs are never reused, also where the last events are lost.
    if before > last {
        (entry.last_seq, entry.last) = (before, known_last);
    }
    saved.events += events;
    saved.missing += count.missing();
    saved.losses.append(&mut losses);
    Ok(())
}

/// What is said of a file with sectors that cannot be read.
pub(super) fn unreadable(path: &Path, sectors: &[u64]) -> Option<String> {
    let first = sectors.first()?;
    Some(format!("{}: the disk cannot read {} × 4 KiB, the first at {first}", path.display(), sectors.len()))
}
