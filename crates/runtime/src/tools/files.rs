//! Files of a workspace, opened beneath it and nowhere else.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quintet_sandbox::paths::{PathError, Root};
use quintet_workspace::proto::path::RESERVED;

/// The largest file that is read or edited.
pub(super) const MAX_FILE: u64 = 32 << 20;

/// The most text of one answer.
pub(super) const MAX_TEXT: usize = 256 * 1024;

/// Lines of one answer when nothing else is asked for.
pub(super) const LINES: usize = 2000;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{path} is not there; `list_files` shows what is")]
    NotThere { path: String },
    #[error("{path} leads out of the workspace through a link; name the file that is meant")]
    Escapes { path: String },
    #[error("{path} is a link{to}; name the file that is meant, or remove the link first")]
    Link { path: String, to: String },
    #[error("{path} is a folder or no regular file; `list_files` shows what is in a folder")]
    NotAFile { path: String },
    #[error("{path} is not text ({bytes} bytes); look at it with `exec`")]
    NotText { path: String, bytes: usize },
    #[error(
        "{path} has {bytes} bytes, more than the {MAX_FILE} that are read; use `exec` for a part of it"
    )]
    TooLarge { path: String, bytes: u64 },
    #[error("{path}: {reason}")]
    Other { path: String, reason: String },
}

/// A file that a call names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The folder that it is opened beneath: the workspace, or `/` for a path outside of it.
    pub(super) root: PathBuf,
    /// Beneath the root.
    pub(super) name: String,
    /// As the agent sees it: relative to the workspace, or absolute.
    pub(super) shown: String,
}

impl Target {
    /// Whether there is something at the path.
    pub(super) fn exists(&self) -> bool {
        Root::open(&self.root).is_ok_and(|root| root.look(&self.name).is_ok())
    }

    /// What a path means in a workspace. By its words: the kernel holds the root when it is opened.
    pub(super) fn new(workspace: &Path, path: &str) -> Self {
        let joined = workspace.join(path);
        let mut parts: Vec<&std::ffi::OsStr> = Vec::new();
        for component in joined.components() {
            match component {
                std::path::Component::Normal(part) => parts.push(part),
                std::path::Component::ParentDir => {
                    parts.pop();
                }
                _ => {}
            }
        }
        let absolute: PathBuf = std::iter::once(std::ffi::OsStr::new("/"))
            .chain(parts)
            .collect();
        match absolute.strip_prefix(workspace) {
            Ok(inside) => {
                let name = inside.display().to_string();
                Self {
                    root: workspace.to_owned(),
                    shown: if name.is_empty() {
                        ".".to_owned()
                    } else {
                        name.clone()
                    },
                    name,
                }
            }
            Err(_) => Self {
                root: PathBuf::from("/"),
                name: absolute
                    .display()
                    .to_string()
                    .trim_start_matches('/')
                    .to_owned(),
                shown: absolute.display().to_string(),
            },
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        match self.name.as_str() {
            // Joined with nothing it would end with a slash.
            "" => self.root.clone(),
            name => self.root.join(name),
        }
    }

    /// Whether it is in the folder at the workspace's root that is not a part of it.
    pub(super) fn is_reserved(&self) -> bool {
        let real = self.through_links();
        let name = real.as_ref().map_or(&self.name, |real| &real.name);
        self.root != Path::new("/") && Path::new(name).starts_with(RESERVED)
    }

    /// The file that links make of it, where that is another one beneath the root.
    pub(super) fn through_links(&self) -> Option<Self> {
        let root = Root::open(&self.root).ok()?;
        let real = name_of(&root, &self.name)?;
        if real == self.name {
            return None;
        }
        let shown = match (real.as_str(), self.root == Path::new("/")) {
            (real, true) => format!("/{real}"),
            ("", false) => ".".to_owned(),
            (real, false) => real.to_owned(),
        };
        Some(Self {
            root: self.root.clone(),
            name: real,
            shown,
        })
    }

    fn open(&self) -> Result<Root, FileError> {
        Root::open(&self.root).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: PathError) -> FileError {
        let path = self.shown.clone();
        match error {
            PathError::Link { .. } => {
                let real = self.through_links();
                let to = real.map_or_else(String::new, |real| format!(" to {}", real.shown));
                FileError::Link { path, to }
            }
            PathError::Escapes { .. } => FileError::Escapes { path },
            PathError::NoName { .. } | PathError::NotAFile { .. } => FileError::NotAFile { path },
            PathError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                FileError::NotThere { path }
            }
            PathError::Io { source, .. } => FileError::Other {
                path,
                reason: source.to_string(),
            },
        }
    }

    fn io(&self, error: &std::io::Error) -> FileError {
        FileError::Other {
            path: self.shown.clone(),
            reason: error.to_string(),
        }
    }

    /// The whole text.
    pub(super) fn read(&self) -> Result<String, FileError> {
        let file = self
            .open()?
            .read(&self.name)
            .map_err(|error| self.failed(error))?;
        let size = file.metadata().map_err(|error| self.io(&error))?.len();
        if size > MAX_FILE {
            return Err(FileError::TooLarge {
                path: self.shown.clone(),
                bytes: size,
            });
        }
        let mut bytes = Vec::new();
        // It may grow while it is read.
        file.take(MAX_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.io(&error))?;
        self.text(bytes)
    }

    /// Bytes as the text that they have to be.
    pub(super) fn text(&self, bytes: Vec<u8>) -> Result<String, FileError> {
        let count = bytes.len();
        let not_text = || FileError::NotText {
            path: self.shown.clone(),
            bytes: count,
        };
        if bytes.contains(&0) {
            return Err(not_text());
        }
        String::from_utf8(bytes).map_err(|_| not_text())
    }

    /// Writes the whole file in one step: beside it, then renamed; its mode stays.
    pub(super) fn write(&self, text: &str) -> Result<(), FileError> {
        let root = self.open()?;
        let parent = root
            .parent_of(&self.name)
            .map_err(|error| self.failed(error))?;
        let mode = parent
            .open_existing(parent.name())
            .and_then(|file| Some(file.metadata().ok()?.permissions().mode()))
            .map_or(0o644, |mode| mode & 0o7777);
        let temporary = OsString::from(format!(".quintet-{}", uuid::Uuid::new_v4().simple()));
        let written = parent
            .create_new(&temporary)
            .map_err(|error| self.failed(error))
            .and_then(|mut file| {
                file.write_all(text.as_bytes())
                    .map_err(|error| self.io(&error))?;
                file.set_permissions(std::fs::Permissions::from_mode(mode))
                    .map_err(|error| self.io(&error))
            })
            .and_then(|()| {
                parent
                    .publish(&temporary)
                    .map_err(|error| self.failed(error))
            });
        if written.is_err() {
            // The reason is told; what is left beside the file is only tidied.
            let _ = parent.remove(&temporary);
        }
        written
    }
}

/// The name beneath a root of what was opened there, without a link in it.
pub(super) fn name_of_open(root: &Root, opened: &impl AsRawFd) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()?;
    let beneath = path.strip_prefix(root.path()).ok()?;
    Some(beneath.to_str()?.to_owned())
}

/// The name beneath a root that has no link in it: of what is there, and for what is not there yet
/// of the folder that is. None of what leads out, which is not opened either.
fn name_of(root: &Root, name: &str) -> Option<String> {
    let name = name.trim_end_matches('/');
    let (found, missing) = match name.is_empty() {
        true => (root.look("."), None),
        false => (root.look(name), name.rsplit_once('/')),
    };
    match found {
        Ok(found) => name_of_open(root, &found),
        Err(PathError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            let (folder, last) = missing.unwrap_or(("", name));
            let folder = name_of(root, folder)?;
            Some(match folder.as_str() {
                "" => last.to_owned(),
                folder => format!("{folder}/{last}"),
            })
        }
        Err(_) => None,
    }
}

/// Some lines of a text, and what to say of the rest.
pub(super) fn lines(text: &str, offset: usize, limit: usize) -> (String, Option<String>) {
    let total = text.lines().count();
    let mut shown = String::new();
    let mut last = offset.saturating_sub(1);
    let mut cut = false;
    for line in text.split_inclusive('\n').skip(last).take(limit) {
        if shown.len() + line.len() > MAX_TEXT {
            if shown.is_empty() {
                shown.extend(line.chars().take(MAX_TEXT / 4));
                last += 1;
            }
            cut = true;
            break;
        }
        shown.push_str(line);
        last += 1;
    }
    if offset > total.max(1) {
        return (String::new(), Some(format!("[the file has {total} lines]")));
    }
    let note = (last < total || offset > 1 || cut).then(|| {
        let next = match last < total {
            true => format!("; read on with offset {}", last + 1),
            false => String::new(),
        };
        format!("[lines {offset} to {last} of {total}{next}]")
    });
    (shown, note)
}

/// Why an edit can't be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EditError {
    #[error("`old` is empty; write the whole file with `write_file`")]
    Empty,
    #[error(
        "`old` does not occur in {path}; read it again and copy the text exactly, with its spaces"
    )]
    Missing { path: String },
    #[error(
        "`old` occurs {times} times in {path} (lines {lines}); put more of the text around it into `old`"
    )]
    Ambiguous {
        path: String,
        times: usize,
        lines: String,
    },
    #[error("`old` and `new` are the same")]
    Same,
}

/// The text with the one occurrence replaced, and its line.
pub(super) fn replace_once(
    path: &str,
    text: &str,
    old: &str,
    new: &str,
) -> Result<(String, usize), EditError> {
    const NAMED: usize = 10;
    if old.is_empty() {
        return Err(EditError::Empty);
    }
    if old == new {
        return Err(EditError::Same);
    }
    let line_of = |at: usize| {
        1 + text
            .get(..at)
            .map_or(0, |before| before.matches('\n').count())
    };
    let found: Vec<usize> = text.match_indices(old).map(|(at, _)| at).collect();
    match found.as_slice() {
        [] => Err(EditError::Missing {
            path: path.to_owned(),
        }),
        [at] => Ok((text.replacen(old, new, 1), line_of(*at))),
        several => {
            let lines: Vec<String> = several
                .iter()
                .take(NAMED)
                .map(|at| line_of(*at).to_string())
                .collect();
            Err(EditError::Ambiguous {
                path: path.to_owned(),
                times: several.len(),
                lines: lines.join(", "),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_beneath_the_workspace_or_outside() {
        let workspace = Path::new("/work/space");
        for (path, root, name, shown) in [
            ("a/b", "/work/space", "a/b", "a/b"),
            ("./a//b", "/work/space", "a/b", "a/b"),
            ("a/../b", "/work/space", "b", "b"),
            ("", "/work/space", "", "."),
            ("/work/space/x", "/work/space", "x", "x"),
            ("../other", "/", "work/other", "/work/other"),
            ("/etc/hosts", "/", "etc/hosts", "/etc/hosts"),
            ("../../../../etc", "/", "etc", "/etc"),
        ] {
            let target = Target::new(workspace, path);
            let found = (target.root.to_str().unwrap(), &*target.name, &*target.shown);
            assert_eq!(found, (root, name, shown), "{path}");
        }
    }

    #[test]
    fn links_that_lead_out_are_refused_and_modes_stay() {
        let outside = tempfile::tempdir().unwrap();
        let space = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outside.path(), space.path().join("way")).unwrap();
        std::os::unix::fs::symlink("missing", space.path().join("self")).unwrap();
        let target = |path: &str| Target::new(&space.path().canonicalize().unwrap(), path);
        assert!(matches!(
            target("way/secret").read(),
            Err(FileError::Escapes { .. })
        ));
        assert!(matches!(
            target("way/new").write("x"),
            Err(FileError::Escapes { .. })
        ));
        assert!(!outside.path().join("new").exists());
        std::fs::write(space.path().join("a"), "kept").unwrap();
        std::os::unix::fs::symlink("a", space.path().join("la")).unwrap();
        let refused = target("la").write("x").unwrap_err().to_string();
        assert!(
            refused.starts_with("la is a link to a; name the file"),
            "{refused}"
        );
        let dangling = target("self").write("x").unwrap_err().to_string();
        assert!(
            dangling.starts_with("self is a link; name the file"),
            "{dangling}"
        );
        let reserved = |path: &str| target(path).is_reserved();
        std::fs::create_dir(space.path().join(RESERVED)).unwrap();
        std::os::unix::fs::symlink(RESERVED, space.path().join("own")).unwrap();
        assert!(reserved(".quintet/x") && reserved("deep/../.quintet/x") && reserved("own/x"));
        assert!(!reserved("deep/.quintet/x") && !reserved(".quintet.md"));
        assert!(matches!(
            target("nothing").read(),
            Err(FileError::NotThere { .. })
        ));
        assert!(matches!(target("").read(), Err(FileError::NotAFile { .. })));
        target("deep/er/file").write("#!").unwrap();
        let file = space.path().join("deep/er/file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        target("deep/er/file").write("#!/bin/sh").unwrap();
        assert_eq!(target("deep/er/file").read().unwrap(), "#!/bin/sh");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(
            std::fs::read_dir(space.path().join("deep/er"))
                .unwrap()
                .count(),
            1
        );
        std::fs::write(space.path().join("bin"), [0, 159]).unwrap();
        assert!(matches!(
            target("bin").read(),
            Err(FileError::NotText { bytes: 2, .. })
        ));
    }

    #[test]
    fn a_file_is_the_same_through_links() {
        let space = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(space.path().join("secret/deep")).unwrap();
        std::fs::write(space.path().join("secret/key"), "s").unwrap();
        for (to, link) in [
            ("secret", "folder"),
            ("secret/key", "file"),
            ("/etc", "out"),
            ("nowhere", "dangling"),
            (".", "self"),
        ] {
            std::os::unix::fs::symlink(to, space.path().join(link)).unwrap();
        }
        let root = space.path().canonicalize().unwrap();
        for (path, real) in [
            ("secret/key", None),
            ("secret/new", None),
            ("new/newer", None),
            ("", None),
            ("folder", Some("secret")),
            ("folder/key", Some("secret/key")),
            ("folder/deep/er/new", Some("secret/deep/er/new")),
            ("file", Some("secret/key")),
            ("self", Some(".")),
            ("self/secret/key", Some("secret/key")),
            ("out/hosts", None),
        ] {
            let found = Target::new(&root, path).through_links();
            let shown = found.as_ref().map(|target| &*target.shown);
            assert_eq!(shown, real, "{path}");
        }
        let outside = root.join("file").display().to_string();
        let elsewhere = Target::new(Path::new("/nowhere"), &outside).through_links();
        let real = root.join("secret/key").display().to_string();
        assert_eq!(elsewhere.unwrap().shown, real);
    }

    #[test]
    fn lines_are_cut_and_the_rest_is_told() {
        let text = "one\ntwo\nthree\n";
        assert_eq!(lines(text, 1, 10), (text.to_owned(), None));
        assert_eq!(
            lines(text, 1, 2),
            (
                "one\ntwo\n".to_owned(),
                Some("[lines 1 to 2 of 3; read on with offset 3]".to_owned())
            )
        );
        assert_eq!(
            lines(text, 3, 9),
            ("three\n".to_owned(), Some("[lines 3 to 3 of 3]".to_owned()))
        );
        assert_eq!(lines(text, 9, 9).1.unwrap(), "[the file has 3 lines]");
        assert_eq!(lines("", 1, 9), (String::new(), None));
    }

    #[test]
    fn an_edit_replaces_exactly_one_text() {
        assert_eq!(
            replace_once("f", "a\nb\nc", "b", "x").unwrap(),
            ("a\nx\nc".to_owned(), 2)
        );
        assert_eq!(
            replace_once("f", "b b\nb", "b", "x"),
            Err(EditError::Ambiguous {
                path: "f".into(),
                times: 3,
                lines: "1, 1, 2".into()
            })
        );
        assert_eq!(
            replace_once("f", "a", "b", "x"),
            Err(EditError::Missing { path: "f".into() })
        );
        assert_eq!(replace_once("f", "a", "", "x"), Err(EditError::Empty));
        assert_eq!(replace_once("f", "a", "a", "a"), Err(EditError::Same));
    }
}
