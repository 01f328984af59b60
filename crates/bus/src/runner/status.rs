//! How the group stands, for operators.

use std::time::Duration;

use promethean_event::{Group, Millis, Topic};
use promethean_store::{GroupState, TopicInfo};

use super::Runner;
use crate::group::Dispatcher;
use crate::status::{GroupStatus, Holding, MemberStatus, cursor_of};

/// Most unfinished events that are listed.
const MOST_SHOWN: usize = 1_000;

impl Runner {
    pub(super) fn status(&self, unfinished: bool, info: Option<&TopicInfo>) -> Option<GroupStatus> {
        let dispatcher = self.dispatcher.as_ref()?;
        let mut status = status_of(&self.topic, &self.group, dispatcher, info, self.core.wall(), unfinished);
        for member in &mut status.members {
            member.origin = self.members.get(&member.id).and_then(|member| member.relayed.clone());
        }
        status.letters_failing = self.letters.failing().map(Into::into);
        Some(status)
    }
}

/// How a group stands that nobody runs.
pub(crate) fn saved_status(topic: &Topic, group: &Group, state: GroupState, info: Option<&TopicInfo>) -> GroupStatus {
    let dispatcher = Dispatcher::new(state, topic.is_dead_letter(), 0);
    status_of(topic, group, &dispatcher, info, Millis::now(), true)
}

fn status_of(
    topic: &Topic,
    group: &Group,
    dispatcher: &Dispatcher,
    info: Option<&TopicInfo>,
    wall: Millis,
    unfinished: bool,
) -> GroupStatus {
    let members = dispatcher.members().map(|(id, in_flight, max_in_flight, paused)| MemberStatus {
        id,
        in_flight,
        max_in_flight,
        paused,
        origin: None,
    });
    let shown = if unfinished { MOST_SHOWN } else { 0 };
    GroupStatus {
        topic: topic.clone(),
        group: group.clone(),
        cursor: cursor_of(topic, dispatcher),
        lag: dispatcher.lag(info),
        tail: info.map_or(0, |info| info.last_seq),
        lag_age: dispatcher.oldest_read().map_or(Duration::ZERO, |(_, at)| wall.since(at)),
        members: members.collect(),
        in_flight: dispatcher.in_flight(),
        waiting: dispatcher.waiting(),
        max_attempts: dispatcher.max_attempts(),
        filtered: dispatcher.is_filtered(),
        unfinished: dispatcher.inspect().take(shown).map(Holding::from).collect(),
        counts: dispatcher.counts(),
        owner_silent: None,
        letters_failing: None,
    }
}
