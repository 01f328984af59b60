//! Where each id is, without a hash entry for every event.
//!
//! The hub's own ids grow with time and never collide, so they are kept in the order they came, in blocks that are
//! sorted once they are full; a look-up skips the blocks whose range of ids does not fit. Ids that clients bring are
//! in a hash map. This makes an append cheap whatever the length of the log.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use promethean_event::{EventId, IdOrigin, Seq};

/// Where an id is: the topic's index and the seq.
pub(super) type At = (u32, Seq);

const BLOCK: usize = 4096;

#[derive(Default)]
pub(super) struct Ids {
    brought: HashMap<EventId, At, RandomState>,
    blocks: VecDeque<Block>,
}

struct Block {
    first: EventId,
    last: EventId,
    /// Ascending by id once the block is full.
    ids: Vec<(EventId, At)>,
    /// How many of them are still in the log.
    live: usize,
}

impl Block {
    fn find(&self, id: EventId) -> Option<At> {
        if id < self.first || id > self.last {
            return None;
        }
        if self.ids.len() < BLOCK {
            return self.ids.iter().find(|(this, _)| *this == id).map(|(_, at)| *at);
        }
        let index = self.ids.binary_search_by_key(&id, |(this, _)| *this).ok()?;
        Some(self.ids[index].1)
    }
}

impl Ids {
    /// Where `id` is, or was before it was trimmed away.
    pub(super) fn get(&self, id: EventId) -> Option<At> {
        if let Some(at) = self.brought.get(&id) {
            return Some(*at);
        }
        self.blocks.iter().rev().find_map(|block| block.find(id))
    }

    pub(super) fn insert(&mut self, id: EventId, origin: IdOrigin, at: At) {
        if origin == IdOrigin::Client {
            self.brought.insert(id, at);
            return;
        }
        if self.blocks.back().is_none_or(|block| block.ids.len() == BLOCK) {
            self.blocks.push_back(Block { first: id, last: id, ids: Vec::with_capacity(BLOCK), live: 0 });
        }
        if let Some(block) = self.blocks.back_mut() {
            block.first = block.first.min(id);
            block.last = block.last.max(id);
            block.ids.push((id, at));
            block.live += 1;
            if block.ids.len() == BLOCK {
                block.ids.sort_unstable();
            }
        }
    }

    pub(super) fn remove(&mut self, id: EventId) {
        if self.brought.remove(&id).is_some() {
            return;
        }
        if let Some(index) = self.blocks.iter().position(|block| block.find(id).is_some()) {
            let block = &mut self.blocks[index];
            block.live -= 1;
            if block.live == 0 && block.ids.len() == BLOCK {
                self.blocks.remove(index);
            }
        }
    }
}
