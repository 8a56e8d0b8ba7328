//! What a v1 connection hears: the journal's rows as the seed's events.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use quintet_channel::proto::device::DeviceId;
use quintet_channel::proto::v1::{Outer, ServerEvent};
use serde_json::{Map, Value};

use super::super::devices::{self, DeviceTurn};
use super::APPROVAL;
use crate::journal::{Filter, Kind, Reader, Row};
use crate::refusal::Refusal;
use crate::sessions::{self, approvals, asks};
use crate::store::Db;
use crate::stream;

/// The text of a turn that is kept for its `assistant_final`; a longer one does not fit it anyway.
const MAX_TEXT: usize = 64 * 1024;

/// A turn that this connection hears of.
struct Turn {
    outer: Outer,
    text: String,
}

impl Turn {
    fn of(turn: DeviceTurn) -> Self {
        Self {
            outer: Outer {
                session_id: turn.name,
                agent_id: Some(turn.agent),
            },
            text: String::new(),
        }
    }

    fn add(&mut self, text: &str) {
        if self.text.len() <= MAX_TEXT {
            self.text.push_str(text);
        }
    }
}

/// What is written down once an event has been sent.
#[derive(Clone, Copy)]
enum Note {
    /// The turn's end.
    Ended(u64),
    /// The question.
    Asked(u64),
}

/// An event that is to be sent.
type Waiting = (Outer, ServerEvent, Option<Note>);

/// What a connection has heard, and what waits to be sent.
pub(super) struct Hearing {
    db: Db,
    device: DeviceId,
    reader: Reader,
    /// Rows that the reader has handed out and that are not yet events.
    heard: VecDeque<Arc<Row>>,
    turns: HashMap<u64, Turn>,
    waiting: VecDeque<Waiting>,
    /// Of the event that was handed out last.
    note: Option<Note>,
}

impl Hearing {
    /// Begins with what waits for the device: approvals, questions, and ends that it missed.
    pub(super) async fn open(db: Db, device: DeviceId) -> Result<Self, Refusal> {
        let head = db.tail().head();
        let (turns, pending) = db
            .read(move |db| {
                let mut turns = devices::awaited_turns(db, device)?;
                turns.extend(devices::followed_turns(db, device, None)?);
                Ok::<_, Refusal>((turns, approvals::pending(db)?))
            })
            .await?;
        let mut hearing = Self {
            reader: Reader::new(&db, Filter::default(), head),
            db,
            device,
            heard: VecDeque::new(),
            turns: HashMap::new(),
            waiting: VecDeque::new(),
            note: None,
        };
        for turn in turns {
            hearing.catch_up(turn).await?;
        }
        for approval in pending {
            let outer = hearing.outer_of(approval.session).await?;
            let action = described(&approval.action.action, &approval.action.command);
            hearing.waiting.push_back((
                outer,
                ServerEvent::ApprovalRequest {
                    request_id: format!("{APPROVAL}{}", approval.id),
                    action,
                    reason: Some(approval.reason).filter(|reason| !reason.is_empty()),
                },
                None,
            ));
        }
        Ok(hearing)
    }

    /// Takes over a turn that began before this connection heard of it.
    pub(super) async fn catch_up(&mut self, turn: DeviceTurn) -> Result<(), Refusal> {
        let (id, session, device) = (turn.turn, turn.session, self.device);
        if self.turns.contains_key(&id) {
            return Ok(());
        }
        let heard_to = match self.heard.front() {
            Some(row) => row.seq.saturating_sub(1),
            None => self.reader.cursor(),
        };
        let mut rows = Reader::new(&self.db, Filter::turn(session, id), 0);
        let mut caught = Turn::of(turn);
        loop {
            let batch = rows.next_batch().await?;
            if batch.is_empty() {
                break;
            }
            for row in batch.iter().filter(|row| row.seq <= heard_to) {
                if let Some(text) = stream::answer_text(row) {
                    caught.add(&text);
                } else if let Some(end) = stream::end_of_turn(row) {
                    let text = std::mem::take(&mut caught.text);
                    self.waiting
                        .extend(ended(id, caught.outer, &end.error, text));
                    return Ok(());
                } else if let Some(ask) = asked(row) {
                    let (is_pending, was_asked) = self
                        .db
                        .read(move |db| {
                            let pending = asks::pending(db, Some(session))?;
                            let is_pending = pending.iter().any(|pending| pending.id == ask);
                            Ok::<_, Refusal>((is_pending, devices::was_asked(db, device, ask)?))
                        })
                        .await?;
                    if is_pending || was_asked {
                        caught.text.clear();
                    }
                    if is_pending && !was_asked {
                        let event = question(row);
                        self.waiting.push_back((
                            caught.outer.clone(),
                            event,
                            Some(Note::Asked(ask)),
                        ));
                    }
                }
            }
        }
        self.turns.insert(id, caught);
        Ok(())
    }

    async fn outer_of(&self, session: u64) -> Result<Outer, Refusal> {
        let device = self.device;
        self.db
            .read(move |db| {
                let name = devices::name_of_session(db, device, session)?;
                let found = sessions::find(db, session)?;
                Ok::<_, Refusal>(Outer {
                    // The default name would mean the device's own session.
                    session_id: name.unwrap_or_else(|| session.to_string()),
                    agent_id: found.map(|session| session.agent),
                })
            })
            .await
    }

    /// Makes events of a row. Changes nothing before its last wait: it may be dropped and begun again.
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
        if row.kind == Kind::TurnStarted && !self.turns.contains_key(&id) {
            let device = self.device;
            let followed = self
                .db
                .read(move |db| devices::followed_turns(db, device, Some(id)))
                .await?;
            let turn = followed.into_iter().next();
            self.turns.extend(turn.map(|turn| (id, Turn::of(turn))));
            return Ok(());
        }
        let Some(turn) = self.turns.get_mut(&id) else {
            return Ok(());
        };
        let outer = turn.outer.clone();
        if let Some(end) = stream::end_of_turn(row) {
            let text = std::mem::take(&mut turn.text);
            self.turns.remove(&id);
            self.waiting.extend(ended(id, outer, &end.error, text));
        } else if let Some(text) = stream::answer_text(row) {
            turn.add(&text);
            self.waiting
                .push_back((outer, ServerEvent::Chunk { text }, None));
        } else if let Some(ask) = asked(row) {
            turn.text.clear();
            self.waiting
                .push_back((outer, question(row), Some(Note::Asked(ask))));
        } else if let Some(event) = tool(row) {
            self.waiting.push_back((outer, event, None));
        }
        Ok(())
    }

    /// Hears of a turn that the device has just asked for.
    pub(super) fn follow(&mut self, turn: u64, outer: Outer) {
        let text = String::new();
        self.turns.insert(turn, Turn { outer, text });
    }

    /// The next event. Nothing is lost when it is dropped unfinished.
    pub(super) async fn next(&mut self) -> (Outer, ServerEvent) {
        loop {
            if let Some((outer, event, note)) = self.waiting.pop_front() {
                self.note = note;
                return (outer, event);
            }
            if let Some(row) = self.heard.front().cloned() {
                if let Err(error) = self.hear(&row).await {
                    tracing::error!(%error, "a row could not be told to a device");
                }
                // Only now: dropped while it waits, this begins with the same row again.
                self.heard.pop_front();
                continue;
            }
            match self.reader.follow().await {
                Ok(rows) if rows.is_empty() => return std::future::pending().await,
                Ok(rows) => self.heard = rows.into(),
                Err(error) => {
                    tracing::error!(%error, "the journal can't be read");
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Writes down what the event that was handed out last tells.
    pub(super) async fn sent(&mut self) {
        let Some(note) = self.note.take() else {
            return;
        };
        let device = self.device;
        let noted = self
            .db
            .write(move |tx| match note {
                Note::Ended(turn) => devices::turn_told(tx, device, turn),
                Note::Asked(ask) => devices::ask_told(tx, device, ask),
            })
            .await;
        if let Err(error) = noted {
            tracing::error!(%error, "what a device was sent could not be noted");
        }
    }
}

/// The end of a turn, with the text that was streamed since the last `assistant_final`.
fn ended(turn: u64, outer: Outer, error: &str, text: String) -> Vec<Waiting> {
    let note = Some(Note::Ended(turn));
    if error.is_empty() {
        return vec![(outer, ServerEvent::Final { text }, note)];
    }
    let failed = ServerEvent::Error {
        message: error.to_owned(),
        code: Some("turn_failed".to_owned()),
    };
    let mut events = Vec::new();
    if !text.is_empty() {
        // Of an error the real UI shows the sentence, until the next event, and keeps its input closed.
        events.push((outer.clone(), ServerEvent::Final { text }, None));
    }
    events.push((outer, failed, note));
    events
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

/// The question that a row asks.
fn asked(row: &Row) -> Option<u64> {
    match row.kind {
        Kind::AskUser => row.value()["ask"].as_u64(),
        _ => None,
    }
}

fn question(row: &Row) -> ServerEvent {
    ServerEvent::Final {
        text: questions(&row.value()["questions"]),
    }
}

fn tool(row: &Row) -> Option<ServerEvent> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::journal::Entry;

    /// The driver drops it at every message and every ping, wherever it waits.
    #[test]
    fn nothing_is_lost_when_the_wait_for_an_event_is_given_up() {
        // One thread for reads, so that a test can keep it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        runtime.block_on(given_up_while_the_database_is_read());
    }

    async fn given_up_while_the_database_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let opened = Hearing::open(db.clone(), DeviceId([1; 16])).await;
        let mut hearing = opened.expect("readable");
        let outer = Outer {
            session_id: "default".into(),
            agent_id: None,
        };
        hearing.follow(4, outer.clone());
        let asked = json!({ "approval": 7, "action": "exec", "command": "make", "reason": "" });
        let rows = vec![
            Entry::new(Kind::ApprovalRequested, &asked).in_turn(3, 4),
            Entry::new(Kind::TextDelta, &json!({ "text": "made" })).in_turn(3, 4),
            Entry::new(Kind::TurnEnded, &json!({})).in_turn(3, 4),
        ];
        db.append(rows).await.expect("durable");

        let (go_on, kept) = std::sync::mpsc::channel::<()>();
        let keeping = tokio::task::spawn_blocking(move || kept.recv());
        for _ in 0..3 {
            tokio::select! {
                biased;
                event = hearing.next() => panic!("{event:?} came before the approval"),
                () = std::future::ready(()) => {}
            }
        }
        drop(go_on);
        let _ = keeping.await;
        let approval = ServerEvent::ApprovalRequest {
            request_id: "approval-7".into(),
            action: "exec: make".into(),
            reason: None,
        };
        let by_number = Outer {
            session_id: "3".into(),
            agent_id: None,
        };
        assert_eq!(hearing.next().await, (by_number, approval));
        let text = || "made".to_owned();
        let chunk = ServerEvent::Chunk { text: text() };
        assert_eq!(hearing.next().await, (outer.clone(), chunk));
        let end = ServerEvent::Final { text: text() };
        assert_eq!(hearing.next().await, (outer, end));
    }
}
