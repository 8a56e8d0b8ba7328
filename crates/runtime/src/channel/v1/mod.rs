//! A v1 device's conversation: what it says, and what it hears of the journal.
//!
//! A connection hears of the turns in sessions that its device has named,
//! whoever asked for them, of ends that the device missed, and of every
//! approval. A question of the agent ends the streamed text as
//! `assistant_final`, because the real UI keeps its input closed until then;
//! the next message of a device that was sent the question is the answer.

mod hearing;

use std::sync::Arc;

use quintet_agent::proto::message::AskOutcome;
use quintet_channel::proto::device::{Device, DeviceId};
use quintet_channel::proto::v1::{Code, Outer, ServerEvent};
use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{ApprovalAnswer, UserMessage, V1Session};
use quintet_control::wire::{AnswerApprovalMsg, ApprovalScope};

use super::devices::{self, DeviceTurn};
use super::op_error;
use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::sessions::asks::Ask;
use crate::sessions::messages::{self, Channel, Message, Purpose};
use crate::sessions::{self, DEFAULT_SENDER, NewSession, Session, asks};
use crate::store::WriteTx;
use crate::turns::Instances;
use hearing::Hearing;

/// What an approval is called in `request_id`.
const APPROVAL: &str = "approval-";

/// One connection of a v1 device.
pub(crate) struct Conversation {
    runtime: Arc<Runtime>,
    device: DeviceId,
    name: String,
    hearing: Hearing,
}

impl Conversation {
    /// Begins with what waits for the device.
    pub(crate) async fn open(runtime: Arc<Runtime>, device: &Device) -> Result<Self, Refusal> {
        Ok(Self {
            hearing: Hearing::open(runtime.db.clone(), device.id).await?,
            runtime,
            device: device.id,
            name: device.name.clone(),
        })
    }

    async fn said(&mut self, message: UserMessage) -> Result<(), Refusal> {
        let UserMessage {
            session_id,
            agent_id,
            content,
            nonce,
        } = message;
        if content.trim().is_empty() {
            return Err(Refusal::Bad("the message is empty; say what to do".into()));
        }
        let speaker = Speaker {
            device: self.device,
            by: self.name.clone(),
            name: session_id.clone(),
            agent: self.agent(agent_id),
            instances: self.runtime.coordinator.instances().clone(),
        };
        let (said, joined) = self
            .runtime
            .db
            .write(move |tx| speaker.says(tx, &content, nonce))
            .await?;
        match said {
            Said::Answer(ask, outcome) => self.runtime.coordinator.answered(ask, outcome).await,
            Said::Message(message, agent) => {
                let outer = Outer {
                    session_id,
                    agent_id: Some(agent),
                };
                self.hearing.follow(message.id, outer);
                self.runtime.coordinator.wake(message.session);
            }
        }
        for turn in joined {
            // What was said is kept: an answer that it was not would be wrong.
            if let Err(error) = self.hearing.catch_up(turn).await {
                tracing::error!(%error, "a turn that runs could not be told to a device");
            }
        }
        Ok(())
    }

    /// The agent of a session that the message may begin.
    fn agent(&self, named: Option<String>) -> Result<String, Refusal> {
        let default = || self.runtime.coordinator.instances().default_agent();
        let agent = named.unwrap_or_else(|| default().to_owned());
        self.runtime.require_agent(&agent)?;
        Ok(agent)
    }
}

/// What became of a message.
enum Said {
    /// It waits for this agent.
    Message(Message, String),
    /// It answers this question.
    Answer(Ask, AskOutcome),
}

/// Who says something, and in which session.
struct Speaker {
    device: DeviceId,
    by: String,
    /// What the device calls the session.
    name: String,
    /// Of a session that has to be made.
    agent: Result<String, Refusal>,
    instances: Instances,
}

impl Speaker {
    /// Keeps a message with its nonce, so that one that was not said may come again; returns turns
    /// that run and that the device hears of from now on.
    fn says(
        self,
        tx: &mut WriteTx<'_>,
        content: &str,
        nonce: Option<[u8; 12]>,
    ) -> Result<(Said, Vec<DeviceTurn>), Refusal> {
        let device = self.device;
        if let Some(nonce) = &nonce
            && !devices::take_nonce(tx, device, nonce)?
        {
            return Err(Refusal::Conflict(REPLAYED.into()));
        }
        let session = match known_session(tx.sql(), device, &self.name)? {
            Some(session) => session,
            None => {
                let new = NewSession {
                    agent: self.agent?,
                    sender: DEFAULT_SENDER.to_owned(),
                    folder: None,
                    worker: String::new(),
                };
                sessions::create(tx, new, |session| {
                    self.instances.own_folder(session).display().to_string()
                })?
            }
        };
        // From here on the device hears of what is said in it, by the name that it used.
        let mut joined = Vec::new();
        if devices::name_of_session(tx.sql(), device, session.id)?.is_none() {
            devices::name_session(tx, device, &self.name, session.id)?;
            joined = devices::followed_turns(tx.sql(), device, None)?;
        }
        for ask in asks::pending(tx.sql(), Some(session.id))? {
            // Of one that nobody waits for it would learn nothing more.
            if !ask.left_over && devices::was_asked(tx.sql(), device, ask.id)? {
                let (ask, outcome) = asks::answer(tx, session.id, Some(ask.id), content, &self.by)?;
                return Ok((Said::Answer(ask, outcome), joined));
            }
        }
        let message = messages::enqueue(
            tx,
            &session,
            DEFAULT_SENDER,
            Channel::Web,
            content,
            Purpose::Message,
        )?;
        devices::await_turn(tx, device, message.id, &self.name)?;
        Ok((Said::Message(message, session.agent), joined))
    }
}

const REPLAYED: &str = "a message with this nonce came before";

impl V1Session for Conversation {
    async fn say(&mut self, message: UserMessage) -> Result<(), OpError> {
        self.said(message).await.map_err(|refusal| match &refusal {
            Refusal::Conflict(text) if text == REPLAYED => {
                OpError::new(Code::E2eReplayed.as_str(), REPLAYED)
            }
            refusal => op_error(refusal),
        })
    }

    async fn answer(&mut self, answer: ApprovalAnswer) -> Result<(), OpError> {
        let id = answer
            .request_id
            .strip_prefix(APPROVAL)
            .and_then(|id| id.parse().ok())
            .ok_or_else(|| {
                OpError::new(
                    Code::InvalidPayload.as_str(),
                    "request_id names no approval of this daemon",
                )
            })?;
        let request = AnswerApprovalMsg {
            id,
            approved: answer.approved,
            reason: answer.reason.unwrap_or_default(),
            scope: ApprovalScope::Once.into(),
            ..AnswerApprovalMsg::default()
        };
        self.runtime
            .answer_approval(request, self.name.clone())
            .await
            .map_err(|refusal| op_error(&refusal))?;
        Ok(())
    }

    async fn next(&mut self) -> (Outer, ServerEvent) {
        self.hearing.next().await
    }

    async fn sent(&mut self) {
        self.hearing.sent().await;
    }
}

/// The open session that a device means, by a name it uses or by the session's number.
fn known_session(
    connection: &rusqlite::Connection,
    device: DeviceId,
    name: &str,
) -> Result<Option<Session>, Refusal> {
    let number = match devices::session_named(connection, device, name)? {
        Some(session) => Some(session),
        None => name.parse().ok(),
    };
    let Some(number) = number else {
        return Ok(None);
    };
    let found = sessions::find(connection, number)?;
    Ok(found.filter(|session| session.closed_at.is_none()))
}
