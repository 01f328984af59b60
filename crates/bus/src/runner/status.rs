//! How the group stands, for operators.

use std::time::Duration;

use super::Runner;
use crate::status::{GroupStatus, Holding, MemberStatus};

/// Most unfinished events that are listed.
const MOST_SHOWN: usize = 1_000;

impl Runner {
    pub(super) fn status(&self, unfinished: bool) -> Option<GroupStatus> {
        let dispatcher = self.dispatcher.as_ref()?;
        let members = dispatcher.members().map(|(id, in_flight, max_in_flight, paused)| MemberStatus {
            id,
            in_flight,
            max_in_flight,
            paused,
        });
        let shown = if unfinished { MOST_SHOWN } else { 0 };
        Some(GroupStatus {
            topic: self.topic.clone(),
            group: self.group.clone(),
            cursor: self.cursor(dispatcher),
            lag: dispatcher.lag(),
            lag_age: dispatcher.oldest_read().map_or(Duration::ZERO, |(_, at)| self.core.wall().since(at)),
            members: members.collect(),
            in_flight: dispatcher.in_flight(),
            waiting: dispatcher.waiting(),
            max_attempts: dispatcher.max_attempts(),
            filtered: dispatcher.is_filtered(),
            unfinished: dispatcher.inspect().take(shown).map(Holding::from).collect(),
            counts: dispatcher.counts(),
        })
    }
}
