//! Saving the whole records around damage into a new directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use promethean_event::{Group, Seq, Topic};
use serde::Serialize;

use super::super::codec::{Held, Reader};
use super::super::disk::{Disk, Real, read_all};
use super::super::entry::Entry;
use super::super::ids::Table;
use super::super::manifest::{Manifest, TopicEntry};
use super::super::options::{OpenError, Options};
use super::super::segment::{Writer, topic_dir};
use super::super::{journal, rebuild, recovery};
use super::{blocks, lock, recognise, topic_of};

/// What was saved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Salvaged {
    /// Topics.
    pub topics: u64,
    /// Events.
    pub events: u64,
    /// Groups.
    pub groups: u64,
    /// Seqs between saved events of which nothing is left: damaged, or gone before by compaction.
    pub missing: u64,
}

/// What is known of a topic while it is put together.
struct Found {
    entry: TopicEntry,
    /// Journal events and their seqs; the segments' are read when they are written.
    recent: BTreeMap<Seq, Held>,
}

/// Copies every whole record of `from` to the new directory `to`, with its seq, and the groups' states.
///
/// # Errors
/// `from` is in use or not one of ours, `to` is not empty, or the system refuses something.
pub fn salvage(from: &Path, to: &Path) -> Result<Salvaged, OpenError> {
    salvage_on(Arc::new(Real), from, to)
}

fn salvage_on(disk: Arc<dyn Disk>, from: &Path, to: &Path) -> Result<Salvaged, OpenError> {
    recognise(&*disk, from)?;
    let _lock = lock(&*disk, from)?;
    if let Some(found) = disk.list(to).ok().and_then(|names| names.into_iter().next()) {
        return Err(OpenError::NotEmpty { dir: to.to_owned(), found });
    }
    let doing = |what: &str| recovery::io_error(format!("{what} in {} could not be written", to.display()));
    let mut topics = topics_of(&*disk, from);
    read_journal(&*disk, from, &mut topics);
    let options = Options { disk: disk.clone(), ..Options::new(to) };
    recovery::begin(&*disk, to, "salvage").map_err(doing("directories"))?;
    let (mut manifest, mut saved) = (Manifest::default(), Salvaged::default());
    for (number, (name, found)) in (1_u32..).zip(&mut topics) {
        write_topic(&options, from, (number, name), found, &mut saved).map_err(doing("segments"))?;
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

/// The topics that the manifest knows, or that segment files name.
fn topics_of(disk: &dyn Disk, from: &Path) -> BTreeMap<Topic, Found> {
    let mut topics = BTreeMap::new();
    let found = |entry| Found { entry, recent: BTreeMap::new() };
    if let Ok(manifest) = recovery::read_manifest(disk, from) {
        for entry in manifest.topics.into_values() {
            topics.insert(entry.name.clone(), found(TopicEntry { segments: Vec::new(), ..entry }));
        }
    }
    for (_, path) in segment_files(disk, from) {
        if let Some(name) = read_all(disk, &path).ok().and_then(|bytes| topic_of(&bytes)) {
            topics.entry(name.clone()).or_insert_with(|| found(TopicEntry::new(name)));
        }
    }
    topics
}

/// Every segment file: the number of its topic, and its path.
fn segment_files(disk: &dyn Disk, from: &Path) -> Vec<(u32, std::path::PathBuf)> {
    let mut files = Vec::new();
    let numbers = disk.list(&from.join("topics")).unwrap_or_default();
    for number in numbers.iter().filter_map(|name| name.parse().ok()) {
        let dir = topic_dir(from, number);
        let names = disk.list(&dir).unwrap_or_default();
        files.extend(names.iter().filter(|name| name.ends_with(".seg")).map(|name| (number, dir.join(name))));
    }
    files.sort();
    files
}

/// Everything whole in the journal, in order; what does not fit is passed over.
fn read_journal(disk: &dyn Disk, from: &Path, topics: &mut BTreeMap<Topic, Found>) {
    let settled = recovery::read_manifest(disk, from).map_or(0, |manifest| manifest.settled);
    let mut numbers: BTreeMap<u32, Topic> = recovery::read_manifest(disk, from)
        .map(|manifest| manifest.topics.into_iter().map(|(number, entry)| (number, entry.name)).collect())
        .unwrap_or_default();
    for (number, path) in journal::files(disk, &from.join("journal")).unwrap_or_default() {
        let Ok(bytes) = read_all(disk, &path).map(Bytes::from) else { continue };
        if number <= settled {
            continue;
        }
        for frame in journal::salvage(&bytes) {
            let mut reader = Reader::within(&bytes, frame);
            while let Some(entry) = (!reader.is_empty()).then(|| Entry::read(&mut reader)).flatten() {
                let of = |number: u32| numbers.get(&number).cloned();
                let Some(name) = (match &entry {
                    Entry::Topic(number, name) => {
                        numbers.insert(*number, name.clone());
                        Some(name.clone())
                    }
                    Entry::Event(number, ..)
                    | Entry::Save(number, ..)
                    | Entry::Forget(number, ..)
                    | Entry::Settings(number, _)
                    | Entry::Trim(number, _) => of(*number),
                }) else {
                    continue;
                };
                let fresh = || Found { entry: TopicEntry::new(name.clone()), recent: BTreeMap::new() };
                topics.entry(name.clone()).or_insert_with(fresh).apply(entry);
            }
        }
    }
}

impl Found {
    fn apply(&mut self, entry: Entry) {
        let groups = &mut self.entry.groups;
        match entry {
            Entry::Topic(..) => {}
            Entry::Event(_, seq, held) => {
                self.recent.insert(seq, held);
            }
            Entry::Save(_, group, version, state) => drop(groups.insert(group, (version, state))),
            Entry::Forget(_, group, _) => drop::<Option<_>>(groups.remove::<Group>(&group)),
            Entry::Settings(_, settings) => self.entry.settings = settings,
            Entry::Trim(_, first) => self.entry.first_seq = self.entry.first_seq.max(first),
        }
    }
}

/// Writes a topic's events, ascending, to new segments.
fn write_topic(
    options: &Options,
    from: &Path,
    topic: (u32, &Topic),
    found: &mut Found,
    saved: &mut Salvaged,
) -> std::io::Result<()> {
    let (disk, to) = (&*options.disk, &options.dir);
    let form = (options.block_bytes, options.compress);
    let (mut writer, mut last): (Option<Writer>, Seq) = (None, 0);
    let mut push = |seq: Seq, held: &Held, found: &mut TopicEntry| {
        if seq <= last || seq < found.first_seq {
            return Ok(());
        }
        if last > 0 {
            saved.missing += seq - last - 1;
        }
        last = seq;
        let open = match writer.take() {
            Some(open) if open.size() < options.segment_bytes => open,
            full => {
                if let Some(full) = full {
                    let (file, meta, _) = full.finish()?;
                    file.sync()?;
                    found.segments.push(meta);
                }
                disk.create_dir(&topic_dir(to, topic.0))?;
                Writer::create(disk, to, topic, seq, 0, form)?
            }
        };
        writer.insert(open).push(seq, held)?;
        saved.events += 1;
        found.last_seq = found.last_seq.max(seq);
        found.last = Some((held.id, held.ts));
        std::io::Result::Ok(())
    };
    let Found { entry, recent } = found;
    let (before, known_last) = (entry.last_seq, entry.last);
    for (_, path) in segment_files(disk, from) {
        let Ok(bytes) = read_all(disk, &path).map(Bytes::from) else { continue };
        if topic_of(&bytes).as_ref() != Some(topic.1) {
            continue;
        }
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
    Ok(())
}
