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
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
                })?;
        }
        for folder in [self.root.clone(), self.run_dir()] {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }
}

/// Writes `bytes` to `path` so that a reader sees the old file or the new one, never half of it.
pub fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    use std::io::Write;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".quintet-")
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    std::fs::File::open(folder)?.sync_all()
}
