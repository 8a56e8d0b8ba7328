//! `quintet workspace mirror`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use quintet_workspace::control::{self, Open};
use quintet_workspace::replica::{ReplicaOpError, Runner, UnixDial, WebSocketDial};
use quintet_workspace::{Place, Replica, ReplicaConfig, Role};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::Context;
use super::{LimitArgs, not_opened, spinner};
use crate::args::JsonArg;
use crate::error::{CommandError, ErrorKind};

const EXAMPLES: &str = "\
Examples:
  quintet workspace mirror copy --connect /run/project.sock --sandbox-id laptop
  QUINTET_TOKEN=SECRET quintet workspace mirror copy --ws-connect ws://host:3002 --sandbox-id box

It runs until Ctrl-C or SIGTERM, over as many connections as it takes. What is written here goes to
the master; what the master refuses is kept, see `quintet workspace conflicts`.";

/// How often it is looked whether the master is still there, for what is said on stderr.
const LOOK: Duration = Duration::from_millis(250);

/// Follow a workspace into a folder of this machine, and write changes back
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[group(id = "master", required = true, multiple = false, args = ["connect", "ws_connect"])]
pub(crate) struct MirrorArgs {
    /// The folder for the copy; made if need be
    dir: PathBuf,

    /// Unix socket of the master
    #[arg(long, value_name = "S")]
    connect: Option<PathBuf>,

    /// WebSocket of the master
    #[arg(long, value_name = "URL")]
    ws_connect: Option<String>,

    /// Name under which the master knows this replica; the same over restarts
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    sandbox_id: String,

    /// What the master wants to know from those who come over WebSocket
    #[arg(long, env = "QUINTET_TOKEN", hide_env_values = true)]
    token: Option<String>,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct InSync {
    id: String,
    dir: String,
    sequence: u64,
}

pub(crate) async fn run(context: &Context, args: MirrorArgs) -> Result<ExitCode, CommandError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    refuse_inside(context, &args)?;
    std::fs::create_dir_all(&args.dir)?;
    let place = Place::of(context.home.root(), &args.dir)?;
    if place.role() == Some(Role::Master) {
        return Err(CommandError::failed(format!(
            "{} is a workspace with a history of its own",
            place.dir.display()
        ))
        .hint("mirror into another folder"));
    }
    let dial = Master::new(&args)?;
    let (replica, runner) = open(&place, &args).await?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(follow(runner, dial, stop.clone()));
    let asked = control::serve(
        Open::Replica(replica.clone(), args.sandbox_id.clone()),
        place.state_dir.clone(),
        stop.clone(),
    );
    tasks.spawn(async move { asked.await.map_err(failed) });
    let ended = tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        Some(ended) = tasks.join_next() => ended.unwrap_or(Ok(())),
        told = tell(context, &place, &replica, args.json.json) => told,
    };
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    ended.map(|()| ExitCode::SUCCESS)
}

/// A copy of a folder in that very folder would be recorded there, and copied, and recorded.
fn refuse_inside(context: &Context, args: &MirrorArgs) -> Result<(), CommandError> {
    if args.limits.track_anything {
        return Ok(());
    }
    let dir = args.dir.canonicalize();
    let dir = dir.or_else(|_| std::path::absolute(&args.dir))?;
    let Some(above) = dir.ancestors().skip(1).find(|above| above.exists()) else {
        return Ok(());
    };
    match Place::around(context.home.root(), above)? {
        Some(around) if around.role() == Some(Role::Master) => Err(CommandError::usage(format!(
            "{} is inside {}, which would record the copy",
            args.dir.display(),
            around.dir.display()
        ))
        .hint("name a folder outside of it")
        .hint("--track-anything allows it, for one that .quintetignore leaves out there")),
        _ => Ok(()),
    }
}

async fn open(place: &Place, args: &MirrorArgs) -> Result<(Replica, Runner), CommandError> {
    let mut config = ReplicaConfig::new(&place.dir, &place.state_dir, &args.sandbox_id);
    config.master = Some(address(args)?);
    config.limits = args.limits.limits();
    config.poll_instead = args.limits.poll_instead();
    tokio::task::spawn_blocking(move || Replica::open(&config))
        .await
        .map_err(failed)?
        .map_err(not_opened)
}

/// Where the master is, written the same way wherever this is started.
fn address(args: &MirrorArgs) -> Result<String, CommandError> {
    Ok(match &args.connect {
        Some(socket) => std::path::absolute(socket)?.to_string_lossy().into_owned(),
        None => args.ws_connect.clone().unwrap_or_default(),
    })
}

async fn follow(runner: Runner, dial: Master, stop: CancellationToken) -> Result<(), CommandError> {
    match dial {
        Master::Unix(dial) => runner.run(dial, stop).await,
        Master::WebSocket(dial) => runner.run(dial, stop).await,
    }
    .map_err(failed)
}

enum Master {
    Unix(UnixDial),
    WebSocket(WebSocketDial),
}

impl Master {
    fn new(args: &MirrorArgs) -> Result<Self, CommandError> {
        match (&args.connect, &args.ws_connect) {
            (Some(path), _) => Ok(Self::Unix(UnixDial { path: path.clone() })),
            (None, Some(url)) if url.starts_with("ws://") || url.starts_with("wss://") => {
                Ok(Self::WebSocket(WebSocketDial {
                    url: url.clone(),
                    token: args.token.clone(),
                    tls: None,
                }))
            }
            (None, Some(url)) => Err(CommandError::usage(format!(
                "{url} is no WebSocket address; it begins with ws:// or wss://"
            ))),
            (None, None) => Err(CommandError::usage(
                "say where the master is with --connect or --ws-connect",
            )),
        }
    }
}

fn failed(error: impl Into<anyhow::Error>) -> CommandError {
    CommandError::new(ErrorKind::Failed, error)
}

/// Says when everything is here for the first time, and when the master comes and goes. Never ends
/// well: somebody else does.
async fn tell(
    context: &Context,
    place: &Place,
    replica: &Replica,
    json: bool,
) -> Result<(), CommandError> {
    let bar = spinner(context);
    let first = replica.barrier(Duration::from_secs(u64::from(u32::MAX)));
    tokio::pin!(first);
    let mut in_sync = false;
    let mut last = None;
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            passed = &mut first, if !in_sync => {
                let sequence = passed.map_err(failed)?.sequence;
                in_sync = true;
                bar.finish_and_clear();
                let dir = place.dir.display().to_string();
                if json {
                    let id = place.id();
                    context.output.json_line(&InSync { id, dir, sequence })?;
                } else {
                    context.output.line(format_args!("{dir} is in sync at {sequence}"))?;
                }
            }
            _ = look.tick() => {
                let status = match replica.status().await {
                    Ok(status) => status,
                    Err(ReplicaOpError::Stopped) => return Ok(()),
                    Err(error) => return Err(failed(error)),
                };
                if !in_sync {
                    bar.set_message(format!("{} files to come", status.incoming));
                }
                let now = (status.connected, status.last_failure);
                if last.as_ref() != Some(&now) {
                    match &now {
                        (true, _) => bar.suspend(|| context.output.talk("connected to the master")),
                        (false, Some(failure)) => bar.suspend(|| {
                            context.output.talk(format_args!("not connected: {failure}; trying again"));
                        }),
                        (false, None) => {}
                    }
                    last = Some(now);
                }
            }
        }
    }
}
