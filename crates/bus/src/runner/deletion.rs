//! The end of members whose topic was deleted. A subscription to that one topic ends; one to a pattern or to several topics
//! only leaves the topic, and joins it again when it is created again.

use std::collections::HashMap;

use promethean_event::Topic;
use promethean_store::Tail;
use tokio::sync::watch;

use super::Runner;
use super::host::Member;
use crate::Error;
use crate::group::MemberId;

/// The news of a topic's deletion.
pub(super) struct Deletion {
    tail: watch::Receiver<Tail>,
    known: u64,
}

impl Deletion {
    pub(super) fn new(tail: watch::Receiver<Tail>) -> Self {
        let known = tail.borrow().deletions;
        Self { tail, known }
    }

    /// True once after each deletion.
    pub(super) fn has_happened(&mut self) -> bool {
        let now = self.tail.borrow().deletions;
        std::mem::replace(&mut self.known, now) != now
    }

    /// Resolves when the topic is deleted. Cancel-safe.
    pub(super) async fn happens(&mut self) {
        let known = self.known;
        if self.tail.wait_for(|tail| tail.deletions != known).await.is_err() {
            // The store has ended, which others report.
            std::future::pending::<()>().await;
        }
    }
}

/// Takes members out of a topic that was deleted.
pub(super) fn dismiss(members: &mut HashMap<MemberId, Box<Member>>, topic: &Topic) {
    for (_, member) in members.drain() {
        member.lane.clear();
        member.lane.release();
        if member.subscriber().shared {
            member.subscriber().leave_deleted(topic);
        } else {
            member.refuse(Error::topic_deleted(topic));
        }
    }
}

impl Runner {
    /// Ends the members, and forgets the group, if the topic was deleted.
    pub(super) fn on_deleted(&mut self) {
        if !self.deletion.has_happened() {
            return;
        }
        tracing::debug!(topic = %self.topic, group = %self.group, "the topic was deleted: the group ends");
        dismiss(&mut self.members, &self.topic);
        (self.dispatcher, self.version, self.snapshot, self.read_again) = (None, 0, None, None);
        self.ahead.clear();
        self.reads.clear();
        self.letters.clear();
        self.commands.clear();
        std::mem::take(&mut self.saving).fail(&Error::topic_deleted(&self.topic));
        // The claim went with the topic.
        if let Some(held) = &mut self.held {
            (held.lost, held.state) = (true, None);
        }
    }
}
