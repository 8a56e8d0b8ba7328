//! A hub, its listener, and workers that are either ours, raw sockets, or programs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{SinkExt as _, StreamExt as _};
use quintet_framing::backoff::BackoffPolicy;
use quintet_framing::ws::{Refusal, WsDial, accept_socket, dial_socket};
use quintet_sandbox::hub::{
    AuthError, Hub, HubEvent, HubObserver, HubSettings, PeerInfo, Receipt, WorkerAuth,
    WorkerStatus, auth, loopback,
};
use quintet_sandbox::proto::{MAX_MESSAGE, Protocol, Pulse, TokenHash, negotiate};
use quintet_sandbox::socket::{WsMessage, WsSocket};
use quintet_sandbox::worker::{RunError, Worker, WorkerConfig, scrub_environment};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::MaybeTlsStream;
use tokio_util::sync::CancellationToken;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that must happen.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain: {what}"),
    }
}

/// What commands and shells see: this process's variables, with a home of the test's own, as
/// what a person's shell does when it starts is not part of any test.
fn environment(home: &Path) -> Vec<(OsString, OsString)> {
    let mut variables = scrub_environment(std::env::vars_os());
    variables.retain(|(name, _)| name != "HOME");
    variables.push(("HOME".into(), home.into()));
    variables
}

/// Tokens by worker; a worker without an entry is let in when it is of this user.
#[derive(Default)]
pub(crate) struct TestAuth {
    pub(crate) tokens: Mutex<BTreeMap<String, TokenHash>>,
    pub(crate) strict: bool,
    /// Takes every token back after so many looks.
    pub(crate) revoke_after: Mutex<Option<usize>>,
}

#[async_trait]
impl WorkerAuth for TestAuth {
    async fn authorize(&self, peer: &PeerInfo, daemon_id: &str) -> Result<(), AuthError> {
        let stored = self.tokens.lock().unwrap().get(daemon_id).copied();
        let peer = PeerInfo {
            same_user: peer.same_user && !self.strict,
            ..peer.clone()
        };
        let checked = auth::check(&peer, daemon_id, stored);
        let mut looks = self.revoke_after.lock().unwrap();
        if let Some(left) = &mut *looks {
            *left -= 1;
            if *left == 0 {
                self.tokens.lock().unwrap().clear();
                *looks = None;
            }
        }
        checked
    }
}

#[derive(Default)]
pub(crate) struct Recorder {
    events: Mutex<Vec<HubEvent>>,
    /// Receipts come when this is false.
    pub(crate) hold: watch::Sender<bool>,
}

impl HubObserver for Recorder {
    fn observe(&self, event: HubEvent) -> Receipt {
        self.events.lock().unwrap().push(event);
        let mut hold = self.hold.subscribe();
        Receipt::when(async move {
            // A recorder that is gone holds nothing.
            let _ = hold.wait_for(|held| !held).await;
            Ok(())
        })
    }
}

pub(crate) struct Bed {
    pub(crate) hub: Hub,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) auth: Arc<TestAuth>,
    pub(crate) events: Arc<Recorder>,
    settings: HubSettings,
    tls: Option<Arc<rustls::ServerConfig>>,
    listener: Arc<TcpListener>,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl Bed {
    pub(crate) async fn start() -> Self {
        Self::with(HubSettings::default()).await
    }

    pub(crate) async fn with(settings: HubSettings) -> Self {
        Self::custom(settings, TestAuth::default(), None).await
    }

    pub(crate) async fn custom(
        settings: HubSettings,
        auth: TestAuth,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let (auth, events) = (Arc::new(auth), Arc::new(Recorder::default()));
        let shutdown = CancellationToken::new();
        let hub = Hub::new(settings, auth.clone(), events.clone(), shutdown.clone());
        let mut bed = Self {
            hub,
            dir: tempfile::tempdir().unwrap(),
            address,
            auth,
            events,
            settings,
            tls,
            listener,
            shutdown,
            tasks: JoinSet::new(),
        };
        bed.listen();
        bed
    }

    fn listen(&mut self) {
        let (hub, listener) = (self.hub.clone(), self.listener.clone());
        let (tls, shutdown) = (self.tls.clone(), self.shutdown.clone());
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = shutdown.cancelled() => break,
                };
                let (socket, peer) = accepted.unwrap();
                connections.spawn(serve(hub.clone(), socket, peer, tls.clone()));
            }
            while connections.join_next().await.is_some() {}
        });
    }

    /// Stops the hub and starts another, which knows nothing, on the same address.
    pub(crate) async fn restart_hub(&mut self) {
        self.shutdown.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.shutdown = CancellationToken::new();
        self.hub = Hub::new(
            self.settings,
            self.auth.clone(),
            self.events.clone(),
            self.shutdown.clone(),
        );
        self.listen();
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "wss" } else { "ws" };
        format!("{scheme}://{}/ws", self.address)
    }

    pub(crate) fn root(&self, id: &str) -> PathBuf {
        let root = self.dir.path().join(format!("root-{id}"));
        std::fs::create_dir_all(&root).unwrap();
        root
    }

    pub(crate) fn config(&self, id: &str) -> WorkerConfig {
        let spool = self.dir.path().join(format!("spool-{id}"));
        let mut config = WorkerConfig::new(&self.url(), id, self.root(id), spool);
        config.env = environment(self.dir.path());
        config.backoff = quick_backoff();
        config
    }

    /// A worker of ours in this process, online.
    pub(crate) async fn worker(&self, id: &str) -> Running {
        self.worker_with(self.config(id)).await
    }

    pub(crate) async fn v1_worker(&self, id: &str) -> Running {
        let mut config = self.config(id);
        config.protocols = vec![Protocol::V1];
        self.worker_with(config).await
    }

    pub(crate) async fn worker_with(&self, config: WorkerConfig) -> Running {
        let id = config.daemon_id.clone();
        let running = Running::start(config).await;
        self.online(&id).await;
        running
    }

    /// A worker of ours as a program, online.
    pub(crate) async fn program(&self, id: &str, extra: Value) -> Program {
        let program = Program::start(&self.settings_of(id, extra), &[]);
        self.online(id).await;
        program
    }

    pub(crate) fn settings_of(&self, id: &str, extra: Value) -> Value {
        let mut settings = serde_json::json!({
            "server_url": self.url(),
            "daemon_id": id,
            "root": self.root(id),
            "spool": self.dir.path().join(format!("spool-{id}")),
        });
        let (Value::Object(settings_map), Value::Object(extra)) = (&mut settings, extra) else {
            panic!("settings are an object");
        };
        settings_map.extend(extra);
        settings
    }

    pub(crate) async fn online(&self, id: &str) {
        self.status(id, WorkerStatus::Online).await;
    }

    pub(crate) async fn status(&self, id: &str, status: WorkerStatus) {
        let mut changes = self.hub.changes();
        soon(&format!("{id} becomes {status:?}"), async {
            while self.hub.worker(id).is_none_or(|info| info.state != status) {
                changes.changed().await.unwrap();
            }
        })
        .await;
    }

    pub(crate) fn events(&self) -> Vec<HubEvent> {
        self.events.events.lock().unwrap().clone()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn serve(
    hub: Hub,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
) {
    let local = socket.local_addr().unwrap();
    socket.set_nodelay(true).unwrap();
    let same_user = loopback::is_same_user(local, peer);
    match tls {
        None => upgrade(hub, socket, peer, same_user).await,
        Some(tls) => {
            if let Ok(socket) = tokio_rustls::TlsAcceptor::from(tls).accept(socket).await {
                upgrade(hub, socket, peer, same_user).await;
            }
        }
    }
}

async fn upgrade<S>(hub: Hub, socket: S, peer: SocketAddr, same_user: bool)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut token = None;
    let mut protocol = None;
    let accepted = accept_socket(socket, MAX_MESSAGE, |request| {
        let header = |name: &str| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        token = header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::to_owned);
        let offered = header("sec-websocket-protocol").unwrap_or_default();
        let chosen = negotiate(offered).map_err(|error| Refusal {
            status: 400,
            reason: error.to_string(),
        })?;
        protocol = Some(chosen);
        Ok(Some(chosen.name().to_owned()))
    })
    .await;
    let Ok(socket) = accepted else { return };
    let peer = PeerInfo {
        address: Some(peer),
        same_user,
        token,
    };
    hub.serve_connection(socket, peer, protocol.unwrap()).await;
}

pub(crate) fn quick_backoff() -> BackoffPolicy {
    BackoffPolicy {
        base: Duration::from_millis(20),
        cap: Duration::from_millis(100),
        ..BackoffPolicy::default()
    }
}

/// A worker that runs in this process until it is dropped.
pub(crate) struct Running {
    shutdown: CancellationToken,
    tasks: JoinSet<Result<(), RunError>>,
}

impl Running {
    pub(crate) async fn start(config: WorkerConfig) -> Self {
        let worker = Worker::start(config).await.unwrap();
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(worker.run(shutdown.clone()));
        Self { shutdown, tasks }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.ends().await.unwrap();
    }

    pub(crate) async fn ends(mut self) -> Result<(), RunError> {
        let ended = soon("the worker ends", self.tasks.join_next()).await;
        ended.unwrap().unwrap()
    }
}

/// A worker that runs as a program until it is dropped.
pub(crate) struct Program(std::process::Child);

impl Program {
    pub(crate) fn start(settings: &Value, wrapper: &[&str]) -> Self {
        let peer = env!("CARGO_BIN_EXE_sandbox-peer");
        let mut words = wrapper.to_vec();
        words.push(peer);
        let child = std::process::Command::new(words[0])
            .args(&words[1..])
            .arg("worker")
            .arg(settings.to_string())
            .env("HOME", settings["root"].as_str().unwrap())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One end of a WebSocket in a test's own hands.
pub(crate) struct Raw<S>(pub(crate) WsSocket<S>);

/// Dials a hub as a worker that says only what a test says.
pub(crate) async fn raw_worker(url: &str, protocols: &[&str]) -> Raw<MaybeTlsStream<TcpStream>> {
    let dial = WsDial {
        url,
        protocols,
        token: None,
        tls: None,
    };
    let (socket, _) = dial_socket(dial, 64 << 20).await.unwrap();
    Raw(socket)
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Raw<S> {
    pub(crate) async fn send(&mut self, message: Value) {
        self.send_text(message.to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: String) {
        self.0.send(WsMessage::Text(text.into())).await.unwrap();
    }

    pub(crate) async fn send_binary(&mut self, bytes: bytes::Bytes) {
        self.0.send(WsMessage::Binary(bytes)).await.unwrap();
    }

    /// The next message that is not a heartbeat or its answer.
    pub(crate) async fn message(&mut self) -> WsMessage {
        loop {
            let message = soon("a message", self.0.next()).await;
            let message = match message {
                Some(Ok(message)) => message,
                other => panic!("the connection ended: {other:?}"),
            };
            if let WsMessage::Text(text) = &message {
                let text = std::str::from_utf8(text).unwrap();
                if text.contains("\"heartbeat") {
                    continue;
                }
            }
            return message;
        }
    }

    pub(crate) async fn json(&mut self) -> Value {
        match self.message().await {
            WsMessage::Text(text) => serde_json::from_slice(&text).unwrap(),
            other => panic!("not a text message: {other:?}"),
        }
    }

    /// Registers as a worker.
    pub(crate) async fn register(&mut self, id: &str) -> Value {
        self.send(serde_json::json!({
            "type": "register", "daemon_id": id,
            "metadata": {"hostname": "h", "platform": "linux", "arch": "x86_64", "version": "t", "labels": {}},
        }))
        .await;
        self.json().await
    }

    /// Reads until the peer closes; returns the code and the reason.
    pub(crate) async fn closed(&mut self) -> Option<(u16, String)> {
        loop {
            match soon("the close", self.0.next()).await {
                Some(Ok(WsMessage::Close(code, reason))) => return Some((code, reason)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }
}

/// A listener that accepts workers as a hub that says only what a test says.
pub(crate) struct RawHub {
    listener: TcpListener,
    pub(crate) url: String,
}

impl RawHub {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/ws", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// Accepts one worker, takes its registration and acknowledges it.
    pub(crate) async fn accept(&self, protocol: Protocol) -> Raw<TcpStream> {
        let (mut raw, register) = self.accept_silently(protocol).await;
        assert_eq!(register["type"], "register");
        raw.send(serde_json::json!({
            "type": "register_ack", "success": true, "message": "Successfully registered",
        }))
        .await;
        raw
    }

    pub(crate) async fn accept_silently(&self, protocol: Protocol) -> (Raw<TcpStream>, Value) {
        let (socket, _) = soon("a worker dials", self.listener.accept())
            .await
            .unwrap();
        let admit = |_: &_| Ok(Some(protocol.name().to_owned()));
        let socket = accept_socket(socket, 64 << 20, admit).await.unwrap();
        let mut raw = Raw(socket);
        let register = raw.json().await;
        (raw, register)
    }
}

/// A worker of ours that dials a raw hub, in a folder of its own.
pub(crate) struct Lone {
    pub(crate) hub: RawHub,
    pub(crate) dir: tempfile::TempDir,
    _running: Running,
}

impl Lone {
    pub(crate) async fn start(change: impl FnOnce(&mut WorkerConfig)) -> Self {
        let hub = RawHub::start().await;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let mut config = WorkerConfig::new(&hub.url, "w", root, dir.path().join("spool"));
        config.env = environment(dir.path());
        config.backoff = quick_backoff();
        config.pulse = Pulse::default();
        change(&mut config);
        let running = Running::start(config).await;
        Self {
            hub,
            dir,
            _running: running,
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Nothing but `expected` is in the root, hidden files included.
    pub(crate) fn assert_root_holds(&self, expected: &[&str]) {
        let mut names = names_in(&self.root());
        names.sort();
        assert_eq!(names, expected);
    }
}

pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}
