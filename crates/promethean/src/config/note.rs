//! Oddities of the configuration that do not keep the hub from starting: they are logged once the log runs.

use std::fmt;

use super::SETTINGS;
use promethean_event::nearest;

/// Variables of the binary that are not settings.
const OTHERS: &[&str] = &[
    "PROMETHEAN_URL",
    "PROMETHEAN_SERVER",
    "PROMETHEAN_HTTP",
    "PROMETHEAN_OPS",
    "PROMETHEAN_TOKEN",
    "PROMETHEAN_CONTEXT",
    "PROMETHEAN_BIN",
    "PROMETHEAN_TEST_MONGO_URL",
];

/// Beginnings of the variables that Kubernetes sets for a service with the name `promethean`.
const OF_KUBERNETES: &[&str] = &["PROMETHEAN_SERVICE_", "PROMETHEAN_PORT"];

/// One oddity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// A secret was written with white space at its ends.
    Trimmed { at: String },
    /// A variable begins as the hub's do, and the hub reads none of that name.
    UnknownVariable { name: String, nearest: Option<String> },
}

impl Note {
    /// Finds the unknown variables among `names`.
    pub(crate) fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<Self> {
        let known = || SETTINGS.iter().map(super::Setting::variable).chain(OTHERS.iter().map(|&name| name.to_owned()));
        let foreign = |name: &str| OF_KUBERNETES.iter().any(|begin| name.starts_with(begin));
        let ours = names.filter(|name| name.starts_with("PROMETHEAN_") && !foreign(name));
        let ours = ours.filter(|name| known().all(|known| known != *name));
        ours.map(|name| Note::UnknownVariable { nearest: nearest(&name, known()), name }).collect()
    }

    /// Writes it to the log.
    pub(crate) fn log(&self) {
        match self {
            Note::Trimmed { at } => {
                tracing::warn!(setting = at, "white space at the ends of a secret is ignored");
            }
            Note::UnknownVariable { name, nearest: Some(nearest) } => {
                tracing::warn!(variable = name, did_you_mean = nearest, "an unknown variable is ignored");
            }
            Note::UnknownVariable { name, nearest: None } => {
                tracing::warn!(variable = name, "an unknown variable is ignored");
            }
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Trimmed { at } => write!(f, "{at}: white space at the ends of a secret is ignored"),
            Note::UnknownVariable { name, nearest: Some(nearest) } => {
                write!(f, "${name}: an unknown variable is ignored; did you mean {nearest}?")
            }
            Note::UnknownVariable { name, nearest: None } => write!(f, "${name}: an unknown variable is ignored"),
        }
    }
}
