//! The writer: everything that waits becomes one frame, with one sync.
//!
//! It alone gives out seqs and versions, and it alone writes to the journal. What it has written becomes visible, and
//! is answered, only after the sync that the mode asks for. No async in here.
//!
//! With `sync = always` two threads take turns: while one waits for the disk with its frame, the other builds the
//! next. Frames stay in order because each goes from stage to stage under locks that are taken in this order, the next
//! before the last is let go: `builder` (numbers, encodes) → `file` (a place in it) → `publisher` (makes visible,
//! answers). The disk is waited for without a lock, and that is marked in `file`: nothing else is written meanwhile, so
//! a frame is durable only if all before it are.
//!
//! In the other modes nobody waits for the disk, and whoever asks for something small does it at once, in its own
//! thread ([`Writer::at_once`]): two wake-ups less. The writer's thread does the rest: what is large, what may have to
//! wait, and what comes while another one is at it.

mod build;
mod frame;
mod publish;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::log::closed;
use crate::log::commit::journal::{FIRST, FRAME_HEAD, Journal, Next};
use crate::log::commit::queue::{Queued, Request};
use crate::log::options::Sync;
use crate::log::shared::{Shared, is_full};
use crate::log::stats::Counters;
use crate::{Error, Result, Version};
use build::Builder;
use frame::{Frame, Unseen};
use publish::Publisher;

/// Bytes of one frame at most, unless a single request is larger.
const MAX_FRAME: u64 = 8 << 20;
/// How long to wait for another thread before looking whether the engine has failed.
const LOOK: Duration = Duration::from_millis(500);
/// Most bytes that are written in the thread of whoever asks.
const AT_ONCE: u64 = 256 << 10;
/// Events written at once whose keys wait to be taken in, before the writer's thread is woken for them.
const MANY_KEYS: usize = 4096;

/// What the writer's threads share.
#[derive(Debug)]
pub(in crate::log) struct Writer {
    shared: Arc<Shared>,
    builder: Mutex<Builder>,
    file: Mutex<OpenFile>,
    /// A sync has ended, or something is written that no sync has seen.
    file_changed: Condvar,
    publisher: Mutex<Publisher>,
    unseen: Arc<Mutex<Unseen>>,
    /// For what is done at once. Its owner has `builder`.
    spare: Mutex<Frame>,
}

/// The journal file that is written to.
#[derive(Debug)]
struct OpenFile {
    journal: Journal,
    /// A frame is on its way to the disk.
    syncing: bool,
    ended: bool,
}

impl Writer {
    pub(in crate::log) fn new(shared: Arc<Shared>, journal: Journal, version: Version) -> Self {
        let unseen = Arc::default();
        Self {
            builder: Mutex::new(Builder::new(shared.clone(), Arc::clone(&unseen), version)),
            shared,
            file: Mutex::new(OpenFile { journal, syncing: false, ended: false }),
            file_changed: Condvar::new(),
            publisher: Mutex::default(),
            unseen,
            spare: Mutex::default(),
        }
    }

    /// How many threads run this: where nobody waits for the disk, a second one has nothing to do.
    pub(in crate::log) fn threads(&self) -> usize {
        if self.shared.options.sync == Sync::Always { 2 } else { 1 }
    }

    /// Works until the queue is closed and empty.
    pub(in crate::log) fn run(&self) {
        let (mut frame, arrived) = (Frame::default(), Arc::default());
        while self.shared.queue.wait(&arrived) {
            self.turn(&mut frame);
            // While nobody waits. What is left then is up to the next pause, or to whoever asks for a key.
            while self.shared.queue.is_empty() && self.publisher.lock().take_keys() {}
        }
    }

    /// Does in the caller's thread what takes a moment only: nothing that waits for the disk, for room or for another
    /// thread. Gives back what is for the writer's own.
    pub(in crate::log) fn at_once(&self, request: Request) -> Option<Request> {
        let bound = request.bound();
        if self.shared.options.sync == Sync::Always || bound > AT_ONCE || !request.is_plain() {
            return Some(request);
        }
        let Some(mut builder) = self.builder.try_lock() else { return Some(request) };
        // What came before goes before.
        if !self.shared.queue.is_empty() || !self.has_room(bound) {
            return Some(request);
        }
        let mut frame = self.spare.lock();
        builder.build(request, &mut frame);
        Counters::add(&self.shared.counters.direct, u64::from(frame.has_entries()));
        let waiting_keys = self.complete(&mut frame, Some(builder));
        drop(frame);
        if waiting_keys >= MANY_KEYS {
            self.shared.queue.nudge();
        }
        None
    }

    /// True if so many bytes can be written to the file as it is.
    fn has_room(&self, bound: u64) -> bool {
        let Some(file) = self.file.try_lock() else { return false };
        let (journal_bytes, need) = (self.shared.options.journal_bytes, FRAME_HEAD as u64 + bound + 8);
        let need = need + reserve(journal_bytes);
        self.shared.failed().is_none()
            && !file.ended
            && file.journal.offset + need <= FIRST + journal_bytes
            && file.journal.fits(need)
    }

    /// Makes durable what is not yet, after the last frame.
    pub(in crate::log) fn end(&self) {
        let mut file = self.free_file();
        if self.shared.failed().is_none() {
            // Nothing depends on it.
            let _ = file.journal.mark_end();
            if file.journal.is_dirty() {
                let _ = self.sync(&mut file.journal);
            }
        }
        file.ended = true;
        self.file_changed.notify_all();
    }

    /// Where frames are not synced one by one: does it at intervals, and holds nobody up meanwhile.
    pub(in crate::log) fn sync_late(&self) {
        let Sync::Interval(interval) = self.shared.options.sync else { return };
        let mut file = self.file.lock();
        while !file.ended {
            if !file.journal.is_dirty() {
                self.file_changed.wait(&mut file);
                continue;
            }
            let due = Instant::now() + interval;
            while !file.ended && !self.file_changed.wait_until(&mut file, due).timed_out() {}
            if file.ended || !file.journal.is_dirty() {
                continue;
            }
            let (number, end, handle) = (file.journal.number, file.journal.offset, file.journal.handle());
            drop(file);
            let synced = self.synced("sync", || handle.sync());
            file = self.file.lock();
            match synced {
                Ok(()) if file.journal.number == number => file.journal.synced_up_to(end),
                Ok(()) => {}
                Err(_) => return,
            }
        }
    }

    /// Takes what waits and sees it through.
    fn turn(&self, frame: &mut Frame) {
        let mut builder = self.builder.lock();
        self.gather(&mut builder, frame);
        if frame.is_empty() {
            return;
        }
        // What comes while the disk is busy with the frame before goes along.
        drop(self.free_file());
        self.gather(&mut builder, frame);
        self.complete(frame, Some(builder));
    }

    /// Puts what waits into the frame.
    fn gather(&self, builder: &mut Builder, frame: &mut Frame) {
        for Queued { request, bound, permit } in
            self.shared.queue.take((frame.bytes.len() - FRAME_HEAD) as u64, MAX_FRAME)
        {
            let room = match &request {
                Request::Rotate { .. } => self.rotate(builder, frame),
                _ => self.make_room(builder, frame, &request, bound),
            };
            match room {
                Ok(()) => {
                    builder.build(request, frame);
                    frame.permits.push(permit);
                }
                Err(error) => request.refuse(error),
            }
        }
    }

    /// Writes a frame, makes it durable and visible, and answers. The builder is free once it has its place. Returns how
    /// many events' keys wait to be taken in.
    fn complete(&self, frame: &mut Frame, builder: Option<MutexGuard<'_, Builder>>) -> usize {
        let mut file = self.free_file();
        let (mut done, clean) = (Ok(()), !file.journal.is_dirty());
        if frame.has_entries() {
            // Whoever writes at once may have come before the end and be here after it.
            done = if file.ended { Err(closed()) } else { self.count(frame) };
            if done.is_ok() && self.shared.options.sync == Sync::Always {
                file.syncing = true;
                let place = file.journal.place(&mut frame.bytes);
                let end = file.journal.offset;
                drop((file, builder));
                done = self.synced("write and sync", || place?.write_durably(&frame.bytes));
                file = self.file.lock();
                file.syncing = false;
                if done.is_ok() {
                    file.journal.synced_up_to(end);
                }
            } else if done.is_ok() {
                done = file.journal.write(&mut frame.bytes).map_err(|error| self.fail("write", &error));
                // A flush leaves removed events out at once, so the removal has to survive a crash in every mode.
                if done.is_ok() && frame.removes_events() {
                    done = self.sync(&mut file.journal);
                }
            }
        }
        let number = file.journal.number;
        let mut publisher = self.publisher.lock();
        drop(file);
        if clean {
            self.file_changed.notify_all();
        }
        match done {
            Ok(()) => publisher.publish(&self.shared, &self.unseen, number, frame),
            Err(error) => frame.fail(&error),
        }
        let waiting_keys = publisher.waiting_keys();
        drop(publisher);
        frame.clear();
        waiting_keys
    }

    /// The file, once no frame is on its way.
    fn free_file(&self) -> MutexGuard<'_, OpenFile> {
        let mut file = self.file.lock();
        while file.syncing && self.shared.failed().is_none() {
            self.file_changed.wait_for(&mut file, LOOK);
        }
        file
    }

    /// Counts a frame that is about to be written, if the engine still works.
    fn count(&self, frame: &Frame) -> Result<()> {
        if let Some(error) = self.shared.failed() {
            return Err(error);
        }
        let counters = &self.shared.counters;
        Counters::add(&counters.commits, 1);
        Counters::add(&counters.events, frame.events.len() as u64);
        Counters::add(&counters.journal_bytes, frame.bytes.len() as u64);
        Ok(())
    }

    fn sync(&self, journal: &mut Journal) -> Result<()> {
        self.synced("sync", || journal.handle().sync())?;
        journal.synced_up_to(journal.offset);
        Ok(())
    }

    /// Makes something of the journal durable, or the engine fail.
    fn synced(&self, doing: &str, sync: impl FnOnce() -> io::Result<()>) -> Result<()> {
        let start = Instant::now();
        let synced = sync();
        self.shared.counters.synced(start.elapsed());
        synced.map_err(|error| self.fail(doing, &error))
    }

    fn fail(&self, doing: &str, error: &io::Error) -> Error {
        let reason = format!("{doing} of the journal failed: {error}; check the disk, then start again");
        self.shared.fail(reason.clone());
        Error::Unknown(reason)
    }

    /// Makes sure that the request can be written without needing space on the way.
    fn make_room(&self, builder: &mut Builder, frame: &mut Frame, request: &Request, bound: u64) -> Result<()> {
        if let Some(error) = self.shared.failed() {
            return Err(error);
        }
        let journal_bytes = self.shared.options.journal_bytes;
        let reserve = reserve(journal_bytes);
        let need = |frame: &Frame| frame.bytes.len() as u64 + bound + 8;
        let full = |file: &OpenFile| file.journal.offset + need(frame) + reserve > FIRST + journal_bytes;
        let full = full(&self.file.lock());
        let mut room = if full { self.rotate(builder, frame) } else { Ok(()) };
        let mut file = self.file.lock();
        let grows = |file: &OpenFile, frame: &Frame| !file.journal.fits(need(frame) + reserve);
        let grew = room.is_ok() && grows(&file, frame);
        if grew {
            match self.shared.reserve_for(file.journal.grown_by(need(frame) + reserve)) {
                // The disk is nearly full: the reserve is enough to flush what is in the journal, not for more.
                Ok(false) if !file.journal.is_empty() => {
                    drop(file);
                    room = self.rotate(builder, frame);
                    file = self.file.lock();
                }
                Ok(_) => {}
                Err(error) => room = Err(self.fail("write", &error)),
            }
        }
        if room.is_ok() {
            room = file.journal.reserve(need(frame), reserve).map_err(|error| self.no_space(&error));
        }
        let fits = file.journal.fits(need(frame));
        drop(file);
        match (room, request) {
            (Err(Error::Refused(reason)), Request::Append { events, .. }) => {
                Err(self.shared.refuse(reason, events.len() as u64))
            }
            (Err(Error::Refused(_)), _) if fits => Ok(()),
            (Ok(()), _) => {
                if grew {
                    self.shared.has_room_again();
                }
                Ok(())
            }
            (room, _) => room,
        }
    }

    /// What a failure to get space means: no space is to be waited out, everything else is the end.
    fn no_space(&self, error: &io::Error) -> Error {
        if is_full(error) {
            let dir = self.shared.options.dir.display();
            return Error::Refused(format!("no space left in {dir} ({error}); free some, the hub goes on by itself"));
        }
        self.fail("write", error)
    }

    /// Ends the journal file, with what is built for it, and starts the next one. Waits while flushing is behind.
    fn rotate(&self, builder: &mut Builder, frame: &mut Frame) -> Result<()> {
        if !frame.is_empty() {
            self.complete(frame, None);
        }
        if self.free_file().journal.is_empty() {
            return self.shared.failed().map_or(Ok(()), Err);
        }
        self.wait_for_flushing()?;
        let mut file = self.free_file();
        // Whoever has synced is the publisher by now: everything built becomes visible before the file is sealed.
        drop(self.publisher.lock());
        if let Some(error) = self.shared.failed() {
            return Err(error);
        }
        // Flushed events must not be able to get lost in the journal afterwards.
        if file.journal.is_dirty() {
            self.sync(&mut file.journal)?;
        }
        let (options, number) = (&self.shared.options, file.journal.number);
        let (dir, previous_end) = (options.dir.join("journal"), file.journal.offset);
        let create = |step| {
            let _files = self.shared.room.lock();
            Journal::create(&Next { disk: &*options.disk, dir: &dir, number: number + 1, previous_end, step })
        };
        let created = match create(step(options.journal_bytes)) {
            // Without a new file nothing can be flushed: it begins small.
            Err(error) if is_full(&error) && self.shared.give_room(false) => create(step(0)),
            created => created,
        };
        file.journal = created.map_err(|error| self.no_space(&error))?;
        self.shared.flushing.lock().sealed.push_back(builder.seal(number));
        self.shared.flushing_changed.notify_all();
        Ok(())
    }

    fn wait_for_flushing(&self) -> Result<()> {
        let mut flushing = self.shared.flushing.lock();
        if !flushing.sealed.is_empty() {
            Counters::add(&self.shared.counters.waits, 1);
        }
        while !flushing.sealed.is_empty() {
            if let Some(error) = self.shared.failed() {
                return Err(error);
            }
            if let Some(reason) = &flushing.no_room {
                return Err(Error::Refused(reason.clone()));
            }
            self.shared.flushing_changed.wait_for(&mut flushing, LOOK);
        }
        Ok(())
    }
}

/// Room in a journal file that events never use: it lets acks go on when the disk is full.
fn reserve(journal_bytes: u64) -> u64 {
    journal_bytes / 16
}

/// How much a journal file grows at once: little while it is young, so that an idle hub stays small.
pub(in crate::log) fn step(journal_bytes: u64) -> u64 {
    (journal_bytes / 16).clamp(4096, 4 << 20)
}
