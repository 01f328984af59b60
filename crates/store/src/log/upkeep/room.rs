//! Room on a full disk: a reserve that only flushing, dropping and the manifest may use.
//!
//! The reserve is a file that grows with the journal, so that the journal can be flushed whatever else fills the disk. The
//! room is low from when the disk cannot hold both until it can again: meanwhile the journal is flushed early, flushed
//! journal files are removed at once, and rounds of maintenance follow each other, so that retention makes room.

use std::io;

use parking_lot::{Mutex, MutexGuard};

use crate::Error;
use crate::log::commit::journal::SPARE;
use crate::log::commit::writer::step;
use crate::log::disk::Mode;
use crate::log::flush::manifest;
use crate::log::shared::{Shared, is_full};
use crate::log::stats::Counters;

/// The file of the reserve.
const NAME: &str = "reserve";

/// The reserve, and whether there is room.
#[derive(Debug, Default)]
pub(in crate::log) struct Room(Mutex<State>);

#[derive(Debug, Default)]
pub(in crate::log) struct State {
    /// Bytes of the reserve.
    held: u64,
    /// Bytes of the journal file that it is for.
    journal: u64,
    low: bool,
    /// Why events are refused.
    refused: Option<String>,
}

impl Room {
    /// Keeps the files that the room is made of as they are.
    pub(in crate::log) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(in crate::log) fn is_low(&self) -> bool {
        self.0.lock().low
    }

    /// Why events are refused, while they are.
    pub(in crate::log) fn refused(&self) -> Option<String> {
        self.0.lock().refused.clone()
    }
}

impl Shared {
    /// Makes the reserve large enough to flush a journal file of `journal` bytes; `false`: the disk has no room for it.
    pub(in crate::log) fn reserve_for(&self, journal: u64) -> io::Result<bool> {
        let mut state = self.room.lock();
        state.journal = journal;
        self.fill(&mut state)
    }

    fn fill(&self, state: &mut State) -> io::Result<bool> {
        // Segments, ids and the index of small events together take more than the journal.
        let wanted = state.journal + state.journal / 2 + self.last_part();
        let (disk, path) = (&*self.options.disk, self.options.dir.join(NAME));
        if state.held == 0 {
            // One that the process before has left.
            state.held = disk.len(&path).unwrap_or(0);
        }
        if state.held >= wanted {
            return Ok(true);
        }
        let mode = if state.held == 0 { Mode::Create } else { Mode::Write };
        let file = match disk.open(&path, mode) {
            Err(error) if is_full(&error) => {
                state.low = true;
                return Ok(false);
            }
            file => file?,
        };
        match file.allocate(state.held, wanted - state.held) {
            Ok(()) => {
                state.held = wanted;
                Ok(true)
            }
            Err(error) if is_full(&error) => {
                // The beginning of what was not to be had is given back.
                file.set_len(state.held)?;
                state.low = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Bytes of the reserve that flushing leaves for dropping segments: two manifests and some pages of the index.
    fn last_part(&self) -> u64 {
        let manifest = self.options.disk.len(&self.options.dir.join(manifest::NAME)).unwrap_or(0);
        2 * manifest + (step(self.options.journal_bytes) / 16).max(4096)
    }

    /// Gives up the reserve, or all but its last part, for work in the background that found no room. Returns whether
    /// that made some.
    pub(in crate::log) fn give_room(&self, last: bool) -> bool {
        let (disk, dir) = (&*self.options.disk, &self.options.dir);
        let mut state = self.room.lock();
        state.low = true;
        let spare = disk.remove(&dir.join("journal").join(SPARE)).is_ok();
        let left = if last { 0 } else { self.last_part() };
        if state.held <= left {
            return spare;
        }
        let path = dir.join(NAME);
        let given = match left {
            0 => disk.remove(&path),
            left => disk.open(&path, Mode::Write).and_then(|file| file.set_len(left)),
        };
        if given.is_ok() {
            state.held = left;
        }
        spare || given.is_ok()
    }

    /// Makes the reserve anew where it was given up; the room is not low any more once it is there.
    pub(in crate::log) fn restore_room(&self) {
        if !self.flushing.lock().sealed.is_empty() {
            return;
        }
        let mut state = self.room.lock();
        if !state.low {
            return;
        }
        if let Ok(true) = self.fill(&mut state) {
            state.low = false;
            let refused = state.refused.take();
            drop(state);
            self.said_over(refused);
        }
    }

    /// Counts events that find no room. The first time, the log says so.
    pub(in crate::log) fn refuse(&self, reason: String, events: u64) -> Error {
        Counters::add(&self.counters.refused, events);
        let mut state = self.room.lock();
        state.low = true;
        let first = state.refused.is_none();
        state.refused.get_or_insert_with(|| reason.clone());
        drop(state);
        if first {
            tracing::warn!(reason, "publishes are refused: the disk is full");
        }
        self.flushing_changed.notify_all();
        Error::Refused(reason)
    }

    /// Events that needed new room have got some.
    pub(in crate::log) fn has_room_again(&self) {
        let refused = self.room.lock().refused.take();
        self.said_over(refused);
    }

    fn said_over(&self, refused: Option<String>) {
        if refused.is_some() {
            tracing::warn!("publishes are taken again: the disk has room");
        }
    }
}
