//! `quintet up`.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quintet_runtime::config::{ConfigErrors, ConfigInputs, ConfigSource, KeyPath};
use quintet_runtime::daemon::{Daemon, DaemonOptions, StartError};
use quintet_runtime::{BuiltinWorker, LockError};
use quintet_sandbox::worker::scrub_environment;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Context, doctor, isolate_exec, pair, providers};
use crate::error::{CommandError, ErrorKind};
use crate::{home, settings};

/// Where the command line of the original protocol looks, under the person's home folder.
const COMPAT_SOCKET: &str = ".crabtalk/run/crabtalk.sock";

/// What agents get of the daemon's environment: enough to run programs, nothing that is secret.
const AGENT_VARIABLES: [&str; 14] = [
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_TIME",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
];

const EXAMPLES: &str = "\
Examples:
  quintet up
  quintet up --listen 127.0.0.1:0          Take any free port; `quintet status` says which
  quintet up --home ./try                  With a home folder of its own
  QUINTET_LISTEN=127.0.0.1:8080 quintet up

Every key of config.toml can be set by a variable: QUINTET_SECTION__KEY. Flags are stronger than
variables, variables stronger than the file.";

/// Run the daemon in the foreground, until Ctrl-C or SIGTERM
///
/// Agents that work when it is told to stop get the time that daemon.drain says.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UpArgs {
    /// Serve HTTP here; port 0 takes a free one [default: 127.0.0.1:7505] [env: QUINTET_LISTEN]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Serve control clients over TCP as well, with a token [env: QUINTET_CONTROL_TCP]
    #[arg(long, value_name = "ADDRESS")]
    control_tcp: Option<String>,

    /// Listen where clients of the original protocol look: ~/.crabtalk/run/crabtalk.sock
    #[arg(long)]
    crabtalk_compat: bool,

    /// Leave out the built-in worker, `local`
    #[arg(long)]
    no_worker: bool,

    /// Serve an address that other machines can reach without TLS; without this and without
    /// http.tls_cert, a certificate is made on first use; --control-tcp warns of such addresses
    #[arg(long)]
    insecure: bool,
}

pub(crate) async fn run(context: &Context, args: &UpArgs) -> Result<ExitCode, CommandError> {
    let mut stop = StopSignals::listen()?;
    if let Err(error) = quintet_framing::descriptors::raise() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let daemon = Daemon::start(options(context, args)?)
        .await
        .map_err(|error| explain(context, error))?;
    // It runs, whether or not anybody reads that.
    if let Err(error) = announce(context, &daemon).await {
        let error = error.message();
        tracing::warn!(%error, "what is running could not be printed; `quintet status` says it");
    }
    let (asked, again) = tokio::sync::oneshot::channel();
    let mut asked = Some(asked);
    let run = daemon.run_until(async {
        // The sender lives as long as the loop below.
        let _ = again.await;
    });
    tokio::pin!(run);
    loop {
        tokio::select! {
            () = &mut run => return Ok(ExitCode::SUCCESS),
            name = stop.next() => match asked.take() {
                Some(asked) => {
                    tracing::info!(signal = name, "stopping; a second signal stops at once");
                    let _ = asked.send(());
                }
                None => return Err(CommandError::failed(format!("{name} came twice: stopped at once"))
                    .hint("the next `quintet up` ends what was left running")),
            },
        }
    }
}

fn options(context: &Context, args: &UpArgs) -> Result<DaemonOptions, CommandError> {
    let compat_socket = match args.crabtalk_compat {
        true => Some(home::user_home()?.join(COMPAT_SOCKET)),
        false => None,
    };
    Ok(DaemonOptions {
        home: context.home.clone(),
        config: inputs(context, args)?,
        version: env!("CARGO_PKG_VERSION"),
        compat_socket,
        insecure: args.insecure,
        program: std::env::current_exe()?,
        base_env: agent_environment(),
        worker: (!args.no_worker).then(builtin_worker),
    })
}

fn inputs(context: &Context, args: &UpArgs) -> Result<ConfigInputs, CommandError> {
    let mut inputs = settings::inputs(&context.home);
    for (key, value, flag) in [
        ("http.listen", &args.listen, "--listen"),
        ("control.tcp", &args.control_tcp, "--control-tcp"),
    ] {
        if let Some(value) = value {
            let key =
                KeyPath::parse(key).map_err(|error| CommandError::new(ErrorKind::Usage, error))?;
            inputs = inputs.with_flag(key, value, flag);
        }
    }
    Ok(inputs)
}

fn builtin_worker() -> BuiltinWorker {
    BuiltinWorker {
        helper_args: vec![isolate_exec::NAME.to_owned()],
        env: scrub_environment(std::env::vars_os()),
        shell: std::env::var_os("SHELL").map(PathBuf::from),
    }
}

fn agent_environment() -> BTreeMap<String, String> {
    AGENT_VARIABLES
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect()
}

/// Says on stdout, terminal or not, what runs, who answers, and what to do next.
async fn announce(context: &Context, daemon: &Daemon) -> Result<(), CommandError> {
    let run = daemon.run_file();
    let welcome = daemon
        .welcome()
        .await
        .map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
    let output = context.output;
    output.line(format_args!(
        "quintet {} is ready at {}",
        run.version, run.http
    ))?;
    output.line(format_args!("  home    {}", context.home.root().display()))?;
    if welcome.has_worker
        && let Some(temp) = doctor::instead_of_temp(&context.home)
    {
        tracing::info!(
            "this home folder is in /tmp, so isolated commands of the built-in worker can't write in /tmp; \
             their TMPDIR is {}",
            temp.display()
        );
    }
    output.line(match welcome.has_worker {
        true => "  worker  local",
        false => "  worker  none here; `quintet worker` makes any machine one",
    })?;
    if welcome.has_provider {
        let why = providers::why_ready(context, welcome.model.as_deref());
        output.line(format_args!("  agent   coder is ready{why}"))?;
    } else {
        output.line("  agent   shell is ready: it runs what you type and needs no key")?;
        output.line("          for coder, set a key; nothing has to be started again:")?;
        output.line("            quintet config set providers.anthropic.api_key KEY")?;
    }
    let example = match welcome.agent {
        "coder" => "what is in this folder?",
        _ => "ls -l",
    };
    output.line(format_args!(
        "  try     quintet send {} '{example}'",
        welcome.agent
    ))?;
    output.line("          quintet chat")?;
    output.line("  stop    Ctrl-C")?;
    match &welcome.pairing {
        Some(made) => {
            output.line(
                "\nOpen it in a browser, or scan it with a phone that can reach this machine:",
            )?;
            output.line(pair::invitation(made).trim_end())
        }
        None => output.line("  pair    quintet pair          (another browser or phone)"),
    }
}

fn explain(context: &Context, error: StartError) -> CommandError {
    match error {
        StartError::Config(problems) => mistakes(context, problems),
        StartError::Tls(_) => CommandError::config(error)
            .hint("`http.tls_cert` and `http.tls_key` name the two files; without them the daemon makes its own"),
        StartError::Lock(LockError::Held { ref pid, .. }) => {
            let stop = format!("stop it with `kill {pid}`, or use another folder with --home DIR");
            CommandError::new(ErrorKind::Failed, error).hint(stop)
        }
        StartError::Listen { ref source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
            CommandError::new(ErrorKind::Failed, error)
                .hint("another program has it; `--listen 127.0.0.1:0` takes a free port")
        }
        error => {
            CommandError::new(ErrorKind::Failed, error).hint("`quintet doctor` says what is wrong")
        }
    }
}

/// Says where to mend the configuration: not every layer of it is a file.
fn mistakes(context: &Context, problems: ConfigErrors) -> CommandError {
    let made_by = |is: fn(&ConfigSource) -> bool| {
        let mut sources = problems.0.iter().map(|problem| &problem.origin.source);
        sources.all(is)
    };
    if made_by(|source| matches!(source, ConfigSource::Flag { .. })) {
        return CommandError::new(ErrorKind::Usage, problems)
            .hint("`quintet up --help` shows the flags");
    }
    let hint = match made_by(|source| matches!(source, ConfigSource::Env { .. })) {
        true => "set that variable anew, or unset it".to_owned(),
        false => format!(
            "edit {}; `quintet doctor` checks it again",
            context.home.config_file().display()
        ),
    };
    CommandError::config(problems).hint(hint)
}

/// SIGINT and SIGTERM, listened for from the very start.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
