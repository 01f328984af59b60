//! What a row gets before a store writes it.

use std::sync::OnceLock;

use promethean_event::{Code, EventId, IdMaker, Invalid, Millis, json};

use crate::NewRow;

/// Ids of one process come in order, so that they are good index keys.
fn next_id() -> EventId {
    static IDS: OnceLock<IdMaker> = OnceLock::new();
    IDS.get_or_init(IdMaker::new).next(Millis::now())
}

impl NewRow {
    /// Checks it, and gives it the id and the time it lacks.
    pub(crate) fn seal(&self, now: Millis) -> Result<(EventId, Millis), Invalid> {
        self.options.check()?;
        if json::too_deep(self.payload.get().as_bytes()) {
            return Err(Invalid::new(Code::BadJson, "payload", "nests deeper than 128 levels"));
        }
        Ok((self.options.id.unwrap_or_else(next_id), self.options.ts.unwrap_or(now)))
    }
}
