//! Tools of other servers.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use quintet_framing::backoff::{Backoff, BackoffPolicy};
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Tool};
use rmcp::service::{Peer, RoleClient, RunningService, ServiceError, ServiceExt};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::process::Process;
use crate::reach::{not_begun, unanswered};
use crate::tool::{Content, MAX_RESULT, ToolOutcome, ToolSpec};

/// What separates a server's name from its tool's.
const SEPARATOR: &str = "__";

/// How long a server may take to start and list its tools.
const START: Duration = Duration::from_secs(30);

/// How long a listing waits for a server that is started for the first time; it goes on starting.
const FIRST_START: Duration = Duration::from_secs(5);

/// How long a URL's connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Redirects that are followed in a row.
const MAX_REDIRECTS: usize = 5;

/// The longest line of a process: a result and what is around it.
const MAX_LINE: usize = 2 * MAX_RESULT;

/// Tools taken from one server; more are left out.
const MAX_TOOLS: usize = 256;

/// A server that fails is started again after this long, and later each time.
const BACKOFF: BackoffPolicy = BackoffPolicy {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(60),
    stable_after: Duration::from_secs(30),
};

/// Where a server's tools come from.
#[derive(Clone, PartialEq, Eq)]
pub enum ServerSpec {
    /// A program that speaks over its standard input and output.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// Variables for it.
        env: BTreeMap<String, String>,
    },
    /// A server that speaks streamable HTTP.
    Url {
        /// Where it is.
        url: String,
        /// Headers to send.
        headers: BTreeMap<String, String>,
    },
}

/// Why a call brought no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No server of that name is configured.
    #[error("no tool server {0:?} is configured")]
    Unknown(String),
    /// It can't be started, or failed a moment ago.
    #[error("the tool server {server} is not there: {reason}")]
    Unavailable {
        /// Its name.
        server: String,
        /// What is wrong and when it is tried again.
        reason: String,
    },
    /// It ended during the call.
    #[error(
        "the tool server {server} ended during the call: {reason}; it is started again when it is next used"
    )]
    Crashed {
        /// Its name.
        server: String,
        /// How it ended.
        reason: String,
    },
    /// It refused the call.
    #[error("the tool server {server} refused the call: {reason}")]
    Refused {
        /// Its name.
        server: String,
        /// What it said.
        reason: String,
    },
    /// The call was cancelled.
    #[error("the call was cancelled")]
    Cancelled,
}

/// A tool of another server.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalTool {
    /// Its server's name.
    pub server: String,
    /// Its own name, without the server's.
    pub tool: String,
    /// As agents see it, named `SERVER__TOOL`.
    pub spec: ToolSpec,
    /// Whether using it reaches other machines: its server does, or says so.
    pub network: bool,
}

/// The configured servers. They are started when they are wanted.
pub struct Externals {
    base_env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    /// Short sections without an await.
    servers: SyncMutex<BTreeMap<String, Arc<Server>>>,
    /// Servers that are being started.
    starting: TaskTracker,
}

impl Externals {
    /// No servers yet. `base_env` is what processes see of ours, `cwd` where they start.
    pub fn new(base_env: Vec<(OsString, OsString)>, cwd: PathBuf) -> Self {
        Self {
            base_env,
            cwd,
            servers: SyncMutex::default(),
            starting: TaskTracker::new(),
        }
    }

    /// Makes these the servers: one that is gone or changed is ended, one that stayed runs on.
    pub async fn configure(&self, specs: BTreeMap<String, ServerSpec>) {
        let mut ended = Vec::new();
        {
            let mut servers = self.servers();
            let kept = |name: &String, server: &Arc<Server>| specs.get(name) == Some(&server.spec);
            let old = std::mem::take(&mut *servers);
            for (name, server) in old {
                match kept(&name, &server) {
                    true => drop(servers.insert(name, server)),
                    false => ended.push(server),
                }
            }
            for (name, spec) in specs {
                servers.entry(name.clone()).or_insert_with(|| {
                    Arc::new(Server {
                        name,
                        spec,
                        base_env: self.base_env.clone(),
                        cwd: self.cwd.clone(),
                        late: SyncMutex::default(),
                        stop: CancellationToken::new(),
                        state: Mutex::new(State::new()),
                    })
                });
            }
        }
        for server in ended {
            server.end().await;
        }
    }

    /// The tools of every server that is ready. One that is not is started beside, is logged once,
    /// and is not waited for again until it has come.
    pub async fn list(&self) -> Vec<ExternalTool> {
        let servers: Vec<Arc<Server>> = self.servers().values().cloned().collect();
        let listed = servers.iter().map(|server| server.ready(&self.starting));
        let mut tools = Vec::new();
        for (server, listed) in servers.iter().zip(join_all(listed).await) {
            match listed {
                Ok(found) => {
                    server.late().take();
                    tools.extend(found.iter().cloned());
                }
                Err(error) => {
                    let before = server.late().replace(error.to_string());
                    if before.is_none() {
                        tracing::warn!(server = server.name, %error, "its tools are left out until it is there");
                    }
                }
            }
        }
        tools
    }

    /// The servers whose tools the last listing left out, and why.
    pub fn missing(&self) -> Vec<(String, String)> {
        let servers = self.servers();
        let late = servers.iter().map(|(name, server)| (name, server.late()));
        late.filter_map(|(name, late)| Some((name.clone(), late.clone()?)))
            .collect()
    }

    /// The tool of that name, `SERVER__TOOL`; `None` when no such server is configured.
    ///
    /// # Errors
    ///
    /// When its server can't be reached or has no such tool.
    pub async fn find(&self, name: &str) -> Option<Result<ExternalTool, CallError>> {
        let (server, tool) = self.split(name)?;
        let found = server.tools().await.and_then(|tools| {
            let found = tools.iter().find(|it| it.tool == tool).cloned();
            found.ok_or_else(|| CallError::Refused {
                server: server.name.clone(),
                reason: format!("it has no tool {tool:?}"),
            })
        });
        Some(found)
    }

    /// Calls a tool.
    ///
    /// # Errors
    ///
    /// When there is no result; a tool's own failure is a result.
    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Result<ToolOutcome, CallError> {
        let found = self.servers().get(server).cloned();
        let server = found.ok_or_else(|| CallError::Unknown(server.to_owned()))?;
        tokio::select! {
            // Dropping the call tells the server.
            () = cancelled.cancelled() => Err(CallError::Cancelled),
            outcome = server.call(tool, arguments) => outcome,
        }
    }

    /// Ends every server.
    pub async fn shutdown(&self) {
        self.configure(BTreeMap::new()).await;
    }

    fn split(&self, name: &str) -> Option<(Arc<Server>, String)> {
        // A server's own name may hold the separator.
        let servers = self.servers();
        servers.iter().find_map(|(server, found)| {
            let tool = name
                .strip_prefix(server.as_str())?
                .strip_prefix(SEPARATOR)?;
            Some((found.clone(), tool.to_owned()))
        })
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Server>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for all, each with its place; they run at the same time.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        let mut waiting = false;
        for (future, done) in &mut pinned {
            if done.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(output) => *done = Some(output),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        match waiting {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        }
    })
    .await;
    pinned.into_iter().filter_map(|(_, done)| done).collect()
}

struct Server {
    name: String,
    spec: ServerSpec,
    base_env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    /// Why it was not ready when its tools were last listed. Short sections without an await.
    late: SyncMutex<Option<String>>,
    /// Ends a start that is under way.
    stop: CancellationToken,
    /// Held while it is started, so that it is started once; not during calls.
    state: Mutex<State>,
}

struct State {
    running: Option<Running>,
    backoff: Backoff,
    epoch: Instant,
    /// Not to be started again before, and what went wrong.
    failed: Option<(Instant, String)>,
}

struct Running {
    service: RunningService<RoleClient, ()>,
    process: Option<Process>,
    tools: Arc<Vec<ExternalTool>>,
}

impl State {
    fn new() -> Self {
        Self {
            running: None,
            backoff: Backoff::new(BACKOFF),
            epoch: Instant::now(),
            failed: None,
        }
    }

    fn note_failure(&mut self, reason: String) {
        let pause = self.backoff.lost(self.epoch.elapsed(), 0.5);
        self.failed = Some((Instant::now() + pause, reason));
    }
}

impl Server {
    /// Its tools, if it is ready or is so soon at its first start; a start goes on by itself.
    async fn ready(
        self: &Arc<Self>,
        starting: &TaskTracker,
    ) -> Result<Arc<Vec<ExternalTool>>, CallError> {
        let not_yet = || CallError::Unavailable {
            server: self.name.clone(),
            reason: "it has not started yet".to_owned(),
        };
        let late = self.late().is_some();
        match self.state.try_lock() {
            Ok(state) if late && state.running.is_some() => {}
            Ok(_) if late => {
                let server = self.clone();
                starting.spawn(async move { server.tools().await });
                return Err(not_yet());
            }
            Err(_) if late => return Err(not_yet()),
            _ => {}
        }
        let server = self.clone();
        let started = starting.spawn(async move { server.tools().await });
        match tokio::time::timeout(FIRST_START, started).await {
            Ok(Ok(tools)) => tools,
            Ok(Err(_)) | Err(_) => Err(not_yet()),
        }
    }

    fn late(&self) -> MutexGuard<'_, Option<String>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tools(&self) -> Result<Arc<Vec<ExternalTool>>, CallError> {
        let mut state = self.state.lock().await;
        self.started(&mut state)
            .await
            .map(|running| running.tools.clone())
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
    ) -> Result<ToolOutcome, CallError> {
        let peer: Peer<RoleClient> = {
            let mut state = self.state.lock().await;
            self.started(&mut state).await?.service.peer().clone()
        };
        let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match peer.call_tool_once(request).await {
            Ok(CallToolResponse::Complete(result)) => Ok(outcome(result)),
            Ok(_) => Err(CallError::Refused {
                server: self.name.clone(),
                reason: "it answered with a task or a question of its own, which are not supported"
                    .into(),
            }),
            Err(ServiceError::McpError(error)) => Err(CallError::Refused {
                server: self.name.clone(),
                reason: error.message.into_owned(),
            }),
            Err(error) => {
                let mut state = self.state.lock().await;
                let reason = match state.running.as_ref() {
                    Some(running) if running.service.peer().is_transport_closed() => {
                        self.bury(&mut state).await
                    }
                    _ => state
                        .failed
                        .as_ref()
                        .map_or_else(|| unanswered(&error), |(_, reason)| reason.clone()),
                };
                Err(CallError::Crashed {
                    server: self.name.clone(),
                    reason,
                })
            }
        }
    }

    /// Takes away a server whose connection is gone; how it ended.
    async fn bury(&self, state: &mut State) -> String {
        let Some(mut running) = state.running.take() else {
            return String::new();
        };
        let reason = match running.process.as_mut() {
            Some(process) => process.last_words().await,
            None => "its connection was closed".to_owned(),
        };
        if let Some(process) = running.process.take() {
            process.end().await;
        }
        tracing::warn!(server = self.name, reason, "a tool server ended");
        state.note_failure(reason.clone());
        reason
    }

    /// The running server, started where it is not.
    async fn started<'s>(&self, state: &'s mut State) -> Result<&'s Running, CallError> {
        let gone = |running: &Running| running.service.peer().is_transport_closed();
        if state.running.as_ref().is_some_and(gone) {
            self.bury(state).await;
        }
        if state.running.is_none() {
            let unavailable = |reason: String| CallError::Unavailable {
                server: self.name.clone(),
                reason,
            };
            if let Some((until, reason)) = &state.failed {
                let left = until.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    let seconds = left.as_secs_f32();
                    return Err(unavailable(format!(
                        "{reason}; it is started again in {seconds:.1} s at the earliest"
                    )));
                }
            }
            let starting = tokio::time::timeout(START, self.start());
            let Some(started) = self.stop.run_until_cancelled(starting).await else {
                return Err(unavailable("it is configured no more".to_owned()));
            };
            match started {
                Ok(Ok(running)) => {
                    state.backoff.connected(state.epoch.elapsed());
                    state.failed = None;
                    state.running = Some(running);
                }
                Ok(Err(reason)) => {
                    state.note_failure(reason.clone());
                    return Err(unavailable(reason));
                }
                Err(_) => {
                    let reason = format!("it did not answer within {} s", START.as_secs());
                    state.note_failure(reason.clone());
                    return Err(unavailable(reason));
                }
            }
        }
        state
            .running
            .as_ref()
            .ok_or_else(|| CallError::Unknown(self.name.clone()))
    }

    async fn start(&self) -> Result<Running, String> {
        let (service, process) = match &self.spec {
            ServerSpec::Command { command, env } => {
                let (mut process, stdout, stdin) =
                    Process::start(&self.name, command, env, &self.base_env, &self.cwd).map_err(
                        |error| {
                            let program = command.first().map(String::as_str).unwrap_or_default();
                            format!("{program}: {error}; see [mcps.{}]", self.name)
                        },
                    )?;
                let transport =
                    AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(MAX_LINE);
                match ().serve(transport).await {
                    Ok(service) => (service, Some(process)),
                    Err(error) => {
                        let words = process.last_words().await;
                        process.end().await;
                        return Err(format!(
                            "it did not begin as a tool server ({}); {words}",
                            not_begun(&error)
                        ));
                    }
                }
            }
            ServerSpec::Url { url, headers } => {
                let service = ().serve(self.connection(url, headers)?).await;
                let service = service.map_err(|error| {
                    format!("{url}: {}; see [mcps.{}]", not_begun(&error), self.name)
                })?;
                (service, None)
            }
        };
        let network = matches!(self.spec, ServerSpec::Url { .. });
        let listed = service
            .peer()
            .list_all_tools()
            .await
            .map_err(|error| format!("it does not list its tools: {}", unanswered(&error)))?;
        if listed.len() > MAX_TOOLS {
            tracing::warn!(
                server = self.name,
                tools = listed.len(),
                "only {MAX_TOOLS} are offered"
            );
        }
        let tools = listed
            .into_iter()
            .take(MAX_TOOLS)
            .map(|tool| external(&self.name, tool, network))
            .collect();
        Ok(Running {
            service,
            process,
            tools: Arc::new(tools),
        })
    }

    fn connection(
        &self,
        url: &str,
        headers: &BTreeMap<String, String>,
    ) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
        // The first in the process counts; whichever it is, it is the only one we link.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .redirect(same_origin())
            // Reading the environment is the binary's affair.
            .no_proxy()
            .build()
            .map_err(|error| error.to_string())?;
        let headers: HashMap<HeaderName, HeaderValue> = headers
            .iter()
            .map(|(name, value)| {
                let name: HeaderName = name.parse().map_err(|_| format!("{name} is no header"))?;
                // Never the value itself: it is a secret.
                let mut value: HeaderValue = value
                    .parse()
                    .map_err(|_| format!("the value of {name} can't be sent"))?;
                value.set_sensitive(true);
                Ok((name, value))
            })
            .collect::<Result<_, String>>()?;
        let config = StreamableHttpClientTransportConfig::with_uri(url)
            .custom_headers(headers)
            .max_sse_event_size(MAX_LINE);
        Ok(StreamableHttpClientTransport::with_client(client, config))
    }

    async fn end(&self) {
        self.stop.cancel();
        let running = self.state.lock().await.running.take();
        if let Some(Running {
            mut service,
            process,
            ..
        }) = running
        {
            // It is ended by force below, whatever it says.
            let _ = service.close_with_timeout(Duration::from_secs(1)).await;
            if let Some(process) = process {
                process.end().await;
            }
        }
    }
}

/// Follows a redirect within the same origin, such as to a path with a slash at its end. Another
/// one would carry the headers, which are secrets, to where nobody configured.
fn same_origin() -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::custom(|attempt| {
        let is_same = attempt
            .previous()
            .first()
            .is_some_and(|first| first.origin() == attempt.url().origin());
        match is_same && attempt.previous().len() <= MAX_REDIRECTS {
            true => attempt.follow(),
            false => attempt.stop(),
        }
    })
}

fn external(server: &str, tool: Tool, network: bool) -> ExternalTool {
    let open_world = tool
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.open_world_hint);
    ExternalTool {
        server: server.to_owned(),
        spec: ToolSpec {
            name: format!("{server}{SEPARATOR}{}", tool.name),
            description: tool.description.map(Into::into).unwrap_or_default(),
            schema: (*tool.input_schema).clone(),
        },
        tool: tool.name.into_owned(),
        network: network || open_world == Some(true),
    }
}

fn outcome(result: CallToolResult) -> ToolOutcome {
    let content = result
        .content
        .into_iter()
        .map(|block| match block {
            ContentBlock::Text(text) => Content::Text(text.text),
            block => Content::Block(serde_json::to_value(block).unwrap_or_default()),
        })
        .collect();
    ToolOutcome {
        content,
        structured: result.structured_content,
        failed: result.is_error == Some(true),
    }
}
