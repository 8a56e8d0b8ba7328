//! The validated configuration: domain types, nothing left to parse.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;
use quintet_sandbox::isolate::{Limits, Network};
use rust_decimal::Decimal;

pub use super::agents::{AgentConfig, AgentKind, AgentProgram, Budget, BuiltinAgent};
use super::problem::ProblemKind;
use super::reader::Section;
use super::secret::Secret;
use super::setting::{Positive, invalid, word_setting};
use super::units::ByteSize;
use crate::policy::{Action, CommandPattern, NamePattern, PathPattern, PatternError, Rule};

/// Everything that can be configured.
///
/// Comparable, so that a change can be reported; secrets inside are redacted in
/// its `Debug`.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[http]`
    pub http: HttpConfig,
    /// `[control]`
    pub control: ControlConfig,
    /// `[daemon]`
    pub daemon: DaemonConfig,
    /// `[journal]`
    pub journal: JournalConfig,
    /// `[cron]`
    pub cron: CronConfig,
    /// `[sandbox]`
    pub sandbox: SandboxConfig,
    /// `[workspace]`
    pub workspace: WorkspaceConfig,
    /// `[channel]`
    pub channel: ChannelConfig,
    /// `[providers.NAME]`
    pub providers: BTreeMap<String, ProviderConfig>,
    /// `[agents.NAME]`, the built-in ones included.
    pub agents: BTreeMap<String, AgentConfig>,
    /// `[mcps.NAME]`
    pub mcps: BTreeMap<String, McpConfig>,
    /// `[policy]`
    pub policy: PolicyConfig,
}

/// The one HTTP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Where to listen; port 0 picks one.
    pub listen: SocketAddr,
    /// Certificate and key, when TLS is served.
    pub tls: Option<TlsFiles>,
    /// Other origins that may connect.
    pub allowed_origins: Vec<String>,
}

/// PEM files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlConfig {
    /// Also listen here; a Unix socket is always served.
    pub tcp: Option<SocketAddr>,
    /// Connections served at once.
    pub max_connections: u32,
    /// How long a half-sent frame may pause.
    pub idle_timeout: Duration,
}

/// The daemon as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonConfig {
    /// How long a stop waits for running work.
    pub drain: Duration,
}

/// How much of the journal is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalConfig {
    /// Older events are pruned.
    pub keep: Duration,
    /// The oldest events beyond this size are pruned; `None` keeps them.
    pub max_size: Option<ByteSize>,
}

/// Scheduled messages.
#[derive(Debug, Clone, PartialEq)]
pub struct CronConfig {
    /// The zone that schedules and quiet hours are read in.
    pub time_zone: TimeZone,
}

/// Workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxConfig {
    /// How often a worker reports.
    pub heartbeat: Duration,
    /// Silence after which it is stale.
    pub stale_after: Duration,
    /// How often stale ones are looked for.
    pub stale_check: Duration,
    /// Output kept on disk per worker.
    pub output_quota: ByteSize,
    /// Whether the built-in worker confines what it runs.
    pub isolate: bool,
    /// Whether what it confines may use the network.
    pub network: Network,
    /// Folders that it may read beside the system's.
    pub read: Vec<PathBuf>,
    /// Folders that it may write beside its root and the one for temporary files.
    pub write: Vec<PathBuf>,
    /// What its commands may use.
    pub limits: Limits,
    /// Its commands at once.
    pub commands_max: u32,
    /// Its shells at once.
    pub shells_max: u32,
    /// Its uploads and downloads at once.
    pub transfers_max: u32,
}

/// Versioned files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceConfig {
    /// Old versions are kept up to this age.
    pub history_age: Duration,
    /// Old versions are kept up to this size.
    pub history_size: ByteSize,
    /// Smaller files travel inside their notification.
    pub inline_below: ByteSize,
    /// How long a command waits for its files when none of them moves.
    pub patience: Duration,
}

/// Browsers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Whether clients that do not encrypt are refused.
    pub e2e_required: bool,
    /// How long a device stays paired without being used.
    pub token_ttl: Duration,
    /// How long a pairing code can be used.
    pub code_ttl: Duration,
}

/// The format that a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderKind {
    /// The Messages format.
    Anthropic,
    /// The Chat Completions format, which many others speak too.
    OpenAi,
    /// Ollama, whose address is its host alone.
    Ollama,
}

word_setting!(ProviderKind {
    "anthropic" => ProviderKind::Anthropic,
    "openai" => ProviderKind::OpenAi,
    "ollama" => ProviderKind::Ollama,
});

/// A model provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderConfig {
    /// The format it speaks.
    pub kind: ProviderKind,
    /// Its key: `api_key`, else the value of the variable `api_key_env`.
    pub api_key: Option<Secret>,
    /// The variable that holds the key.
    pub api_key_env: Option<String>,
    /// Where it is, as its own client takes it; without a slash at the end.
    pub base_url: String,
    /// The variable that holds the address, where the configuration leaves it as it is.
    pub base_url_env: Option<String>,
    /// The models it serves, when it is said.
    pub models: Vec<String>,
    /// Prices that are stronger than the published ones.
    pub prices: Vec<PriceConfig>,
}

/// What a model costs, for a million tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceConfig {
    /// The provider's name of the model.
    pub model: String,
    /// Input.
    pub input: Decimal,
    /// Output.
    pub output: Decimal,
    /// Input read from the provider's cache; as other input where it is not said.
    pub cache_read: Option<Decimal>,
    /// Input written to the provider's cache; as other input where it is not said.
    pub cache_write: Option<Decimal>,
}

/// A tool server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpConfig {
    /// A program that speaks over its standard input and output.
    Command {
        /// The program and its arguments, never empty.
        command: Vec<String>,
        /// Variables for it.
        env: BTreeMap<String, Secret>,
    },
    /// A server that speaks streamable HTTP.
    Url {
        /// Where it is.
        url: String,
        /// Headers to send.
        headers: BTreeMap<String, Secret>,
    },
}

/// What agents may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyConfig {
    /// The first that matches decides.
    pub rules: Vec<Rule>,
}

word_setting!(Action {
    "allow" => Action::Allow,
    "ask" => Action::Ask,
    "deny" => Action::Deny,
});

/// What the tree alone does not say.
pub(super) struct Surroundings<'a> {
    /// The zone of an empty `cron.time_zone`.
    pub(super) machine_time_zone: &'a TimeZone,
    /// Variables that `api_key_env` may name.
    pub(super) variable: &'a dyn Fn(&str) -> Option<Secret>,
}

impl Config {
    pub(super) fn read(root: &mut Section<'_, '_>, around: &Surroundings<'_>) -> Self {
        Self {
            http: root.nested("http", read_http),
            control: root.nested("control", |s| ControlConfig {
                tcp: s.value("tcp"),
                max_connections: s.value::<Positive<u32>>("max_connections").0,
                idle_timeout: s.value::<Positive<Duration>>("idle_timeout").0,
            }),
            daemon: root.nested("daemon", |s| DaemonConfig {
                drain: s.value("drain"),
            }),
            journal: root.nested("journal", |s| JournalConfig {
                keep: s.value::<Positive<Duration>>("keep").0,
                max_size: s.value("max_size"),
            }),
            cron: root.nested("cron", |s| CronConfig {
                time_zone: read_time_zone(s, around.machine_time_zone),
            }),
            sandbox: root.nested("sandbox", read_sandbox),
            workspace: root.nested("workspace", |s| WorkspaceConfig {
                history_age: s.value::<Positive<Duration>>("history_age").0,
                history_size: s.value("history_size"),
                inline_below: s.value("inline_below"),
                patience: s.value::<Positive<Duration>>("patience").0,
            }),
            channel: root.nested("channel", |s| ChannelConfig {
                e2e_required: s.value("e2e_required"),
                token_ttl: s.value::<Positive<Duration>>("token_ttl").0,
                code_ttl: s.value::<Positive<Duration>>("code_ttl").0,
            }),
            providers: root.entries("providers", |_, s| read_provider(s, around)),
            agents: super::agents::read(root),
            mcps: root.entries("mcps", |_, s| read_mcp(s)),
            policy: root.nested("policy", |s| PolicyConfig {
                rules: s.list("rules", read_rule),
            }),
        }
    }
}

fn read_http(s: &mut Section<'_, '_>) -> HttpConfig {
    let listen = s.value("listen");
    let cert: Option<PathBuf> = s.value("tls_cert");
    let key: Option<PathBuf> = s.value("tls_key");
    let tls = match (cert, key) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert, key }),
        (None, None) => None,
        (cert, _) => {
            let absent = if cert.is_some() {
                "tls_key"
            } else {
                "tls_cert"
            };
            s.problem(
                absent,
                ProblemKind::Missing {
                    reason: "TLS needs tls_cert and tls_key".to_owned(),
                },
            );
            None
        }
    };
    let allowed_origins: Vec<String> = s.value("allowed_origins");
    for origin in &allowed_origins {
        if let Err(reason) = check_url(origin).and_then(|uri| match uri.path() {
            "" | "/" if !origin.ends_with('/') => Ok(()),
            _ => Err(format!(
                "{origin:?} is not an origin: leave out what follows the host"
            )),
        }) {
            s.problem("allowed_origins", invalid(reason));
        }
    }
    HttpConfig {
        listen,
        tls,
        allowed_origins,
    }
}

fn read_sandbox(s: &mut Section<'_, '_>) -> SandboxConfig {
    let heartbeat = s.value::<Positive<Duration>>("heartbeat").0;
    let stale_after = s.value::<Positive<Duration>>("stale_after").0;
    if stale_after <= heartbeat && !stale_after.is_zero() {
        s.problem(
            "stale_after",
            invalid("must be longer than heartbeat, or every worker is stale"),
        );
    }
    let stale_check = s.value::<Positive<Duration>>("stale_check").0;
    let output_quota = s.value("output_quota");
    let isolate: bool = s.value("isolate");
    let network = match s.value("network") {
        true => Network::On,
        false => Network::Off,
    };
    let read = read_folders(s, "read");
    let write = read_folders(s, "write");
    if !isolate && (network == Network::Off || !read.is_empty() || !write.is_empty()) {
        let reason = "must be true for network, read and write to mean anything";
        s.problem("isolate", invalid(reason));
    }
    SandboxConfig {
        heartbeat,
        stale_after,
        stale_check,
        output_quota,
        isolate,
        network,
        read,
        write,
        limits: read_limits(s),
        commands_max: s.value::<Positive<u32>>("commands_max").0,
        shells_max: s.value::<Positive<u32>>("shells_max").0,
        transfers_max: s.value::<Positive<u32>>("transfers_max").0,
    }
}

fn read_folders(s: &mut Section<'_, '_>, key: &str) -> Vec<PathBuf> {
    let folders: Vec<String> = s.value(key);
    let folders: Vec<PathBuf> = folders.into_iter().map(PathBuf::from).collect();
    if let Some(relative) = folders.iter().find(|folder| !folder.is_absolute()) {
        let reason = format!("{} is not an absolute path", relative.display());
        s.problem(key, invalid(reason));
    }
    folders
}

fn read_limits(s: &mut Section<'_, '_>) -> Limits {
    let size = |s: &mut Section<'_, '_>, key: &str| {
        let size: Option<Positive<ByteSize>> = s.value(key);
        size.map(|size| size.0.bytes())
    };
    let number = |s: &mut Section<'_, '_>, key: &str| {
        let number: Option<Positive<u32>> = s.value(key);
        number.map(|number| number.0.into())
    };
    let cpu_time: Option<Positive<Duration>> = s.value("cpu_time_max");
    Limits {
        memory_bytes: size(s, "memory_max"),
        processes: number(s, "processes_max"),
        cpu_percent: number(s, "cpu_percent"),
        cpu_secs: cpu_time.map(|time| time.0.as_secs().max(1)),
        open_files: number(s, "open_files_max"),
        file_bytes: size(s, "file_size_max"),
    }
}

fn read_time_zone(s: &mut Section<'_, '_>, machine: &TimeZone) -> TimeZone {
    let name: Option<String> = s.value("time_zone");
    let Some(name) = name else {
        return machine.clone();
    };
    TimeZone::get(&name).unwrap_or_else(|_| {
        s.problem(
            "time_zone",
            invalid(format!(
                "{name:?} is not in the time zone database; write it like \"Europe/Berlin\""
            )),
        );
        machine.clone()
    })
}

fn read_provider(s: &mut Section<'_, '_>, around: &Surroundings<'_>) -> ProviderConfig {
    let kind = s.value("kind");
    let written = s.secret("api_key");
    let api_key_env: Option<String> = s.value_or("api_key_env", None);
    let from_variable = || api_key_env.as_deref().and_then(around.variable);
    let api_key = written.or_else(from_variable).filter(|key| !key.is_empty());
    let base_url_env: Option<String> = s.value_or("base_url_env", None);
    let base_url = address(kind, s.value("base_url"), || {
        let variable = (around.variable)(base_url_env.as_deref()?)?;
        Some(variable.expose().to_owned())
    });
    if let Err(reason) = check_url(&base_url)
        && !base_url.is_empty()
    {
        s.problem("base_url", invalid(reason));
    }
    ProviderConfig {
        kind,
        api_key,
        api_key_env,
        base_url: base_url.trim_end_matches('/').to_owned(),
        base_url_env,
        models: s.value_or("models", Vec::new()),
        prices: s.list("prices", |s| PriceConfig {
            model: s.value("model"),
            input: s.value("input"),
            output: s.value("output"),
            cache_read: s.value_or("cache_read", None),
            cache_write: s.value_or("cache_write", None),
        }),
    }
}

/// Where a provider is: as it is written, or as the variable of the provider's own client says
/// where nobody wrote anything.
fn address(
    kind: ProviderKind,
    written: String,
    variable: impl FnOnce() -> Option<String>,
) -> String {
    let untouched = ["", "https://api.anthropic.com", "https://api.openai.com/v1"];
    let found = match untouched.contains(&written.as_str()) {
        true => variable().filter(|address| !address.is_empty()),
        false => None,
    };
    match (found, kind) {
        (Some(host), ProviderKind::Ollama) => {
            quintet_models::proto::provider::ollama_address(&host)
        }
        (Some(address), _) => address,
        (None, _) => written,
    }
}

fn read_mcp(s: &mut Section<'_, '_>) -> McpConfig {
    let command: Vec<String> = s.value_or("command", Vec::new());
    let env = s.secrets("env");
    let url: Option<String> = s.value_or("url", None);
    let headers = s.secrets("headers");
    match (command.is_empty(), url) {
        (false, None) => McpConfig::Command { command, env },
        (true, Some(url)) => {
            if let Err(reason) = check_url(&url) {
                s.problem("url", invalid(reason));
            }
            McpConfig::Url { url, headers }
        }
        (true, None) => {
            s.problem(
                "command",
                ProblemKind::Missing {
                    reason: "a tool server has a command or a url".to_owned(),
                },
            );
            McpConfig::Command { command, env }
        }
        (false, Some(url)) => {
            s.problem(
                "url",
                invalid("a tool server has a command or a url, not both"),
            );
            McpConfig::Url { url, headers }
        }
    }
}

fn read_rule(s: &mut Section<'_, '_>) -> Rule {
    Rule {
        tool: read_pattern(s, "tool", NamePattern::parse),
        command: read_pattern(s, "command", CommandPattern::parse),
        path: read_pattern(s, "path", PathPattern::parse),
        agent: read_pattern(s, "agent", NamePattern::parse),
        worker: read_pattern(s, "worker", NamePattern::parse),
        session: s.value_or("session", None),
        action: s.value("action"),
    }
}

fn read_pattern<T>(
    s: &mut Section<'_, '_>,
    key: &'static str,
    parse: impl FnOnce(&str) -> Result<T, PatternError>,
) -> Option<T> {
    let text: Option<String> = s.value_or(key, None);
    match parse(&text?) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            s.problem(key, invalid(error));
            None
        }
    }
}

/// Checks an http or https address that holds no password.
fn check_url(text: &str) -> Result<axum::http::Uri, String> {
    let uri: axum::http::Uri = text
        .parse()
        .map_err(|_| "is not an address such as \"https://example.org\"".to_owned())?;
    match (uri.scheme_str(), uri.authority()) {
        // The text is not quoted: it holds a password.
        (_, Some(authority)) if authority.as_str().contains('@') => {
            Err("has a name or password before the host; it would be shown".to_owned())
        }
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err(format!(
            "{text:?} does not start with http:// or https:// and a host"
        )),
    }
}
