//! Authentication and authorisation at the edge.
//!
//! [`Authenticator`] turns a token into an [`Identity`] or a [`Refusal`]; the identity's [`Policy`] is the one place
//! that says what it may do. Tokens and secrets never reach a log, an error message or a `Debug` output.

mod authenticator;
pub(crate) mod fetch;
mod identity;
mod jwks;
mod jwt;
mod policy;
mod secret;
#[cfg(test)]
mod testing;

use std::time::Duration;

pub use authenticator::{AuthConfig, Authenticator, ConfigError, Refusal};
pub use identity::Identity;
pub use policy::{Action, Malformed, Policy, Rule};
pub use secret::Secret;

/// Default of `jwt_leeway`.
pub(crate) const LEEWAY: Duration = Duration::from_secs(5);
