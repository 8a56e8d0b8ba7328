//! What a path holds: its kind, permission bits and content.

use std::fmt;

/// BLAKE3 of uncompressed content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of no bytes.
    pub fn empty() -> Self {
        Self::of(&[])
    }

    /// Hashes content.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }

    /// Takes a hash that was computed elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads the wire form: exactly 64 lowercase hex digits.
    pub fn parse(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(*pair.first()?)? << 4 | value(*pair.last()?)?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (byte, pair) in self.0.iter().zip(text.chunks_exact_mut(2)) {
            let digit = |half: u8| DIGITS.get(usize::from(half)).copied().unwrap_or_default();
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What kind of thing a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory; it has no content.
    Directory,
    /// A symbolic link; its content is its target.
    Symlink,
}

const TYPE_BITS: i64 = 0o170_000;
const DIRECTORY: i64 = 0o040_000;
const REGULAR: i64 = 0o100_000;
const SYMLINK: i64 = 0o120_000;
const PERMISSION_BITS: i64 = 0o777;

/// The state of an existing path.
///
/// Permission bits are the nine plain ones: set-user-id, set-group-id and
/// sticky bits of one machine mean nothing, or harm, on another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// What kind of thing it is.
    pub kind: Kind,
    /// The nine permission bits.
    pub mode: u32,
    /// Hash of its content.
    pub hash: ContentHash,
    /// Length of its content.
    pub size: u64,
}

/// Why the description of a node was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The file-type bits name something that is not replicated.
    #[error("permissions {permissions:#o} describe neither a file, a directory nor a symlink")]
    Type {
        /// The bits as they came.
        permissions: i64,
    },
    /// The hash is not 64 lowercase hex digits.
    #[error("{hash:?} is not a content hash (64 lowercase hex digits)")]
    Hash {
        /// The text as it came.
        hash: String,
    },
}

impl Node {
    /// A directory with these permission bits.
    pub fn directory(mode: u32) -> Self {
        Self {
            kind: Kind::Directory,
            mode: mode & 0o777,
            hash: ContentHash::empty(),
            size: 0,
        }
    }

    /// A regular file that holds `content`.
    pub fn file(mode: u32, content: &[u8]) -> Self {
        Self {
            kind: Kind::File,
            mode: mode & 0o777,
            hash: ContentHash::of(content),
            size: content.len() as u64,
        }
    }

    /// A symlink to `target`.
    pub fn symlink(target: &str) -> Self {
        Self {
            kind: Kind::Symlink,
            mode: 0o777,
            hash: ContentHash::of(target.as_bytes()),
            size: target.len() as u64,
        }
    }

    /// Reads the wire form. A directory's hash and size are not looked at.
    pub fn from_wire(permissions: i64, hash: &str, size: u64) -> Result<Self, NodeError> {
        let kind = kind_of(permissions)?;
        let mode = u32::try_from(permissions & PERMISSION_BITS).unwrap_or_default();
        match kind {
            Kind::Directory => Ok(Self::directory(mode)),
            Kind::File | Kind::Symlink => {
                let hash = ContentHash::parse(hash).ok_or_else(|| NodeError::Hash {
                    hash: hash.to_owned(),
                })?;
                let mode = if kind == Kind::Symlink { 0o777 } else { mode };
                Ok(Self {
                    kind,
                    mode,
                    hash,
                    size,
                })
            }
        }
    }

    /// The wire form of kind and permission bits: a plain file has no type bits.
    pub fn permissions(&self) -> i64 {
        let kind = match self.kind {
            Kind::File => 0,
            Kind::Directory => DIRECTORY,
            Kind::Symlink => SYMLINK,
        };
        kind | i64::from(self.mode)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Whether kind and content are equal, whatever the permission bits.
    pub fn same_content(&self, other: &Self) -> bool {
        self.kind == other.kind && self.hash == other.hash
    }

    /// The same thing with other permission bits; a symlink has none of its own.
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Self {
        let mode = if self.kind == Kind::Symlink {
            0o777
        } else {
            mode & 0o777
        };
        Self {
            mode,
            ..self.clone()
        }
    }
}

/// The kind that the wire's file-type bits name.
pub fn kind_of(permissions: i64) -> Result<Kind, NodeError> {
    match permissions & TYPE_BITS {
        _ if permissions < 0 => Err(NodeError::Type { permissions }),
        0 | REGULAR => Ok(Kind::File),
        DIRECTORY => Ok(Kind::Directory),
        SYMLINK => Ok(Kind::Symlink),
        _ => Err(NodeError::Type { permissions }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_form_of_a_node_comes_back_as_it_was() {
        for node in [
            Node::file(0o640, b"x"),
            Node::directory(0o755),
            Node::symlink("../x"),
        ] {
            let hash = node.hash.to_string();
            assert_eq!(
                Node::from_wire(node.permissions(), &hash, node.size),
                Ok(node)
            );
        }
        assert_eq!(Node::file(0o644, b"").permissions(), 0o644);
        assert_eq!(Node::directory(0o755).permissions(), 0o040_755);
        assert_eq!(Node::symlink("x").permissions(), 0o120_777);
    }

    #[test]
    fn unknown_kinds_and_hashes_are_refused() {
        let hash = ContentHash::empty().to_string();
        for permissions in [-1, 0o010_644, 0o140_644] {
            assert_eq!(
                Node::from_wire(permissions, &hash, 0),
                Err(NodeError::Type { permissions })
            );
        }
        for hash in [
            "",
            "AF1349B9F5F9A1A6A0404DEA36DCC9499BCB25C9ADC112B7CC9A93CAE41F3262",
            "zz",
        ] {
            assert_eq!(
                Node::from_wire(0o644, hash, 0),
                Err(NodeError::Hash { hash: hash.into() })
            );
        }
        assert!(Node::from_wire(0o040_755, "", 0).is_ok());
    }
}
