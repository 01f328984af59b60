//! What a projection is called, what it reads and what it writes.

use std::time::Duration;

use promethean_event::{Group, Invalid, Topic};

/// What a projection is called, what it reads and what it writes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name; with another one the same fold is another projection, which begins at the beginning.
    pub name: Group,
    /// The topic that is folded, from its first event on.
    pub input: Topic,
    /// The topic that the state is published to. Nobody else should write there.
    pub output: Topic,
    /// How often [`Projection::tick`](crate::Projection::tick) is called.
    pub tick: Duration,
    /// Most keys of the state, which is kept in memory; beyond, the projection stops with an error.
    pub max_keys: usize,
}

impl Settings {
    /// Settings with a tick every 5 seconds and at most a million keys.
    ///
    /// # Errors
    /// A name that is none.
    pub fn new(name: &str, input: &str, output: &str) -> Result<Self, Invalid> {
        Ok(Self {
            name: Group::parse(name)?,
            input: Topic::parse(input)?,
            output: Topic::parse(output)?,
            tick: Duration::from_secs(5),
            max_keys: 1_000_000,
        })
    }
}
