//! The workspace plane in the daemon: folders of sessions with their history, and the workers that
//! hold copies of them.
//!
//! A session's folder is opened as a master when the first command needs it. Workers follow it over
//! the daemon's own port, a worker on this machine over a Unix socket beside the history. A command
//! is coherent: its worker's copy holds every earlier write before it runs, and the master holds
//! everything that it wrote before its end is told.

mod commands;
mod copies;
mod finish;
mod open_commands;
mod snapshots;
mod writes;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quintet_framing::unix;
use quintet_workspace::control::{self, Open};
use quintet_workspace::history::PrunePolicy;
use quintet_workspace::{Connection, Place, Workspace, WorkspaceConfig as MasterConfig};
use tokio::net::UnixListener;
use tokio::sync::{Mutex as AsyncMutex, OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{ByteSize, WorkspaceConfig};
use crate::home::Home;
use crate::refusal::Refusal;

pub(crate) use commands::SessionExec;
pub use copies::WorkspaceCopies;
pub(crate) use finish::{CommandEnd, Finish};
pub use snapshots::WorkspaceSnapshots;
pub(crate) use writes::ToolWrite;

/// Workspaces that are open at once; beyond it the longest unused one without a worker is closed.
const OPEN_AT_ONCE: usize = 64;

/// Connections of one workspace at once.
const REPLICAS: usize = 256;

/// Between two tries to accept when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The socket beside a history on which workers of this machine follow it.
const SOCKET: &str = "sync.sock";

/// The author of what changes in the folder itself.
const HOST: &str = "host";

/// Where a worker whose copies are in that folder has a workspace; none when it has no copies.
pub fn copy_beneath(copies: &str, workspace: &Path) -> Option<PathBuf> {
    // The id does not depend on where states are kept.
    let place = Place::of(Path::new("/"), workspace).ok()?;
    (!copies.is_empty()).then(|| Path::new(copies).join(place.id()))
}

/// The open workspaces of the daemon.
pub(crate) struct Workspaces {
    home: Home,
    /// Smaller files travel inside their notification.
    inline_below: ByteSize,
    /// Short sections without an await.
    open: Mutex<HashMap<String, Arc<OnceCell<Arc<Master>>>>>,
    started: Instant,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// One workspace that is open.
pub(crate) struct Master {
    /// Its id, which is also its name on the wire.
    pub(crate) id: String,
    /// The folder.
    pub(crate) dir: PathBuf,
    pub(crate) workspace: Workspace,
    /// Who may follow it, by the worker's name. Short sections without an await.
    followers: Mutex<HashMap<String, Follower>>,
    /// Held while a command's end is recorded: which sequences are its own depends on who ended
    /// before it.
    recording: AsyncMutex<()>,
    socket: PathBuf,
    /// Seconds after the daemon's start.
    used: AtomicU64,
    stop: CancellationToken,
}

/// A worker that was given a command in a workspace, and so may follow it.
#[derive(Clone)]
struct Follower {
    /// Opens the workspace to this worker; new whenever the workspace is opened.
    token: String,
    /// Ends its connections.
    stop: CancellationToken,
}

/// Leave to follow a workspace under a worker's name.
pub(crate) struct Following {
    master: Arc<Master>,
    worker: String,
    stop: CancellationToken,
}

impl Workspaces {
    pub(crate) fn new(home: Home, inline_below: ByteSize) -> Self {
        Self {
            home,
            inline_below,
            open: Mutex::default(),
            started: Instant::now(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// The workspace of a folder, opened where it is not yet.
    pub(crate) async fn of(&self, dir: &Path) -> Result<Arc<Master>, Refusal> {
        let place = Place::of(self.home.root(), dir)
            .map_err(|error| Refusal::Bad(format!("{}: {error}", dir.display())))?;
        self.make_room(&place.id()).await;
        let cell = self.cells().entry(place.id()).or_default().clone();
        let master = cell.get_or_try_init(|| self.start(place)).await?;
        master.used.store(self.now(), Ordering::Relaxed);
        Ok(master.clone())
    }

    /// An open workspace by its id, for the worker whose token it is.
    pub(crate) fn followed_with(&self, id: &str, token: &str) -> Option<Following> {
        let master = self.cells().get(id)?.get()?.clone();
        let (worker, stop) = master.follower_with(token)?;
        Some(Following {
            master,
            worker,
            stop,
        })
    }

    /// Serves a worker that follows a workspace, until either ends.
    pub(crate) async fn serve(&self, following: Following, connection: Connection) {
        let Following {
            master,
            worker,
            stop,
        } = following;
        let serving = master.workspace.serve_sandbox(&worker, connection, stop);
        if let Err(error) = self.tasks.track_future(serving).await {
            tracing::info!(workspace = master.id, worker, %error, "a worker stopped following");
        }
    }

    /// Ends what a worker follows; it may again when it is given another command.
    pub(crate) fn shut_out(&self, worker: &str) {
        for master in self.masters() {
            if let Some(follower) = master.followers().remove(worker) {
                follower.stop.cancel();
            }
        }
    }

    /// Forgets what the configuration says is too old or too much, in every open workspace, and
    /// frees what only that needed.
    pub(crate) async fn prune(&self, config: &WorkspaceConfig) {
        let policy = PrunePolicy {
            older_than: Some(config.history_age),
            larger_than: Some(config.history_size.bytes()),
        };
        let mut forgot = None;
        for master in self.masters() {
            match master.workspace.prune(policy).await {
                Ok(report) if report.versions > 0 => {
                    tracing::info!(
                        workspace = master.id,
                        ?report,
                        "old versions were forgotten"
                    );
                    forgot = Some(master);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(workspace = master.id, %error, "history could not be pruned");
                }
            }
        }
        // Contents are pooled, so that once is enough for all.
        let Some(master) = forgot else { return };
        match master.workspace.gc().await {
            Ok(report) => tracing::info!(?report, "contents that nothing needs were removed"),
            Err(error) => tracing::warn!(%error, "contents that nothing needs were not removed"),
        }
    }

    /// Closes them all.
    pub(crate) async fn shutdown(&self) {
        self.stop.cancel();
        let masters = self.masters();
        self.cells().clear();
        for master in masters {
            master.close().await;
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn masters(&self) -> Vec<Arc<Master>> {
        let cells = self.cells();
        cells
            .values()
            .filter_map(|cell| cell.get().cloned())
            .collect()
    }

    fn cells(&self) -> MutexGuard<'_, HashMap<String, Arc<OnceCell<Arc<Master>>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Closes the longest unused workspace that nobody follows, where another is to be opened.
    async fn make_room(&self, wanted: &str) {
        let unused = {
            let mut cells = self.cells();
            if cells.len() < OPEN_AT_ONCE || cells.contains_key(wanted) {
                return;
            }
            let oldest = cells
                .values()
                .filter_map(|cell| cell.get())
                // One reference here: no command runs in it and no worker is being served.
                .filter(|master| Arc::strong_count(master) == 1)
                .min_by_key(|master| master.used.load(Ordering::Relaxed))
                .cloned();
            if let Some(master) = &oldest {
                cells.remove(&master.id);
            }
            oldest
        };
        if let Some(master) = unused {
            master.close().await;
        }
    }

    async fn start(&self, place: Place) -> Result<Arc<Master>, Refusal> {
        let mut config = MasterConfig::new(&place.dir, &place.state_dir, &place.cas_dir);
        HOST.clone_into(&mut config.author);
        config.inline_below = self.inline_below.bytes();
        let opened = tokio::task::spawn_blocking(move || Workspace::open(&config)).await;
        let workspace = opened
            .map_err(|_| Refusal::Internal("the daemon stops".into()))?
            .map_err(|error| Refusal::Conflict(error.to_string()))?;
        let socket = place.state_dir.join(SOCKET);
        let listener = unix::bind(&socket)
            .await
            .map_err(|error| Refusal::Internal(error.to_string()))?;
        let stop = self.stop.child_token();
        let master = Arc::new(Master {
            id: place.id(),
            dir: place.dir,
            workspace: workspace.clone(),
            followers: Mutex::default(),
            recording: AsyncMutex::default(),
            socket,
            used: AtomicU64::new(self.now()),
            stop: stop.clone(),
        });
        self.tasks
            .spawn(accept(listener, workspace.clone(), stop.clone()));
        let state_dir = place.state_dir;
        self.tasks.spawn(async move {
            if let Err(error) = control::serve(Open::Master(workspace), state_dir, stop).await {
                tracing::warn!(%error, "`quintet workspace` can't ask about this workspace");
            }
        });
        Ok(master)
    }
}

impl Master {
    /// What lets a worker follow it, and nobody else.
    fn token_of(&self, worker: &str) -> String {
        let mut followers = self.followers();
        let follower = followers
            .entry(worker.to_owned())
            .or_insert_with(|| Follower {
                token: [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()]
                    .map(|part| part.simple().to_string())
                    .concat(),
                stop: self.stop.child_token(),
            });
        follower.token.clone()
    }

    fn follower_with(&self, token: &str) -> Option<(String, CancellationToken)> {
        let followers = self.followers();
        let (worker, follower) = followers
            .iter()
            .find(|(_, follower)| quintet_control::tokens_match(token, &follower.token))?;
        Some((worker.clone(), follower.stop.clone()))
    }

    fn followers(&self) -> MutexGuard<'_, HashMap<String, Follower>> {
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self) {
        self.stop.cancel();
        self.workspace.clone().close().await;
        // The listener is gone; a socket without one would only mislead.
        drop(std::fs::remove_file(&self.socket));
    }
}

/// Serves workers of this machine and user.
async fn accept(listener: UnixListener, workspace: Workspace, stop: CancellationToken) {
    let permits = Arc::new(Semaphore::new(REPLICAS));
    let serving = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = async {
                let permit = permits.clone().acquire_owned().await.ok();
                (permit, listener.accept().await)
            } => accepted,
        };
        let (permit, Ok((stream, _))) = accepted else {
            // Out of descriptors: asking again at once would only burn the processor.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if !unix::peer_is_users_own(&stream).unwrap_or(false) {
            continue;
        }
        let (workspace, stop) = (workspace.clone(), stop.clone());
        serving.spawn(async move {
            let connection = Connection::over_stream(stream);
            if let Err(error) = workspace.serve(connection, stop).await {
                tracing::info!(%error, "a worker of this machine stopped following");
            }
            drop(permit);
        });
    }
    serving.close();
    serving.wait().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_framing::{FrameReader, FrameWriter};
    use quintet_workspace::proto::{FORMAT, WireMessage};

    /// Bytes of all objects in the store.
    fn stored(home: &Path) -> u64 {
        let mut bytes = 0;
        let mut folders = vec![home.join("cas")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let entry = entry.expect("an entry");
                match entry.file_type().expect("a type").is_dir() {
                    true => folders.push(entry.path()),
                    false => bytes += entry.metadata().expect("there").len(),
                }
            }
        }
        bytes
    }

    /// Bytes that do not compress.
    fn noise(seed: u64) -> Vec<u8> {
        let mut state = seed;
        let word = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            Some((mixed ^ (mixed >> 27)).to_le_bytes())
        };
        std::iter::from_fn(word).take(1 << 17).flatten().collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn files_travel_along_as_far_as_the_configuration_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let (home, dir) = (folder.path().join("home"), folder.path().join("work"));
        std::fs::create_dir(&dir).expect("made");
        std::fs::write(dir.join("file"), "ten bytes.").expect("written");
        for (below, goes_along) in [(10, false), (11, true)] {
            let workspaces = Workspaces::new(Home::new(&home), ByteSize::from_bytes(below));
            let master = workspaces.of(&dir).await.expect("opened");
            let stream = unix::dial(&master.socket).await.expect("connected");
            let (read, write) = stream.into_split();
            let request = WireMessage::CatchupRequest {
                sandbox_id: "one".into(),
                since_sequence: 0,
            };
            let mut writer = FrameWriter::new(write, FORMAT);
            let payload = request.encode().expect("small");
            writer.send(payload).await.expect("sent");
            let mut reader = FrameReader::new(read, FORMAT);
            let answer = reader.next().await.expect("read").expect("open");
            let WireMessage::Notification { inline_content, .. } =
                WireMessage::decode(&answer).expect("a message")
            else {
                panic!("the file is announced")
            };
            assert_eq!(inline_content.is_some(), goes_along);
            drop((reader, writer, master));
            workspaces.shutdown().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_forgotten_takes_no_room_any_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let (home, dir) = (folder.path().join("home"), folder.path().join("work"));
        std::fs::create_dir(&dir).expect("made");
        let workspaces = Workspaces::new(Home::new(&home), ByteSize::from_bytes(4096));
        let master = workspaces.of(&dir).await.expect("opened");
        for version in 0..4 {
            std::fs::write(dir.join("file"), noise(version)).expect("written");
            master.workspace.flush().await.expect("recorded");
        }
        let before = stored(&home);
        assert!(before >= 4 << 20, "{before}");
        let config = WorkspaceConfig {
            history_age: Duration::from_secs(3600),
            history_size: ByteSize::from_bytes(1),
            inline_below: ByteSize::from_bytes(4096),
            patience: Duration::from_secs(10),
        };
        workspaces.prune(&config).await;
        let after = stored(&home);
        assert!(after < 2 << 20, "{after} of {before} bytes are left");
        let kept = std::fs::read(dir.join("file")).expect("there");
        assert_eq!(kept, noise(3));
        workspaces.shutdown().await;
    }
}
