//! Dead letters: what one holds, writing them, and sending them back.

pub(crate) mod envelope;
mod redrive;
pub(crate) mod write;

pub use envelope::Envelope;
pub use redrive::{Letters, OWN_GROUPS, REDRIVE_GROUP, RedriveTo, Redriven};

/// True if a group is of the hub's own making and no list shows it.
pub fn is_hidden(group: &promethean_event::Group) -> bool {
    group.as_str() == REDRIVE_GROUP || crate::remembered::is_own(group)
}
