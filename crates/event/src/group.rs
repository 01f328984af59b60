//! The name of a consumer group.

use std::fmt;
use std::sync::Arc;

use crate::{Invalid, limits};

/// A consumer group's name: 1–128 bytes of `A-Z a-z 0-9 . _ : -`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(Arc<str>);

impl Group {
    /// Checks a name.
    ///
    /// # Errors
    /// `bad_request` that names `group`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.is_empty() || text.len() > limits::MAX_GROUP_BYTES {
            return Err(Invalid::request(
                "group",
                format!("must have 1 to {} bytes, has {}", limits::MAX_GROUP_BYTES, text.len()),
            ));
        }
        let odd = text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-')));
        if let Some(odd) = odd {
            return Err(Invalid::request("group", format!("may hold only A-Z a-z 0-9 . _ : -, has {odd:?}")));
        }
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({})", self.0)
    }
}

impl serde::Serialize for Group {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Group {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::Group;

    #[test]
    fn a_group_name_is_1_to_128_plain_bytes() {
        for good in ["g", "a.b_c:d-9", &"x".repeat(128)] {
            assert_eq!(Group::parse(good).map(|g| g.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "a b", "é", "a/b", "a*", &"x".repeat(129)] {
            assert_eq!(Group::parse(bad).expect_err(bad).field, "group");
        }
    }
}
