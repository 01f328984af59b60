//! The members of a group: what each may still take, and whose turn it is.

use std::time::Duration;

use promethean_event::{Filter, Millis, Ordered};

use super::handed::HandOvers;

/// A subscriber's number, unique in the hub.
pub type MemberId = u64;

/// Options that a member chooses for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberOptions {
    /// Most events it holds unacked.
    pub max_in_flight: usize,
    /// The length of its leases.
    pub ack_timeout: Duration,
    /// The events to read at a time for it.
    pub batch_size: usize,
}

/// Options that all members of a group share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// In which order events go out.
    pub ordered: Ordered,
    /// Deliveries before an event is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// Which events the group wants.
    pub filter: Filter,
}

impl Policy {
    /// The same policy in the one way of writing it that is compared: the order of a filter's words, and how often one
    /// stands there, mean nothing.
    pub(super) fn normalised(mut self) -> Self {
        let Filter { tags, keys, headers } = &mut self.filter;
        for words in [tags, keys] {
            words.sort_unstable();
            words.dedup();
        }
        headers.sort_unstable();
        headers.dedup();
        self
    }

    /// The first option in which `other` differs, with the value in force.
    pub fn conflict(&self, other: &Policy) -> Option<(&'static str, String)> {
        if self.ordered != other.ordered {
            return Some(("ordered", format!("{:?}", self.ordered.as_str())));
        }
        if self.max_attempts != other.max_attempts {
            return Some(("maxAttempts", self.max_attempts.to_string()));
        }
        (self.filter != other.filter).then(|| ("filter", describe(&self.filter)))
    }
}

fn describe(filter: &Filter) -> String {
    let headers: serde_json::Map<_, _> = filter.headers.iter().map(|(n, v)| (n.clone(), v.clone().into())).collect();
    let mut shown = serde_json::Map::new();
    if !filter.tags.is_empty() {
        shown.insert("tags".to_owned(), filter.tags.clone().into());
    }
    if !filter.keys.is_empty() {
        shown.insert("keys".to_owned(), filter.keys.clone().into());
    }
    if !headers.is_empty() {
        shown.insert("headers".to_owned(), headers.into());
    }
    serde_json::Value::Object(shown).to_string()
}

/// A member as the dispatcher sees it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) options: MemberOptions,
    pub(super) in_flight: usize,
    /// What it may take beyond `in_flight` for reasons outside this topic: its other topics, its mailbox.
    pub(super) allowance: usize,
    /// Bytes that it may still take; the last event may exceed them.
    pub(super) bytes: usize,
    pub(super) paused: bool,
    /// The hand-overs to its connection, where they are reported.
    pub(super) handed: Option<HandOvers>,
}

impl Member {
    pub(super) fn new(id: MemberId, options: MemberOptions) -> Self {
        Self { id, options, in_flight: 0, allowance: usize::MAX, bytes: usize::MAX, paused: false, handed: None }
    }

    /// Returns the number of events that it can take now.
    pub(super) fn room(&self) -> usize {
        match self.bytes {
            _ if self.paused => 0,
            0 => 0,
            _ => self.options.max_in_flight.saturating_sub(self.in_flight).min(self.allowance),
        }
    }

    /// Takes a delivery of so many bytes off what the member may still take.
    pub(super) fn take(&mut self, size: usize) {
        self.in_flight += 1;
        self.allowance = self.allowance.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
    }

    /// When the delivery `lease` was handed to the connection; `None` if it was not yet.
    pub(super) fn handed_at(&self, lease: u64) -> Option<Millis> {
        self.handed.as_ref().and_then(|handed| handed.of(lease))
    }
}

/// The members of a group, and the policy they agree on.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) list: Vec<Member>,
    pub(super) policy: Policy,
    turn: usize,
}

impl Members {
    pub(super) fn get(&self, id: MemberId) -> Option<&Member> {
        self.list.iter().find(|member| member.id == id)
    }

    pub(super) fn get_mut(&mut self, id: MemberId) -> Option<&mut Member> {
        self.list.iter_mut().find(|member| member.id == id)
    }

    /// The next member, in turn, that can take an event.
    pub(super) fn pick(&mut self) -> Option<usize> {
        let count = self.list.len();
        let index = (0..count).map(|step| (self.turn + step) % count).find(|&at| self.list[at].room() > 0)?;
        self.turn = index + 1;
        Some(index)
    }

    /// Returns the bytes that all members with room can take now.
    pub(super) fn bytes(&self) -> usize {
        let open = self.list.iter().filter(|member| member.room() > 0);
        open.fold(0, |sum, member| sum.saturating_add(member.bytes))
    }

    /// Returns the number of events that all members together can take now.
    pub(super) fn room(&self) -> usize {
        self.list.iter().map(Member::room).sum()
    }

    /// Takes one event off the account of a member.
    pub(super) fn unhold(&mut self, id: MemberId) {
        if let Some(member) = self.get_mut(id) {
            member.in_flight -= 1;
        }
    }
}
