//! Files of the workspace for an ACP agent, and no others.
//!
//! The kernel resolves each path beneath the workspace (`openat2` with `RESOLVE_BENEATH`), so that
//! neither `..` nor a symbolic link leads out, also not one that is changed in between.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;

/// The most text that one read returns; a whole answer must fit into a line.
const READ_LIMIT: u64 = 4 * 1024 * 1024;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{} is outside of the workspace {}", path.display(), workspace.display())]
    Outside { path: PathBuf, workspace: PathBuf },
    #[error("{} does not exist", path.display())]
    NotFound { path: PathBuf },
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{} is not UTF-8 text", path.display())]
    NotText { path: PathBuf },
    #[error("more than {READ_LIMIT} bytes of {} were asked for: ask for fewer lines", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Reads a text file, from a line (the first is 1), at most so many lines.
pub(super) fn read(
    workspace: &Path,
    path: &Path,
    line: Option<u32>,
    limit: Option<u32>,
) -> Result<String, FileError> {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = open_beneath(workspace, path, flags)?;
    let failed = |source| FileError::Io {
        path: path.to_owned(),
        source,
    };
    let mut reader = BufReader::new(file);
    for _ in 1..line.unwrap_or(1) {
        if reader.skip_until(b'\n').map_err(failed)? == 0 {
            break;
        }
    }
    let mut bytes = Vec::new();
    let mut reader = reader.take(READ_LIMIT + 1);
    match limit {
        None => {
            reader.read_to_end(&mut bytes).map_err(failed)?;
        }
        Some(limit) => {
            for _ in 0..limit {
                if reader.read_until(b'\n', &mut bytes).map_err(failed)? == 0 {
                    break;
                }
            }
        }
    }
    if bytes.len() as u64 > READ_LIMIT {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|_| FileError::NotText {
        path: path.to_owned(),
    })
}

/// Writes a text file, creating it and its folders where they are missing.
pub(super) fn write(workspace: &Path, path: &Path, content: &str) -> Result<(), FileError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file = match open_beneath(workspace, path, flags) {
        Err(FileError::NotFound { .. }) => {
            create_folders(workspace, path)?;
            open_beneath(workspace, path, flags)?
        }
        opened => opened?,
    };
    let written = file
        .set_len(0)
        .and_then(|()| file.write_all(content.as_bytes()));
    written.map_err(|source| FileError::Io {
        path: path.to_owned(),
        source,
    })
}

fn open_beneath(workspace: &Path, path: &Path, flags: OFlags) -> Result<File, FileError> {
    let root = root(workspace)?;
    let opened = resolve(&root, relative(workspace, path)?, flags);
    let file = File::from(opened.map_err(|errno| refused(workspace, path, errno))?);
    let kind = file.metadata().map_err(|source| FileError::Io {
        path: path.to_owned(),
        source,
    })?;
    match kind.is_file() {
        true => Ok(file),
        false => Err(FileError::NotAFile {
            path: path.to_owned(),
        }),
    }
}

fn create_folders(workspace: &Path, path: &Path) -> Result<(), FileError> {
    let root = root(workspace)?;
    let mut made = PathBuf::new();
    let folders = relative(workspace, path)?.parent().unwrap_or(Path::new(""));
    for component in folders.components() {
        let Component::Normal(name) = component else {
            return Err(outside(workspace, path));
        };
        let parent = resolve(&root, or_itself(&made), OFlags::PATH | OFlags::DIRECTORY);
        let made_now = parent.and_then(|parent| mkdirat(&parent, name, Mode::from(0o777)));
        match made_now {
            Ok(()) | Err(Errno::EXIST) => made.push(name),
            Err(errno) => return Err(refused(workspace, path, errno)),
        }
    }
    Ok(())
}

fn root(workspace: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, workspace, flags, Mode::empty()).map_err(|errno| FileError::Io {
        path: workspace.to_owned(),
        source: errno.into(),
    })
}

fn resolve(root: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::from(0o666),
        false => Mode::empty(),
    };
    openat2(
        root,
        path,
        flags | OFlags::CLOEXEC,
        mode,
        ResolveFlags::BENEATH,
    )
}

fn relative<'a>(workspace: &Path, path: &'a Path) -> Result<&'a Path, FileError> {
    let relative = match path.is_absolute() {
        true => path
            .strip_prefix(workspace)
            .map_err(|_| outside(workspace, path))?,
        false => path,
    };
    Ok(or_itself(relative))
}

/// The empty path names nothing; the folder itself is `.`.
fn or_itself(path: &Path) -> &Path {
    match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    }
}

fn refused(workspace: &Path, path: &Path, errno: Errno) -> FileError {
    let path_owned = path.to_owned();
    match errno {
        Errno::XDEV => outside(workspace, path),
        Errno::NOENT => FileError::NotFound { path: path_owned },
        // A pipe without a reader, or a folder.
        Errno::NXIO | Errno::ISDIR => FileError::NotAFile { path: path_owned },
        errno => FileError::Io {
            path: path_owned,
            source: errno.into(),
        },
    }
}

fn outside(workspace: &Path, path: &Path) -> FileError {
    FileError::Outside {
        path: path.to_owned(),
        workspace: workspace.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn workspace() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        std::fs::write(folder.path().join("secret"), "secret").unwrap();
        (folder, workspace)
    }

    #[test]
    fn lines_are_counted_from_one() {
        let (_folder, root) = workspace();
        let path = root.join("a.txt");
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        for (line, limit, expected) in [
            (None, None, "one\ntwo\nthree"),
            (Some(1), Some(1), "one\n"),
            (Some(2), None, "two\nthree"),
            (Some(2), Some(9), "two\nthree"),
            (Some(0), Some(0), ""),
            (Some(9), None, ""),
        ] {
            assert_eq!(read(&root, &path, line, limit).unwrap(), expected);
        }
        assert_eq!(
            read(&root, Path::new("a.txt"), None, Some(1)).unwrap(),
            "one\n"
        );
    }

    #[test]
    fn a_file_is_written_whole_with_its_folders() {
        let (_folder, root) = workspace();
        let path = root.join("deep/er/a.txt");
        write(&root, &path, "a longer text").unwrap();
        write(&root, &path, "short").unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "short");
    }

    #[test]
    fn nothing_outside_is_reached() {
        let (folder, root) = workspace();
        let secret = folder.path().join("secret");
        symlink(&secret, root.join("link")).unwrap();
        symlink(folder.path(), root.join("folder")).unwrap();
        symlink("..", root.join("up")).unwrap();
        for path in [
            secret.clone(),
            root.join("../secret"),
            root.join("link"),
            root.join("folder/secret"),
            root.join("up/secret"),
            root.join("folder/new/file"),
            PathBuf::from("../secret"),
            PathBuf::from("/etc/passwd"),
        ] {
            assert!(
                matches!(
                    read(&root, &path, None, None),
                    Err(FileError::Outside { .. })
                ),
                "read {path:?}"
            );
            assert!(
                matches!(write(&root, &path, "x"), Err(FileError::Outside { .. })),
                "write {path:?}"
            );
        }
        assert_eq!(std::fs::read_to_string(secret).unwrap(), "secret");
        assert!(!folder.path().join("new").exists());
    }

    #[test]
    fn what_is_no_text_file_is_refused_without_waiting() {
        let (_folder, root) = workspace();
        std::fs::write(root.join("binary"), [0xff, 0xfe]).unwrap();
        rustix::fs::mkfifoat(CWD, root.join("pipe"), Mode::from(0o600)).unwrap();
        let big = File::create(root.join("big")).unwrap();
        big.set_len(READ_LIMIT + 1).unwrap();
        let read = |name: &str| read(&root, &root.join(name), None, None);
        assert!(matches!(read("binary"), Err(FileError::NotText { .. })));
        assert!(matches!(read("pipe"), Err(FileError::NotAFile { .. })));
        assert!(matches!(read("."), Err(FileError::NotAFile { .. })));
        assert!(matches!(read("missing"), Err(FileError::NotFound { .. })));
        assert!(matches!(read("big"), Err(FileError::TooLarge { .. })));
        assert!(matches!(
            write(&root, &root.join("pipe"), "x"),
            Err(FileError::NotAFile { .. })
        ));
    }
}
