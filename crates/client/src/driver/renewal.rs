//! The token's next one: fetched before the old one runs out, and sent over the connection that is there.

use std::time::Duration;

use promethean_event::Millis;
use promethean_event::frame::ask;
use tokio::time::Instant;

use super::Driver;
use crate::pending::Ask;
use crate::token::{Fetching, Token, renew_in};

/// How long to wait before a token that was not renewed is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

impl Driver {
    /// The token counts until `expires`: the next one is fetched before that, where there can be one.
    pub(super) fn on_authenticated(&mut self, expires: Option<u64>) {
        self.renew_at = match (&self.settings.token, expires) {
            (Token::Source(_), Some(exp)) => Some(Instant::now() + renew_in(exp, Millis::now())),
            _ => None,
        };
    }

    pub(super) fn on_fetched(&mut self, token: Result<String, String>) {
        self.fetching = None;
        match token {
            Ok(token) => {
                let frame = self.pending.ask(Ask::Renew, |out, corr| ask::auth(out, corr, &token));
                self.outgoing.push_back(frame);
            }
            Err(reason) => self.renew_later(&reason),
        }
    }

    /// Until the token has run out there is time for other tries; after that a new connection asks for one.
    pub(super) fn renew_later(&mut self, reason: &str) {
        tracing::warn!(reason, "the token was not renewed, trying again");
        self.renew_at = Some(Instant::now() + AGAIN);
    }
}

/// Resolves when the next token is to be fetched, where there will be one.
pub(super) async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The token that is being fetched, where one is.
pub(super) async fn fetched(fetching: &mut Option<Fetching>) -> Result<String, String> {
    match fetching {
        Some(fetching) => fetching.await,
        None => std::future::pending().await,
    }
}
