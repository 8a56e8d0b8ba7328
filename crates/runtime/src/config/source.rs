//! Where a value came from, and which key it belongs to.

use std::borrow::Borrow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The layer that gave a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ConfigSource {
    /// The defaults that are compiled in.
    Default,
    /// A file: `config.toml` or an `agents/NAME.md`.
    File {
        /// The file, as it was given.
        path: Arc<PathBuf>,
    },
    /// A variable of the environment.
    Env {
        /// Its name.
        name: Arc<str>,
    },
    /// A flag of the command.
    Flag {
        /// Its name with the dashes, `--listen`.
        name: Arc<str>,
    },
    /// A client's request to change the configuration.
    Request,
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("built-in defaults"),
            Self::File { path } => write!(f, "{}", path.display()),
            Self::Env { name } | Self::Flag { name } => f.write_str(name),
            Self::Request => f.write_str("request"),
        }
    }
}

/// A source and, in a file, the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The layer.
    pub source: ConfigSource,
    /// The line in the file, counted from 1.
    pub line: Option<usize>,
}

impl Origin {
    pub(super) fn new(source: ConfigSource) -> Self {
        Self { source, line: None }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.source),
            None => write!(f, "{}", self.source),
        }
    }
}

/// The name of a key from the root: `agents.coder.model`.
///
/// Shown with dots; a part that is not a bare TOML key is quoted, so that what
/// is shown can be typed again.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPath(Vec<String>);

/// A dotted key that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a key; write it like http.listen or agents.\"my agent\".model")]
pub struct BadKeyPath {
    /// What was written.
    pub text: String,
}

impl KeyPath {
    /// The root, which has no name.
    #[must_use]
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// Reads a dotted key as TOML does, quotes included.
    ///
    /// # Errors
    ///
    /// When it is empty or a quote is not closed.
    pub fn parse(text: &str) -> Result<Self, BadKeyPath> {
        let keys = toml_edit::Key::parse(text).map_err(|_| BadKeyPath {
            text: text.to_owned(),
        })?;
        Ok(Self(keys.iter().map(|key| key.get().to_owned()).collect()))
    }

    /// The key of this name below.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let mut parts = self.0.clone();
        parts.push(name.to_owned());
        Self(parts)
    }

    /// The parts, outermost first.
    #[must_use]
    pub fn parts(&self) -> &[String] {
        &self.0
    }

    /// Everything but the last part, and the last part.
    pub(super) fn split_last(&self) -> Option<(&[String], &str)> {
        self.0
            .split_last()
            .map(|(last, parents)| (parents, last.as_str()))
    }

    /// Whether this key lies below `other`, or is it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl Borrow<[String]> for KeyPath {
    fn borrow(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            if index > 0 && !part.starts_with('[') {
                f.write_str(".")?;
            }
            if is_list_index(part) {
                f.write_str(part)?;
            } else {
                f.write_str(&toml_edit::Key::new(part).display_repr())?;
            }
        }
        Ok(())
    }
}

/// Whether the part is an entry of a list, `[2]`, and not a name.
fn is_list_index(part: &str) -> bool {
    part.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_as_they_can_be_typed() {
        for text in ["http.listen", "agents.coder.env.PATH", "mcps.x.env.\"a.b\""] {
            assert_eq!(KeyPath::parse(text).unwrap().to_string(), text);
        }
        let rule = KeyPath::parse("policy.rules")
            .unwrap()
            .child("[2]")
            .child("action");
        assert_eq!(rule.to_string(), "policy.rules[2].action");
    }

    #[test]
    fn what_is_not_a_key_is_refused() {
        for text in ["", "a..b", "a.", "\"open"] {
            assert!(KeyPath::parse(text).is_err(), "{text}");
        }
    }
}
