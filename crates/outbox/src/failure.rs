//! What a publisher says of a row, and which kind of failure a code of the contract is.

use std::time::Duration;

use promethean_event::{Code, Invalid};

/// What became of a row that was handed to a publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// In the log: now, or already before.
    Stored,
    /// The contract refuses it, and would again: parked at once.
    Refused(String),
    /// It failed and may work later: tried again after a backoff, parked after `max_attempts`.
    Failed(String),
    /// The hub does not take it now, and the row is not to blame: a policy, a bound, a full or damaged store. Tried again
    /// later, however often; does not count, and rows of other keys continue.
    Blocked(String),
    /// Nobody is there to take it. Nothing is wrong with the row, the attempt does not count.
    Unavailable {
        /// Why.
        reason: String,
        /// When to try again, where the hub says so.
        retry_after: Option<Duration>,
    },
    /// Not tried, because an earlier row of its key was not stored. Does not count.
    Held,
    /// The publisher has ended for good: so does the drainer.
    Closed(String),
}

impl Answer {
    /// A refusal of the hub with its code.
    pub fn refusal(code: Option<Code>, message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        use Code::{
            BadId, BadJson, BadRequest, BadToken, BadTopic, DuplicateId, JwtInvalid, NoToken, RateLimited,
            ShuttingDown, TokenExpired, TooLarge, Unauthorized,
        };
        let message = message.into();
        match code {
            Some(code @ (BadId | BadJson | BadRequest | BadTopic | DuplicateId | TooLarge)) => {
                Answer::Refused(format!("{code}: {message}"))
            }
            Some(RateLimited | ShuttingDown) => Answer::Unavailable { reason: message, retry_after },
            // The same token will not do better; somebody has to bring another.
            Some(code @ (BadToken | JwtInvalid | NoToken | TokenExpired | Unauthorized)) => {
                Answer::Closed(format!("{code}: {message}"))
            }
            // Mended at the hub, by a policy, a bound or a disk: until then the row waits.
            Some(code) => Answer::Blocked(format!("{code}: {message}")),
            None => Answer::Failed(message),
        }
    }

    /// True if later rows of the same key have to wait.
    pub fn holds_its_key(&self) -> bool {
        !matches!(self, Answer::Stored | Answer::Refused(_))
    }
}

impl From<Invalid> for Answer {
    fn from(invalid: Invalid) -> Self {
        Answer::refusal(Some(invalid.code), invalid.to_string(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_contract_is_one_kind_of_failure() {
        for &code in Code::ALL {
            let answer = Answer::refusal(Some(code), "m", None);
            assert_ne!(answer, Answer::Stored, "{code}");
            let parked = matches!(
                code,
                Code::BadId | Code::BadJson | Code::BadRequest | Code::BadTopic | Code::DuplicateId | Code::TooLarge
            );
            assert_eq!(matches!(answer, Answer::Refused(_)), parked, "{code}");
            assert_eq!(answer.holds_its_key(), !parked, "{code}");
            assert!(!matches!(answer, Answer::Failed(_)), "{code}: only what the row is to blame for costs attempts");
        }
        assert_eq!(Answer::refusal(None, "lost", None), Answer::Failed("lost".into()));
    }
}
