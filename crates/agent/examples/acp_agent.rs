//! An ACP agent made of the official crate, for tests of the bridge. It needs no model: the prompt says
//! what to do. Its sessions outlive it, in a folder of the workspace.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use agent_client_protocol::v1::{ConnectionTo, schema};
use agent_client_protocol::{Agent, Client, Error, Result, Stdio};
use schema::{
    AgentCapabilities, CancelNotification, ContentBlock, ContentChunk, Cost, Diff,
    InitializeRequest, InitializeResponse, LoadSessionRequest, LoadSessionResponse,
    NewSessionRequest, NewSessionResponse, PermissionOption, PermissionOptionKind, Plan, PlanEntry,
    PlanEntryPriority, PlanEntryStatus, PromptRequest, PromptResponse, ReadTextFileRequest,
    RequestPermissionOutcome, RequestPermissionRequest, SessionId, SessionNotification,
    SessionUpdate, StopReason, ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
    ToolKind, UsageUpdate, WriteTextFileRequest,
};
use tokio::sync::Notify;

/// What a session is: its folder, and the prompts of its life.
#[derive(Clone)]
struct Session {
    id: SessionId,
    cwd: PathBuf,
    connection: ConnectionTo<Client>,
    cancelled: Arc<Notify>,
}

type Sessions = Arc<Mutex<Vec<Session>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let sessions = Sessions::default();
    let (created, loaded, prompted, cancelled) = (
        Arc::clone(&sessions),
        Arc::clone(&sessions),
        Arc::clone(&sessions),
        sessions,
    );
    Agent
        .v1()
        .name("test-agent")
        .on_receive_request(
            async |request: InitializeRequest, responder, _connection| {
                responder.respond(
                    InitializeResponse::new(request.protocol_version)
                        .agent_capabilities(AgentCapabilities::new().load_session(true)),
                )
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: NewSessionRequest, responder, connection| {
                let id = SessionId::new(format!("session-{}", std::process::id()));
                std::fs::write(history(&request.cwd, &id), "").map_err(internal)?;
                open(&created, id.clone(), request.cwd, connection);
                responder.respond(NewSessionResponse::new(id))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest,
                        responder,
                        connection: ConnectionTo<Client>| {
                let Ok(told) = std::fs::read_to_string(history(&request.cwd, &request.session_id))
                else {
                    return responder.respond_with_error(no_session());
                };
                open(
                    &loaded,
                    request.session_id.clone(),
                    request.cwd,
                    connection.clone(),
                );
                for line in told.lines() {
                    let chunk = ContentChunk::new(format!("again: {line}").into());
                    connection.send_notification(SessionNotification::new(
                        request.session_id.clone(),
                        SessionUpdate::AgentMessageChunk(chunk),
                    ))?;
                }
                responder.respond(LoadSessionResponse::new())
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, connection: ConnectionTo<Client>| {
                let session = find(&prompted, &request.session_id)?;
                // Apart from the dispatch loop: a prompt asks the client and is cancelled by it.
                connection.spawn(async move {
                    let outcome = session.prompt(&request.prompt).await;
                    responder.respond_with_result(outcome.map(PromptResponse::new))
                })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: CancelNotification, _connection| {
                find(&cancelled, &notification.session_id)?
                    .cancelled
                    .notify_one();
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .connect_to(Stdio::new())
        .await
}

impl Session {
    async fn prompt(&self, prompt: &[ContentBlock]) -> Result<StopReason> {
        let texts: Vec<&str> = prompt
            .iter()
            .filter_map(|block| match block {
                ContentBlock::Text(text) => Some(text.text.as_str()),
                _ => None,
            })
            .collect();
        let text = texts.join("+");
        let history = history(&self.cwd, &self.id);
        let told = std::fs::read_to_string(&history).map_err(internal)?;
        std::fs::write(history, format!("{told}{text}\n")).map_err(internal)?;
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("think", thought) => {
                let chunk = ContentChunk::new(thought.to_owned().into());
                self.update(SessionUpdate::AgentThoughtChunk(chunk))?;
                let entry =
                    PlanEntry::new("answer", PlanEntryPriority::High, PlanEntryStatus::Pending);
                self.update(SessionUpdate::Plan(Plan::new(vec![entry])))?;
                let cost = UsageUpdate::new(1, 2).cost(Cost::new(0.25, "USD"));
                self.update(SessionUpdate::UsageUpdate(cost))?;
                self.say("thought")?;
            }
            ("edit", path) => self.edit(Path::new(path)).await?,
            ("read", path) => {
                let request = ReadTextFileRequest::new(self.id.clone(), path);
                match self.connection.send_request(request).block_task().await {
                    Ok(file) => self.say(&file.content)?,
                    Err(error) => self.say(&format!("refused: {error}"))?,
                }
            }
            ("run", command) => self.run(command).await?,
            ("wait", _) => {
                self.say("waiting")?;
                self.cancelled.notified().await;
                return Ok(StopReason::Cancelled);
            }
            ("spend", amount) => {
                let amount = amount.parse().unwrap_or_default();
                let cost = UsageUpdate::new(1, 2).cost(Cost::new(amount, "USD"));
                self.update(SessionUpdate::UsageUpdate(cost))?;
                self.cancelled.notified().await;
                return Ok(StopReason::Cancelled);
            }
            ("recall", _) => self.say(&told.replace('\n', ";"))?,
            ("fail", reason) => return Err(Error::internal_error().data(reason.to_owned())),
            ("die", _) => die(),
            _ => self.say(&text)?,
        }
        Ok(StopReason::EndTurn)
    }

    /// Writes through the client and reports the change.
    async fn edit(&self, path: &Path) -> Result<()> {
        let call = ToolCall::new("edit-1", "Edit a file")
            .kind(ToolKind::Edit)
            .raw_input(serde_json::json!({"path": path}));
        self.update(SessionUpdate::ToolCall(call))?;
        let request = WriteTextFileRequest::new(self.id.clone(), path, "new\n");
        self.connection.send_request(request).block_task().await?;
        let diff = Diff::new(path, "new\n").old_text("old\n".to_owned());
        let done = ToolCallUpdateFields::new()
            .status(ToolCallStatus::Completed)
            .content(vec![diff.into()]);
        self.update(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(
            "edit-1", done,
        )))
    }

    /// Asks before it reports a command's output.
    async fn run(&self, command: &str) -> Result<()> {
        let call = ToolCallUpdate::new(
            "run-1",
            ToolCallUpdateFields::new()
                .title("Run a command".to_owned())
                .kind(ToolKind::Execute)
                .raw_input(serde_json::json!({"command": command})),
        );
        let options = vec![
            PermissionOption::new("yes", "Allow", PermissionOptionKind::AllowOnce),
            PermissionOption::new("always", "Always", PermissionOptionKind::AllowAlways),
            PermissionOption::new("no", "Reject", PermissionOptionKind::RejectOnce),
        ];
        let request = RequestPermissionRequest::new(self.id.clone(), call, options);
        let answer = self.connection.send_request(request).block_task().await?;
        let chosen = match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => selected.option_id.to_string(),
            _ => "cancelled".to_owned(),
        };
        let status = match chosen.as_str() {
            "yes" | "always" => ToolCallStatus::Completed,
            _ => ToolCallStatus::Failed,
        };
        let done = ToolCallUpdateFields::new()
            .status(status)
            .content(vec![format!("{command}: {chosen}\n").into()]);
        self.update(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(
            "run-1", done,
        )))
    }

    fn say(&self, text: &str) -> Result<()> {
        let chunk = ContentChunk::new(text.to_owned().into());
        self.update(SessionUpdate::AgentMessageChunk(chunk))
    }

    fn update(&self, update: SessionUpdate) -> Result<()> {
        let notification = SessionNotification::new(self.id.clone(), update);
        self.connection.send_notification(notification)
    }
}

fn open(sessions: &Sessions, id: SessionId, cwd: PathBuf, connection: ConnectionTo<Client>) {
    let session = Session {
        id,
        cwd,
        connection,
        cancelled: Arc::default(),
    };
    sessions
        .lock()
        .expect("nobody panics with the lock")
        .push(session);
}

fn find(sessions: &Sessions, id: &SessionId) -> Result<Session> {
    let sessions = sessions.lock().expect("nobody panics with the lock");
    sessions
        .iter()
        .find(|session| session.id == *id)
        .cloned()
        .ok_or_else(no_session)
}

#[expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "it is to end as a crash does"
)]
fn die() -> ! {
    std::process::exit(3)
}

fn no_session() -> Error {
    Error::new(-32002, "no such session")
}

fn history(cwd: &Path, id: &SessionId) -> PathBuf {
    cwd.join(format!(".{id}"))
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err takes"
)]
fn internal(error: std::io::Error) -> Error {
    Error::internal_error().data(error.to_string())
}
