//! `quintet workspace`: versioned, replicated folders without a daemon, one file a command.

mod barrier;
mod checkpoint;
mod conflicts;
mod diff;
mod fork;
mod gc;
mod log;
mod mirror;
mod mount;
mod point;
mod restore;
mod serve;
mod show;
mod status;
mod target;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quintet_workspace::master::OpenError;
use quintet_workspace::tree::TrackLimits;

use super::Context;
use crate::error::{CommandError, ErrorKind};
use crate::output::stderr_is_terminal;

const EXAMPLES: &str = "\
Examples:
  quintet workspace serve ~/project                          Keep its history, let replicas in
  quintet workspace mirror copy --connect S --sandbox-id me  Follow it, and write back
  quintet workspace log src/main.rs                          Who changed it, when
  quintet workspace diff 120..                               What happened after sequence 120
  quintet workspace restore --at 10m --dry-run               What going back would change

A state is a sequence number, the name of a checkpoint, or `now`.";

/// Keep every version of a folder's files, and the folder the same on several machines
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum WorkspaceCommand {
    Serve(serve::ServeArgs),
    Mirror(mirror::MirrorArgs),
    Log(log::LogArgs),
    Show(show::ShowArgs),
    Diff(diff::DiffArgs),
    Restore(restore::RestoreArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Fork(fork::ForkArgs),
    Conflicts(conflicts::ConflictsArgs),
    Status(status::StatusArgs),
    Barrier(barrier::BarrierArgs),
    Gc(gc::GcArgs),
    Verify(verify::VerifyArgs),
    Mount(mount::MountArgs),
}

pub(crate) async fn run(
    context: &Context,
    command: WorkspaceCommand,
) -> Result<ExitCode, CommandError> {
    match command {
        WorkspaceCommand::Serve(args) => serve::run(context, args).await,
        WorkspaceCommand::Mirror(args) => mirror::run(context, args).await,
        WorkspaceCommand::Log(args) => log::run(context, args).await,
        WorkspaceCommand::Show(args) => show::run(context, args).await,
        WorkspaceCommand::Diff(args) => diff::run(context, args).await,
        WorkspaceCommand::Restore(args) => restore::run(context, args).await,
        WorkspaceCommand::Checkpoint(args) => checkpoint::run(context, args).await,
        WorkspaceCommand::Fork(args) => fork::run(context, args).await,
        WorkspaceCommand::Conflicts(args) => conflicts::run(context, args).await,
        WorkspaceCommand::Status(args) => status::run(context, args).await,
        WorkspaceCommand::Barrier(args) => barrier::run(context, args).await,
        WorkspaceCommand::Gc(args) => gc::run(context, args).await,
        WorkspaceCommand::Verify(args) => verify::run(context, args).await,
        WorkspaceCommand::Mount(args) => mount::run(context, args).await,
    }
}

/// Which folder is meant.
#[derive(Debug, Args)]
pub(crate) struct DirArg {
    /// Workspace to work on [default: the one around the current folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// How much may be tracked.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Refuse a folder with more files and folders than this
    #[arg(long, value_name = "N", default_value_t = TrackLimits::default().max_entries)]
    max_files: u64,

    /// Refuse a folder with more bytes than this
    #[arg(long, value_name = "SIZE", default_value = "100GiB")]
    max_size: quintet_runtime::config::ByteSize,

    /// Track it whatever it is: a home folder, `/`, more than the limits
    #[arg(long)]
    track_anything: bool,

    /// Read the tree now and then instead of watching it, for file systems without events
    #[arg(long)]
    poll: bool,
}

impl LimitArgs {
    fn limits(&self) -> TrackLimits {
        TrackLimits {
            max_entries: self.max_files,
            max_bytes: self.max_size.bytes(),
            home: crate::home::user_home().ok(),
            allow_anything: self.track_anything,
        }
    }

    fn poll_instead(&self) -> Option<String> {
        self.poll.then(|| "it was asked for with --poll".to_owned())
    }
}

/// Why a folder could not be opened, with the way to have it all the same.
fn not_opened(error: OpenError) -> CommandError {
    let is_refused = matches!(error, OpenError::Refused(_));
    let error = CommandError::new(ErrorKind::Failed, error);
    match is_refused {
        true => error
            .hint("--track-anything allows it; --max-files N and --max-size SIZE set the limits"),
        false => error,
    }
}

/// Moves on the terminal while something takes long.
fn spinner(context: &Context) -> ProgressBar {
    if !stderr_is_terminal() || context.output.is_quiet() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A time of the history as everybody writes it.
fn rfc3339(at_millis: i64) -> String {
    jiff::Timestamp::from_millisecond(at_millis)
        .map_or_else(|_| at_millis.to_string(), |at| format!("{at:.3}"))
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
