//! Names of files inside a workspace.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The folder at the workspace root that belongs to us and is never replicated.
pub const RESERVED: &str = ".quintet";

/// A path relative to the workspace root that obeys the protocol's rules:
/// `/` separated UTF-8, no empty, `.` or `..` component, no NUL, not absolute,
/// not in `.quintet/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspacePath(Arc<str>);

/// Why a path was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing was given.
    #[error("the path is empty")]
    Empty,
    /// It starts at the root of the file system.
    #[error("{path:?} is absolute; paths are relative to the workspace")]
    Absolute {
        /// The path as it came.
        path: String,
    },
    /// It has a component that would leave the workspace or names nothing.
    #[error("{path:?} has a component {component:?}, which is not allowed")]
    Component {
        /// The path as it came.
        path: String,
        /// The component that is not allowed.
        component: String,
    },
    /// It holds a NUL byte.
    #[error("{path:?} holds a NUL byte")]
    Nul {
        /// The path as it came.
        path: String,
    },
    /// It, or a name in it, is longer than Linux can have.
    #[error(
        "{start:?}... has {length} bytes or a name in it is too long; no file can have that path"
    )]
    TooLong {
        /// How it begins.
        start: String,
        /// How long it is.
        length: usize,
    },
    /// It lies in the folder that is never replicated.
    #[error("{path:?} is in {RESERVED}/, which is never replicated")]
    Reserved {
        /// The path as it came.
        path: String,
    },
}

impl WorkspacePath {
    /// Checks a path that came from a peer, the disk or a person.
    pub fn parse(path: &str) -> Result<Self, PathError> {
        if path.is_empty() {
            return Err(PathError::Empty);
        }
        if path.starts_with('/') {
            return Err(PathError::Absolute {
                path: path.to_owned(),
            });
        }
        if path.contains('\0') {
            return Err(PathError::Nul {
                path: path.to_owned(),
            });
        }
        for component in path.split('/') {
            if matches!(component, "" | "." | "..") {
                return Err(PathError::Component {
                    path: path.to_owned(),
                    component: component.to_owned(),
                });
            }
        }
        if path.split('/').next() == Some(RESERVED) {
            return Err(PathError::Reserved {
                path: path.to_owned(),
            });
        }
        let path = Self(path.into());
        if path.is_too_long() {
            return Err(PathError::TooLong {
                start: path.0.chars().take(64).collect(),
                length: path.0.len(),
            });
        }
        Ok(path)
    }

    /// Whether no file can have it: a path that is opened, and a name in it, may not
    /// be longer. What is in a folder is named by what the folder was opened as.
    pub fn is_too_long(&self) -> bool {
        const OPENED: usize = 4_095;
        const NAME: usize = 255;
        let folder = self
            .0
            .rsplit_once('/')
            .map_or(0, |(folder, _)| folder.len());
        folder > OPENED || self.0.split('/').any(|name| name.len() > NAME)
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The folder it is in; `None` for an entry of the root.
    pub fn parent(&self) -> Option<Self> {
        self.0
            .rsplit_once('/')
            .map(|(parent, _)| Self(parent.into()))
    }

    /// Whether that is the folder it is in; `None` is the root.
    pub fn is_in(&self, folder: Option<&Self>) -> bool {
        self.0.rsplit_once('/').map(|(parent, _)| parent) == folder.map(Self::as_str)
    }

    /// Its last component.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// All folders it is in, outermost first.
    pub fn ancestors(&self) -> Vec<Self> {
        let mut all: Vec<Self> = std::iter::successors(self.parent(), Self::parent).collect();
        all.reverse();
        all
    }

    /// Whether it lies somewhere inside `folder`.
    pub fn is_beneath(&self, folder: &Self) -> bool {
        self.0.len() > folder.0.len()
            && self.0.starts_with(&*folder.0)
            && self.0.as_bytes().get(folder.0.len()) == Some(&b'/')
    }

    /// The same place below `to` as it has below `from`.
    pub fn rebased(&self, from: &Self, to: &Self) -> Option<Self> {
        self.0
            .strip_prefix(&*from.0)
            .map(|rest| Self(format!("{}{rest}", to.0).into()))
    }

    /// The range of text that holds everything beneath it in an ordered map.
    pub fn beneath_range(&self) -> std::ops::Range<String> {
        // '0' follows '/' directly, so this holds exactly what starts with "path/".
        format!("{}/", self.0)..format!("{}0", self.0)
    }
}

impl Borrow<str> for WorkspacePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for WorkspacePath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WorkspacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_escape_or_name_nothing_are_refused() {
        for (path, error) in [
            ("", PathError::Empty),
            (
                "/etc/passwd",
                PathError::Absolute {
                    path: "/etc/passwd".into(),
                },
            ),
            (
                "a\0b",
                PathError::Nul {
                    path: "a\0b".into(),
                },
            ),
            (
                "..",
                PathError::Component {
                    path: "..".into(),
                    component: "..".into(),
                },
            ),
            (
                "a/../b",
                PathError::Component {
                    path: "a/../b".into(),
                    component: "..".into(),
                },
            ),
            (
                "a/./b",
                PathError::Component {
                    path: "a/./b".into(),
                    component: ".".into(),
                },
            ),
            (
                "a//b",
                PathError::Component {
                    path: "a//b".into(),
                    component: String::new(),
                },
            ),
            (
                "a/",
                PathError::Component {
                    path: "a/".into(),
                    component: String::new(),
                },
            ),
            (
                ".quintet",
                PathError::Reserved {
                    path: ".quintet".into(),
                },
            ),
            (
                ".quintet/x",
                PathError::Reserved {
                    path: ".quintet/x".into(),
                },
            ),
        ] {
            assert_eq!(WorkspacePath::parse(path), Err(error));
        }
        for path in [
            "a",
            "a/b",
            ".quintetignore",
            "x/.quintet",
            "données/naïve-文件.txt",
            "...",
            "a\\b",
        ] {
            assert_eq!(
                WorkspacePath::parse(path).map(|p| p.to_string()),
                Ok(path.to_owned())
            );
        }
    }

    #[test]
    fn a_path_that_no_file_can_have_is_refused() {
        let name = "n".repeat(255);
        let folders = format!("{}12", "d/".repeat(2_046));
        for fits in [name.clone(), format!("{folders}3/{name}")] {
            assert!(WorkspacePath::parse(&fits).is_ok());
        }
        for (long, length) in [(format!("{name}n"), 256), (format!("{folders}34/f"), 4_098)] {
            let refused = WorkspacePath::parse(&long);
            assert!(
                matches!(refused, Err(PathError::TooLong { length: told, .. }) if told == length)
            );
        }
    }

    #[test]
    fn a_folder_holds_what_is_beneath_it_and_nothing_else() {
        let path = |p| WorkspacePath::parse(p).unwrap();
        assert!(path("a/b").is_beneath(&path("a")));
        assert!(!path("ab").is_beneath(&path("a")));
        assert!(!path("a").is_beneath(&path("a")));
        let range = path("a").beneath_range();
        assert!(range.contains(&"a/b".to_owned()) && range.contains(&"a/\u{10ffff}".to_owned()));
        assert!(!range.contains(&"a.txt".to_owned()) && !range.contains(&"ab".to_owned()));
        assert_eq!(path("a/b/c").ancestors(), [path("a"), path("a/b")]);
        assert!(path("a/b/c").is_in(Some(&path("a/b"))) && path("a").is_in(None));
        assert!(!path("a/b/c").is_in(Some(&path("a"))) && !path("a/b").is_in(None));
        assert_eq!(
            path("a/b/c").rebased(&path("a"), &path("z/y")),
            Some(path("z/y/b/c"))
        );
    }
}
