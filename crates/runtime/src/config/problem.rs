//! What is wrong with a configuration, all of it at once.

use std::fmt;

use super::source::{ConfigSource, KeyPath, Origin};

/// One mistake, with where it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The layer at fault and its line.
    pub origin: Origin,
    /// The key at fault; the root for a file that could not be read at all.
    pub key: KeyPath,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// The kinds of mistakes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemKind {
    /// No such key.
    #[error("unknown key{}", suggest(.suggestion.as_ref()))]
    UnknownKey {
        /// The nearest known key.
        suggestion: Option<KeyPath>,
    },
    /// A value of another type.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// The right type, a value that does not fit.
    #[error("{reason}")]
    Invalid {
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A key that is needed here.
    #[error("is missing: {reason}")]
    Missing {
        /// Why it is needed and how to give it.
        reason: String,
    },
    /// A file, a request or a front matter that does not parse.
    #[error("{reason}")]
    Syntax {
        /// The parser's words, never the text around it, which may hold a secret.
        reason: String,
    },
    /// A file that could not be read or written.
    #[error("{reason}")]
    Io {
        /// The system's words.
        reason: String,
    },
    /// A change that would have no effect, because a stronger layer sets the key.
    #[error("is set by {by}, which is stronger than config.toml; change it there")]
    Overridden {
        /// The stronger layer.
        by: ConfigSource,
    },
    /// An entry that a request leaves out and that `config.toml` does not hold.
    #[error("comes from {from}; remove it there")]
    DefinedElsewhere {
        /// The file that holds it.
        from: ConfigSource,
    },
    /// `"***"` where no secret is set.
    #[error("\"***\" keeps a secret that is set, and none is set here; write the value itself")]
    NothingToKeep,
}

fn suggest(suggestion: Option<&KeyPath>) -> String {
    suggestion.map_or_else(String::new, |key| format!(", did you mean {key}?"))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin.source != ConfigSource::Request {
            write!(f, "{}: ", self.origin)?;
        }
        if self.key != KeyPath::root() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}", self.kind)
    }
}

/// Every problem that was found, never none; shown one to a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<Problem>);

impl ConfigErrors {
    pub(super) fn one(origin: Origin, key: KeyPath, kind: ProblemKind) -> Self {
        Self(vec![Problem { origin, key, kind }])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
