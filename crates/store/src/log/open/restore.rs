//! A data directory from a backup: every event at its seq, the settings, the groups' states.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use promethean_event::{Event, EventId, Group, Millis, Topic};

use crate::GroupState;
use crate::backup::{Reader, Record, TopicHead, Totals, Unreadable};
use crate::log::commit::codec::Held;
use crate::log::disk::{Disk, Real};
use crate::log::flush::manifest::{Manifest, TopicEntry};
use crate::log::flush::segment::{Writer, topic_dir};
use crate::log::open::rebuild;
use crate::log::open::recovery;
use crate::log::options::{OpenError, Options};

/// Why a backup was not restored. The directory is not one that a hub opens then; delete it, unless it was not empty
/// before ([`OpenError::NotEmpty`]): then nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup.
    #[error(transparent)]
    Backup(#[from] Unreadable),
    /// The directory.
    #[error(transparent)]
    Directory(#[from] OpenError),
}

/// Makes the new data directory `to` from a backup.
///
/// # Errors
/// The backup is not whole, `to` is not empty, or the system refuses something.
pub fn restore(from: impl Read, to: &Path) -> Result<Totals, RestoreError> {
    let disk: Arc<dyn Disk> = Arc::new(Real);
    if let Some(found) = disk.list(to).ok().and_then(|names| names.into_iter().next()) {
        return Err(OpenError::NotEmpty { dir: to.to_owned(), found }.into());
    }
    let mut reader = Reader::new(from)?;
    let doing = |what: &str| recovery::io_error(format!("{what} in {} could not be written", to.display()));
    let options = Options { disk: Arc::clone(&disk), ..Options::new(to) };
    recovery::begin(&*disk, to, "restore").map_err(doing("directories"))?;
    let mut groups: BTreeMap<Topic, Vec<(Group, GroupState)>> = BTreeMap::new();
    let (mut manifest, mut open, mut totals) = (Manifest::default(), None::<Filling>, Totals::default());
    while let Some(record) = reader.next_record()? {
        match record {
            Record::Group(topic, group, state) => groups.entry(topic).or_default().push((group, state)),
            Record::Topic(head) => {
                if let Some(done) = open.take() {
                    done.finish(&options, &mut manifest).map_err(doing("segments"))?;
                }
                let number = u32::try_from(manifest.topics.len() + 1).unwrap_or(u32::MAX);
                open = Some(Filling::new(number, *head));
            }
            Record::Event(event) => {
                if let Some(filling) = &mut open {
                    filling.push(&options, *event).map_err(doing("segments"))?;
                }
            }
            Record::End(end) => totals = end,
        }
    }
    if let Some(done) = open.take() {
        done.finish(&options, &mut manifest).map_err(doing("segments"))?;
    }
    for (topic, states) in groups {
        let known = manifest.topics.iter().find(|(_, entry)| entry.name == topic).map(|(number, _)| *number);
        let fresh = u32::try_from(manifest.topics.len() + 1).unwrap_or(u32::MAX);
        let entry = manifest.topics.entry(known.unwrap_or(fresh)).or_insert_with(|| TopicEntry::new(topic));
        for (group, state) in states {
            manifest.version += 1;
            entry.groups.insert(group, (manifest.version, state.encode().into()));
        }
    }
    disk.sync_dir(&to.join("topics")).map_err(doing("directories"))?;
    manifest.write(&*disk, to).map_err(doing("the manifest"))?;
    drop(rebuild::rebuild(&options, manifest, None, false, rebuild::Damage::Refused)?);
    // Last: without it the directory is none that a hub opens.
    recovery::finish(&*disk, to).map_err(doing("FORMAT"))?;
    Ok(totals)
}

/// True if the id has the form and the time of one that the hub made. A backup does not say who made it; a client's id of
/// that form is found in the tables as well, because it goes up with time.
fn is_of_hub(id: EventId, appended: Millis) -> bool {
    const NEAR: u64 = 60_000;
    let bits = u128::from_be_bytes(*id.as_bytes());
    let millis = u64::try_from(bits >> 80).unwrap_or(u64::MAX);
    (bits >> 76) & 0xf == 7 && millis.abs_diff(appended.0) <= NEAR
}

/// A topic whose events are being written.
struct Filling {
    number: u32,
    entry: TopicEntry,
    writer: Option<Writer>,
}

impl Filling {
    fn new(number: u32, head: TopicHead) -> Self {
        let TopicHead { topic, settings, first_seq, last_seq, last } = head;
        let entry = TopicEntry { settings, first_seq, last_seq, last, ..TopicEntry::new(topic) };
        Self { number, entry, writer: None }
    }

    fn push(&mut self, options: &Options, event: Event) -> io::Result<()> {
        let (disk, dir) = (&*options.disk, &options.dir);
        if self.writer.as_ref().is_some_and(|open| open.size() >= options.segment_bytes) {
            self.close()?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                disk.create_dir(&topic_dir(dir, self.number))?;
                let (topic, form) = ((self.number, &self.entry.name), (options.block_bytes, options.compress));
                self.writer.insert(Writer::create(disk, dir, topic, event.seq, 0, form)?)
            }
        };
        let Event { id, seq, ts, appended, spans, body, .. } = event;
        let client = !is_of_hub(id, appended);
        writer.push(seq, &Held { id, ts, appended, spans, client, body })
    }

    fn close(&mut self) -> io::Result<()> {
        if let Some(writer) = self.writer.take() {
            let (file, meta, _) = writer.finish()?;
            file.sync()?;
            self.entry.segments.push(meta);
        }
        Ok(())
    }

    fn finish(mut self, options: &Options, manifest: &mut Manifest) -> io::Result<()> {
        self.close()?;
        if !self.entry.segments.is_empty() {
            options.disk.sync_dir(&topic_dir(&options.dir, self.number))?;
        }
        manifest.topics.insert(self.number, self.entry);
        Ok(())
    }
}
