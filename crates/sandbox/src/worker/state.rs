//! What all connections, jobs and transfers of a worker share.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;

use super::config::WorkerConfig;
use super::delivery::{Attachment, Collect, Delivery, Log, Relay};
use super::job::{self, JobCommand, JobSpec};
use super::jobs::{AdmitError, COMMANDS, JobKind, Jobs};
use super::process::Spawner;
use super::spool::{OutputLog, SpoolQuota};
use super::tree::MARK;
use super::upload::Names;
use crate::isolate::Program;
use crate::lanes::Link;
use crate::paths::Root;
use crate::proto::frame::{Mirror, StreamId};
use crate::proto::{Dialect, FormerConnection};

pub(crate) struct WorkerState {
    pub(crate) config: WorkerConfig,
    pub(crate) root: Root,
    pub(crate) spawner: Spawner,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) spool: Arc<SpoolQuota>,
    pub(crate) tasks: TaskTracker,
    pub(crate) transfers: Arc<Semaphore>,
    pub(crate) uploading: Names,
    /// Tells the connections of this run of the program from those of any other.
    pub(crate) run: uuid::Uuid,
    /// Short sections without an await.
    pub(crate) former: Mutex<Option<FormerConnection>>,
}

/// A command as either version of the protocol asks for it.
pub(crate) struct CommandRequest {
    pub(crate) id: String,
    pub(crate) command: String,
    pub(crate) timeout: Duration,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: Option<String>,
    pub(crate) stdin: bool,
    pub(crate) mirror: Option<Mirror>,
}

/// A shell as either version asks for it.
pub(crate) struct ShellRequest {
    pub(crate) id: String,
    pub(crate) rows: u16,
    pub(crate) cols: u16,
    pub(crate) term: String,
    pub(crate) cwd: Option<String>,
    pub(crate) mirror: Option<Mirror>,
}

/// Who asked, and how to answer.
pub(crate) enum Asker {
    V1 { link: Link, dialect: Dialect },
    V2 { link: Link, stream: StreamId },
}

/// Why a command or shell is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("timeout_secs must be at least 1")]
    ZeroTimeout,
    #[error("an environment name is empty or holds '=' or a NUL byte: {0:?}")]
    BadEnv(String),
    #[error(transparent)]
    Admit(#[from] AdmitError),
}

/// Longer than anything is meant to run, and short enough to add to a clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl WorkerState {
    /// The name of a connection, unique over all workers.
    pub(crate) fn connection_name(&self, link: u64) -> String {
        format!("{}-{link}", self.run.simple())
    }

    /// The registered connection before the current one.
    pub(crate) fn former(&self) -> MutexGuard<'_, Option<FormerConnection>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start_command(
        self: &Arc<Self>,
        request: CommandRequest,
        asker: Asker,
    ) -> Result<mpsc::Sender<JobCommand>, StartError> {
        if request.timeout.is_zero() {
            return Err(StartError::ZeroTimeout);
        }
        let mut env = self.environment(&request.id);
        for (key, value) in request.env {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return Err(StartError::BadEnv(key));
            }
            env.retain(|(name, _)| *name != *key);
            env.push((key.into(), value.into()));
        }
        let spec = JobSpec {
            kind: JobKind::Exec,
            program: Program {
                path: PathBuf::from("/bin/sh"),
                args: vec!["-c".into(), request.command.clone().into()],
                env,
                cwd: self.start_folder(request.cwd, request.mirror.as_ref()),
            },
            id: request.id,
            stdin: request.stdin,
            size: (0, 0),
            timeout: Some(request.timeout.min(MAX_TIMEOUT)),
            keep: self.config.quotas.keep,
            mirror: request.mirror,
        };
        self.start(spec, &request.command, asker)
    }

    pub(crate) fn start_shell(
        self: &Arc<Self>,
        request: ShellRequest,
        asker: Asker,
    ) -> Result<mpsc::Sender<JobCommand>, StartError> {
        let mut env = self.environment(&request.id);
        env.push(("TERM".into(), request.term.into()));
        let spec = JobSpec {
            kind: JobKind::Shell,
            program: Program {
                path: self.shell(),
                args: vec!["-l".into()],
                env,
                cwd: self.start_folder(request.cwd, request.mirror.as_ref()),
            },
            id: request.id,
            stdin: true,
            size: (request.rows, request.cols),
            timeout: None,
            keep: self.config.quotas.keep,
            mirror: request.mirror,
        };
        self.start(spec, "", asker)
    }

    fn start(
        self: &Arc<Self>,
        spec: JobSpec,
        line: &str,
        asker: Asker,
    ) -> Result<mpsc::Sender<JobCommand>, StartError> {
        let (sender, commands) = mpsc::channel(COMMANDS);
        let place = self.jobs.admit(&spec.id, spec.kind, line, sender.clone())?;
        let id = spec.id.clone();
        let delivery = match (asker, spec.kind) {
            (Asker::V1 { link, dialect }, JobKind::Exec) => Delivery::Collect(Collect {
                link,
                id,
                dialect,
                kept: Default::default(),
                dropped: [0; 2],
            }),
            (Asker::V1 { link, dialect }, JobKind::Shell) => Delivery::Relay(Relay {
                link,
                id,
                dialect,
                pending: None,
            }),
            (Asker::V2 { link, stream }, _) => {
                let file = self
                    .config
                    .spool_dir
                    .join(format!("job-{}", file_safe(&id)));
                let log = OutputLog::new(file, self.spool.clone());
                let reader = Attachment::new(link, stream);
                Delivery::Log(Box::new(Log::new(log, reader, self.jobs.clone())))
            }
        };
        self.tasks
            .spawn(job::run(self.clone(), spec, delivery, place, commands));
        Ok(sender)
    }

    /// The worker's own variables and the mark by which a job's processes are found.
    fn environment(&self, job: &str) -> Vec<(OsString, OsString)> {
        let mut env = self.config.env.clone();
        // A NUL would end the variable early and let the mark of another job through.
        let mark = job.replace('\0', "");
        env.push((MARK.into(), mark.into()));
        env
    }

    /// Where a program starts; beneath a copy, whose place is known when it has been entered.
    fn start_folder(&self, cwd: Option<String>, mirror: Option<&Mirror>) -> PathBuf {
        match mirror {
            Some(_) => PathBuf::from(cwd.unwrap_or_default()),
            None => self.folder(cwd.as_deref()),
        }
    }

    /// Commands may work anywhere that isolation lets them; only a relative name is the root's.
    fn folder(&self, cwd: Option<&str>) -> PathBuf {
        match cwd {
            None | Some("") => self.root.path().to_owned(),
            Some(cwd) => self.root.path().join(cwd),
        }
    }

    fn shell(&self) -> PathBuf {
        let candidates = [
            self.config.shell.as_deref(),
            Some(Path::new("/bin/bash")),
            Some(Path::new("/usr/bin/bash")),
        ];
        candidates
            .into_iter()
            .flatten()
            .find(|path| path.is_file())
            .map_or_else(|| PathBuf::from("/bin/sh"), Path::to_owned)
    }
}

/// A file name for an id that a hub chose: its hash, since an id may hold anything.
pub(crate) fn file_safe(id: &str) -> String {
    blake3::hash(id.as_bytes()).to_hex()[..32].to_owned()
}
