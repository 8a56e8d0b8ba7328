//! A v1 device's conversation: the journal's rows as the seed's events.
//!
//! A connection hears of the turns that it asked for, of those whose end its
//! device missed, and of every approval. A question of the agent ends the
//! streamed text as `assistant_final`, because the real UI keeps its input
//! closed until then; the device's next message is the answer.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use quintet_channel::proto::device::{Device, DeviceId};
use quintet_channel::proto::v1::{Code, DEFAULT_SESSION, Outer, ServerEvent};
use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{ApprovalAnswer, UserMessage, V1Session};
use quintet_control::wire::{AnswerApprovalMsg, ApprovalScope};
use serde_json::{Map, Value};

use super::{devices, op_error};
use crate::daemon::Runtime;
use crate::journal::{Filter, Kind, Reader, Row};
use crate::refusal::Refusal;
use crate::sessions::messages::{self, Purpose};
use crate::sessions::{self, DEFAULT_SENDER, NewSession, Session, approvals, asks};
use crate::stream;

/// The text of a turn that is kept for its `assistant_final`; a longer one does not fit it anyway.
const MAX_TEXT: usize = 64 * 1024;

/// What an approval is called in `request_id`.
const APPROVAL: &str = "approval-";

/// A turn that this connection hears of.
struct Turn {
    outer: Outer,
    text: String,
}

impl Turn {
    fn add(&mut self, text: &str) {
        if self.text.len() <= MAX_TEXT {
            self.text.push_str(text);
        }
    }
}

/// One connection of a v1 device.
pub(crate) struct Conversation {
    runtime: Arc<Runtime>,
    device: DeviceId,
    name: String,
    reader: Reader,
    turns: HashMap<u64, Turn>,
    waiting: VecDeque<(Outer, ServerEvent, Option<u64>)>,
    /// The turn whose end was handed out last: sent, once the next event is asked for.
    told: Option<u64>,
}

impl Conversation {
    /// Begins with what waits for the device: approvals, and ends that it missed.
    pub(crate) async fn open(runtime: Arc<Runtime>, device: &Device) -> Result<Self, Refusal> {
        let head = runtime.db.tail().head();
        let id = device.id;
        let (awaited, pending) = runtime
            .db
            .read(move |db| {
                Ok::<_, Refusal>((devices::awaited_turns(db, id)?, approvals::pending(db)?))
            })
            .await?;
        let mut conversation = Self {
            reader: Reader::new(&runtime.db, Filter::default(), head),
            runtime,
            device: id,
            name: device.name.clone(),
            turns: HashMap::new(),
            waiting: VecDeque::new(),
            told: None,
        };
        for (turn, session, name, agent) in awaited {
            let outer = Outer {
                session_id: name,
                agent_id: Some(agent),
            };
            conversation.catch_up(turn, session, outer, head).await?;
        }
        for approval in pending {
            let outer = conversation.outer_of(approval.session).await?;
            let action = described(&approval.action.action, &approval.action.command);
            conversation.waiting.push_back((
                outer,
                ServerEvent::ApprovalRequest {
                    request_id: format!("{APPROVAL}{}", approval.id),
                    action,
                    reason: Some(approval.reason).filter(|reason| !reason.is_empty()),
                },
                None,
            ));
        }
        Ok(conversation)
    }

    /// Takes over a turn that another connection of the device asked for.
    async fn catch_up(
        &mut self,
        turn: u64,
        session: u64,
        outer: Outer,
        head: u64,
    ) -> Result<(), Refusal> {
        let mut rows = Reader::new(&self.runtime.db, Filter::turn(session, turn), 0);
        let mut caught = Turn {
            outer,
            text: String::new(),
        };
        loop {
            let batch = rows.next_batch().await?;
            if batch.is_empty() {
                break;
            }
            for row in batch.iter().filter(|row| row.seq <= head) {
                if let Some(text) = stream::answer_text(row) {
                    caught.add(&text);
                } else if let Some(end) = stream::end_of_turn(row) {
                    let event = ended(&end.error, std::mem::take(&mut caught.text));
                    self.waiting.push_back((caught.outer, event, Some(turn)));
                    return Ok(());
                }
            }
        }
        self.turns.insert(turn, caught);
        Ok(())
    }

    async fn outer_of(&self, session: u64) -> Result<Outer, Refusal> {
        let device = self.device;
        self.runtime
            .db
            .read(move |db| {
                let name = devices::name_of_session(db, device, session)?;
                let found = sessions::find(db, session)?;
                Ok::<_, Refusal>(Outer {
                    session_id: name.unwrap_or_else(|| DEFAULT_SESSION.to_owned()),
                    agent_id: found.map(|session| session.agent),
                })
            })
            .await
    }

    async fn hear(&mut self, row: &Row) -> Result<(), Refusal> {
        if row.kind == Kind::ApprovalRequested
            && let Some(session) = row.session
        {
            let outer = self.outer_of(session).await?;
            self.waiting
                .extend(approval_request(row).map(|event| (outer, event, None)));
            return Ok(());
        }
        let Some(id) = row.turn else { return Ok(()) };
        let Some(turn) = self.turns.get_mut(&id) else {
            return Ok(());
        };
        let outer = turn.outer.clone();
        if let Some(end) = stream::end_of_turn(row) {
            let event = ended(&end.error, std::mem::take(&mut turn.text));
            self.turns.remove(&id);
            self.waiting.push_back((outer, event, Some(id)));
        } else if let Some(text) = stream::answer_text(row) {
            turn.add(&text);
            self.waiting
                .push_back((outer, ServerEvent::Chunk { text }, None));
        } else if let Some(event) = tool_or_question(row) {
            if matches!(event, ServerEvent::Final { .. }) {
                turn.text.clear();
            }
            self.waiting.push_back((outer, event, None));
        }
        Ok(())
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
        let (known, ask) = self
            .runtime
            .db
            .write(move |tx| {
                if let Some(nonce) = &nonce
                    && !devices::take_nonce(tx, device, nonce)?
                {
                    return Err(Refusal::Conflict(REPLAYED.into()));
                }
                let known = known_session(tx.sql(), device, &name)?;
                let asked = match &known {
                    Some(session) => asks::pending(tx.sql(), Some(session.id))?,
                    None => Vec::new(),
                };
                Ok::<_, Refusal>((known, asked.first().map(|ask| ask.id)))
            })
            .await?;
        if content.trim().is_empty() {
            return Err(Refusal::Bad("the message is empty".into()));
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
                let sent =
                    messages::enqueue(tx, &found, DEFAULT_SENDER, &content, Purpose::Message)?;
                devices::await_turn(tx, device, sent.id, &name)?;
                Ok::<_, Refusal>(sent)
            })
            .await?;
        let outer = Outer {
            session_id,
            agent_id: Some(session.agent),
        };
        let text = String::new();
        self.turns.insert(message.id, Turn { outer, text });
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
        if let Some(turn) = self.told {
            let device = self.device;
            let noted = self
                .runtime
                .db
                .write(move |tx| devices::turn_told(tx, device, turn))
                .await;
            if let Err(error) = noted {
                tracing::error!(%error, "a delivered answer could not be noted");
            }
            self.told = None;
        }
        loop {
            if let Some((outer, event, told)) = self.waiting.pop_front() {
                self.told = told;
                return (outer, event);
            }
            let heard = match self.reader.follow().await {
                Ok(rows) if rows.is_empty() => return std::future::pending().await,
                Ok(rows) => rows,
                Err(error) => {
                    tracing::error!(%error, "the journal can't be read");
                    return std::future::pending().await;
                }
            };
            for row in heard {
                if let Err(error) = self.hear(&row).await {
                    tracing::error!(%error, "a row could not be told to a device");
                }
            }
        }
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

fn ended(error: &str, text: String) -> ServerEvent {
    if error.is_empty() {
        return ServerEvent::Final { text };
    }
    ServerEvent::Error {
        message: error.to_owned(),
        code: Some("turn_failed".to_owned()),
    }
}

fn described(action: &str, command: &str) -> String {
    match (action, command) {
        (action, "") => action.to_owned(),
        ("", command) => command.to_owned(),
        (action, command) => format!("{action}: {command}"),
    }
}

fn approval_request(row: &Row) -> Option<ServerEvent> {
    let data = row.value();
    let text = |key: &str| data[key].as_str().unwrap_or_default();
    Some(ServerEvent::ApprovalRequest {
        request_id: format!("{APPROVAL}{}", data["approval"].as_u64()?),
        action: described(text("action"), text("command")),
        reason: Some(text("reason").to_owned()).filter(|reason| !reason.is_empty()),
    })
}

fn tool_or_question(row: &Row) -> Option<ServerEvent> {
    let data = || row.value();
    match row.kind {
        Kind::ToolCall => {
            let mut data = data();
            let arguments = match data["arguments"].take() {
                Value::Object(arguments) => arguments,
                other => Map::from_iter([("value".to_owned(), other)]),
            };
            Some(ServerEvent::ToolCall {
                request_id: data["call_id"].as_str().unwrap_or_default().to_owned(),
                name: data["name"].as_str().unwrap_or_default().to_owned(),
                arguments,
            })
        }
        Kind::ToolResult => {
            let data = data();
            let output = match &data["output"] {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            Some(ServerEvent::ToolResult {
                request_id: data["call_id"].as_str().unwrap_or_default().to_owned(),
                result: match data["is_error"] == true {
                    true => Err(output),
                    false => Ok(output),
                },
            })
        }
        Kind::AskUser => Some(ServerEvent::Final {
            text: questions(&data()["questions"]),
        }),
        _ => None,
    }
}

/// Questions as text, for a client that has no event for them.
fn questions(value: &Value) -> String {
    let mut text = String::new();
    for question in stream::questions(value) {
        let _ = writeln!(text, "{}", question.question);
        for option in question.options {
            let _ = match option.description.as_str() {
                "" => writeln!(text, "- {}", option.label),
                description => writeln!(text, "- {}: {description}", option.label),
            };
        }
    }
    text
}
