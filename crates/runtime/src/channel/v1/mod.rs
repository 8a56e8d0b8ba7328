//! A v1 device's conversation: what it says, and what it hears of the journal.
//!
//! A connection hears of the turns in sessions that its device has named,
//! whoever asked for them, of ends that the device missed, and of every
//! approval. A question of the agent ends the streamed text as
//! `assistant_final`, because the real UI keeps its input closed until then;
//! the next message of a device that was sent the question is the answer.

mod hearing;

use std::sync::Arc;

use quintet_channel::proto::device::{Device, DeviceId};
use quintet_channel::proto::v1::{Code, Outer, ServerEvent};
use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{ApprovalAnswer, UserMessage, V1Session};
use quintet_control::wire::{AnswerApprovalMsg, ApprovalScope};

use super::{devices, op_error};
use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::sessions::messages::{self, Channel, Purpose};
use crate::sessions::{self, DEFAULT_SENDER, NewSession, Session, asks};
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
        let device = self.device;
        let UserMessage {
            session_id,
            agent_id,
            content,
            nonce,
        } = message;
        let name = session_id.clone();
        let (known, ask, joined) = self
            .runtime
            .db
            .write(move |tx| {
                if let Some(nonce) = &nonce
                    && !devices::take_nonce(tx, device, nonce)?
                {
                    return Err(Refusal::Conflict(REPLAYED.into()));
                }
                let Some(session) = known_session(tx.sql(), device, &name)? else {
                    return Ok((None, None, Vec::new()));
                };
                // From here on the device hears of what is said in it, by the name that it used.
                let mut joined = Vec::new();
                if devices::name_of_session(tx.sql(), device, session.id)?.is_none() {
                    devices::name_session(tx, device, &name, session.id)?;
                    joined = devices::followed_turns(tx.sql(), device, None)?;
                }
                let mut answers = None;
                for ask in asks::pending(tx.sql(), Some(session.id))? {
                    // Of one that nobody waits for it would learn nothing more.
                    if !ask.left_over && devices::was_asked(tx.sql(), device, ask.id)? {
                        answers = Some(ask.id);
                        break;
                    }
                }
                Ok::<_, Refusal>((Some(session), answers, joined))
            })
            .await?;
        for turn in joined {
            self.hearing.catch_up(turn).await?;
        }
        if content.trim().is_empty() {
            return Err(Refusal::Bad("the message is empty; say what to do".into()));
        }
        if let (Some(session), Some(ask)) = (&known, ask) {
            let by = self.name.clone();
            return self
                .runtime
                .coordinator
                .reply(session.id, Some(ask), content, by)
                .await;
        }
        let session = match known {
            Some(session) => session,
            None => self.new_session(agent_id, &session_id).await?,
        };
        let (found, name) = (session.clone(), session_id.clone());
        let message = self
            .runtime
            .db
            .write(move |tx| {
                let sent = messages::enqueue(
                    tx,
                    &found,
                    DEFAULT_SENDER,
                    Channel::Web,
                    &content,
                    Purpose::Message,
                )?;
                devices::await_turn(tx, device, sent.id, &name)?;
                Ok::<_, Refusal>(sent)
            })
            .await?;
        let outer = Outer {
            session_id,
            agent_id: Some(session.agent),
        };
        self.hearing.follow(message.id, outer);
        self.runtime.coordinator.wake(message.session);
        Ok(())
    }

    async fn new_session(&self, agent: Option<String>, name: &str) -> Result<Session, Refusal> {
        let instances = self.runtime.coordinator.instances().clone();
        let agent = agent.unwrap_or_else(|| instances.default_agent().to_owned());
        self.runtime.require_agent(&agent)?;
        let new = NewSession {
            agent,
            sender: DEFAULT_SENDER.to_owned(),
            folder: None,
            worker: String::new(),
        };
        let (device, name) = (self.device, name.to_owned());
        self.runtime
            .db
            .write(move |tx| {
                let session = sessions::create(tx, new, |session| {
                    instances.own_folder(session).display().to_string()
                })?;
                devices::name_session(tx, device, &name, session.id)?;
                Ok::<_, Refusal>(session)
            })
            .await
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
