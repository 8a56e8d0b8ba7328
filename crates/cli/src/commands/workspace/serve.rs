//! `quintet workspace serve`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use quintet_framing::unix;
use quintet_runtime::config;
use quintet_workspace::control::{self, Open, PruneAnswer, Request};
use quintet_workspace::transport::accept_websocket;
use quintet_workspace::{Connection, Opening, Place, Role, Workspace, WorkspaceConfig};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::Context;
use super::gc::Freed;
use super::{LimitArgs, not_opened, spinner};
use crate::args::JsonArg;
use crate::error::{CommandError, ErrorKind};
use crate::settings;

const EXAMPLES: &str = "\
Examples:
  quintet workspace serve ~/project
  QUINTET_TOKEN=SECRET quintet workspace serve . --ws-listen 0.0.0.0:3002

It runs until Ctrl-C or SIGTERM. Replicas join with `quintet workspace mirror`.";

/// Connections that are served at once; more wait to be accepted.
const MOST_REPLICAS: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often old versions are forgotten, besides at the start.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

/// Record every change of a folder, and let replicas follow it
///
/// Old versions are forgotten at the start and every hour, and what that freed is told: those
/// beyond workspace.history_age and workspace.history_size of the configuration. What the folder
/// holds now, and what checkpoints show, always stays.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// The folder
    dir: PathBuf,

    /// Listen for replicas on this Unix socket [default: replicas.sock of the workspace's state]
    #[arg(long, value_name = "S")]
    socket: Option<PathBuf>,

    /// Listen for replicas of other machines here, over WebSocket; port 0 picks one
    #[arg(long, value_name = "ADDR")]
    ws_listen: Option<SocketAddr>,

    /// What a replica has to know to come in over WebSocket
    #[arg(long, env = "QUINTET_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// Name under which changes of this machine are recorded
    #[arg(long, value_name = "NAME", default_value = "host")]
    author: String,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Ready {
    id: String,
    dir: String,
    socket: String,
    ws: Option<String>,
    sequence: u64,
}

pub(crate) async fn run(context: &Context, args: ServeArgs) -> Result<ExitCode, CommandError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let place = place(context, &args)?;
    let listener = match args.ws_listen {
        Some(address) if !address.ip().is_loopback() && args.token.is_none() => {
            return Err(CommandError::usage(format!(
                "{address} can be reached by others, and anybody could read and write the folder"
            ))
            .hint("set a token with QUINTET_TOKEN or --token, or listen on 127.0.0.1"));
        }
        Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
            CommandError::failed(format!("can't listen on {address}: {error}"))
                .hint("give another address, with port 0 for any that is free")
        })?),
        None => None,
    };
    let (config, _) =
        config::load(&settings::inputs(&context.home)).map_err(CommandError::config)?;
    let policy = Request::Prune {
        older_than_secs: Some(config.workspace.history_age.as_secs()),
        larger_than: Some(config.workspace.history_size.bytes()),
    };
    let inline_below = config.workspace.inline_below.bytes();
    let (workspace, opening) = start(&place, &args, inline_below).await?;
    let socket = args
        .socket
        .clone()
        .unwrap_or_else(|| place.state_dir.join("replicas.sock"));
    let bound = unix::bind(&socket).await.map_err(failed)?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let ws = match listener {
        Some(listener) => {
            let address = listener.local_addr()?;
            let door = Door::WebSocket(listener, args.token.map(Into::into));
            tasks.spawn(accept(workspace.clone(), door, stop.clone()));
            Some(format!("ws://{address}"))
        }
        None => None,
    };
    tasks.spawn(accept(workspace.clone(), Door::Unix(bound), stop.clone()));
    // Replicas are served while the tree is still being read.
    let bar = spinner(context);
    bar.set_message(format!("reading {}", place.dir.display()));
    let mut recorded = workspace.watch_sequence();
    let mut done = std::pin::pin!(opening.done());
    let opened = loop {
        tokio::select! {
            opened = &mut done => break opened.map(|()| true).map_err(failed),
            Ok(()) = recorded.changed() => {
                let sequence = *recorded.borrow_and_update();
                bar.set_message(format!("reading {}: at {sequence}", place.dir.display()));
            }
            _ = interrupt.recv() => break Ok(false),
            _ = terminate.recv() => break Ok(false),
        }
    };
    bar.finish_and_clear();
    if !matches!(opened, Ok(true)) {
        stop.cancel();
        while tasks.join_next().await.is_some() {}
        workspace.close().await;
        drop(std::fs::remove_file(&socket));
        return opened.map(|_| ExitCode::SUCCESS);
    }
    let asked = control::serve(
        Open::Master(workspace.clone()),
        place.state_dir.clone(),
        stop.clone(),
    );
    tasks.spawn(async move { asked.await.map_err(failed) });

    let ready = Ready {
        id: place.id(),
        dir: place.dir.display().to_string(),
        socket: socket.display().to_string(),
        ws,
        sequence: workspace.sequence(),
    };
    if args.json.json {
        context.output.json_line(&ready)?;
    } else {
        context
            .output
            .line(format_args!("{} is ready at {}", ready.dir, ready.socket))?;
        if let Some(ws) = &ready.ws {
            context
                .output
                .line(format_args!("{} is ready at {ws}", ready.dir))?;
        }
    }
    let mut hourly = tokio::time::interval(FORGET_EVERY);
    let mut forgetting = JoinSet::new();
    let ended = loop {
        tokio::select! {
            _ = interrupt.recv() => break Ok(()),
            _ = terminate.recv() => break Ok(()),
            Some(ended) = tasks.join_next() => break ended.unwrap_or(Ok(())),
            _ = hourly.tick(), if forgetting.is_empty() => {
                forgetting.spawn(forget(Open::Master(workspace.clone()), policy.clone()));
            }
            Some(forgot) = forgetting.join_next(), if !forgetting.is_empty() => match forgot {
                Ok(Ok(Some(freed))) if args.json.json => context.output.json_line(&freed)?,
                Ok(Ok(Some(freed))) => freed.tell(context)?,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!("old versions could not be forgotten: {error:#}"),
                Err(error) => tracing::warn!(%error, "old versions could not be forgotten"),
            },
        }
    };
    forgetting.shutdown().await;
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    workspace.close().await;
    drop(std::fs::remove_file(&socket));
    ended.map(|()| ExitCode::SUCCESS)
}

/// Forgets old versions, and frees what only they needed. `None` when there were none.
async fn forget(open: Open, policy: Request) -> anyhow::Result<Option<Freed>> {
    let pruned = control::answer(&open, policy, |_| {}, io::sink()).await?;
    let pruned: PruneAnswer = serde_json::from_value(pruned)?;
    if pruned.versions == 0 {
        return Ok(None);
    }
    let collected =
        control::answer(&open, Request::Gc { forget: None }, |_| {}, io::sink()).await?;
    let collected = serde_json::from_value(collected)?;
    Ok(Some(Freed { pruned, collected }))
}

fn place(context: &Context, args: &ServeArgs) -> Result<Place, CommandError> {
    let place = Place::of(context.home.root(), &args.dir)
        .map_err(|error| CommandError::failed(format!("{}: {error}", args.dir.display())))?;
    if place.role() == Some(Role::Replica) {
        return Err(CommandError::failed(format!(
            "{} is a replica of another folder",
            place.dir.display()
        ))
        .hint(format!(
            "to make it a workspace of its own, remove {} first; conflicts that are kept there go with it",
            place.state_dir.display()
        )));
    }
    Ok(place)
}

async fn start(
    place: &Place,
    args: &ServeArgs,
    inline_below: u64,
) -> Result<(Workspace, Opening), CommandError> {
    let mut config = WorkspaceConfig::new(&place.dir, &place.state_dir, &place.cas_dir);
    config.author.clone_from(&args.author);
    config.limits = args.limits.limits();
    config.inline_below = inline_below;
    config.poll_instead = args.limits.poll_instead();
    tokio::task::spawn_blocking(move || Workspace::start(&config))
        .await
        .map_err(failed)?
        .map_err(not_opened)
}

fn failed(error: impl Into<anyhow::Error>) -> CommandError {
    CommandError::new(ErrorKind::Failed, error)
}

/// Where replicas come in.
enum Door {
    Unix(UnixListener),
    WebSocket(TcpListener, Option<Arc<str>>),
}

/// Who knocked and was not let in yet.
enum Knock {
    Unix(UnixStream),
    WebSocket(TcpStream, Option<Arc<str>>),
}

impl Door {
    async fn next(&self) -> io::Result<Knock> {
        Ok(match self {
            Self::Unix(listener) => Knock::Unix(listener.accept().await?.0),
            Self::WebSocket(listener, token) => {
                Knock::WebSocket(listener.accept().await?.0, token.clone())
            }
        })
    }
}

impl Knock {
    async fn let_in(self) -> io::Result<Connection> {
        match self {
            Self::Unix(stream) => match unix::peer_is_users_own(&stream)? {
                true => Ok(Connection::over_stream(stream)),
                false => Err(io::Error::other(
                    "it is another user's process, or in a sandbox",
                )),
            },
            Self::WebSocket(stream, token) => {
                stream.set_nodelay(true)?;
                let own = stream.local_addr()?;
                let handshake = accept_websocket(stream, own, token.as_deref());
                tokio::time::timeout(HANDSHAKE, handshake).await?
            }
        }
    }
}

/// Serves whoever comes, until it is stopped.
async fn accept(
    workspace: Workspace,
    door: Door,
    stop: CancellationToken,
) -> Result<(), CommandError> {
    let permits = Arc::new(Semaphore::new(MOST_REPLICAS));
    let mut served = JoinSet::new();
    loop {
        let (permit, knock) = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = served.join_next(), if !served.is_empty() => continue,
            knock = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (permit, door.next().await)
            } => knock,
        };
        let Ok(knock) = knock else {
            // Out of descriptors for now, or the peer is gone already.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (workspace, stop) = (workspace.clone(), stop.clone());
        served.spawn(async move {
            match knock.let_in().await {
                Ok(connection) => {
                    if let Err(error) = workspace.serve(connection, stop).await {
                        tracing::info!(%error, "a replica's connection ended");
                    }
                }
                Err(error) => tracing::info!(%error, "a connection was refused"),
            }
            drop(permit);
        });
    }
    while served.join_next().await.is_some() {}
    Ok(())
}
