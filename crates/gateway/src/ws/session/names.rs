//! The topics a connection publishes to: parsed once, checked against the policy once.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use promethean_event::{Invalid, Topic};

use crate::auth::{Action, Policy};

/// Most names that are remembered; then it begins anew.
const MOST: usize = 1_024;

/// The names a connection has used, with what the policy says.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<Box<str>, (Topic, bool), RandomState>,
    /// The name used last: of many frames in a row, most publish to one topic.
    last: Option<(Topic, bool)>,
}

impl Names {
    /// The topic of this name, and whether `policy` lets it be published to.
    pub(super) fn topic(&mut self, name: &str, policy: &Policy) -> Result<(Topic, bool), Invalid> {
        if let Some((topic, allowed)) = self.last.as_ref().filter(|(topic, _)| topic.as_str() == name) {
            return Ok((topic.clone(), *allowed));
        }
        if let Some((topic, allowed)) = self.known.get(name) {
            self.last = Some((topic.clone(), *allowed));
            return Ok((topic.clone(), *allowed));
        }
        let topic = Topic::parse(name)?;
        let allowed = policy.allows(Action::Publish, &topic, None);
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(name.into(), (topic.clone(), allowed));
        Ok((topic, allowed))
    }

    /// Forgets everything: the policy is another one.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.last = None;
    }
}
