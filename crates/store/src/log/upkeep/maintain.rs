//! A round of maintenance: retention, key compaction and the removal of files that nothing names.
//!
//! All of them change the list of a topic's segments: new files are durable before the manifest names them, old ones are
//! removed after it does not any more. One round runs at a time, and a topic that fails holds up no other.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use promethean_event::Millis;

use crate::log::flush::Trouble;
use crate::log::flush::segment::{Segment, topic_dir};
use crate::log::shared::{Compacted, Shared};
use crate::log::upkeep::pace::Pace;
use crate::{Compaction, Error, TopicSettings};

/// What is unflushed is much when it is this part of a journal file. Smaller runs would make segments slow to open.
const MUCH: u64 = 8;

impl Shared {
    /// Applies retention and compaction to all topics. `force`: also where there is little to gain.
    pub(in crate::log) fn maintain(&self, now: Millis, force: bool) -> std::result::Result<(), Trouble> {
        let mut compacted = self.maintenance.lock();
        if !self.swept.swap(true, Ordering::AcqRel) {
            self.sweep()?;
        }
        self.release_views();
        let topics = self.topics.read().by_number.clone();
        let (dropped, mut trouble) = self.retain(&topics, now);
        for topic in &topics {
            let settings = topic.inner.lock().settings.clone();
            let Some(compaction) = settings.compaction else { continue };
            let (flushed, events, tombstone) = {
                let inner = topic.inner.lock();
                let last = inner.segments.last().map_or(0, |last| last.last_seq);
                (last, inner.segments.iter().map(|meta| meta.events).sum::<u64>(), inner.tombstone)
            };
            let done = compacted.get(&topic.number).copied();
            let done = done.unwrap_or_else(|| Compacted::before(&topic.inner.lock().segments));
            let since = flushed.saturating_sub(done.until);
            let released = done.pinned && self.pins.of(&topic.name, 0).is_empty();
            let much = released || (since > 0 && since >= events / 4);
            if force || much || tombstone.is_some_and(|oldest| is_overdue(oldest, compaction, now)) {
                let pinned = match self.compact(topic, compaction, now) {
                    Err(Trouble::Damaged(reason)) => {
                        tracing::error!(topic = %topic.name, reason, "a topic cannot be compacted");
                        false
                    }
                    // Another topic may still make room.
                    Err(Trouble::NoRoom(reason)) => {
                        trouble = trouble.and(Err(Trouble::NoRoom(reason)));
                        continue;
                    }
                    done => done?,
                };
                compacted.insert(topic.number, Compacted { until: flushed, pinned });
            }
        }
        trouble.and(self.tend_tables(dropped))
    }

    /// True if the journal is to be flushed before it is full. Retention and compaction go by segments, so what they
    /// wait for in memory is flushed first; and what is much is flushed although nothing follows it: an idle hub is small.
    /// Not while another file is being flushed: the next one would have to wait for it, and publishers too.
    pub(in crate::log) fn waits_to_be_flushed(&self) -> bool {
        if !self.flushing.lock().sealed.is_empty() {
            return false;
        }
        let much = self.options.journal_bytes / MUCH;
        let topics = self.topics.read().by_number.clone();
        let mut unflushed = 0;
        topics.iter().any(|topic| {
            let inner = topic.inner.lock();
            unflushed += inner.tail_size().1;
            unflushed >= much || (inner.has_tail() && inner.settings != TopicSettings::default())
        })
    }

    /// Removes files that a crash left behind: those that the manifest does not name, and nobody is writing.
    fn sweep(&self) -> std::result::Result<(), Trouble> {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        // Flushing holds this lock as long as it has files that are not named yet; compaction is not running.
        let manifest = self.manifest.lock();
        let mut named: HashSet<PathBuf> =
            manifest.tables.iter().map(|table| crate::log::flush::ids::path(dir, table.number)).collect();
        let mut dirs = vec![dir.join("ids")];
        for (number, topic) in &manifest.topics {
            named.extend(topic.segments.iter().map(|meta| meta.path(dir, *number)));
            dirs.push(topic_dir(dir, *number));
        }
        for dir in dirs {
            // A topic that has nothing flushed has no directory.
            for name in disk.list(&dir).unwrap_or_default() {
                let path = dir.join(&name);
                if (name.ends_with(".seg") || name.ends_with(".ids")) && !named.contains(&path) {
                    tracing::info!(file = %path.display(), "removed a file that a crash had left behind");
                    self.remove_entries_left(&path)?;
                    disk.remove(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Has the next round look for files that are not named.
    pub(super) fn sweep_again(&self) {
        self.swept.store(false, Ordering::Release);
    }

    /// Removes what the index still has of a segment that retention dropped before a crash.
    fn remove_entries_left(&self, path: &Path) -> std::result::Result<(), Trouble> {
        let topic = path.parent().and_then(|dir| dir.file_name()?.to_str()?.parse::<u32>().ok());
        let Some(topic) = topic.and_then(|number| self.topics.read().number(number).cloned()) else { return Ok(()) };
        let len = self.options.disk.len(path)?;
        // One that a flush or a compaction did not finish is not whole, or has events that are kept elsewhere.
        let Ok(open) = Segment::open(&*self.options.disk, path.to_owned(), len) else { return Ok(()) };
        let first_seq = topic.inner.lock().first_seq;
        if open.blocks.last().is_some_and(|block| block.last_seq >= first_seq) {
            return Ok(());
        }
        match self.remove_entries_of(topic.number, &open, &mut self.pace()) {
            Err(Error::Refused(reason)) => Err(Trouble::NoRoom(reason)),
            // What is left in the index leads nowhere.
            _ => Ok(()),
        }
    }

    pub(super) fn pace(&self) -> Pace {
        Pace::new(Instant::now(), self.appended())
    }

    /// Lets publishers go first for a while, now and then.
    pub(super) fn give_way(&self, pace: &mut Pace) {
        if let Some(pause) = pace.pause(Instant::now(), self.appended()) {
            std::thread::sleep(pause);
        }
    }

    fn appended(&self) -> u64 {
        self.counters.events.load(Ordering::Relaxed)
    }
}

/// True if a tombstone has waited long enough to compact for its sake. Not at the very end of its grace: where keys go all
/// the time, each would have the topic compacted by itself.
fn is_overdue(oldest: Millis, compaction: Compaction, now: Millis) -> bool {
    let grace = compaction.tombstone_grace;
    now.since(oldest) > grace.saturating_add(grace / 4)
}
