//! A value that is never shown.

use std::fmt;

use zeroize::Zeroizing;

/// What a secret that is set looks like wherever the configuration is shown.
pub const REDACTED: &str = "***";

/// A key, a token or the value of a variable.
///
/// It has no `Serialize` and no `Display`, its `Debug` is [`REDACTED`], and its
/// memory is zeroed on drop. Copies that the TOML and JSON parsers make while
/// they read a file or a request are theirs and are not zeroed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the value.
    #[must_use]
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// Exposes the value: for the one place that sends it where it belongs.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { REDACTED })
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self::new(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_only_whether_it_is_set() {
        assert_eq!(format!("{:?}", Secret::from("sk-123")), "***");
        assert_eq!(format!("{:?}", Secret::default()), "\"\"");
        assert_eq!(format!("{:?}", Some(Secret::from("sk-123"))), "Some(***)");
    }
}
