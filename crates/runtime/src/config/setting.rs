//! Types that a key can have: how each is read and how it is shown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rust_decimal::Decimal;
use serde_json::Value as Json;

use super::node::{Node, Raw};
use super::problem::ProblemKind;
use super::units::{ByteSize, format_duration, parse_duration};

/// A type that a key can have.
///
/// What [`show`](Setting::show) gives is read back as the same value.
pub(super) trait Setting: Sized {
    /// Reads the value.
    fn read(raw: &Raw) -> Result<Self, ProblemKind>;

    /// Shows it in the one form that equal values share.
    fn show(&self) -> Json;

    /// What reading goes on with after a mistake, so that the next mistakes are
    /// found too; it is never part of a configuration that is handed out.
    fn placeholder() -> Self;
}

fn wrong(expected: &'static str, raw: &Raw) -> ProblemKind {
    ProblemKind::WrongType {
        expected,
        found: raw.type_name(),
    }
}

pub(super) fn invalid(reason: impl std::fmt::Display) -> ProblemKind {
    ProblemKind::Invalid {
        reason: reason.to_string(),
    }
}

/// Reads a string and turns it into a type of its own.
fn from_text<T, E: std::fmt::Display>(
    raw: &Raw,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, ProblemKind> {
    match raw {
        Raw::Str(text) | Raw::Text(text) => parse(text).map_err(invalid),
        other => Err(wrong(expected, other)),
    }
}

impl Setting for String {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        from_text(raw, "a string", |text| Ok::<_, String>(text.to_owned()))
    }

    fn show(&self) -> Json {
        Json::from(self.as_str())
    }

    fn placeholder() -> Self {
        Self::new()
    }
}

impl Setting for bool {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        match raw {
            Raw::Bool(value) => Ok(*value),
            Raw::Text(text) => text
                .trim()
                .parse()
                .map_err(|_| invalid(format!("{:?} is neither true nor false", text.as_str()))),
            other => Err(wrong("true or false", other)),
        }
    }

    fn show(&self) -> Json {
        Json::from(*self)
    }

    fn placeholder() -> Self {
        false
    }
}

impl Setting for u32 {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        let out_of_range = || invalid(format!("must be between 0 and {}", Self::MAX));
        match raw {
            Raw::Int(number) => Self::try_from(*number).map_err(|_| out_of_range()),
            Raw::Text(text) => text.trim().parse().map_err(|_| out_of_range()),
            other => Err(wrong("a whole number", other)),
        }
    }

    fn show(&self) -> Json {
        Json::from(*self)
    }

    fn placeholder() -> Self {
        0
    }
}

impl Setting for Duration {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        from_text(raw, "a duration such as \"90s\"", parse_duration)
    }

    fn show(&self) -> Json {
        Json::from(format_duration(*self))
    }

    fn placeholder() -> Self {
        Self::ZERO
    }
}

impl Setting for ByteSize {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        match raw {
            Raw::Int(bytes) => u64::try_from(*bytes)
                .map(Self::from_bytes)
                .map_err(|_| invalid("a size is not negative")),
            raw => from_text(raw, "a size such as \"64MiB\"", str::parse),
        }
    }

    fn show(&self) -> Json {
        Json::from(self.to_string())
    }

    fn placeholder() -> Self {
        Self::default()
    }
}

/// Money: never a float, neither in memory nor in a file.
impl Setting for Decimal {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        let amount = match raw {
            Raw::Int(whole) => Self::from(*whole),
            raw => from_text(raw, "a decimal in a string such as \"0.50\"", |text| {
                Self::from_str_exact(text.trim())
                    .map_err(|_| format!("{text:?} is not a decimal such as \"0.50\""))
            })?,
        };
        if amount.is_sign_negative() && !amount.is_zero() {
            return Err(invalid("an amount of money is not negative"));
        }
        Ok(amount)
    }

    fn show(&self) -> Json {
        Json::from(self.to_string())
    }

    fn placeholder() -> Self {
        Self::ZERO
    }
}

impl Setting for SocketAddr {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        from_text(raw, "an address such as \"127.0.0.1:7505\"", |text| {
            text.trim().parse().map_err(|_| {
                format!("{text:?} is not an address and port such as \"127.0.0.1:7505\"")
            })
        })
    }

    fn show(&self) -> Json {
        Json::from(self.to_string())
    }

    fn placeholder() -> Self {
        Self::from(([0, 0, 0, 0], 0))
    }
}

impl Setting for PathBuf {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        from_text(raw, "a path", |text| match text {
            "" => Err("a path is not empty"),
            text => Ok(Self::from(text)),
        })
    }

    fn show(&self) -> Json {
        Json::from(self.to_string_lossy())
    }

    fn placeholder() -> Self {
        Self::new()
    }
}

/// A list; unquoted text may be a TOML or JSON list, or parts with commas.
impl Setting for Vec<String> {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        let strings = |items: &[Node]| -> Result<Self, ProblemKind> {
            items
                .iter()
                .map(|item| match &item.raw {
                    Raw::Str(text) => Ok(text.to_string()),
                    other => Err(wrong("a list of strings", other)),
                })
                .collect()
        };
        match raw {
            Raw::List(items) => strings(items),
            Raw::Text(text) if text.trim_start().starts_with('[') => {
                let origin = super::source::Origin::new(super::source::ConfigSource::Request);
                match Node::structured(&origin, text) {
                    Some(Node {
                        raw: Raw::List(items),
                        ..
                    }) => strings(&items),
                    _ => Err(invalid("is not a list such as [\"a\", \"b\"]")),
                }
            }
            Raw::Text(text) => Ok(text
                .split(',')
                .map(|part| part.trim().to_owned())
                .filter(|part| !part.is_empty())
                .collect()),
            other => Err(wrong("a list of strings", other)),
        }
    }

    fn show(&self) -> Json {
        Json::from(self.clone())
    }

    fn placeholder() -> Self {
        Self::new()
    }
}

/// A key that may be left empty: `""` is not set.
impl<T: Setting> Setting for Option<T> {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        match raw {
            Raw::Str(text) | Raw::Text(text) if text.trim().is_empty() => Ok(None),
            raw => T::read(raw).map(Some),
        }
    }

    fn show(&self) -> Json {
        self.as_ref().map_or_else(|| Json::from(""), Setting::show)
    }

    fn placeholder() -> Self {
        None
    }
}

/// A value that may not be zero.
pub(super) struct Positive<T>(pub(super) T);

impl<T: Setting + Default + PartialEq> Setting for Positive<T> {
    fn read(raw: &Raw) -> Result<Self, ProblemKind> {
        let value = T::read(raw)?;
        if value == T::default() {
            return Err(invalid("must be more than zero"));
        }
        Ok(Self(value))
    }

    fn show(&self) -> Json {
        self.0.show()
    }

    fn placeholder() -> Self {
        Self(T::placeholder())
    }
}

/// Implements [`Setting`] for an enum whose values are words.
macro_rules! word_setting {
    ($type:ty { $($word:literal => $variant:expr),+ $(,)? }) => {
        impl super::setting::Setting for $type {
            fn read(raw: &super::node::Raw) -> Result<Self, super::problem::ProblemKind> {
                let text = <String as super::setting::Setting>::read(raw)?;
                match text.trim() {
                    $($word => Ok($variant),)+
                    other => Err(super::setting::invalid(format!(
                        "{other:?} is not one of {}",
                        [$(concat!("\"", $word, "\"")),+].join(", ")
                    ))),
                }
            }

            fn show(&self) -> serde_json::Value {
                $(if *self == $variant { return serde_json::Value::from($word); })+
                unreachable!("every variant has its word")
            }

            fn placeholder() -> Self {
                [$($variant),+][0]
            }
        }
    };
}
pub(super) use word_setting;
