//! How the process ends: one list of exit codes, and failures that carry theirs.

use std::fmt;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did not work.
    Failed = 1,
    /// Asked in a way that cannot work: arguments, configuration.
    Usage = 2,
    /// Nobody answers there.
    Unreachable = 3,
    /// The hub does not know who it is, or does not let it.
    Denied = 4,
    /// There is no such thing.
    NotFound = 5,
    /// Took too long.
    Timeout = 124,
    /// A signal.
    Interrupted = 130,
}

/// Why a command did not work, for stderr.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::usage(error)
    }
}
