//! What clients read: turns, sessions and the journal, each a cursor.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use async_stream::stream;
use futures_util::Stream;
use quintet_control::Answer;
use quintet_control::wire::{
    AgentEventMsg, AttachMsg, EventsMsg, JournalEvent, SendResponse, StreamEvent,
    SubscribeEventsMsg, stream_event::Event,
};
use rusqlite::Connection;

use crate::daemon::Runtime;
use crate::journal::{Filter, Kind, Reader, Row};
use crate::refusal::Refusal;
use crate::sessions::messages::{self, Message};
use crate::sessions::{self, usage};
use crate::store::Db;
use crate::stream::{self, Raw};

/// The longest answer of `send`; what is beyond it is in the journal, and the answer says so.
const MAX_ANSWER: usize = 15 << 20;

impl Runtime {
    /// The events of one turn, from the message's arrival to its end.
    pub(super) fn turn_events(
        &self,
        message: &Message,
        raw: Raw,
    ) -> impl Stream<Item = Answer<StreamEvent>> + Send + use<> {
        let filter = Filter::turn(message.session, message.id);
        follow_turn(Reader::new(&self.db, filter, message.first_seq), raw)
    }

    /// Waits for a turn's end and gathers its text.
    pub(super) async fn answer_of(&self, message: &Message) -> Result<SendResponse, Refusal> {
        let filter = Filter::turn(message.session, message.id);
        let mut reader = Reader::new(&self.db, filter, message.first_seq);
        let (mut content, mut is_cut) = (String::new(), false);
        loop {
            let rows = reader.follow().await?;
            if rows.is_empty() {
                return Err(Refusal::Internal(
                    "the daemon is stopping; try again when it is back".into(),
                ));
            }
            for row in rows {
                if is_cut && row.kind == Kind::TextDelta {
                    continue;
                }
                if let Some(text) = stream::answer_text(&row) {
                    let room = MAX_ANSWER.saturating_sub(content.len());
                    let part = text.floor_char_boundary(room);
                    content.push_str(&text[..part]);
                    is_cut |= part < text.len();
                    continue;
                }
                let Some(end) = stream::end_of_turn(&row) else {
                    continue;
                };
                if !end.error.is_empty() {
                    // Why is what the agent said last, and nobody has seen that.
                    let error = match content.trim().rsplit("\n\n").next() {
                        Some(said) if !said.is_empty() => format!("{}: {said}", end.error),
                        _ => end.error,
                    };
                    return Err(match end.code {
                        Some(400) => Refusal::Bad(error),
                        Some(409) => Refusal::Conflict(error),
                        Some(429) => Refusal::OverLimit(error),
                        _ => Refusal::Internal(error),
                    });
                }
                if is_cut {
                    content.push_str(&format!(
                        "\n[cut here: the answer is longer than {} MiB; `quintet events --session {}` shows all of it]\n",
                        MAX_ANSWER >> 20,
                        message.session
                    ));
                }
                let turn = message.id;
                let cost = self.db.read(move |db| usage::of_turn(db, turn)).await?;
                return Ok(SendResponse {
                    agent: end.agent,
                    content,
                    session: message.session,
                    seq: Some(row.seq),
                    cost: cost.to_string(),
                });
            }
        }
    }

    /// A session's events from a cursor to the end of the turn that runs, or those of one turn.
    pub(super) fn attached_events(
        &self,
        request: AttachMsg,
        raw: Raw,
    ) -> impl Stream<Item = Answer<StreamEvent>> + Send + use<> {
        let db = self.db.clone();
        stream! {
            let attachment = match db.read(move |db| Attachment::find(db, &request)).await {
                Ok(Some(attachment)) => attachment,
                Ok(None) => return,
                Err(refusal) => {
                    yield Err(refusal.into());
                    return;
                }
            };
            let mut reader = Reader::new(&db, attachment.filter, attachment.after);
            loop {
                let rows = match attachment.until {
                    Some(_) => reader.follow().await,
                    None => reader.next_batch().await,
                };
                let rows = match rows {
                    Ok(rows) if rows.is_empty() => return,
                    Ok(rows) => rows,
                    Err(error) => {
                        yield Err(Refusal::from(error).into());
                        return;
                    }
                };
                for row in rows {
                    if attachment.shows(&row)
                        && let Some(event) = stream::stream_event(&row, raw)
                    {
                        yield Ok(event);
                    }
                    if attachment.is_over_with(&row) {
                        return;
                    }
                }
            }
        }
    }

    /// Journal rows from a cursor.
    pub(super) fn journal_events(
        &self,
        request: EventsMsg,
    ) -> impl Stream<Item = Answer<JournalEvent>> + Send + use<> {
        let db = self.db.clone();
        stream! {
            if let Err(refusal) = require_session(&db, request.session).await {
                yield Err(refusal.into());
                return;
            }
            let after = match (request.after_seq, request.follow) {
                (Some(after), _) => after,
                (None, true) => db.tail().head(),
                (None, false) => 0,
            };
            let filter = Filter { session: request.session, turn: None };
            let mut reader = Reader::new(&db, filter, after);
            loop {
                let rows = if request.follow {
                    reader.follow().await
                } else {
                    reader.next_batch().await
                };
                match rows {
                    Ok(rows) if rows.is_empty() => return,
                    Ok(rows) => {
                        for row in rows {
                            yield Ok(stream::journal_event(&row));
                        }
                    }
                    Err(error) => {
                        yield Err(Refusal::from(error).into());
                        return;
                    }
                }
            }
        }
    }

    /// What agents do, for monitors.
    pub(super) fn agent_events(
        &self,
        request: SubscribeEventsMsg,
    ) -> impl Stream<Item = Answer<AgentEventMsg>> + Send + use<> {
        let db = self.db.clone();
        stream! {
            if let Err(refusal) = require_session(&db, request.session).await {
                yield Err(refusal.into());
                return;
            }
            let after = request.after_seq.unwrap_or_else(|| db.tail().head());
            let filter = Filter { session: request.session, turn: None };
            let mut reader = Reader::new(&db, filter, after);
            let mut agents: HashMap<u64, String> = HashMap::new();
            loop {
                let rows = match reader.follow().await {
                    Ok(rows) if rows.is_empty() => return,
                    Ok(rows) => rows,
                    Err(error) => {
                        yield Err(Refusal::from(error).into());
                        return;
                    }
                };
                for row in rows {
                    let Some(session) = row.session else { continue };
                    let agent = match agents.entry(session) {
                        Slot::Occupied(known) => known.into_mut(),
                        Slot::Vacant(slot) => {
                            let found = db.read(move |db| sessions::find(db, session)).await;
                            let agent = found.ok().flatten().map(|session| session.agent);
                            slot.insert(agent.unwrap_or_default())
                        }
                    };
                    if let Some(event) = stream::agent_event(&row, agent) {
                        yield Ok(event);
                    }
                }
            }
        }
    }
}

/// Refuses a session that never was; one that is closed can be read.
async fn require_session(db: &Db, session: Option<u64>) -> Result<(), Refusal> {
    let Some(session) = session else {
        return Ok(());
    };
    match db.read(move |db| sessions::find(db, session)).await? {
        Some(_) => Ok(()),
        None => Err(Refusal::no_session(session)),
    }
}

/// What an attached client reads.
struct Attachment {
    filter: Filter,
    after: u64,
    /// The turn whose end is the last event; without one, the journal's head is.
    until: Option<u64>,
}

impl Attachment {
    /// `None` when there is nothing to read.
    fn find(db: &Connection, request: &AttachMsg) -> Result<Option<Self>, Refusal> {
        let session = request.session;
        sessions::find(db, session)?.ok_or_else(|| Refusal::no_session(session))?;
        let current = match messages::running(db, session)? {
            Some(turn) => Some(turn),
            None => messages::next(db, session)?.map(|message| message.id),
        };
        if let (None, Some(after)) = (request.turn, request.after_seq) {
            return Ok(Some(Self {
                filter: Filter::session(session),
                after,
                until: current,
            }));
        }
        let Some(turn) = request.turn.or(current) else {
            return Ok(None);
        };
        let (first, over) = messages::begin_and_over(db, session, turn)?.ok_or_else(|| {
            Refusal::NotFound(format!("turn {turn} not found in session {session}; `quintet events --session {session}` shows its turns"))
        })?;
        Ok(Some(Self {
            filter: Filter::turn(session, turn),
            after: request.after_seq.unwrap_or(first),
            until: (!over).then_some(turn),
        }))
    }

    /// That a message was taken out of the queue is the end of its own stream and of no other.
    fn shows(&self, row: &Row) -> bool {
        row.kind != Kind::MessageRemoved || self.filter.turn.is_some()
    }

    fn is_over_with(&self, row: &Row) -> bool {
        self.until.is_some()
            && self.until == row.turn
            && matches!(row.kind, Kind::TurnEnded | Kind::MessageRemoved)
    }
}

fn follow_turn(mut reader: Reader, raw: Raw) -> impl Stream<Item = Answer<StreamEvent>> + Send {
    stream! {
        loop {
            let rows = match reader.follow().await {
                Ok(rows) if rows.is_empty() => return,
                Ok(rows) => rows,
                Err(error) => {
                    yield Err(Refusal::from(error).into());
                    return;
                }
            };
            for row in rows {
                if let Some(event) = stream::stream_event(&row, raw) {
                    let ended = matches!(event.event, Some(Event::End(_)));
                    yield Ok(event);
                    if ended {
                        return;
                    }
                }
            }
        }
    }
}
