//! Names of files that a peer chose, opened beneath a root and nowhere else.
//!
//! This is the one module of the plane that turns such a name into a file. The kernel resolves
//! each name itself with `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)`, so no link that is
//! planted between a check and a use leads out: there is no check apart from the use. On a kernel
//! without `openat2` the name is walked one component at a time and every link in it is refused.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Why a name was refused or a file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// `..`, an absolute path elsewhere, or a link that leads out.
    #[error("{path:?} is outside the worker's root; use a path beneath it")]
    Escapes {
        /// The name.
        path: String,
    },
    /// Empty, a NUL byte, or a name that ends in no file name.
    #[error("{path:?} names no file")]
    NoName {
        /// The name.
        path: String,
    },
    /// The last component is a symbolic link.
    #[error("{path:?} is a symbolic link; name the file itself")]
    Link {
        /// The name.
        path: String,
    },
    /// A folder, device, socket or pipe.
    #[error("{path:?} is not a regular file")]
    NotAFile {
        /// The name.
        path: String,
    },
    /// The system said no.
    #[error("{path:?}: {source}")]
    Io {
        /// The name.
        path: String,
        /// Its words.
        source: io::Error,
    },
}

/// The folder of a command whose own is `cwd`, relative to its workspace. A command goes where it
/// likes anyway; this is for what a person means, and says so where it can't be.
pub fn folder_beneath(workspace: &Path, cwd: &Path) -> Result<PathBuf, String> {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if cwd.components().all(inside) {
        return Ok(workspace.join(cwd));
    }
    Err(format!(
        "the working folder {} is not beneath the workspace; give one relative to it",
        cwd.display()
    ))
}

/// A folder beneath which names are resolved.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    /// The folder as it was given and as it really is: a peer may write absolute paths either way.
    spellings: Vec<PathBuf>,
}

/// A file about to be written beside its destination.
#[derive(Debug)]
pub struct Parent {
    folder: OwnedFd,
    name: OsString,
    shown: String,
}

impl Root {
    /// Opens the folder.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let shown = path.display().to_string();
        let io = |source: io::Error| PathError::Io {
            path: shown.clone(),
            source,
        };
        let real = path.canonicalize().map_err(io)?;
        let fd = rustix::fs::open(&real, folder_flags(), Mode::empty())
            .map_err(|errno| io(errno.into()))?;
        let mut spellings = vec![real];
        if path.is_absolute() && path != spellings[0] {
            spellings.push(path.to_owned());
        }
        Ok(Self { fd, spellings })
    }

    /// The folder's real path.
    pub fn path(&self) -> &Path {
        &self.spellings[0]
    }

    /// Opens a regular file for reading.
    pub fn read(&self, name: &str) -> Result<File, PathError> {
        let relative = self.relative(name)?;
        // Without NONBLOCK, opening a pipe would wait for a writer for ever.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = File::from(self.resolve(name, &relative, flags)?);
        let metadata = file.metadata().map_err(|source| io_error(name, source))?;
        if !metadata.is_file() {
            return Err(PathError::NotAFile {
                path: name.to_owned(),
            });
        }
        Ok(file)
    }

    /// Opens a folder for listing.
    pub fn folder(&self, name: &str) -> Result<OwnedFd, PathError> {
        let relative = self.relative(name)?;
        self.resolve(name, &relative, folder_flags())
    }

    /// Opens anything, without the right to read it, to ask what it is.
    pub fn look(&self, name: &str) -> Result<OwnedFd, PathError> {
        let relative = self.relative(name)?;
        self.resolve(name, &relative, OFlags::PATH | OFlags::CLOEXEC)
    }

    /// Opens the folder that a file will be put into, creating what is missing of it.
    pub fn parent_of(&self, name: &str) -> Result<Parent, PathError> {
        let relative = self.relative(name)?;
        let no_name = || PathError::NoName {
            path: name.to_owned(),
        };
        if name.ends_with('/') {
            return Err(no_name());
        }
        let file_name = relative.file_name().ok_or_else(no_name)?.to_owned();
        let folder = relative.parent().unwrap_or(Path::new("")).to_owned();
        let folder = match self.resolve(name, &folder, folder_flags()) {
            Err(PathError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                self.create_folders(name, &folder)?
            }
            found => found?,
        };
        let parent = Parent {
            folder,
            name: file_name,
            shown: name.to_owned(),
        };
        parent.refuse_special()?;
        Ok(parent)
    }

    /// Creates a folder and what is missing above it, and returns it.
    pub fn create_folder(&self, name: &str) -> Result<OwnedFd, PathError> {
        let relative = self.relative(name)?;
        self.create_folders(name, &relative)
    }

    fn create_folders(&self, name: &str, folder: &Path) -> Result<OwnedFd, PathError> {
        let mut made = PathBuf::new();
        let mut at = self.resolve(name, Path::new(""), folder_flags())?;
        for component in folder.components() {
            let Component::Normal(part) = component else {
                continue;
            };
            match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(io_error(name, errno.into())),
            }
            made.push(part);
            // From the root again, never from `at`: a link in the middle is the kernel's to judge.
            at = self.resolve(name, &made, folder_flags())?;
        }
        Ok(at)
    }

    /// The name relative to the root, without `.`; `..` and foreign absolute paths are refused.
    fn relative(&self, name: &str) -> Result<PathBuf, PathError> {
        if name.is_empty() || name.contains('\0') {
            return Err(PathError::NoName {
                path: name.to_owned(),
            });
        }
        let escapes = || PathError::Escapes {
            path: name.to_owned(),
        };
        let path = Path::new(name);
        // Before the prefix is taken off, so that `ROOT/../etc` is seen.
        if path
            .components()
            .any(|component| component == Component::ParentDir)
        {
            return Err(escapes());
        }
        let relative = if path.is_absolute() {
            self.spellings
                .iter()
                .find_map(|root| path.strip_prefix(root).ok())
                .ok_or_else(escapes)?
        } else {
            path
        };
        Ok(relative
            .components()
            .filter(|component| matches!(component, Component::Normal(_)))
            .collect())
    }

    fn resolve(&self, name: &str, relative: &Path, flags: OFlags) -> Result<OwnedFd, PathError> {
        let target = if relative.as_os_str().is_empty() {
            Path::new(".")
        } else {
            relative
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = loop {
            match rustix::fs::openat2(&self.fd, target, flags, Mode::empty(), resolve) {
                // A rename elsewhere raced with the walk; the kernel asks to try again.
                Err(Errno::AGAIN) => {}
                Err(Errno::NOSYS) => break walk(&self.fd, target, flags),
                result => break result,
            }
        };
        opened.map_err(|errno| match errno {
            Errno::XDEV | Errno::LOOP => PathError::Escapes {
                path: name.to_owned(),
            },
            errno => io_error(name, errno.into()),
        })
    }
}

impl Parent {
    /// Creates `name` in this folder for writing; it must not exist.
    pub fn create_new(&self, name: &OsStr) -> Result<File, PathError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.folder, name, flags, Mode::from_raw_mode(0o600))
            .map(File::from)
            .map_err(|errno| io_error(&self.shown, errno.into()))
    }

    /// Opens `name` in this folder for reading and writing, if it is a regular file.
    pub fn open_existing(&self, name: &OsStr) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.folder, name, flags, Mode::empty()).ok()?;
        let file = File::from(fd);
        file.metadata().ok()?.is_file().then_some(file)
    }

    /// Puts `from` of this folder into the place of the destination, in one step.
    pub fn publish(&self, from: &OsStr) -> Result<(), PathError> {
        self.refuse_special()?;
        rustix::fs::renameat(&self.folder, from, &self.folder, &self.name)
            .map_err(|errno| io_error(&self.shown, errno.into()))
    }

    /// Removes a file of this folder; one that is not there is as good as removed.
    pub fn remove(&self, name: &OsStr) -> Result<(), PathError> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(io_error(&self.shown, errno.into())),
        }
    }

    /// The destination's own name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Bytes that this user may still write on this file system.
    pub fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(self.folder.as_fd()).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// A link would be replaced, and not what it points to, which is never what was meant; a
    /// folder or a device can't be replaced by a file.
    fn refuse_special(&self) -> Result<(), PathError> {
        let stat = match rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(io_error(&self.shown, errno.into())),
        };
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::RegularFile => Ok(()),
            rustix::fs::FileType::Symlink => Err(PathError::Link {
                path: self.shown.clone(),
            }),
            _ => Err(PathError::NotAFile {
                path: self.shown.clone(),
            }),
        }
    }
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

fn io_error(name: &str, source: io::Error) -> PathError {
    PathError::Io {
        path: name.to_owned(),
        source,
    }
}

/// The walk for kernels without `openat2`: no component may be a link.
fn walk(root: &OwnedFd, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let parts: Vec<&OsStr> = relative
        .components()
        .filter_map(|component| match component {
            Component::Normal(part) => Some(part),
            _ => None,
        })
        .collect();
    let Some((last, folders)) = parts.split_last() else {
        return rustix::fs::openat(root, ".", flags, Mode::empty());
    };
    let mut at = rustix::io::dup(root)?;
    for folder in folders {
        at = rustix::fs::openat(
            &at,
            *folder,
            folder_flags() | OFlags::NOFOLLOW,
            Mode::empty(),
        )
        .map_err(link_escapes)?;
    }
    rustix::fs::openat(&at, *last, flags | OFlags::NOFOLLOW, Mode::empty()).map_err(link_escapes)
}

/// `O_DIRECTORY | O_NOFOLLOW` says "not a folder" about a link.
fn link_escapes(errno: Errno) -> Errno {
    if errno == Errno::NOTDIR {
        Errno::LOOP
    } else {
        errno
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("root/sub")).unwrap();
        std::fs::write(dir.path().join("root/sub/file"), b"inside").unwrap();
        std::fs::write(dir.path().join("secret"), b"outside").unwrap();
        let root = Root::open(&dir.path().join("root")).unwrap();
        (dir, root)
    }

    fn text(file: File) -> String {
        io::read_to_string(file).unwrap()
    }

    #[test]
    fn a_working_folder_is_beneath_its_workspace() {
        let at = |cwd: &str| folder_beneath(Path::new("/w"), Path::new(cwd));
        assert_eq!(at("").as_deref(), Ok(Path::new("/w/")));
        assert_eq!(at("./a/b").as_deref(), Ok(Path::new("/w/a/b")));
        for cwd in ["..", "a/../..", "/", "/etc"] {
            assert!(at(cwd).is_err(), "{cwd}");
        }
    }

    #[test]
    fn names_beneath_the_root_open_in_every_spelling() {
        let (dir, root) = root();
        symlink("sub/file", dir.path().join("root/link")).unwrap();
        let absolute = root.path().join("sub/file");
        for name in ["sub/file", "./sub/file", "sub//./file", "link"] {
            assert_eq!(text(root.read(name).unwrap()), "inside", "{name}");
        }
        assert_eq!(
            text(root.read(absolute.to_str().unwrap()).unwrap()),
            "inside"
        );
    }

    #[test]
    fn names_that_escape_are_refused() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        symlink(dir.path().join("secret"), inside.join("absolute")).unwrap();
        symlink("../secret", inside.join("relative")).unwrap();
        symlink(dir.path(), inside.join("folder")).unwrap();
        let outside = dir.path().join("secret");
        for name in [
            "../secret",
            "sub/../../secret",
            "sub/..",
            outside.to_str().unwrap(),
            &format!("{}/../secret", inside.display()),
            "/etc/passwd",
            "/proc/self/root/etc/passwd",
            "absolute",
            "relative",
            "folder/secret",
        ] {
            assert!(
                matches!(root.read(name), Err(PathError::Escapes { .. })),
                "read {name}"
            );
            assert!(
                matches!(
                    root.parent_of(name),
                    Err(PathError::Escapes { .. } | PathError::Link { .. })
                ),
                "write {name}"
            );
        }
        assert_eq!(std::fs::read(outside).unwrap(), b"outside");
    }

    #[test]
    fn magic_links_of_proc_lead_nowhere() {
        let root = Root::open(Path::new("/proc")).unwrap();
        assert!(matches!(
            root.read("self/root/etc/passwd"),
            Err(PathError::Escapes { .. })
        ));
    }

    #[test]
    fn the_walk_without_openat2_refuses_every_link() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        symlink("sub", inside.join("linked")).unwrap();
        symlink("sub/file", inside.join("link")).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        assert!(walk(&root.fd, Path::new("sub/file"), flags).is_ok());
        assert_eq!(
            walk(&root.fd, Path::new("linked/file"), flags).unwrap_err(),
            Errno::LOOP
        );
        assert_eq!(
            walk(&root.fd, Path::new("link"), flags).unwrap_err(),
            Errno::LOOP
        );
    }

    /// A link that flips between inside and outside while names are resolved never leads out.
    #[test]
    fn a_link_planted_during_the_walk_never_leads_out() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), b"outside").unwrap();
        std::fs::create_dir(inside.join("honest")).unwrap();
        std::fs::write(inside.join("honest/file"), b"inside").unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let (flipped, switched) = (inside.join("flip"), inside.join("flip.new"));
        symlink("honest", &flipped).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let targets = [outside.as_path(), Path::new("honest")];
                for target in targets.iter().cycle() {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    symlink(target, &switched).unwrap();
                    std::fs::rename(&switched, &flipped).unwrap();
                }
            });
            // A busy machine may run the other thread alone for a while.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let (mut opened, mut tried) = (0, 0);
            while tried < 3000 || (opened == 0 && std::time::Instant::now() < deadline) {
                tried += 1;
                if let Ok(file) = root.read("flip/file") {
                    opened += 1;
                    assert_eq!(text(file), "inside");
                }
                if let Ok(parent) = root.parent_of("flip/new") {
                    drop(parent.create_new(OsStr::new("part")).unwrap());
                    parent.remove(OsStr::new("part")).unwrap();
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(opened > 0, "the honest side was never seen");
        });
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn special_files_are_not_files() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            inside.join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(matches!(root.read("pipe"), Err(PathError::NotAFile { .. })));
        assert!(matches!(root.read("sub"), Err(PathError::NotAFile { .. })));
        assert!(matches!(
            root.parent_of("sub"),
            Err(PathError::NotAFile { .. })
        ));
        assert!(matches!(
            root.parent_of("x/"),
            Err(PathError::NoName { .. })
        ));
        assert!(matches!(root.read(""), Err(PathError::NoName { .. })));
        assert!(matches!(root.read("a\0b"), Err(PathError::NoName { .. })));
    }

    #[test]
    fn missing_folders_are_created_and_files_appear_whole() {
        let (dir, root) = root();
        let parent = root.parent_of("a/b/c.txt").unwrap();
        let mut file = parent.create_new(OsStr::new(".part")).unwrap();
        io::Write::write_all(&mut file, b"x").unwrap();
        assert!(!dir.path().join("root/a/b/c.txt").exists());
        parent.publish(OsStr::new(".part")).unwrap();
        assert_eq!(
            std::fs::read(dir.path().join("root/a/b/c.txt")).unwrap(),
            b"x"
        );
        assert!(parent.free_bytes().unwrap() > 0);
    }
}
