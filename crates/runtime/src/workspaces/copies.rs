//! A worker's copies of workspaces: one folder and one replica for each.
//!
//! A copy is followed while commands use it and some time after that; then it is closed, and its
//! files stay. The next command opens it again, and finds what changed meanwhile on both sides.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quintet_sandbox::proto::frame::{Mirror, Mirrored};
use quintet_sandbox::tls::pinned_client;
use quintet_sandbox::worker::{Mirrors, WorkerConfig};
use quintet_workspace::replica::{
    Dial, DialFailed, ReplicaOpError, ReplicaStatus, UnixDial, WebSocketDial,
};
use quintet_workspace::{Connection, Replica, ReplicaConfig};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// However well it goes on, one step of a command ends after this.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// A copy that no command has needed for this long is closed; the next one opens it again.
const IDLE: Duration = Duration::from_secs(10 * 60);

/// Copies that are followed at once; beyond it the longest unused one is closed.
const OPEN_AT_ONCE: usize = 32;

/// Where copies are, beneath the worker's root.
const FOLDER: &str = "workspaces";

/// The copies of one worker. Dropped, they are no longer followed; their files stay.
pub struct WorkspaceCopies {
    root: PathBuf,
    state: PathBuf,
    worker: String,
    server_url: String,
    tls: Option<Arc<rustls::ClientConfig>>,
    slots: Arc<Slots>,
    idle: Duration,
    sweeping: Once,
    tasks: TaskTracker,
    stop: DropGuard,
}

/// The place of each copy, by its workspace.
#[derive(Default)]
struct Slots {
    /// Short sections without an await.
    all: Mutex<HashMap<String, Arc<Slot>>>,
}

/// Held while a copy is opened and closed, so that a folder never has two replicas.
type Slot = AsyncMutex<Option<Arc<Copy>>>;

struct Copy {
    replica: Replica,
    dir: PathBuf,
    way: Arc<Way>,
    /// When a command last entered or left it.
    used: Mutex<Instant>,
    /// Commands that run in it.
    commands: AtomicUsize,
}

/// How a copy reaches its master now; a restarted daemon has another token.
struct Way {
    server_url: String,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Held to read and to replace.
    latest: Mutex<Mirror>,
    /// A command has come, so that the daemon is there: a copy that lost it dials at once.
    wanted: Notify,
}

impl std::fmt::Debug for WorkspaceCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkspaceCopies")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl WorkspaceCopies {
    /// Copies for a worker, in `workspaces/{id}` beneath its root, where commands can write. What
    /// is known of them is in `state`, out of the commands' reach.
    pub fn of(worker: &WorkerConfig, state: PathBuf) -> Result<Self, rustls::Error> {
        let pin = worker.token.as_ref().and_then(|token| token.fingerprint());
        let tls = match pin {
            Some(fingerprint) => Some(pinned_client(fingerprint)?),
            None => worker.tls.clone(),
        };
        Ok(Self {
            root: worker.root.clone(),
            state,
            worker: worker.daemon_id.clone(),
            server_url: worker.server_url.clone(),
            tls,
            slots: Arc::default(),
            idle: IDLE,
            sweeping: Once::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new().drop_guard(),
        })
    }

    /// The copy that a command names, opened where it is not.
    async fn copy(&self, mirror: &Mirror) -> Result<Arc<Copy>, String> {
        self.sweeping.call_once(|| {
            let sweep = sweep(self.slots.clone(), self.idle, self.following());
            self.tasks.spawn(sweep);
        });
        let slot = self.slots.of(&mirror.workspace);
        let mut held = slot.lock().await;
        let copy = match &*held {
            Some(copy) => copy.clone(),
            None => {
                self.slots.make_room().await;
                let copy = Arc::new(self.start(mirror).await?);
                *held = Some(copy.clone());
                copy
            }
        };
        copy.touch();
        *copy
            .way
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = mirror.clone();
        copy.way.wanted.notify_one();
        Ok(copy)
    }

    fn following(&self) -> CancellationToken {
        self.stop.token().clone()
    }

    async fn start(&self, mirror: &Mirror) -> Result<Copy, String> {
        let id = &mirror.workspace;
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("{id:?} is no workspace's id"));
        }
        let dir = self.root.join(FOLDER).join(id);
        let config = ReplicaConfig::new(&dir, self.state.join(id), &self.worker);
        let opened = tokio::task::spawn_blocking(move || Replica::open(&config)).await;
        let (replica, runner) = opened
            .map_err(|_| "the worker stops".to_owned())?
            .map_err(|error| format!("the copy in {} can't be used: {error}", dir.display()))?;
        let way = Arc::new(Way {
            server_url: self.server_url.clone(),
            tls: self.tls.clone(),
            latest: Mutex::new(mirror.clone()),
            wanted: Notify::new(),
        });
        let running = runner.run(Latest(way.clone()), self.following());
        self.tasks.spawn(async move {
            if let Err(error) = running.await {
                tracing::warn!(%error, "a copy of a workspace is not followed any more");
            }
        });
        Ok(Copy {
            replica,
            dir,
            way,
            used: Mutex::new(Instant::now()),
            commands: AtomicUsize::new(0),
        })
    }
}

impl Copy {
    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn of(&self, workspace: &str) -> Arc<Slot> {
        self.all().entry(workspace.to_owned()).or_default().clone()
    }

    /// Closes those that no command has needed for so long.
    async fn close_idle(&self, idle: Duration) {
        for (slot, used) in self.unused() {
            if used.elapsed() >= idle {
                close(&slot, |copy| copy.commands.load(Ordering::Relaxed) == 0).await;
            }
        }
    }

    /// Closes the longest unused ones where there are too many. One in which a command runs is
    /// opened again at the command's end.
    async fn make_room(&self) {
        let unused = self.unused();
        let over = (unused.len() + 1).saturating_sub(OPEN_AT_ONCE);
        for (slot, _) in unused.into_iter().take(over) {
            close(&slot, |_| true).await;
        }
    }

    /// The open ones that nobody is entering or leaving, the longest unused first.
    fn unused(&self) -> Vec<(Arc<Slot>, Instant)> {
        let mut all = self.all();
        let mut open = Vec::new();
        all.retain(|_, slot| {
            let Ok(held) = slot.try_lock() else {
                return true;
            };
            match &*held {
                Some(copy) => {
                    open.push((slot.clone(), copy.used()));
                    true
                }
                // Somebody who is about to open it has it too.
                None => Arc::strong_count(slot) > 1,
            }
        });
        open.sort_by_key(|(_, used)| *used);
        open
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes a copy, unless it is in use or `may` says no.
async fn close(slot: &Slot, may: impl FnOnce(&Copy) -> bool) {
    let Ok(mut held) = slot.try_lock() else {
        return;
    };
    // Another reference is a step of a command under way.
    let Some(copy) = held.take_if(|copy| Arc::strong_count(copy) == 1 && may(copy)) else {
        return;
    };
    // Waits for the thread that owns its files; until then nobody may open it again.
    let closed = tokio::task::spawn_blocking(move || drop(copy)).await;
    if closed.is_err() {
        tracing::warn!("a copy of a workspace was not closed in order");
    }
}

async fn sweep(slots: Arc<Slots>, idle: Duration, stop: CancellationToken) {
    let mut timer = tokio::time::interval(idle / 4);
    while stop.run_until_cancelled(timer.tick()).await.is_some() {
        slots.close_idle(idle).await;
    }
}

#[async_trait]
impl Mirrors for WorkspaceCopies {
    fn folder(&self) -> PathBuf {
        let folder = self.root.join(FOLDER);
        // A shell tells its folder without links.
        let root = self.root.canonicalize();
        root.map_or(folder, |root| root.join(FOLDER))
    }

    async fn enter(&self, mirror: &Mirror) -> Result<(PathBuf, u64), String> {
        let copy = self.copy(mirror).await?;
        let passed = while_it_moves(&copy, mirror, |patience| copy.replica.barrier(patience)).await;
        match passed {
            Ok(passed) => {
                copy.commands.fetch_add(1, Ordering::Relaxed);
                Ok((copy.dir.clone(), passed.sequence))
            }
            Err(Stuck::Silent(status, after)) => Err(behind(&status, after)),
            Err(Stuck::Failed(error)) => Err(format!("the workspace's copy failed: {error}")),
        }
    }

    async fn leave(&self, mirror: &Mirror, before: u64) -> Mirrored {
        let mut mirrored = Mirrored {
            before,
            after: before,
            ..Mirrored::default()
        };
        let copy = match self.copy(mirror).await {
            Ok(copy) => copy,
            Err(error) => {
                mirrored.behind = Some(error);
                return mirrored;
            }
        };
        let written = while_it_moves(&copy, mirror, |patience| {
            copy.replica.write_back_and_wait(patience)
        });
        let written = written.await;
        // At the least: it may have been closed and opened since the command began.
        let _ = copy
            .commands
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
                running.checked_sub(1)
            });
        copy.touch();
        match written {
            Ok(report) => {
                mirrored.after = report.sequence.max(before);
                let refused = report.rejected.into_iter();
                mirrored.refused = refused
                    .map(|(path, why)| format!("{path}: {why}"))
                    .collect();
            }
            Err(Stuck::Silent(status, after)) => {
                mirrored.behind = Some(unwritten(&status, after));
            }
            Err(Stuck::Failed(error)) => {
                mirrored.behind = Some(format!("the workspace's copy failed: {error}"));
            }
        }
        mirrored
    }
}

/// Why a step did not end well.
enum Stuck {
    /// Nothing moved for so long.
    Silent(Box<ReplicaStatus>, Duration),
    Failed(ReplicaOpError),
}

/// Repeats a step for as long as the copy gets nearer to its master; a large first copy takes its
/// time, a master that is out of reach does not get more than the mirror's wait.
async fn while_it_moves<T, F>(
    copy: &Copy,
    mirror: &Mirror,
    step: impl Fn(Duration) -> F,
) -> Result<T, Stuck>
where
    F: Future<Output = Result<T, ReplicaOpError>>,
{
    let patience = Duration::from_millis(mirror.wait_ms);
    let begun = Instant::now();
    let mut seen = None;
    loop {
        match step(patience).await {
            Ok(done) => return Ok(done),
            Err(ReplicaOpError::Timeout(_)) => {}
            Err(error) => return Err(Stuck::Failed(error)),
        }
        let status = copy.replica.status().await.map_err(Stuck::Failed)?;
        let place = (
            status.sequence,
            status.incoming,
            status.outgoing,
            status.bytes,
        );
        let moved = seen.replace(place).is_some_and(|before| before != place);
        let first = begun.elapsed() < patience * 2 && status.connected && status.incoming > 0;
        if !(moved || first) || !status.connected || begun.elapsed() > LONGEST {
            return Err(Stuck::Silent(Box::new(status), begun.elapsed()));
        }
    }
}

fn behind(status: &ReplicaStatus, after: Duration) -> String {
    let after = after.as_secs();
    match (&status.failure, status.connected) {
        (Some(failure), _) => format!("the copy on the worker can't be written: {failure}"),
        (None, true) if status.incoming == 0 => {
            format!("the host did not tell the worker that it has every file after {after} s")
        }
        (None, true) => format!(
            "the worker is {} behind after {after} s",
            counted(status.incoming, "file")
        ),
        (None, false) => format!(
            "the worker does not reach the workspace after {after} s: {}",
            status
                .last_failure
                .as_deref()
                .unwrap_or("no connection yet")
        ),
    }
}

fn unwritten(status: &ReplicaStatus, after: Duration) -> String {
    let after = after.as_secs();
    let reach = match status.connected {
        true => "",
        false => "; it is out of reach and they follow when it is back",
    };
    let left = status.outgoing + status.pending;
    let are = if left == 1 { "is" } else { "are" };
    format!(
        "{} of the command {are} not at the host after {after} s{reach}",
        counted(left, "change")
    )
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    }
}

/// Dials as the last command said.
struct Latest(Arc<Way>);

#[async_trait]
impl Dial for Latest {
    async fn dial(&self) -> Result<Connection, DialFailed> {
        let way = &self.0;
        let mirror = way
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(path) = mirror.socket {
            let path = PathBuf::from(path);
            return UnixDial { path }.dial().await;
        }
        let base = way
            .server_url
            .strip_suffix("/ws")
            .unwrap_or(&way.server_url);
        let dial = WebSocketDial {
            url: format!("{base}/workspaces/{}", mirror.workspace),
            token: Some(mirror.token),
            tls: way.tls.clone(),
        };
        dial.dial().await
    }

    async fn wanted(&self) {
        self.0.wanted.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use quintet_workspace::watch::WatchMode;
    use quintet_workspace::{Workspace, WorkspaceConfig};
    use tokio::net::UnixListener;
    use tokio::task::JoinSet;

    use super::*;

    /// Far beyond what anything here takes.
    const LONG: Duration = Duration::from_secs(30);

    /// A workspace that is served on a socket.
    struct Host {
        folder: tempfile::TempDir,
        workspace: Workspace,
        _serving: JoinSet<()>,
    }

    impl Host {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            std::fs::create_dir(at("project")).unwrap();
            let config = WorkspaceConfig::new(at("project"), at("state"), at("cas"));
            let workspace = Workspace::open(&config).unwrap();
            let listener = UnixListener::bind(at("sync.sock")).unwrap();
            let mut serving = JoinSet::new();
            let served = workspace.clone();
            serving.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let workspace = served.clone();
                    connections.spawn(async move {
                        let connection = Connection::over_stream(stream);
                        workspace.serve(connection, CancellationToken::new()).await
                    });
                }
            });
            Self {
                folder,
                workspace,
                _serving: serving,
            }
        }

        fn mirror(&self, id: &str) -> Mirror {
            let socket = self.folder.path().join("sync.sock");
            Mirror {
                workspace: id.to_owned(),
                token: String::new(),
                socket: Some(socket.display().to_string()),
                wait_ms: 10_000,
            }
        }

        async fn followers(&self) -> usize {
            self.workspace.status().await.unwrap().replicas.len()
        }

        async fn has_followers(&self, count: usize) {
            let waiting = async {
                while self.followers().await != count {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(LONG, waiting).await.unwrap();
        }
    }

    fn copies(folder: &tempfile::TempDir, idle: Duration) -> WorkspaceCopies {
        let at = |name: &str| folder.path().join(name);
        let config = WorkerConfig::new("ws://127.0.0.1:1/ws", "w", at("root"), at("spool"));
        let mut copies = WorkspaceCopies::of(&config, at("copies")).unwrap();
        copies.idle = idle;
        copies
    }

    #[test]
    fn every_step_that_waits_in_vain_is_named() {
        let status = |connected, incoming, outgoing| ReplicaStatus {
            connected,
            last_failure: None,
            sequence: 7,
            files: 1,
            bytes: 1,
            current: false,
            incoming,
            outgoing,
            pending: 1,
            conflicts: 0,
            watch: WatchMode::Events,
            problems: Vec::new(),
            failure: None,
        };
        let refused = ReplicaStatus {
            last_failure: Some("connection refused".to_owned()),
            ..status(false, 0, 2)
        };
        let full = ReplicaStatus {
            failure: Some("no space left".to_owned()),
            ..status(true, 3, 0)
        };
        for (status, before, after) in [
            (
                status(true, 3, 0),
                "the worker is 3 files behind after 10 s",
                "1 change of the command is not at the host after 10 s",
            ),
            (
                status(true, 0, 1),
                "the host did not tell the worker that it has every file after 10 s",
                "2 changes of the command are not at the host after 10 s",
            ),
            (
                refused,
                "the worker does not reach the workspace after 10 s: connection refused",
                "3 changes of the command are not at the host after 10 s; it is out of reach and they follow when it is back",
            ),
            (
                full,
                "the copy on the worker can't be written: no space left",
                "1 change of the command is not at the host after 10 s",
            ),
        ] {
            let patience = Duration::from_secs(10);
            assert_eq!(behind(&status, patience), before);
            assert_eq!(unwritten(&status, patience), after);
        }
    }

    #[tokio::test]
    async fn an_idle_copy_is_closed_and_opened_again_with_what_changed() {
        let (host, folder) = (Host::new(), tempfile::tempdir().unwrap());
        let copies = copies(&folder, Duration::from_millis(40));
        let mirror = host.mirror("a1");
        let (dir, before) = copies.enter(&mirror).await.unwrap();
        std::fs::write(dir.join("out"), "one").unwrap();
        host.has_followers(1).await;
        let left = copies.leave(&mirror, before).await;
        assert_eq!((left.behind, left.after > before), (None, true));
        host.has_followers(0).await;

        std::fs::write(host.folder.path().join("project/in"), "two").unwrap();
        let (dir, before) = copies.enter(&mirror).await.unwrap();
        assert_eq!(std::fs::read_to_string(dir.join("in")).unwrap(), "two");
        // A command runs in it: it stays, however long that takes.
        for _ in 0..5 {
            copies.slots.close_idle(Duration::ZERO).await;
        }
        assert_eq!(host.followers().await, 1);
        copies.leave(&mirror, before).await;
        host.has_followers(0).await;
    }

    #[tokio::test]
    async fn a_command_is_a_reason_to_dial_again_at_once() {
        let (host, folder) = (Host::new(), tempfile::tempdir().unwrap());
        let copies = copies(&folder, LONG);
        // The way that the copy knows leads nowhere, as after a restart of the daemon: by itself it
        // would wait for half a minute in the end.
        let gone = folder.path().join("gone");
        let listener = UnixListener::bind(&gone).unwrap();
        let nowhere = Mirror {
            socket: Some(gone.display().to_string()),
            wait_ms: 1,
            ..host.mirror("a1")
        };
        for _ in 0..6 {
            copies.enter(&nowhere).await.unwrap_err();
            let dialled = tokio::time::timeout(LONG / 6, listener.accept()).await;
            drop(dialled.unwrap().unwrap());
        }
        copies.enter(&host.mirror("a1")).await.unwrap();
    }

    #[tokio::test]
    async fn only_so_many_are_followed_at_once() {
        let (host, folder) = (Host::new(), tempfile::tempdir().unwrap());
        let copies = copies(&folder, LONG);
        // In the first one a command runs all the time.
        let first = host.mirror("first");
        let (dir, before) = copies.enter(&first).await.unwrap();
        for index in 0..OPEN_AT_ONCE {
            let mirror = host.mirror(&format!("more{index}"));
            let (_, before) = copies.enter(&mirror).await.unwrap();
            copies.leave(&mirror, before).await;
        }
        host.has_followers(OPEN_AT_ONCE).await;
        std::fs::write(dir.join("late"), "but not lost").unwrap();
        let left = copies.leave(&first, before).await;
        assert_eq!((left.behind, left.after > before), (None, true));
        let late = host.folder.path().join("project/late");
        assert_eq!(std::fs::read_to_string(late).unwrap(), "but not lost");
        host.has_followers(OPEN_AT_ONCE).await;
    }
}
