//! Text that must never be shown: tokens, signing secrets.
//!
//! A `Secret` has no `Display` and a `Debug` that hides it, so that it cannot slip into a log line, an error or a
//! derived `Debug` of whatever holds it. Whoever needs the text says so with [`Secret::expose`].

use std::fmt;

/// A token or a signing secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text itself: for comparing and signing, never for printing.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// True if `given` is the same text. The time it takes tells the secret's length at most, never its content.
    pub fn equals(&self, given: &str) -> bool {
        subtle::ConstantTimeEq::ct_eq(self.0.as_bytes(), given.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_is_not_shown_by_debug() {
        assert_eq!(format!("{:?}", Some(Secret::new("canary"))), "Some([redacted])");
    }

    #[test]
    fn only_the_same_text_is_equal() {
        let secret = Secret::new("canary");
        assert!(secret.equals("canary"));
        for other in ["", "canar", "canary ", "Canary"] {
            assert!(!secret.equals(other), "{other:?}");
        }
    }
}
