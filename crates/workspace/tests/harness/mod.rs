//! A master and replicas on real folders, connected by Unix sockets.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of it"
)]

pub mod process;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quintet_workspace::replica::UnixDial;
use quintet_workspace::{Connection, Opening, Replica, ReplicaConfig, Workspace, WorkspaceConfig};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub const LONG: Duration = Duration::from_secs(120);

/// A folder with a master in it; everything ends when it is dropped.
pub struct Host {
    pub home: tempfile::TempDir,
    pub workspace: Workspace,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// A replica that runs until it is dropped or stopped.
pub struct Mirror {
    pub dir: PathBuf,
    pub state_dir: PathBuf,
    pub replica: Replica,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Host {
    pub async fn new() -> Self {
        Self::open(tempfile::tempdir().unwrap()).await
    }

    pub async fn open(home: tempfile::TempDir) -> Self {
        Self::open_with(home, |_| {}).await
    }

    pub async fn open_with(
        home: tempfile::TempDir,
        change: impl FnOnce(&mut WorkspaceConfig),
    ) -> Self {
        std::fs::create_dir_all(home.path().join("work")).unwrap();
        let mut config = WorkspaceConfig::new(
            home.path().join("work"),
            home.path().join("state"),
            home.path().join("cas"),
        );
        change(&mut config);
        let workspace = tokio::task::spawn_blocking(move || Workspace::open(&config).unwrap())
            .await
            .unwrap();
        Self::serving(home, workspace)
    }

    /// Serves replicas at once, while the folder is still being read.
    pub async fn start(home: tempfile::TempDir) -> (Self, Opening) {
        let config = WorkspaceConfig::new(
            home.path().join("work"),
            home.path().join("state"),
            home.path().join("cas"),
        );
        let started = tokio::task::spawn_blocking(move || Workspace::start(&config).unwrap());
        let (workspace, opening) = started.await.unwrap();
        (Self::serving(home, workspace), opening)
    }

    fn serving(home: tempfile::TempDir, workspace: Workspace) -> Self {
        let socket = home.path().join("master.sock");
        drop(std::fs::remove_file(&socket));
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (serving, stopped) = (workspace.clone(), stop.clone());
        tasks.spawn(async move {
            let mut sessions = JoinSet::new();
            loop {
                tokio::select! {
                    () = stopped.cancelled() => break,
                    accepted = listener.accept() => {
                        let (workspace, stopped) = (serving.clone(), stopped.clone());
                        let connection = Connection::over_stream(accepted.unwrap().0);
                        sessions.spawn(async move {
                            if let Err(error) = workspace.serve(connection, stopped).await {
                                eprintln!("session: {error}");
                            }
                        });
                    }
                    Some(_) = sessions.join_next() => {}
                }
            }
        });
        Self {
            home,
            workspace,
            stop,
            tasks,
        }
    }

    /// Stops everything; the folder stays.
    pub async fn stop(mut self) -> tempfile::TempDir {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.workspace.close().await;
        self.home
    }

    pub fn dir(&self) -> PathBuf {
        self.home.path().join("work")
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("master.sock")
    }

    pub async fn mirror(&self, name: &str) -> Mirror {
        Mirror::start(self.home.path(), name).await
    }
}

impl Mirror {
    pub async fn start(home: &Path, name: &str) -> Self {
        Self::following(home, name, home.join("master.sock")).await
    }

    /// The same, of a master that is elsewhere.
    pub async fn following(home: &Path, name: &str, socket: PathBuf) -> Self {
        let (dir, state_dir) = (home.join(name), home.join(format!("{name}-state")));
        let mut config = ReplicaConfig::new(&dir, &state_dir, name);
        config.master = Some(socket.display().to_string());
        let (replica, runner) =
            tokio::task::spawn_blocking(move || Replica::open(&config).unwrap())
                .await
                .unwrap();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (dial, stopped) = (UnixDial { path: socket }, stop.clone());
        tasks.spawn(async move { runner.run(dial, stopped).await.unwrap() });
        Self {
            dir,
            state_dir,
            replica,
            stop,
            tasks,
        }
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    /// Everything of the master is here, and everything of here is there.
    pub async fn agree(&self) -> u64 {
        self.replica.write_back_and_wait(LONG).await.unwrap();
        self.replica.barrier(LONG).await.unwrap().sequence
    }
}

/// Every path of a folder with what it holds, `.quintet` left out.
pub fn tree(dir: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .strip_prefix(dir)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            if name == ".quintet" {
                continue;
            }
            let metadata = path.symlink_metadata().unwrap();
            let mode = metadata.permissions().mode() & 0o777;
            let what = if metadata.is_symlink() {
                format!("-> {}", std::fs::read_link(&path).unwrap().display())
            } else if metadata.is_dir() {
                folders.push(path);
                format!("{mode:o} folder")
            } else {
                let bytes = std::fs::read(&path).unwrap();
                format!("{mode:o} {} {}", bytes.len(), blake3::hash(&bytes).to_hex())
            };
            all.insert(name, what);
        }
    }
    all
}

/// Bytes that look random and are the same everywhere.
pub fn noise(seed: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(seed.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

pub fn temporary_files(dir: &Path) -> Vec<PathBuf> {
    let tmp = dir.join(".quintet/tmp");
    std::fs::read_dir(tmp)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}
