//! `quintet workspace mount`.

mod past;

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use quintet_workspace::{Past, Role};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::super::Context;
use super::DirArg;
use super::target::Target;
use crate::args::JsonArg;
use crate::error::{CommandError, ErrorKind};

const EXAMPLES: &str = "\
Examples:
  quintet workspace mount /mnt/past &
  ls /mnt/past/at/120/src                          The tree right after sequence 120
  cat /mnt/past/time/2026-01-31T12:00:00Z/notes    What it was at that time

It runs until Ctrl-C, SIGTERM or `fusermount3 -u DIR`. Nothing can be changed in it.";

/// Show the whole past of a workspace as folders, read-only
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MountArgs {
    /// Empty folder to show it in
    #[arg(value_name = "DIR")]
    mountpoint: PathBuf,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

/// Said once, when it can be read.
#[derive(Debug, Serialize)]
struct Mounted {
    id: String,
    dir: String,
    mountpoint: String,
}

pub(crate) async fn run(context: &Context, args: MountArgs) -> Result<ExitCode, CommandError> {
    let target = Target::find(context, args.dir.dir.as_deref())?;
    if target.role() == Role::Replica {
        return Err(CommandError::usage(
            "this folder is a replica; its history is at the master",
        ));
    }
    let mountpoint = args.mountpoint.canonicalize().map_err(|error| {
        CommandError::failed(format!("{}: {error}", args.mountpoint.display()))
            .hint("the folder to mount at has to be there, and empty")
    })?;
    if mountpoint.starts_with(&target.place.dir) {
        return Err(CommandError::usage(format!(
            "{} is inside {}, which would record its own past",
            mountpoint.display(),
            target.place.dir.display()
        ))
        .hint("name a folder outside of it"));
    }
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = fuse {
        return Err(CommandError::failed(format!(
            "/dev/fuse can't be opened ({error}), so nothing can be mounted"
        ))
        .hint("load the kernel's module with `modprobe fuse`, or run the container with --device /dev/fuse")
        .hint("`quintet workspace show PATH@SEQ` and `fork` show the past without a mount"));
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let past =
        Past::open(&target.place).map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        fuser::MountOption::FSName("quintet".to_owned()),
        fuser::MountOption::RO,
        fuser::MountOption::NoSuid,
        fuser::MountOption::NoDev,
        fuser::MountOption::DefaultPermissions,
    ];
    let session = fuser::Session::new(past::PastFs::new(past), &mountpoint, &options)
        .and_then(fuser::Session::spawn)
        .map_err(|error| {
            CommandError::failed(format!("can't mount at {}: {error}", mountpoint.display()))
                .hint("it needs fusermount3 (the package fuse3), or to be root")
        })?;
    if args.json.json {
        context.output.json_line(&Mounted {
            id: target.place.id(),
            dir: target.place.dir.display().to_string(),
            mountpoint: mountpoint.display().to_string(),
        })?;
    } else {
        context
            .output
            .line(format_args!("the past is at {}", mountpoint.display()))?;
    }
    let mut ended = tokio::time::interval(Duration::from_millis(250));
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            // It ends by itself when somebody else unmounts it.
            _ = ended.tick() => if session.guard.is_finished() {
                return Ok(ExitCode::SUCCESS);
            },
        }
    }
    tokio::task::spawn_blocking(move || session.umount_and_join())
        .await
        .map_err(|error| CommandError::failed(error.to_string()))??;
    Ok(ExitCode::SUCCESS)
}
