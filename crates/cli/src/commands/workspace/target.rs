//! Reaching a workspace: through the program that has it open, or by opening it here.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quintet_workspace::control::{self, AskError, NotDialled, Open, Progress, Request};
use quintet_workspace::master::OpenError;
use quintet_workspace::{Place, Replica, ReplicaConfig, Role, Workspace, WorkspaceConfig};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::Context;
use crate::error::{CommandError, ErrorKind};
use crate::output::stderr_is_terminal;

/// How long another command that has the folder open for a moment is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where content goes.
#[derive(Debug, Clone)]
pub(super) enum Content {
    None,
    Stdout,
    Kept(Kept),
}

/// Content in memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Kept {
    pub(super) fn take(&self) -> Vec<u8> {
        let mut bytes = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *bytes)
    }
}

impl Write for Content {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::None => Ok(bytes.len()),
            Self::Stdout => io::stdout().write(bytes),
            Self::Kept(kept) => {
                let mut kept = kept
                    .0
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                kept.extend_from_slice(bytes);
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().flush(),
            Self::None | Self::Kept(_) => Ok(()),
        }
    }
}

/// A workspace or replica of this machine.
pub(super) struct Target {
    pub(super) place: Place,
    role: Role,
    opened: Option<Open>,
    runner: JoinSet<()>,
    quiet: bool,
}

impl Target {
    /// The one that was named, or the one around the current folder.
    pub(super) fn find(context: &Context, dir: Option<&Path>) -> Result<Self, CommandError> {
        let home = context.home.root();
        let start = dir.unwrap_or(Path::new("."));
        let found = Place::around(home, start)
            .map_err(|error| CommandError::failed(format!("{}: {error}", start.display())))?;
        let place = match found {
            Some(place) if dir.is_none() || place.dir == start.canonicalize()? => Some(place),
            _ => None,
        };
        let Some((role, place)) = place.and_then(|place| Some((place.role()?, place))) else {
            return Err(CommandError::failed(format!(
                "{} is not a workspace",
                start.canonicalize().unwrap_or_else(|_| start.to_owned()).display()
            ))
            .hint("`quintet workspace serve DIR` makes one, `quintet workspace mirror DIR ...` a replica")
            .hint("name it with --dir DIR when you are elsewhere"));
        };
        Ok(Self {
            place,
            role,
            opened: None,
            runner: JoinSet::new(),
            quiet: context.output.is_quiet() || !stderr_is_terminal(),
        })
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// Asks, with `what` on the terminal while it takes long.
    pub(super) async fn ask<T: DeserializeOwned>(
        &mut self,
        request: Request,
        what: &'static str,
        content: Content,
    ) -> Result<T, CommandError> {
        let bar = self.bar(what);
        let answer = self.answer(request, &bar, content).await;
        bar.finish_and_clear();
        answer
    }

    async fn answer<T: DeserializeOwned>(
        &mut self,
        request: Request,
        bar: &ProgressBar,
        mut content: Content,
    ) -> Result<T, CommandError> {
        if self.opened.is_none() {
            let told = |progress: Progress| show(bar, progress);
            let mirror_due = self.mirror_due(&request);
            let deadline = Instant::now() + PATIENCE;
            loop {
                match control::ask(&self.place.state_dir, &request, told, &mut content).await {
                    Ok(answer) => {
                        content.flush()?;
                        return Ok(answer);
                    }
                    // Opened here, it would be in the way of the mirror that it needs.
                    Err(AskError::NotRunning) => match mirror_due {
                        Some(due) if Instant::now() >= due => return Err(no_mirror()),
                        Some(_) => {
                            tokio::time::sleep(LOOK_AGAIN).await;
                            continue;
                        }
                        None => {}
                    },
                    Err(error) => return Err(unanswered(error)),
                }
                match self.open().await {
                    Ok(()) => break,
                    // Another command has it open for a moment, or a server is about to listen.
                    Err(OpenError::InUse { .. }) if Instant::now() < deadline => {
                        tokio::time::sleep(LOOK_AGAIN).await;
                    }
                    Err(error) => return Err(CommandError::new(ErrorKind::Failed, error)),
                }
            }
        }
        let Some(open) = &self.opened else {
            return Err(CommandError::failed("the workspace was closed"));
        };
        let telling = bar.clone();
        let told = move |progress| show(&telling, progress);
        let answer = control::answer(open, request, told, content.clone())
            .await
            .map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
        content.flush()?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Until when the mirror that a request needs may take to start; none for one that needs none.
    fn mirror_due(&self, request: &Request) -> Option<Instant> {
        let (Request::Barrier { timeout_millis, .. } | Request::WriteBack { timeout_millis }) =
            request
        else {
            return None;
        };
        let patience = PATIENCE.min(Duration::from_millis(*timeout_millis));
        (self.role == Role::Replica).then(|| Instant::now() + patience)
    }

    /// Opens the folder in this process.
    async fn open(&mut self) -> Result<(), OpenError> {
        let place = self.place.clone();
        // What is a workspace already was allowed when it became one.
        let limits = quintet_workspace::tree::TrackLimits {
            allow_anything: true,
            ..Default::default()
        };
        let work = tokio::task::spawn_blocking(move || match place.role() {
            Some(Role::Replica) => {
                let name = place.sandbox_id().unwrap_or_default();
                let mut config = ReplicaConfig::new(&place.dir, &place.state_dir, &name);
                config.limits = limits;
                let (replica, runner) = Replica::open(&config)?;
                Ok::<_, OpenError>((Open::Replica(replica, name), Some(runner)))
            }
            _ => {
                let mut config = WorkspaceConfig::new(&place.dir, &place.state_dir, &place.cas_dir);
                config.limits = limits;
                Ok((Open::Master(Workspace::open(&config)?), None))
            }
        });
        let path = self.place.state_dir.clone();
        let (open, runner) = work.await.map_err(|error| OpenError::Io {
            path,
            source: io::Error::other(error),
        })??;
        if let Some(runner) = runner {
            self.runner.spawn(async move {
                drop(runner.run(NotDialled, CancellationToken::new()).await);
            });
        }
        self.opened = Some(open);
        Ok(())
    }

    fn bar(&self, what: &'static str) -> ProgressBar {
        if self.quiet {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }
}

fn no_mirror() -> CommandError {
    CommandError::failed("no mirror is running for this folder, so nobody reaches the master")
        .hint("`quintet workspace mirror DIR ...` runs one")
}

/// Why there is no answer. A pipe of ours that nobody reads is no failure; one to the program that
/// was asked is.
fn unanswered(error: AskError) -> CommandError {
    match error {
        AskError::Output(error) => error.into(),
        error => CommandError::new(ErrorKind::Failed, error),
    }
}

fn show(bar: &ProgressBar, progress: Progress) {
    if bar.length().is_none()
        && let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left  {msg}")
    {
        bar.set_style(style);
    }
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_goes_away_has_not_answered() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(unanswered(AskError::Io(broken())).kind(), ErrorKind::Failed);
        assert_eq!(
            unanswered(AskError::Output(broken())).kind(),
            ErrorKind::OutputClosed
        );
    }
}
