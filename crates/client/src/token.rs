//! Where the token of `AUTH` comes from, and when it is time for the next one.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use promethean_event::Millis;

/// How long a source has for a token.
const PATIENCE: Duration = Duration::from_secs(15);

/// A token that is being fetched, or why there is none.
pub(crate) type Fetching = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// Where the token comes from.
#[derive(Clone, Default)]
pub(crate) enum Token {
    /// The hub asks for none.
    #[default]
    None,
    /// The same one on every connection.
    Fixed(String),
    /// Asked for on every connection, and again before it runs out.
    Source(Arc<dyn Fn() -> Fetching + Send + Sync>),
}

impl Token {
    pub(crate) fn source<F, Fut, E>(fetch: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: Display,
    {
        Token::Source(Arc::new(move || {
            let fetching = fetch();
            Box::pin(async move {
                match tokio::time::timeout(PATIENCE, fetching).await {
                    Ok(fetched) => fetched.map_err(|error| error.to_string()),
                    Err(_) => Err(format!("the token callback did not answer within {PATIENCE:?}")),
                }
            })
        }))
    }

    /// The token for a new connection.
    pub(crate) async fn fetch(&self) -> Result<Option<String>, String> {
        match self {
            Token::None => Ok(None),
            Token::Fixed(token) => Ok(Some(token.clone())),
            Token::Source(fetch) => fetch().await.map(Some),
        }
    }

    /// A token to renew with, where there can be another one.
    pub(crate) fn renewal(&self) -> Option<Fetching> {
        match self {
            Token::Source(fetch) => Some(fetch()),
            Token::None | Token::Fixed(_) => None,
        }
    }
}

/// How long to wait before the token is renewed that runs out at `exp` (epoch seconds): a fifth of its time before
/// the end, at least 5 s where it has that many, never at once, so that a source that hands out old tokens is not
/// asked in a loop.
pub(crate) fn renew_in(exp: u64, now: Millis) -> Duration {
    let left = Duration::from_millis(exp.saturating_mul(1_000).saturating_sub(now.0));
    let early = left.mul_f64(0.8).min(left.saturating_sub(Duration::from_secs(5)));
    early.clamp(Duration::from_millis(500), Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_source_that_hangs_is_given_up() {
        let hangs = Token::source(std::future::pending::<Result<String, String>>);
        assert!(hangs.fetch().await.expect_err("no token").contains("15s"));
        assert!(hangs.renewal().expect("a source").await.is_err());
    }

    #[test]
    fn a_token_is_renewed_well_before_it_runs_out_and_never_in_a_loop() {
        let at = |seconds: u64| renew_in(1_000 + seconds, Millis(1_000_000));
        assert_eq!(at(600), Duration::from_secs(480));
        assert_eq!(at(20), Duration::from_secs(15));
        assert_eq!(at(3), Duration::from_millis(500));
        assert_eq!(renew_in(1, Millis(1_000_000)), Duration::from_millis(500), "it has run out already");
        assert_eq!(at(10_000_000), Duration::from_secs(86_400));
    }
}
