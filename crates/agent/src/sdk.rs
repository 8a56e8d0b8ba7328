//! What an agent written in Rust uses.
//!
//! Implement [`Agent`] and hand it to [`run`]; the rest of the plane is done here: the connection,
//! `init`, one message at a time, `complete` exactly once, cancel, graceful shutdown.
//!
//! ```no_run
//! use quintet_agent::sdk::{self, Agent, AgentEnv, Completion, Turn, TurnError};
//! use quintet_agent::InboundMessage;
//!
//! struct Echo;
//!
//! impl Agent for Echo {
//!     async fn on_message(&self, turn: Turn, message: InboundMessage) -> Result<Completion, TurnError> {
//!         turn.text_delta(format!("you said: {}", message.data.text)).await?;
//!         let count = turn.state().get("/count").await.and_then(|n| n.as_u64()).unwrap_or(0);
//!         turn.state().set("/count", count + 1).await?;
//!         Ok(Completion::default())
//!     }
//! }
//!
//! # async fn example(lookup: impl Fn(&str) -> Option<String>) -> Result<(), Box<dyn std::error::Error>> {
//! sdk::run(AgentEnv::from_lookup(lookup)?, Echo).await?;
//! # Ok(())
//! # }
//! ```

mod outgoing;
mod state;
mod turn;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quintet_framing::{FrameError, FrameReader, ReadError, unix};
use serde_json::{Map, Value};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use outgoing::Outgoing;
pub use state::{State, StateChangeError};
pub use turn::{Completion, Turn, TurnError};

use crate::proto::FORMAT;
use crate::proto::message::{
    AgentId, AgentToCoordinator, ApprovalResult, AskOutcome, CoordinatorToAgent, FinishReason,
    InboundMessage, Init,
};

/// Steers that a turn has not looked at; more are given back.
const STEER_QUEUE: usize = 64;

/// How long a cancelled turn may take to end by itself: less than the coordinator's own patience.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// What a process is told by its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEnv {
    /// `QUINTET_IPC_SOCKET`.
    pub socket: PathBuf,
    /// `AGENT_ID`.
    pub agent_id: AgentId,
    /// `AGENT_WORKSPACE`.
    pub workspace: PathBuf,
}

/// A variable that the supervisor sets is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not set; agents are started by the Quintet daemon")]
pub struct MissingVariable(&'static str);

impl AgentEnv {
    /// Reads the environment through `lookup`.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, MissingVariable> {
        let required = |name| lookup(name).ok_or(MissingVariable(name));
        Ok(Self {
            socket: required("QUINTET_IPC_SOCKET")?.into(),
            agent_id: required("AGENT_ID")?.into(),
            workspace: required("AGENT_WORKSPACE")?.into(),
        })
    }
}

/// An agent.
pub trait Agent: Send + Sync + 'static {
    /// Works on a message. An error ends it with `finish_reason: "error"` and its text.
    ///
    /// When [`Turn::cancelled`] fires it should return soon; after a while its future is dropped.
    fn on_message(
        &self,
        turn: Turn,
        message: InboundMessage,
    ) -> impl Future<Output = Result<Completion, TurnError>> + Send;

    /// Sees guidance for the running message; [`Turn::next_steer`] gets it too.
    fn on_steer(&self, _content: &str) {}

    /// Sees changed configuration keys; [`Session::config`] has them already.
    fn on_config(&self, _changes: &Map<String, Value>) {}

    /// Is told that the process ends, after the running message has.
    fn on_shutdown(&self, _reason: &str) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Why an agent's connection ended.
#[derive(Debug, thiserror::Error)]
pub enum SdkError {
    /// The socket can't be dialled.
    #[error("connecting to {} failed: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The coordinator went away without `shutdown`.
    #[error("the coordinator closed the connection")]
    Disconnected,
    /// The coordinator sent what is no frame.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The coordinator sent what is no message.
    #[error("the coordinator sent a wrong message: {0}")]
    BadMessage(#[from] serde_json::Error),
    /// The first message was not `init`.
    #[error("the coordinator's first message is not `init`")]
    NoInit,
}

/// The coordinator is gone; the agent can only end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the coordinator is closed")]
pub struct Closed;

/// Why something can't be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The coordinator is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// It is over the frame limit.
    #[error(transparent)]
    TooLarge(#[from] FrameError),
}

/// What an agent knows for as long as it is connected. Clones share it.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    agent_id: AgentId,
    agent_type: String,
    workspace: PathBuf,
    /// For short sections without await, as the two below.
    config: Mutex<Map<String, Value>>,
    asks: Mutex<HashMap<String, oneshot::Sender<AskOutcome>>>,
    approvals: Mutex<HashMap<String, oneshot::Sender<ApprovalResult>>>,
    state: State,
    out: Outgoing,
}

impl Session {
    /// The instance.
    pub fn agent_id(&self) -> &AgentId {
        &self.shared.agent_id
    }

    /// The configured agent's name.
    pub fn agent_type(&self) -> &str {
        &self.shared.agent_type
    }

    /// The folder to work in.
    pub fn workspace(&self) -> &PathBuf {
        &self.shared.workspace
    }

    /// A configuration value as it is now.
    pub fn config(&self, key: &str) -> Option<Value> {
        lock(&self.shared.config).get(key).cloned()
    }

    /// The durable state.
    pub fn state(&self) -> &State {
        &self.shared.state
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects and serves messages until the coordinator says `shutdown`.
pub async fn run<A: Agent>(env: AgentEnv, agent: A) -> Result<(), SdkError> {
    let stream = unix::dial(&env.socket)
        .await
        .map_err(|source| SdkError::Connect {
            socket: env.socket.clone(),
            source,
        })?;
    let (read, write) = stream.into_split();
    let mut reader = FrameReader::new(read, FORMAT);
    let CoordinatorToAgent::Init(init) = receive(&mut reader).await? else {
        return Err(SdkError::NoInit);
    };
    let out = Outgoing::default();
    let mut writing = JoinSet::new();
    writing.spawn(out.clone().write_to(write));
    let mut serving = Serving {
        session: session(init, out.clone()),
        agent: Arc::new(agent),
        queue: VecDeque::new(),
        turns: JoinSet::new(),
        current: None,
        shutdown: CancellationToken::new(),
        outputs: format!("out_{}", uuid::Uuid::now_v7().simple()),
        begun: 0,
    };
    // A task of its own: the future that a runtime blocks on is polled less directly.
    let mut served = JoinSet::new();
    served.spawn(async move {
        let ended = serving.serve(&mut reader).await;
        serving.turns.shutdown().await;
        ended
    });
    let ended = match served.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(SdkError::Disconnected),
        },
        None => Err(SdkError::Disconnected),
    };
    // The last messages are written before the connection closes.
    out.end();
    while writing.join_next().await.is_some() {}
    ended
}

fn session(init: Init, out: Outgoing) -> Session {
    Session {
        shared: Arc::new(Shared {
            agent_id: init.agent_id,
            agent_type: init.agent_type,
            workspace: init.workspace.into(),
            config: Mutex::new(init.config),
            asks: Mutex::default(),
            approvals: Mutex::default(),
            state: State::new(init.state, out.clone()),
            out,
        }),
    }
}

async fn receive(reader: &mut FrameReader<OwnedReadHalf>) -> Result<CoordinatorToAgent, SdkError> {
    let frame = reader.next().await?.ok_or(SdkError::Disconnected)?;
    Ok(CoordinatorToAgent::decode(&frame)?)
}

/// The turn that runs, as the connection sees it.
struct Current {
    output_id: String,
    steers: mpsc::Sender<String>,
    /// The other end, which the turn reads; what is left there was not looked at.
    unread: turn::Steers,
    cancel: CancellationToken,
}

struct Serving<A> {
    session: Session,
    agent: Arc<A>,
    queue: VecDeque<InboundMessage>,
    turns: JoinSet<(FinishReason, Completion)>,
    current: Option<Current>,
    /// Ends the running message with the process; its own token is a child of this one.
    shutdown: CancellationToken,
    /// What the ids of this process's outputs begin with: no other process has them.
    outputs: String,
    begun: u64,
}

impl<A: Agent> Serving<A> {
    async fn serve(&mut self, reader: &mut FrameReader<OwnedReadHalf>) -> Result<(), SdkError> {
        loop {
            let reason = tokio::select! {
                message = receive(reader) => self.take(message?).await,
                ended = self.turns.join_next(), if !self.turns.is_empty() => {
                    self.finish(ended.and_then(Result::ok)).await;
                    None
                }
            };
            if let Some(reason) = reason {
                self.shutdown.cancel();
                while let Some(ended) = self.turns.join_next().await {
                    self.queue.clear();
                    self.finish(ended.ok()).await;
                }
                self.agent.on_shutdown(&reason).await;
                return Ok(());
            }
        }
    }

    /// Takes a message; returns the reason of a `shutdown`.
    async fn take(&mut self, message: CoordinatorToAgent) -> Option<String> {
        match message {
            CoordinatorToAgent::Message(message) => {
                self.queue.push_back(message);
                self.begin();
            }
            CoordinatorToAgent::Steer { content } => {
                self.agent.on_steer(&content);
                let untaken = match &self.current {
                    Some(current) => current.steers.try_send(content).err(),
                    None => Some(TrySendError::Closed(content)),
                };
                if let Some(untaken) = untaken {
                    self.give_back(untaken.into_inner()).await;
                }
            }
            CoordinatorToAgent::ConfigUpdate { changes, .. } => {
                lock(&self.session.shared.config).extend(changes.clone());
                self.agent.on_config(&changes);
            }
            CoordinatorToAgent::Cancel { .. } => {
                if let Some(current) = &self.current {
                    current.cancel.cancel();
                }
            }
            CoordinatorToAgent::AskResult { ask_id, outcome } => {
                let asked = lock(&self.session.shared.asks).remove(&ask_id);
                asked.map(|asked| asked.send(outcome));
            }
            CoordinatorToAgent::ApprovalResult(result) => {
                let asked = lock(&self.session.shared.approvals).remove(&result.request_id);
                asked.map(|asked| asked.send(result));
            }
            CoordinatorToAgent::Shutdown { reason } => return Some(reason),
            // Of a newer coordinator, or an `init` too many: nothing that this agent could do.
            CoordinatorToAgent::Init(_) | CoordinatorToAgent::Unknown => {}
        }
        None
    }

    fn begin(&mut self) {
        if self.current.is_some() {
            return;
        }
        let Some(message) = self.queue.pop_front() else {
            return;
        };
        let (steers, steered) = mpsc::channel(STEER_QUEUE);
        let unread: turn::Steers = Arc::new(tokio::sync::Mutex::new(steered));
        let cancel = self.shutdown.child_token();
        self.begun += 1;
        let output_id = format!("{}_{}", self.outputs, self.begun);
        let turn = Turn::new(
            self.session.clone(),
            output_id.clone(),
            message.id.clone(),
            unread.clone(),
            cancel.clone(),
            self.shutdown.clone(),
        );
        self.current = Some(Current {
            output_id,
            steers,
            unread,
            cancel: cancel.clone(),
        });
        let (agent, session) = (Arc::clone(&self.agent), self.session.clone());
        let output_id = turn.output_id().to_owned();
        self.turns.spawn(async move {
            let work = agent.on_message(turn, message);
            let patience = async {
                cancel.cancelled().await;
                tokio::time::sleep(CANCEL_PATIENCE).await;
            };
            let result = tokio::select! {
                result = work => result,
                () = patience => Ok(Completion::default()),
            };
            match result {
                Ok(completion) if cancel.is_cancelled() => (FinishReason::Cancelled, completion),
                Ok(completion) => (completion.finish_reason.clone(), completion),
                Err(_) if cancel.is_cancelled() => (FinishReason::Cancelled, Completion::default()),
                Err(error) => {
                    turn::say(&session, &output_id, error.to_string()).await;
                    (FinishReason::Error, Completion::default())
                }
            }
        });
    }

    /// Tells the coordinator of guidance that no turn has looked at.
    async fn give_back(&self, content: String) {
        let unread = AgentToCoordinator::SteerUnread { content };
        if let Err(error) = self.session.shared.out.send(&unread).await {
            tracing::debug!(%error, "guidance that came too late is lost");
        }
    }

    /// Says `complete` for the turn that ended; one that panicked ended with an error.
    async fn finish(&mut self, ended: Option<(FinishReason, Completion)>) {
        let Some(current) = self.current.take() else {
            return;
        };
        let (finish_reason, completion) =
            ended.unwrap_or((FinishReason::Error, Completion::default()));
        // Who cancels does not want what was asked for before either.
        if finish_reason != FinishReason::Cancelled
            && let Ok(mut unread) = current.unread.try_lock()
        {
            while let Ok(content) = unread.try_recv() {
                self.give_back(content).await;
            }
        }
        let complete = AgentToCoordinator::Complete {
            message_id: current.output_id.into(),
            finish_reason,
            token_usage: completion.usage,
        };
        if let Err(error) = self.session.shared.out.send(&complete).await {
            tracing::debug!(%error, "the end of a turn is not told");
        }
        self.begin();
    }
}
