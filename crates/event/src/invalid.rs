//! A refusal of bad input: the code, the field and what to do about it.

use crate::Code;

/// Input that the contract refuses. Nothing was stored or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Invalid {
    /// The stable code.
    pub code: Code,
    /// The field at fault, as the user wrote it (`opts.ackTimeoutMs`).
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl Invalid {
    /// A refusal with `code`, of `field`, because of `message`.
    pub fn new(code: Code, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, field: field.into(), message: message.into() }
    }

    /// A `bad_request` that names the field.
    pub fn request(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, field, message)
    }

    /// The same refusal with the field's name prefixed, `opts.` for example.
    #[must_use]
    pub fn within(mut self, prefix: &str) -> Self {
        self.field.insert_str(0, prefix);
        self
    }
}
