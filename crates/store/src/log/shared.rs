//! What the engine's threads and its callers share.
//!
//! Lock order, outermost first: `maintenance`, `manifest`, `topics`, a topic's `inner`, everything else alone. Only the
//! first two, which flushing and maintenance alone take, and `room` are held over I/O.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex, RwLock};
use promethean_event::{EventId, Seq, Topic};
use tokio::sync::watch;

use crate::log::closed;
use crate::log::commit::codec::Held;
use crate::log::commit::queue::Queue;
use crate::log::disk::files::Files;
use crate::log::flush::ids::{At, Recent, Table};
use crate::log::flush::index::{Index, View};
use crate::log::flush::manifest::{Manifest, TopicEntry};
use crate::log::flush::segment::{Meta, Segment};
use crate::log::memtable::TopicState;
use crate::log::options::Options;
use crate::log::query::keys::Reading;
use crate::log::stats::Counters;
use crate::log::upkeep::room::Room;
use crate::pins::Pins;
use crate::{Error, Result, Tail};

/// Names that are watched before there is a topic; over it, those that nobody watches any more are forgotten.
const MAX_AWAITED: usize = 10_000;
/// Segments whose footers are kept in memory.
const MAX_OPEN: usize = 256;

/// What the engine's threads and its callers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    /// The disk of the options.
    pub(super) files: Files,
    pub(super) topics: RwLock<Topics>,
    pub(super) recent: Mutex<Recent>,
    /// Oldest first.
    pub(super) tables: RwLock<Arc<Vec<Arc<Table>>>>,
    /// None once it is closed: redb writes to its file when it is dropped, which must not be later than the close.
    index: RwLock<Option<Arc<Index>>>,
    pub(super) manifest: Mutex<Manifest>,
    /// One maintenance at a time: what the last compaction of each topic did.
    pub(super) maintenance: Mutex<HashMap<u32, Compacted, RandomState>>,
    /// Files that a crash left behind were looked for.
    pub(super) swept: AtomicBool,
    /// The topic whose segments are being rewritten; 0: none.
    pub(super) frozen: AtomicU32,
    pub(super) open: Mutex<OpenSegments>,
    pub(super) queue: Queue,
    pub(super) flushing: Mutex<Flushing>,
    /// Something in `flushing` changed.
    pub(super) flushing_changed: Condvar,
    pub(super) created: watch::Sender<u64>,
    /// The reason of the end.
    pub(super) failure: watch::Sender<Option<String>>,
    pub(super) counters: Counters,
    pub(super) room: Room,
    pub(super) pins: Pins,
    /// Snapshots that are being read.
    pub(super) snapshots: Mutex<Vec<Weak<Mutex<Reading>>>>,
}

/// An event and where it is.
pub(super) type Found = (Arc<TopicState>, Seq, Held);

/// What the last compaction of a topic did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Compacted {
    /// It looked at events up to this one.
    pub(super) until: Seq,
    /// A pin kept events that it would have removed.
    pub(super) pinned: bool,
}

impl Compacted {
    /// The compactions of the process before, as far as these segments show them: rewritten ones have a generation.
    pub(super) fn before(segments: &[Meta]) -> Self {
        let rewritten = segments.iter().rev().find(|meta| meta.generation > 0);
        Self { until: rewritten.map_or(0, |meta| meta.last_seq), pinned: false }
    }
}

/// The journal files that wait to be flushed.
#[derive(Debug, Default)]
pub(super) struct Flushing {
    pub(super) sealed: VecDeque<Sealed>,
    /// Why flushing cannot go on for now.
    pub(super) no_room: Option<String>,
    /// The threads have to end.
    pub(super) stop: bool,
}

/// A journal file that is complete, and the state of the topics it touched as of its end.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    pub(super) journal: u64,
    pub(super) version: u64,
    /// Without segments, which flushing knows better.
    pub(super) topics: Vec<(u32, TopicEntry)>,
}

/// All topics.
#[derive(Debug, Default)]
pub(super) struct Topics {
    by_name: HashMap<Topic, Arc<TopicState>, RandomState>,
    /// Number 1 first.
    pub(super) by_number: Vec<Arc<TopicState>>,
    awaited: HashMap<Topic, watch::Sender<Tail>, RandomState>,
}

impl Topics {
    pub(super) fn get(&self, name: &Topic) -> Option<&Arc<TopicState>> {
        self.by_name.get(name)
    }

    pub(super) fn number(&self, number: u32) -> Option<&Arc<TopicState>> {
        self.by_number.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    /// The number that the next topic gets.
    pub(super) fn next_number(&self) -> u32 {
        u32::try_from(self.by_number.len() + 1).unwrap_or(u32::MAX)
    }

    /// Adds the topic with the next number.
    pub(super) fn add(&mut self, entry: &TopicEntry) -> Arc<TopicState> {
        let tail = Tail { seq: entry.last_seq, deletions: entry.life.deletions };
        let watch = self.awaited.remove(&entry.name).unwrap_or_else(|| watch::Sender::new(tail));
        watch.send_if_modified(|now| std::mem::replace(now, tail) != tail);
        let state = Arc::new(TopicState::new(self.next_number(), entry, watch));
        self.by_name.insert(entry.name.clone(), state.clone());
        self.by_number.push(state.clone());
        state
    }

    /// The end of a topic that may come to be.
    pub(super) fn watch(&mut self, name: &Topic) -> watch::Receiver<Tail> {
        if let Some(state) = self.get(name) {
            return state.subscribe();
        }
        if self.awaited.len() >= MAX_AWAITED && !self.awaited.contains_key(name) {
            self.awaited.retain(|_, sender| sender.receiver_count() > 0);
        }
        self.awaited.entry(name.clone()).or_insert_with(|| watch::Sender::new(Tail::default())).subscribe()
    }
}

/// Topic, first seq, generation.
type SegmentKey = (u32, Seq, u64);

/// Segments that are ready to be read; the one that was not used for longest goes first.
#[derive(Debug, Default)]
pub(super) struct OpenSegments {
    open: HashMap<SegmentKey, (u64, Arc<Segment>), RandomState>,
    clock: u64,
}

impl Shared {
    pub(super) fn new(
        options: Options,
        files: Files,
        manifest: Manifest,
        index: Index,
        tables: Vec<Arc<Table>>,
    ) -> Self {
        let mut topics = Topics::default();
        for entry in manifest.topics.values() {
            topics.add(entry);
        }
        Self {
            queue: Queue::new(options.queue_bytes),
            options,
            files,
            topics: RwLock::new(topics),
            recent: Mutex::default(),
            tables: RwLock::new(Arc::new(tables)),
            index: RwLock::new(Some(Arc::new(index))),
            manifest: Mutex::new(manifest),
            maintenance: Mutex::default(),
            swept: AtomicBool::new(false),
            frozen: AtomicU32::new(0),
            open: Mutex::default(),
            flushing: Mutex::default(),
            flushing_changed: Condvar::new(),
            created: watch::Sender::new(0),
            failure: watch::Sender::new(None),
            counters: Counters::default(),
            room: Room::default(),
            pins: Pins::default(),
            snapshots: Mutex::default(),
        }
    }

    pub(super) fn topic(&self, name: &Topic) -> Option<Arc<TopicState>> {
        self.topics.read().get(name).cloned()
    }

    /// A view of the index.
    pub(super) fn view(&self) -> Result<View> {
        self.index()?.view()
    }

    /// The index, as long as the engine is open.
    pub(super) fn index(&self) -> Result<Arc<Index>> {
        self.index.read().clone().ok_or_else(closed)
    }

    /// After it found no room redb answers nothing any more: opens its file anew. (After any other failure the engine
    /// ends.)
    pub(super) fn reopen_index(&self) -> Result<()> {
        self.close_index();
        let fresh = Index::open(&self.options.disk, &self.options.dir, self.options.index_cache_bytes)?;
        *self.index.write() = Some(Arc::new(fresh));
        Ok(())
    }

    /// Lets go of the index, and waits for those who are looking something up.
    pub(super) fn close_index(&self) {
        let Some(mut index) = self.index.write().take() else { return };
        while Arc::get_mut(&mut index).is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(index) = Arc::into_inner(index) {
            index.close();
        }
    }

    /// The engine cannot keep its promises any more.
    pub(super) fn fail(&self, reason: String) {
        self.failure.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert_with(|| reason.clone());
            first
        });
        self.flushing_changed.notify_all();
        // Last: a log that cannot be written must not keep the engine from failing.
        tracing::error!(reason, "the store has failed");
    }

    /// Why the engine has failed, where it has.
    pub(super) fn failed(&self) -> Option<Error> {
        self.failure.borrow().clone().map(Error::Closed)
    }

    /// Waits until nothing that is sealed is unflushed.
    pub(super) fn wait_flushed(&self) -> Result<()> {
        let mut flushing = self.flushing.lock();
        while !flushing.sealed.is_empty() {
            if let Some(error) = self.failed() {
                return Err(error);
            }
            if flushing.stop {
                return Err(closed());
            }
            if let Some(reason) = &flushing.no_room {
                return Err(Error::Refused(reason.clone()));
            }
            self.flushing_changed.wait_for(&mut flushing, Duration::from_millis(500));
        }
        Ok(())
    }

    /// A segment of a topic, open.
    pub(super) fn segment(&self, topic: u32, meta: &Meta) -> Result<Arc<Segment>> {
        let key = (topic, meta.first_seq, meta.generation);
        let mut cache = self.open.lock();
        cache.clock += 1;
        let now = cache.clock;
        if let Some((used, open)) = cache.open.get_mut(&key)
            && open.len() >= meta.len
        {
            *used = now;
            return Ok(open.clone());
        }
        drop(cache);
        let path = meta.path(&self.options.dir, topic);
        let open = Arc::new(Segment::open(&*self.options.disk, path, meta.len)?);
        let mut cache = self.open.lock();
        if cache.open.len() >= MAX_OPEN
            && let Some(oldest) = cache.open.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key)
        {
            cache.open.remove(&oldest);
        }
        cache.open.insert(key, (now, open.clone()));
        Ok(open)
    }

    /// Forgets a segment that is gone.
    pub(super) fn close_segment(&self, topic: u32, meta: &Meta) {
        self.open.lock().open.remove(&(topic, meta.first_seq, meta.generation));
    }

    /// Where a flushed event with this id is. It may be gone since.
    pub(super) fn flushed_id(&self, id: EventId, view: &View) -> Result<Option<At>> {
        // The usual id of a client is younger than all that are flushed.
        if view.last_client_id.is_some_and(|last| id <= last)
            && let Some(at) = view.client_id(id)?
        {
            return Ok(Some(at));
        }
        let tables = self.tables.read().clone();
        for table in tables.iter().rev() {
            if let Some(at) = table.get(id)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The event with this id, where it is still there.
    ///
    /// Flushing puts ids into the tables and the index before it takes them from memory: one of the looks finds it.
    pub(super) fn find(&self, id: EventId) -> Result<Option<Found>> {
        let recent = self.recent.lock().get(id);
        let at = match recent {
            Some(at) => Some(at),
            None => {
                let view = self.view()?;
                let at = self.flushed_id(id, &view)?;
                if at.is_none() {
                    view.knows_all_ids()?;
                }
                at
            }
        };
        at.map_or(Ok(None), |(number, seq)| self.confirm(id, number, seq))
    }

    fn confirm(&self, id: EventId, number: u32, seq: Seq) -> Result<Option<Found>> {
        let Some(topic) = self.topics.read().number(number).cloned() else { return Ok(None) };
        let held = self.event_at(&topic, seq)?.filter(|held| held.id == id);
        Ok(held.map(|held| (topic, seq, held)))
    }
}

/// True if the system says that there is no space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
