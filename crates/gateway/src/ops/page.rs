//! A page of a long list: `limit`, `after` and `q` of a query.

use crate::http::Query;
use crate::rejection::Rejection;

const DEFAULT: usize = 1_000;
const MOST: usize = 10_000;

/// The part of a list that is asked for.
pub(super) struct Page {
    pub(super) limit: usize,
    /// The name of the last entry of the page before.
    pub(super) after: Option<String>,
    q: Option<String>,
}

impl Page {
    pub(super) fn of(query: &Query) -> Result<Self, Rejection> {
        let text = |name| query.one(name).map(|text| text.map(str::to_owned));
        Ok(Self { limit: query.limit(DEFAULT, MOST)?, after: text("after")?, q: text("q")? })
    }

    /// True if an entry with one of these names is asked for.
    pub(super) fn wants(&self, names: &[&str]) -> bool {
        self.q.as_deref().is_none_or(|q| names.iter().any(|name| name.contains(q)))
    }

    /// Leaves a page of `entries`, which begin after the page before; returns the name of its last entry if there are more.
    pub(super) fn cut<T>(&self, entries: &mut Vec<T>, name: impl Fn(&T) -> String) -> Option<String> {
        let more = entries.len() > self.limit;
        entries.truncate(self.limit);
        entries.last().filter(|_| more).map(name)
    }
}
