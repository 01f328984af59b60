//! Who is on the other side of a connection or request, and what it may do.

use std::sync::Arc;
use std::time::Duration;

use promethean_bus::Origin;
use promethean_event::Millis;

use super::{LEEWAY, Policy};

/// The result of a successful authentication. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The token's subject, where it has one.
    pub sub: Option<String>,
    /// When the token says it ends; `None` for tokens that do not.
    pub exp: Option<Millis>,
    /// How long past `exp` the token is still accepted (`jwt_leeway`).
    pub leeway: Duration,
    /// What it may do.
    pub policy: Arc<Policy>,
    /// Another hub, for this subscriber of its own.
    pub relay: Option<Origin>,
}

impl Identity {
    /// Somebody nobody asked for a name, who may do everything: open mode and the static token.
    pub fn wide_open() -> Self {
        Self { sub: None, exp: None, leeway: LEEWAY, policy: Arc::new(Policy::wide_open()), relay: None }
    }

    /// Another hub of the cluster.
    pub(crate) fn relay(origin: Origin) -> Self {
        Self { sub: Some(format!("hub {}", origin.hub)), relay: Some(origin), ..Self::wide_open() }
    }

    /// When a live connection ends with `token_expired`: `exp` plus the leeway that also `AUTH` grants.
    pub fn deadline(&self) -> Option<Millis> {
        self.exp.map(|exp| exp + self.leeway)
    }

    /// True if the deadline has passed at `now`.
    pub fn is_expired(&self, now: Millis) -> bool {
        self.deadline().is_some_and(|deadline| now >= deadline)
    }
}
