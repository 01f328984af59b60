//! A frame on its way: the bytes for the journal, what becomes visible with them, and who waits for an answer.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;
use promethean_event::{EventId, Group, Seq};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::log::commit::codec::Held;
use crate::log::commit::journal::FRAME_HEAD;
use crate::log::flush::ids::At;
use crate::log::memtable::TopicState;
use crate::{Error, Outcome, Result, Saved, TopicSettings, Version};

/// A frame that is being built, or is on its way to the disk. Kept for its memory.
#[derive(Debug)]
pub(super) struct Frame {
    /// Begins with room for the head.
    pub(super) bytes: Vec<u8>,
    pub(super) events: Vec<Held>,
    /// The topics of `events`, run by run.
    pub(super) runs: Vec<Run>,
    pub(super) changes: Vec<Change>,
    pub(super) answers: Vec<Answer>,
    /// Given back with the answers.
    pub(super) permits: Vec<OwnedSemaphorePermit>,
}

/// Events of one topic that follow each other in a frame.
#[derive(Debug)]
pub(super) struct Run {
    /// The topic's number. Not the topic: with many of them, each event would fetch another one's count of references.
    pub(super) topic: u32,
    /// The first one's seq.
    pub(super) first: Seq,
    pub(super) events: usize,
}

/// A change that becomes visible after the sync.
#[derive(Debug)]
pub(super) enum Change {
    Group { topic: Arc<TopicState>, group: Group, version: Version, state: Option<Bytes> },
    Settings(Arc<TopicState>, TopicSettings),
    Trim(Arc<TopicState>, Seq),
    Create(Arc<TopicState>),
    Delete(Arc<TopicState>, Seq),
}

/// An answer that waits for the sync.
#[derive(Debug)]
pub(super) enum Answer {
    Append(oneshot::Sender<Result<Vec<Outcome>>>, Vec<Outcome>),
    Save(oneshot::Sender<Result<Vec<Result<Saved>>>>, Vec<Result<Saved>>),
    Forget(oneshot::Sender<Result<bool>>, bool),
    Done(oneshot::Sender<Result<()>>),
}

/// What is built and not visible yet, of all frames on their way.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// Ids that clients made.
    pub(super) ids: HashMap<EventId, At, RandomState>,
    /// The last change of a group, by the topic's number: its version, and whether the group is there after it.
    pub(super) groups: HashMap<(u32, Group), (Version, bool), RandomState>,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            bytes: vec![0; FRAME_HEAD],
            events: Vec::new(),
            runs: Vec::new(),
            changes: Vec::new(),
            answers: Vec::new(),
            permits: Vec::new(),
        }
    }
}

impl Frame {
    /// True if a topic is deleted or trimmed in it.
    pub(super) fn removes_events(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::Delete(..) | Change::Trim(..)))
    }

    /// True if there is something to write.
    pub(super) fn has_entries(&self) -> bool {
        self.bytes.len() > FRAME_HEAD
    }

    /// True if nothing was put in.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_entries() && self.answers.is_empty()
    }

    /// Nothing of it became durable, or nobody can tell.
    pub(super) fn fail(&mut self, error: &Error) {
        self.answers.drain(..).for_each(|answer| answer.fail(error));
    }

    /// Makes it ready for its next use.
    pub(super) fn clear(&mut self) {
        self.bytes.truncate(FRAME_HEAD);
        self.events.clear();
        self.runs.clear();
        self.changes.clear();
        self.answers.clear();
        self.permits.clear();
    }
}

impl Answer {
    pub(super) fn send(self) {
        match self {
            Self::Append(reply, outcomes) => drop(reply.send(Ok(outcomes))),
            Self::Save(reply, saved) => drop(reply.send(Ok(saved))),
            Self::Forget(reply, there) => drop(reply.send(Ok(there))),
            Self::Done(reply) => drop(reply.send(Ok(()))),
        }
    }

    fn fail(self, error: &Error) {
        match self {
            Self::Append(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Save(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Forget(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Done(reply) => drop(reply.send(Err(error.clone()))),
        }
    }
}
