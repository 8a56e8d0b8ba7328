//! The home folder's layout. The binary decides where it is; this says what is in it.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The home folder.
#[derive(Debug, Clone)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// The layout beneath `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `config.toml`.
    pub fn config_file(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// `quintet.db`.
    pub fn database(&self) -> PathBuf {
        self.root.join("quintet.db")
    }

    /// `run/`: what exists only while a daemon runs.
    pub fn run_dir(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir().join("quintet.sock")
    }

    /// Where programs look for the daemon.
    pub fn run_file(&self) -> PathBuf {
        self.run_dir().join("quintet.json")
    }

    /// The port of the control plane's TCP listener, while there is one.
    pub fn port_file(&self) -> PathBuf {
        self.run_dir().join("quintet.port")
    }

    /// What a client of the control plane's TCP listener has to know.
    pub fn control_token_file(&self) -> PathBuf {
        self.run_dir().join("control.token")
    }

    /// The lock that one daemon holds.
    pub fn lock_file(&self) -> PathBuf {
        self.run_dir().join("quintet.lock")
    }

    /// `agents/NAME.md`.
    pub fn agents_dir(&self) -> PathBuf {
        self.root.join("agents")
    }

    /// `skills/NAME/SKILL.md`.
    pub fn skills_dir(&self) -> PathBuf {
        self.root.join("skills")
    }

    /// One folder for each agent instance.
    pub fn instances_dir(&self) -> PathBuf {
        self.root.join("instances")
    }

    /// What the worker `name` of this machine keeps: its root and its spool.
    pub fn worker_dir(&self, name: &str) -> PathBuf {
        self.root.join("workers").join(name)
    }

    /// The certificate that the daemon made for itself, and its key.
    pub fn tls_dir(&self) -> PathBuf {
        self.root.join("tls")
    }

    /// Makes the folders, private to the user; tightens the home folder where it was open to others.
    pub fn create(&self) -> io::Result<()> {
        for folder in [
            self.root.clone(),
            self.run_dir(),
            self.agents_dir(),
            self.skills_dir(),
            self.instances_dir(),
        ] {
            make_private(&folder).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
            })?;
        }
        for folder in [self.root.clone(), self.run_dir()] {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    /// Makes the root of the worker `name`, private to the user: on a machine that has only a worker
    /// no daemon has made the home folder so.
    pub fn create_worker_root(&self, name: &str) -> io::Result<PathBuf> {
        let root = self.worker_dir(name).join("root");
        make_private(&root)?;
        std::fs::set_permissions(&self.root, std::fs::Permissions::from_mode(0o700))?;
        Ok(root)
    }

    /// Removes what processes that are gone were writing when they ended. For the holder of the lock,
    /// before it writes itself: in a container it may have the id of the one before.
    pub(crate) fn sweep(&self) {
        let config = std::fs::canonicalize(self.config_file()).unwrap_or_default();
        for folder in [
            &self.root,
            &self.run_dir(),
            &self.tls_dir(),
            folder_of(&config),
        ] {
            // A folder that is not there has nothing in it.
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let writer = name.to_str().and_then(|name| {
                    name.strip_prefix(UNFINISHED)?
                        .split_once('-')?
                        .0
                        .parse()
                        .ok()
                });
                if writer.is_some_and(|pid: u32| pid == std::process::id() || !lives(pid))
                    && let Err(error) = std::fs::remove_file(entry.path())
                {
                    tracing::warn!(%error, file = %entry.path().display(), "an unfinished file stays");
                }
            }
        }
    }
}

/// How the name of a file begins that is not written to its end; the process and a dash follow.
const UNFINISHED: &str = ".quintet-";

fn lives(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Writes `bytes` to `path` so that a reader, and a crash, sees the old file or the new one, never
/// half of it. What a crash leaves beside it names its process, for [`Home::sweep`].
pub fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    use std::io::Write;
    let folder = folder_of(path);
    let mut file = tempfile::Builder::new()
        .prefix(&format!("{UNFINISHED}{}-", std::process::id()))
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    std::fs::File::open(folder)?.sync_all()
}

fn make_private(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_left_is_swept_and_what_somebody_writes_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = Home::new(folder.path().join("home"));
        home.create().expect("made");
        let elsewhere = folder.path().join("dotfiles");
        std::fs::create_dir(&elsewhere).expect("made");
        std::fs::write(elsewhere.join("config"), "").expect("written");
        std::os::unix::fs::symlink(elsewhere.join("config"), home.config_file()).expect("linked");
        let parent = std::os::unix::process::parent_id();
        let stays = [
            home.root().join(format!(".quintet-{parent}-AbCdEf")),
            home.root().join(".quintet-notes"),
        ];
        let goes = [
            home.root().join(".quintet-4194305-AbCdEf"),
            home.run_dir()
                .join(format!(".quintet-{}-AbCdEf", std::process::id())),
            elsewhere.join(".quintet-4194305-AbCdEf"),
        ];
        for file in stays.iter().chain(&goes) {
            std::fs::write(file, "half").expect("written");
        }
        home.sweep();
        assert!(stays.iter().all(|file| file.exists()));
        assert!(!goes.iter().any(|file| file.exists()));
    }
}
