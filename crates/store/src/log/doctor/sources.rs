//! What there is to be saved: of each topic what the manifest knows, its segment files, its events in the journal.
//!
//! Everything that can tell a topic's name does: the manifest, a segment's head, the other segments of its directory, the
//! events themselves. Every file is grouped once, and read once when its topic is written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use promethean_event::{Group, Seq, Topic};

use super::blocks;
use super::salvage::unreadable;
use crate::TopicSettings;
use crate::log::commit::codec::{Held, Reader};
use crate::log::commit::entry::Entry;
use crate::log::commit::journal;
use crate::log::disk::{Disk, Mode, read_around};
use crate::log::flush::manifest::TopicEntry;
use crate::log::flush::segment::{Meta, head, topic_dir};
use crate::log::open::recovery;

/// What is known of a topic while it is put together.
pub(super) struct Found {
    /// Without segments.
    pub(super) entry: TopicEntry,
    /// The segments that the manifest names.
    pub(super) expected: Vec<Meta>,
    /// The first event that is to be expected beyond those.
    pub(super) first: Seq,
    /// Segment files, ascending.
    pub(super) files: Vec<PathBuf>,
    /// Journal events and their seqs.
    pub(super) recent: BTreeMap<Seq, Held>,
}

impl Found {
    fn new(entry: TopicEntry) -> Self {
        let expected = entry.segments.clone();
        let first = entry.last_seq + 1;
        let entry = TopicEntry { segments: Vec::new(), ..entry };
        Self { entry, expected, first, files: Vec::new(), recent: BTreeMap::new() }
    }

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
            Entry::Create(_) => self.entry.life.created = true,
            Entry::Delete(_, last_seq, _) => {
                groups.clear();
                self.entry.settings = TopicSettings::default();
                self.entry.first_seq = self.entry.first_seq.max(last_seq + 1);
                self.entry.life = self.entry.life.ended(last_seq);
            }
        }
    }
}

/// Everything that can be saved.
#[derive(Default)]
pub(super) struct Sources {
    pub(super) topics: BTreeMap<Topic, Found>,
    /// What cannot.
    pub(super) losses: Vec<String>,
}

impl Sources {
    pub(super) fn read(disk: &dyn Disk, from: &Path) -> Self {
        let (mut all, mut numbers, mut flushed) = (Self::default(), BTreeMap::new(), 0);
        let manifest = recovery::read_manifest(disk, from);
        let known = manifest.is_ok();
        match manifest {
            Ok(manifest) => {
                flushed = manifest.flushed;
                for (number, entry) in manifest.topics {
                    numbers.insert(number, entry.name.clone());
                    all.topics.insert(entry.name.clone(), Found::new(entry));
                }
            }
            Err(error) => all.losses.push(format!(
                "{error} (settings, groups' places and trims are known only as far as the journal has them)"
            )),
        }
        all.find_segments(disk, from, &mut numbers, known);
        all.read_journal(disk, from, &mut numbers, flushed);
        all
    }

    fn topic(&mut self, name: &Topic) -> &mut Found {
        self.topics.entry(name.clone()).or_insert_with(|| Found::new(TopicEntry::new(name.clone())))
    }

    /// Finds out whose each segment file is.
    fn find_segments(&mut self, disk: &dyn Disk, from: &Path, numbers: &mut BTreeMap<u32, Topic>, known: bool) {
        let mut nameless = Vec::new();
        for (number, path) in segment_files(disk, from) {
            match head_of(disk, &path) {
                Some((in_head, name)) => {
                    numbers.entry(in_head).or_insert_with(|| name.clone());
                    self.topic(&name).files.push(path);
                }
                None => nameless.push((number, path)),
            }
        }
        for (number, path) in nameless {
            let name = numbers.get(&number).cloned().or_else(|| {
                let (bytes, _) = read_around(disk, &path).ok()?;
                let bytes = Bytes::from(bytes);
                blocks(&bytes).find_map(|(_, events)| topic_of(&events.first()?.1))
            });
            match name {
                Some(name) => {
                    numbers.entry(number).or_insert_with(|| name.clone());
                    self.topic(&name).files.push(path);
                }
                None => self.losses.push(format!("{}: it has nothing that is whole", path.display())),
            }
        }
        for found in self.topics.values_mut() {
            found.files.sort();
            // Without a manifest the names of the files say where the topic began, as far as anything does.
            if let (false, Some(first)) = (known, found.files.first().and_then(|path| first_seq(path))) {
                found.first = first;
            }
        }
    }

    /// Everything whole in the journal, in order; what does not fit is passed over.
    fn read_journal(&mut self, disk: &dyn Disk, from: &Path, numbers: &mut BTreeMap<u32, Topic>, flushed: u64) {
        if let Err(error) = recovery::unflushed(disk, from, flushed) {
            self.losses.push(error.to_string());
        }
        let (mut files, mut sealed_end) = (Vec::new(), None);
        let there = journal::files(disk, &from.join("journal")).unwrap_or_default();
        for (number, path) in there.into_iter().filter(|(number, _)| *number > flushed).rev() {
            let (mut bytes, bad) = match read_around(disk, &path) {
                Ok(read) => read,
                Err(error) => {
                    self.losses.push(format!("{} could not be read: {error}", path.display()));
                    sealed_end = None;
                    continue;
                }
            };
            self.losses.extend(unreadable(&path, &bad));
            journal::mend_header(&mut bytes);
            match journal::scan(&bytes, number, sealed_end) {
                Ok(scan) => sealed_end = Some(scan.previous_end),
                Err(damage) => {
                    sealed_end = None;
                    let at = format!("{} is damaged at offset {}", path.display(), damage.offset);
                    self.losses.push(format!("{at}: {}", damage.what));
                }
            }
            files.push(Bytes::from(bytes));
        }
        let mut entries = Vec::new();
        for bytes in files.iter().rev() {
            for frame in journal::salvage(bytes) {
                let mut reader = Reader::within(bytes, frame);
                while let Some(entry) = (!reader.is_empty()).then(|| Entry::read(&mut reader)).flatten() {
                    match &entry {
                        Entry::Topic(number, name) => drop(numbers.insert(*number, name.clone())),
                        Entry::Event(number, _, held) if !numbers.contains_key(number) => {
                            numbers.extend(topic_of(held).map(|name| (*number, name)));
                        }
                        _ => {}
                    }
                    entries.push(entry);
                }
            }
        }
        for entry in entries {
            let (Entry::Topic(number, _)
            | Entry::Event(number, ..)
            | Entry::Save(number, ..)
            | Entry::Forget(number, ..)
            | Entry::Settings(number, _)
            | Entry::Trim(number, _)
            | Entry::Create(number)
            | Entry::Delete(number, ..)) = &entry;
            match numbers.get(number).cloned() {
                Some(name) => self.topic(&name).apply(entry),
                None => self.losses.push(format!("the journal has something of topic {number}, whose name is lost")),
            }
        }
    }
}

/// Every segment file: the number of its topic's directory, and its path.
pub(super) fn segment_files(disk: &dyn Disk, from: &Path) -> Vec<(u32, PathBuf)> {
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

/// The topic of a segment file, by its head.
fn head_of(disk: &dyn Disk, path: &Path) -> Option<(u32, Topic)> {
    let file = disk.open(path, Mode::Read).ok()?;
    let mut bytes = vec![0; usize::try_from(file.len().ok()?.min(4096)).ok()?];
    file.read_at(0, &mut bytes).ok()?;
    head(&bytes).map(|(number, name, _)| (number, name))
}

/// The first seq in a segment file's name.
fn first_seq(path: &Path) -> Option<Seq> {
    path.file_name()?.to_str()?.split('.').next()?.parse().ok()
}

/// The topic that an event says it is of.
fn topic_of(held: &Held) -> Option<Topic> {
    #[derive(serde::Deserialize)]
    struct Body {
        topic: String,
    }
    let body: Body = serde_json::from_slice(&held.body).ok()?;
    Topic::parse(&body.topic).ok()
}
