//! The stable error codes of the contract. Clients match on these; a code never changes its meaning.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A stable, machine-readable reason for a refusal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code there is, in the order of the contract.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code as it stands on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// The code with this text, if there is one.
            pub fn parse(text: &str) -> Option<Code> {
                match text { $($text => Some(Code::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// Not JSON, not an object, nested too deep, or a binary frame.
    BadJson = "bad_json",
    /// Unknown `op`, or a field missing, of the wrong type or out of range.
    BadRequest = "bad_request",
    /// Anything before `AUTH`.
    Unauthorized = "unauthorized",
    /// `AUTH` without a token.
    NoToken = "no_token",
    /// The static token does not match.
    BadToken = "bad_token",
    /// The JWT does not verify.
    JwtInvalid = "jwt_invalid",
    /// The token ran out.
    TokenExpired = "token_expired",
    /// The policy says no.
    Forbidden = "forbidden",
    /// Not a topic name or pattern.
    BadTopic = "bad_topic",
    /// Not a UUID.
    BadId = "bad_id",
    /// The id is taken by an event of another topic.
    DuplicateId = "duplicate_id",
    /// The event is over the size limit.
    TooLarge = "too_large",
    /// There is no such topic, and it is not created by itself.
    UnknownTopic = "unknown_topic",
    /// The topic of the subscription was deleted.
    TopicDeleted = "topic_deleted",
    /// The store failed to append.
    PublishFailed = "publish_failed",
    /// The store failed to save an ack.
    AckFailed = "ack_failed",
    /// The connection has this subscription already.
    AlreadySubscribed = "already_subscribed",
    /// The connection has no such subscription.
    NotSubscribed = "not_subscribed",
    /// No event has this id, or it is not in flight.
    UnknownId = "unknown_id",
    /// The event was given out again since.
    LeaseLost = "lease_lost",
    /// Over a quota.
    RateLimited = "rate_limited",
    /// Another call of the same kind is under way, or the state is not the expected one.
    Conflict = "conflict",
    /// No such route or thing.
    NotFound = "not_found",
    /// The route exists with another method.
    MethodNotAllowed = "method_not_allowed",
    /// A bound on topics, groups, patterns or held requests is reached.
    LimitReached = "limit_reached",
    /// Damaged data of the store is in the way.
    StoreDamaged = "store_damaged",
    /// The hub is draining.
    ShuttingDown = "shutting_down",
}

impl Code {
    /// True if the hub does not know who it is, or does not let it do this.
    pub const fn is_denial(self) -> bool {
        use Code::{BadToken, Forbidden, JwtInvalid, NoToken, TokenExpired, Unauthorized};
        matches!(self, Unauthorized | NoToken | BadToken | JwtInvalid | TokenExpired | Forbidden)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
