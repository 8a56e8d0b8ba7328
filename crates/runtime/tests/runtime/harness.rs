//! A daemon for one test, and the words to talk to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use quintet_control::wire::{
    EventsMsg, JournalEvent, SendMsg, StreamEvent, StreamMsg, stream_event::Event,
};
use quintet_control::{Client, ClientError, ErrorCode, UnixClient};
use quintet_runtime::config::ConfigInputs;
use quintet_runtime::daemon::{Daemon, DaemonOptions};
use quintet_runtime::home::Home;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A daemon without a worker.
pub(crate) fn options(home: &Home) -> DaemonOptions {
    DaemonOptions {
        config: ConfigInputs::new(home.config_file(), jiff::tz::TimeZone::UTC)
            .with_agents_dir(home.agents_dir()),
        home: home.clone(),
        version: "test",
        compat_socket: None,
        insecure: false,
        program: PathBuf::from("/nonexistent"),
        worker: None,
        base_env: BTreeMap::from([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]),
    }
}

pub(crate) struct TestDaemon {
    home: Home,
    folder: Option<tempfile::TempDir>,
    stop: oneshot::Sender<()>,
    running: JoinSet<()>,
}

impl TestDaemon {
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// With more configuration.
    pub(crate) async fn start_with(more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/scripted.py");
        let config = format!(
            "# a comment of the user's\n[http]\nlisten = \"127.0.0.1:0\"\n\
             [agents.py]\ncommand = [\"python3\", {script:?}]\nmodel = \"m1\"\n{more}"
        );
        std::fs::write(folder.path().join("config.toml"), config).expect("writable");
        Self::on(folder).await
    }

    pub(crate) async fn on(folder: tempfile::TempDir) -> Self {
        let home = Home::new(folder.path());
        let daemon = Daemon::start(options(&home)).await.expect("starts");
        let (stop, stopped) = oneshot::channel();
        let mut running = JoinSet::new();
        running.spawn(daemon.run_until(async {
            // A test that ends early drops its end.
            let _ = stopped.await;
        }));
        Self {
            home,
            folder: Some(folder),
            stop,
            running,
        }
    }

    /// Stops in order; the home folder can be used again.
    pub(crate) async fn stop(mut self) -> tempfile::TempDir {
        let folder = self.folder.take().expect("held until now");
        self.stop.send(()).expect("running");
        self.running.join_all().await;
        folder
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) async fn client(&self) -> UnixClient {
        UnixClient::connect(self.home.control_socket())
            .await
            .expect("listening")
    }

    /// The whole journal, or that of one session.
    pub(crate) async fn journal(&self, session: Option<u64>) -> Vec<JournalEvent> {
        let request = EventsMsg {
            session,
            after_seq: Some(0),
            follow: false,
        };
        let mut client = self.client().await;
        let events: Vec<_> = client.events(request).collect().await;
        events
            .into_iter()
            .map(|event| event.expect("readable"))
            .collect()
    }

    /// Waits until the journal holds a row of `kind` in a session.
    pub(crate) async fn wait_for(&self, session: u64, kind: &str) -> JournalEvent {
        self.wait_for_row(session, |row| row.kind == kind).await
    }

    /// Waits until the journal holds such a row in a session.
    pub(crate) async fn wait_for_row(
        &self,
        session: u64,
        is_it: impl Fn(&JournalEvent) -> bool,
    ) -> JournalEvent {
        let request = EventsMsg {
            session: Some(session),
            after_seq: Some(0),
            follow: true,
        };
        let mut client = self.client().await;
        let events = client.events(request);
        tokio::pin!(events);
        loop {
            let event = events.next().await.expect("follows").expect("readable");
            if is_it(&event) {
                return event;
            }
        }
    }
}

/// A message for the scripted agent, in a session of its own.
pub(crate) fn script(lines: &[&str]) -> SendMsg {
    SendMsg {
        agent: "py".into(),
        content: lines.join("\n"),
        new_chat: true,
        ..SendMsg::default()
    }
}

/// The same as a stream.
pub(crate) fn streamed(message: SendMsg) -> StreamMsg {
    StreamMsg {
        agent: message.agent,
        content: message.content,
        session: message.session,
        sender: message.sender,
        cwd: message.cwd,
        new_chat: message.new_chat,
        resume_file: message.resume_file,
        worker: message.worker,
        match_session: message.match_session,
    }
}

/// A further message in a session.
pub(crate) fn again(session: u64, lines: &[&str]) -> SendMsg {
    SendMsg {
        session: Some(session),
        ..script(lines)
    }
}

/// Runs a turn to its end.
pub(crate) async fn run(client: &mut UnixClient, message: SendMsg) -> Vec<StreamEvent> {
    let events: Vec<_> = client.stream(streamed(message)).collect().await;
    events
        .into_iter()
        .map(|event| event.expect("streams"))
        .collect()
}

/// The session that a stream started in.
pub(crate) fn session_of(events: &[StreamEvent]) -> u64 {
    events
        .iter()
        .find_map(|event| match &event.event {
            Some(Event::Start(start)) => Some(start.session),
            _ => None,
        })
        .expect("a stream begins with its start")
}

/// The text of a stream.
pub(crate) fn text_of(events: &[StreamEvent]) -> String {
    events
        .iter()
        .filter_map(|event| match &event.event {
            Some(Event::Chunk(chunk)) => Some(chunk.content.as_str()),
            _ => None,
        })
        .collect()
}

/// The error that a stream ended with, empty on success.
pub(crate) fn error_of(events: &[StreamEvent]) -> String {
    match events.last().and_then(|event| event.event.as_ref()) {
        Some(Event::End(end)) => end.error.clone(),
        other => panic!("a stream ends with its end, not with {other:?}"),
    }
}

/// The code of a refusal.
pub(crate) fn code<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> u32 {
    let error = outcome.expect_err("refused");
    let refusal = error.refusal().expect("the server's word");
    match refusal.code {
        ErrorCode::Other(code) => code,
        known => known.into(),
    }
}
