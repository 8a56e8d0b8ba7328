//! The choice of a version by `Sec-WebSocket-Protocol`.

use std::fmt;

/// A version of the plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// JSON text, both dialects.
    V1,
    /// Streams in binary frames, see [`super::frame`].
    V2,
}

impl Protocol {
    /// What a worker offers, the preferred one first.
    pub const OFFERED: [&'static str; 2] = ["sandd.v2", "sandd.v1"];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1 => "sandd.v1",
            Self::V2 => "sandd.v2",
        }
    }

    fn of(name: &str) -> Option<Self> {
        match name {
            "sandd.v1" => Some(Self::V1),
            "sandd.v2" => Some(Self::V2),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why an upgrade is refused, with HTTP 400 and this text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiateError {
    /// No subprotocol of this plane was offered.
    #[error("missing required Sec-WebSocket-Protocol: sandd.v1")]
    NotOffered,
    /// Only versions that do not exist here.
    #[error("unknown version {offered:?}; offer Sec-WebSocket-Protocol: sandd.v1")]
    UnknownVersion {
        /// What was offered.
        offered: String,
    },
}

/// Whether a `Sec-WebSocket-Protocol` header asks for this plane at all.
pub fn asks_for_sandbox(offered: &str) -> bool {
    names(offered).any(|name| name.starts_with("sandd."))
}

/// Picks the newest version out of a `Sec-WebSocket-Protocol` header.
pub fn negotiate(offered: &str) -> Result<Protocol, NegotiateError> {
    let best = names(offered)
        .filter_map(Protocol::of)
        .max_by_key(|protocol| matches!(protocol, Protocol::V2));
    match best {
        Some(protocol) => Ok(protocol),
        None if asks_for_sandbox(offered) => Err(NegotiateError::UnknownVersion {
            offered: offered.chars().take(100).collect(),
        }),
        None => Err(NegotiateError::NotOffered),
    }
}

/// What a server chose, as the worker reads it; an absent echo counts as a refusal.
pub fn chosen(echo: Option<&str>) -> Option<Protocol> {
    echo.and_then(Protocol::of)
}

fn names(offered: &str) -> impl Iterator<Item = &str> {
    offered.split(',').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_known_version_wins_whatever_the_order() {
        for (offered, expected) in [
            ("sandd.v1", Ok(Protocol::V1)),
            ("sandd.v1, sandd.v2", Ok(Protocol::V2)),
            ("sandd.v2,sandd.v1", Ok(Protocol::V2)),
            ("sandd.v9 , sandd.v1", Ok(Protocol::V1)),
            (
                "sandd.v9",
                Err(NegotiateError::UnknownVersion {
                    offered: "sandd.v9".to_owned(),
                }),
            ),
            ("chat", Err(NegotiateError::NotOffered)),
            ("", Err(NegotiateError::NotOffered)),
        ] {
            assert_eq!(negotiate(offered), expected, "{offered}");
        }
        assert!(asks_for_sandbox("x, sandd.v9"));
        assert!(!asks_for_sandbox("x"));
    }
}
