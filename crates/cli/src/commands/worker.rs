//! `quintet worker`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use quintet_runtime::config::{ByteSize, parse_duration};
use quintet_runtime::home::Home;
use quintet_runtime::{WorkspaceCopies, WorkspaceSnapshots};
use quintet_sandbox::isolate::{HelperCommand, IsolationConfig, Limits, Network, temp_beside};
use quintet_sandbox::proto::{Fingerprint, Token};
use quintet_sandbox::tls::pinned_client;
use quintet_sandbox::worker::{ConnectionState, Quotas, Worker, WorkerConfig, scrub_environment};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Context, isolate_exec};
use crate::connect;
use crate::error::{CommandError, ErrorKind};

const EXAMPLES: &str = "\
Examples:
  quintet worker --daemon-id box --label gpu=yes               For the daemon of this machine
  quintet worker --server-url wss://host:7505/ws --daemon-id box --token qw1...

`quintet token create --worker ID` on the daemon's machine makes the token.";

/// Make this machine a place where commands, shells and files work, until Ctrl-C or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WorkerArgs {
    /// Where the daemon listens [default: the daemon of this home folder]
    #[arg(long, value_name = "URL")]
    server_url: Option<String>,

    /// Name to register with [default: the machine's name]
    #[arg(long, value_name = "ID")]
    daemon_id: Option<String>,

    /// Token from `quintet token create`; the same user on the daemon's machine needs none
    #[arg(long, env = "QUINTET_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// Be selected by this with `quintet exec --label`
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = super::pair)]
    labels: Vec<(String, String)>,

    /// Folder that commands start in and files stay beneath [default: workers/ID/root in the home
    /// folder]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Confine commands: they write only beneath the root and /tmp
    #[arg(long)]
    isolate: bool,

    #[command(flatten)]
    confines: ConfineArgs,

    #[command(flatten)]
    limits: LimitArgs,
}

/// What confined commands may reach
#[derive(Debug, Args)]
struct ConfineArgs {
    /// Keep confined commands off the network
    #[arg(long, requires = "isolate")]
    no_network: bool,

    /// Let confined commands read this folder too
    #[arg(long, value_name = "DIR", requires = "isolate")]
    read: Vec<PathBuf>,

    /// Let confined commands write this folder too
    #[arg(long, value_name = "DIR", requires = "isolate")]
    write: Vec<PathBuf>,
}

/// What commands may use
#[derive(Debug, Args)]
struct LimitArgs {
    /// Memory, such as 2GiB: of all commands together under cgroup v2, else of each process
    #[arg(long, value_name = "SIZE")]
    memory_max: Option<ByteSize>,

    /// Processes: of all commands together under cgroup v2, else of your user
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    processes_max: Option<u64>,

    /// Percent of one CPU for all commands together, 150 for one and a half; needs cgroup v2
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    cpu_percent: Option<u64>,

    /// CPU time of each process, such as 90s
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    cpu_time_max: Option<Duration>,

    /// Open files of each process
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    open_files_max: Option<u64>,

    /// The largest file that a process may write, such as 1GiB
    #[arg(long, value_name = "SIZE")]
    file_size_max: Option<ByteSize>,

    /// Output of all commands and shells together that is kept on disk [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    output_quota: Option<ByteSize>,

    /// Commands at once; one more is refused [default: 256]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    commands_max: Option<u64>,

    /// Shells at once; one more is refused [default: 64]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    shells_max: Option<u64>,

    /// Uploads and downloads at once; one more is refused [default: 64]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    transfers_max: Option<u64>,
}

fn at_least_one() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..)
}

impl LimitArgs {
    fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.memory_max.map(ByteSize::bytes),
            processes: self.processes_max,
            cpu_percent: self.cpu_percent,
            cpu_secs: self.cpu_time_max.map(|time| time.as_secs().max(1)),
            open_files: self.open_files_max,
            file_bytes: self.file_size_max.map(ByteSize::bytes),
        }
    }

    fn quotas(&self) -> Quotas {
        let count = |given: Option<u64>, usual: usize| {
            given.map_or(usual, |given| usize::try_from(given).unwrap_or(usize::MAX))
        };
        let usual = Quotas::default();
        Quotas {
            commands: count(self.commands_max, usual.commands),
            shells: count(self.shells_max, usual.shells),
            transfers: count(self.transfers_max, usual.transfers),
            spool_bytes: self.output_quota.map_or(usual.spool_bytes, ByteSize::bytes),
            ..usual
        }
    }
}

pub(crate) async fn run(context: &Context, args: WorkerArgs) -> Result<ExitCode, CommandError> {
    let config = config(&context.home, args)?;
    let id = config.daemon_id.clone();
    if config.token.is_some() && is_in_the_clear(&config.server_url) {
        context.output.talk(format_args!(
            "{} is not encrypted: whoever listens on the way reads the token; use wss:// where the \
             daemon has a certificate",
            config.server_url
        ));
    }
    let worker = Worker::start(config)
        .await
        .map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
    let mut connection = worker.connection();
    let shutdown = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let run = worker.run(shutdown.clone());
    tokio::pin!(run);
    loop {
        tokio::select! {
            ended = &mut run => {
                ended.map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
                return Ok(ExitCode::SUCCESS);
            }
            _ = interrupt.recv() => shutdown.cancel(),
            _ = terminate.recv() => shutdown.cancel(),
            Ok(()) = connection.changed() => match &*connection.borrow_and_update() {
                ConnectionState::Connecting => {}
                ConnectionState::Online(protocol) => {
                    context.output.talk(format_args!("online as {id} over {protocol}"));
                }
                ConnectionState::Failed(reason) => {
                    context.output.talk(format_args!("not connected: {reason}; trying again"));
                }
            },
        }
    }
}

fn config(home: &Home, args: WorkerArgs) -> Result<WorkerConfig, CommandError> {
    let here = connect::run_file(home);
    let url = match (args.server_url, &here) {
        (Some(url), _) => websocket(&url),
        (None, Some(daemon)) => websocket(&daemon.http),
        (None, None) => {
            return Err(CommandError::usage(
                "no daemon runs here; say where it is with --server-url",
            ));
        }
    };
    let token = args
        .token
        .as_deref()
        .map(Token::parse)
        .transpose()
        .map_err(|error| CommandError::new(ErrorKind::Usage, error))?;
    check(&url, token.as_ref())?;
    // A token says by itself what to trust.
    let own = here.filter(|daemon| token.is_none() && is_served_by(&url, &daemon.http));
    let url = if own.is_some() {
        over_loopback(&url)
    } else {
        url
    };
    let id = args.daemon_id.unwrap_or_else(|| {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    });
    let name = folder_name(&id);
    let folder = home.worker_dir(&name);
    // Made also where commands work elsewhere: what the worker keeps of them is beside it.
    let own_root = home.create_worker_root(&name).map_err(|error| {
        CommandError::failed(format!("{} can't be made: {error}", folder.display()))
            .hint("--home DIR names a folder that this user may write")
    })?;
    let root = args.root.unwrap_or(own_root);
    let mut config = WorkerConfig::new(&url, &id, root, folder.join("spool"));
    if let Some(fingerprint) = own.and_then(|daemon| daemon.fingerprint) {
        pin(&mut config, &fingerprint)
            .map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
    }
    config.token = token;
    config.labels = args.labels.into_iter().collect();
    config.env = scrub_environment(std::env::vars_os());
    config.shell = std::env::var_os("SHELL").map(PathBuf::from);
    let copies = WorkspaceCopies::of(&config, folder.join("copies"))
        .map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
    config.mirrors = Some(Arc::new(copies));
    config.snapshots = Some(Arc::new(WorkspaceSnapshots::new(
        home.root().to_owned(),
        config.root.clone(),
        folder.join("snapshots.json"),
    )));
    config.quotas = args.limits.quotas();
    let limits = args.limits.limits();
    if args.isolate || !limits.is_empty() {
        config.isolation = Some(IsolationConfig {
            helper: HelperCommand {
                program: std::env::current_exe()?,
                args: vec![isolate_exec::NAME.to_owned()],
            },
            confine: args.isolate,
            network: if args.confines.no_network {
                Network::Off
            } else {
                Network::On
            },
            read: absolute(args.confines.read)?,
            write: absolute(args.confines.write)?,
            temp: temp_beside(home.root(), &folder.join("tmp")),
            limits,
        });
    }
    Ok(config)
}

/// Refuses what can't be dialled, and what would show a token to whoever listens on the way.
fn check(url: &str, token: Option<&Token>) -> Result<(), CommandError> {
    match url.split_once("://") {
        Some(("wss", _)) => Ok(()),
        Some(("ws", rest)) if token.is_some_and(|it| it.fingerprint().is_some()) => {
            Err(CommandError::usage(format!(
                "the token is for a daemon with a certificate, and {url} is not encrypted: whoever \
                 listens on the way would read the token"
            ))
            .hint(format!("--server-url wss://{rest}")))
        }
        Some(("ws", _)) => Ok(()),
        _ => Err(
            CommandError::usage(format!("{url} does not say how to dial the daemon")).hint(
                "write it like wss://HOST:7505/ws, or ws://127.0.0.1:7505/ws on its own machine",
            ),
        ),
    }
}

/// Whether others on the network can read what is sent, a token above all.
fn is_in_the_clear(url: &str) -> bool {
    url.starts_with("ws://") && !address(url).is_some_and(|it| it.ip().is_loopback())
}

/// Checks the certificate by what the daemon of this home folder says that it shows.
fn pin(config: &mut WorkerConfig, fingerprint: &str) -> anyhow::Result<()> {
    let fingerprint: Fingerprint = fingerprint.parse()?;
    config.tls = Some(pinned_client(fingerprint)?);
    Ok(())
}

/// Whether what is dialled is this machine, at the port where the daemon of this home folder listens.
fn is_served_by(url: &str, http: &str) -> bool {
    match (address(url), address(&websocket(http))) {
        (Some(dialled), Some(served)) => {
            let here = dialled.ip().is_loopback() || dialled.ip() == served.ip();
            here && dialled.port() == served.port()
        }
        _ => false,
    }
}

/// An address that listens everywhere is dialled over loopback.
fn over_loopback(url: &str) -> String {
    let Some(address) = address(url).filter(|it| it.ip().is_unspecified()) else {
        return url.to_owned();
    };
    let loopback: IpAddr = match address.ip() {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let there = SocketAddr::new(loopback, address.port());
    url.replacen(&address.to_string(), &there.to_string(), 1)
}

/// The address in a URL that names one by its number, or `localhost`.
fn address(url: &str) -> Option<SocketAddr> {
    let host = url.split_once("://")?.1.split('/').next()?;
    host.replacen("localhost", "127.0.0.1", 1).parse().ok()
}

fn absolute(folders: Vec<PathBuf>) -> Result<Vec<PathBuf>, CommandError> {
    let absolute = folders.into_iter().map(std::path::absolute);
    Ok(absolute.collect::<Result<_, _>>()?)
}

/// An id as one name of a folder.
fn folder_name(id: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = id.chars().map(|c| if safe(c) { c } else { '_' }).collect();
    format!("{}{}", if name.starts_with('.') { "_" } else { "" }, name)
}

/// The daemon's address as what a worker dials.
fn websocket(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some(("http" | "ws", rest)) => ("ws", rest),
        Some(("https" | "wss", rest)) => ("wss", rest),
        Some(_) | None => return url.to_owned(),
    };
    match rest.trim_end_matches('/') {
        host if !host.contains('/') => format!("{scheme}://{host}/ws"),
        _ => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_becomes_what_is_dialled() {
        for (given, dialled) in [
            ("http://127.0.0.1:7505", "ws://127.0.0.1:7505/ws"),
            ("https://h:1/", "wss://h:1/ws"),
            ("wss://h:1/ws", "wss://h:1/ws"),
            ("ws://h:1/other", "ws://h:1/other"),
        ] {
            assert_eq!(websocket(given), dialled);
        }
    }

    #[test]
    fn the_daemon_of_this_home_is_dialled_over_loopback() {
        for (url, http, own) in [
            ("ws://127.0.0.1:7505/ws", "http://127.0.0.1:7505", true),
            ("wss://localhost:7505/ws", "https://0.0.0.0:7505", true),
            ("wss://192.0.2.1:7505/ws", "https://192.0.2.1:7505", true),
            ("wss://192.0.2.1:7505/ws", "https://0.0.0.0:7505", false),
            ("wss://127.0.0.1:7506/ws", "https://0.0.0.0:7505", false),
            ("wss://host:7505/ws", "https://0.0.0.0:7505", false),
        ] {
            assert_eq!(is_served_by(url, http), own, "{url} {http}");
        }
        for (url, dialled) in [
            ("wss://0.0.0.0:7505/ws", "wss://127.0.0.1:7505/ws"),
            ("wss://[::]:7505/ws", "wss://[::1]:7505/ws"),
            ("wss://192.0.2.1:7505/ws", "wss://192.0.2.1:7505/ws"),
        ] {
            assert_eq!(over_loopback(url), dialled);
        }
    }

    #[test]
    fn a_token_that_names_a_certificate_is_never_sent_in_the_clear() {
        let pinned = Token::mint([1; 32], Some(Fingerprint([2; 32])));
        let plain = Token::mint([1; 32], None);
        let refused = check("ws://192.0.2.2:1/ws", Some(&pinned)).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Usage));
        for (url, token) in [
            ("wss://192.0.2.2:1/ws", Some(&pinned)),
            ("ws://192.0.2.2:1/ws", Some(&plain)),
            ("ws://192.0.2.2:1/ws", None),
        ] {
            assert!(check(url, token).is_ok(), "{url}");
        }
        for (url, clear) in [
            ("ws://192.0.2.2:1/ws", true),
            ("ws://box:1/ws", true),
            ("ws://127.0.0.1:1/ws", false),
            ("ws://localhost:1/ws", false),
            ("wss://192.0.2.2:1/ws", false),
        ] {
            assert_eq!(is_in_the_clear(url), clear, "{url}");
        }
    }

    #[test]
    fn an_address_that_can_t_be_dialled_is_refused_at_once() {
        for url in ["127.0.0.1:7505", "host", "ftp://host:1/ws"] {
            let refused = check(&websocket(url), None).unwrap_err();
            assert!(matches!(refused.kind(), ErrorKind::Usage), "{url}");
        }
    }

    #[test]
    fn an_id_is_one_folder() {
        for (id, name) in [
            ("box-1.a", "box-1.a"),
            ("../x", "_.._x"),
            ("a/b c", "a_b_c"),
        ] {
            assert_eq!(folder_name(id), name);
        }
    }
}
