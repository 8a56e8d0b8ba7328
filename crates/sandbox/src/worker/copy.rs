//! The copy of a workspace that a command runs in: entered before it starts, left after its end.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::config::Mirrors;
use super::job::JobCommand;
use super::state::WorkerState;
use crate::paths::folder_beneath;
use crate::proto::frame::{Mirror, Mirrored};

/// A copy that holds all that its master had when it was entered.
pub(crate) struct Entered {
    mirrors: Arc<dyn Mirrors>,
    mirror: Mirror,
    folder: PathBuf,
    before: u64,
}

impl Entered {
    pub(crate) async fn enter(worker: &WorkerState, mirror: &Mirror) -> Result<Self, String> {
        let Some(mirrors) = worker.config.mirrors.clone() else {
            return Err("this worker keeps no copies of workspaces".to_owned());
        };
        let (folder, before) = mirrors.enter(mirror).await?;
        Ok(Self {
            mirrors,
            mirror: mirror.clone(),
            folder,
            before,
        })
    }

    /// The folder of a command whose own is `cwd`, relative to the workspace.
    pub(crate) fn folder(&self, cwd: &Path) -> Result<PathBuf, String> {
        folder_beneath(&self.folder, cwd)
    }

    /// Waits until the master has what was written.
    pub(crate) async fn leave(self) -> Mirrored {
        self.mirrors.leave(&self.mirror, self.before).await
    }
}

/// Returns when the job is told to stop before it has begun; all else it is told waits in `told`.
///
/// A hub that goes away meanwhile stops it too: nothing has run, and the hub asks again.
pub(crate) async fn stopped(
    commands: &mut mpsc::Receiver<JobCommand>,
    told: &mut VecDeque<JobCommand>,
) {
    loop {
        match commands.recv().await {
            None | Some(JobCommand::Cancel(_) | JobCommand::Shutdown | JobCommand::LinkLost(_)) => {
                return;
            }
            Some(command) => told.push_back(command),
        }
    }
}
