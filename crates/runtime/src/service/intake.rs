//! Taking a message in: which session it is for, and into its queue.

use std::path::Path;

use quintet_control::wire::{SendMsg, StreamMsg};
use rusqlite::Connection;

use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::sessions::messages::{self, Channel, Message, Purpose};
use crate::sessions::{self, DEFAULT_SENDER, Export, NewSession, Session};
use crate::store::{StoreError, WriteTx};

/// The largest exported session that is read.
const MAX_EXPORT: u64 = 64 << 20;

/// The one request that `send` and `stream` share.
pub(super) fn as_send(request: StreamMsg) -> SendMsg {
    SendMsg {
        agent: request.agent,
        content: request.content,
        session: request.session,
        sender: request.sender,
        cwd: request.cwd,
        new_chat: request.new_chat,
        resume_file: request.resume_file,
        worker: request.worker,
        match_session: request.match_session,
    }
}

/// Which session a message goes on with that names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    New,
    Newest,
    /// The newest one with the worker that is named, and in the folder that a new one would get.
    NewestOf {
        /// Whether one is named.
        folder: bool,
    },
}

/// What a message names beside its session; empty is whatever that has.
struct Named {
    agent: String,
    folder: Option<String>,
    worker: String,
}

impl Named {
    fn require(&self, session: &Session) -> Result<(), Refusal> {
        let id = session.id;
        let other = |what: String| {
            Err(Refusal::Conflict(format!(
                "session {id} {what}; leave `--session {id}` out to go on with one that does, or \
                 to start it"
            )))
        };
        if !self.agent.is_empty() && self.agent != session.agent {
            return other(format!(
                "is of agent {}, not of {}",
                session.agent, self.agent
            ));
        }
        if let Some(folder) = &self.folder
            && !works_in(session, folder)
        {
            return other(format!("works in {}, not in {folder}", session.workspace));
        }
        if !self.worker.is_empty() && self.worker != session.worker {
            let its = match session.worker.as_str() {
                "" => "the default worker".to_owned(),
                worker => format!("worker {worker}"),
            };
            return other(format!("uses {its}, not {}", self.worker));
        }
        Ok(())
    }
}

/// Compared as paths: a slash at the end makes no other folder.
fn works_in(session: &Session, folder: &str) -> bool {
    Path::new(&session.workspace) == Path::new(folder)
}

impl Runtime {
    /// Chooses or makes the session, queues the message, wakes whoever works on it.
    pub(super) async fn accept(&self, request: SendMsg) -> Result<Message, Refusal> {
        messages::require_text(&request.content)?;
        let sender = request
            .sender
            .filter(|sender| !sender.is_empty())
            .unwrap_or_else(|| DEFAULT_SENDER.to_owned());
        let cwd = request.cwd.filter(|folder| !folder.is_empty());
        let message = if let Some(id) = request.session {
            let content = request.content;
            let named = request.match_session.then(|| Named {
                agent: request.agent,
                folder: cwd,
                worker: request.worker.unwrap_or_default(),
            });
            self.db
                .write(move |tx| {
                    let session = sessions::open(tx.sql(), id)?;
                    if let Some(named) = named {
                        named.require(&session)?;
                    }
                    say(tx, &session, &sender, &content)
                })
                .await?
        } else {
            let exported = match &request.resume_file {
                Some(file) => Some(read_export(file).await?),
                None => None,
            };
            let agent = match (request.agent.as_str(), &exported) {
                ("", Some(exported)) => exported.agent.clone(),
                ("", None) => self.coordinator.instances().default_agent().to_owned(),
                (name, _) => name.to_owned(),
            };
            self.require_agent(&agent)?;
            let worker = request.worker.unwrap_or_default();
            self.require_worker(&worker).await?;
            let new = NewSession {
                agent,
                sender,
                folder: cwd.clone().filter(|folder| is_readable_folder(folder)),
                worker,
            };
            let choice = match (request.new_chat, request.match_session) {
                (true, _) => Choice::New,
                (false, true) => Choice::NewestOf {
                    folder: cwd.is_some(),
                },
                (false, false) => Choice::Newest,
            };
            self.accept_anew(new, exported, choice, request.content)
                .await?
        };
        self.coordinator.wake(message.session);
        Ok(message)
    }

    /// The message for a session that the request does not name.
    async fn accept_anew(
        &self,
        new: NewSession,
        exported: Option<Export>,
        choice: Choice,
        content: String,
    ) -> Result<Message, Refusal> {
        let instances = self.coordinator.instances().clone();
        let own_folder =
            move |session: &Session| instances.own_folder(session).display().to_string();
        let Some(exported) = exported else {
            return self
                .db
                .write(move |tx| {
                    let sender = new.sender.clone();
                    let fits = |session: &Session, folder: bool| {
                        let there = || new.folder.clone().unwrap_or_else(|| own_folder(session));
                        (new.worker.is_empty() || session.worker == new.worker)
                            && (!folder || works_in(session, &there()))
                    };
                    let newest = |fits: &dyn Fn(&Session) -> bool| {
                        sessions::newest(tx.sql(), &new.agent, &sender, fits)
                    };
                    let found = match choice {
                        Choice::New => None,
                        Choice::Newest => newest(&|_| true)?,
                        Choice::NewestOf { folder } => newest(&|session| fits(session, folder))?,
                    };
                    let session = match found {
                        Some(session) => session,
                        None => sessions::create(tx, new, own_folder)?,
                    };
                    say(tx, &session, &sender, &content)
                })
                .await;
        };
        let (sender, state) = (new.sender.clone(), exported.state.clone());
        let session = self
            .db
            .write(move |tx| sessions::import(tx, &exported, new, own_folder))
            .await?;
        if !state.is_null() {
            self.coordinator.replace_state(&session, state).await?;
        }
        self.db
            .write(move |tx| say(tx, &session, &sender, &content))
            .await
    }

    /// Queues the message of the last turn again, if that failed.
    pub(crate) async fn retry(&self, session: u64) -> Result<Message, Refusal> {
        let message = self
            .db
            .write(move |tx| {
                let found = sessions::open(tx.sql(), session)?;
                let last = messages::last_failed(tx.sql(), session)?.ok_or_else(|| {
                    Refusal::Conflict(format!(
                        "the last turn of session {session} did not fail; say what to do in a new message with `quintet send --session {session}`"
                    ))
                })?;
                messages::enqueue(
                    tx,
                    &found,
                    &last.sender,
                    last.channel,
                    &last.text,
                    last.purpose,
                )
            })
            .await?;
        self.coordinator.wake(session);
        Ok(message)
    }

    pub(crate) fn require_agent(&self, agent: &str) -> Result<(), Refusal> {
        if self.coordinator.instances().knows(agent) {
            return Ok(());
        }
        if self.coordinator.instances().needs_key(agent) {
            return Err(Refusal::NotFound(format!(
                "agent {agent:?} needs a model provider's key: `quintet config set \
                 providers.anthropic.api_key KEY` sets one, and no restart is needed; \
                 `shell` works without"
            )));
        }
        let names: Vec<String> = self
            .coordinator
            .instances()
            .list()
            .into_iter()
            .map(|agent| agent.name)
            .collect();
        Err(Refusal::NotFound(format!(
            "agent {agent:?} not found; there are: {}",
            names.join(", ")
        )))
    }

    /// Refuses a worker that nobody has heard of; "" is the default one. One that is known may be
    /// away: a session's commands wait for it.
    pub(crate) async fn require_worker(&self, worker: &str) -> Result<(), Refusal> {
        if worker.is_empty() {
            return Ok(());
        }
        let mut known = self.workers.named();
        known.extend(self.db.read(named_before).await?);
        if known.contains(worker) {
            return Ok(());
        }
        let names: Vec<String> = known.into_iter().collect();
        Err(Refusal::NotFound(match names.is_empty() {
            true => format!(
                "worker {worker:?} not found; there is none, start one with `quintet worker`"
            ),
            false => format!(
                "worker {worker:?} not found; there are: {}",
                names.join(", ")
            ),
        }))
    }
}

/// The workers that a token was made for, that a session uses, or that were online: a client hears
/// that one is before the hub has it.
fn named_before(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT worker FROM worker_tokens WHERE revoked_at IS NULL
         UNION SELECT worker FROM sessions WHERE worker != '' AND closed_at IS NULL
         UNION SELECT id FROM workers",
    )?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// An exported session: the text itself, or the path of a file with it.
async fn read_export(file: &str) -> Result<Export, Refusal> {
    if file.trim_start().starts_with('{') {
        return Export::parse(file);
    }
    let unreadable = |error: std::io::Error| {
        Refusal::Bad(format!(
            "resume_file {file}: {error}; name one that `quintet session export` wrote"
        ))
    };
    let size = tokio::fs::metadata(file).await.map_err(unreadable)?.len();
    if size > MAX_EXPORT {
        return Err(Refusal::Bad(format!(
            "resume_file {file} has {size} bytes; an exported session has at most {MAX_EXPORT}"
        )));
    }
    let text = tokio::fs::read_to_string(file).await.map_err(unreadable)?;
    Export::parse(&text)
}

/// A person's message, by a client of the control plane.
fn say(
    tx: &mut WriteTx<'_>,
    session: &Session,
    sender: &str,
    text: &str,
) -> Result<Message, Refusal> {
    messages::enqueue(tx, session, sender, Channel::Cli, text, Purpose::Message)
}

/// Whether a session may have this folder as its workspace.
pub(crate) fn is_readable_folder(folder: &str) -> bool {
    let folder = Path::new(folder);
    folder.is_absolute() && std::fs::read_dir(folder).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Db;

    #[tokio::test]
    async fn a_worker_is_known_with_the_row_that_says_that_it_is_online() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        db.write(|tx| -> Result<(), StoreError> {
            tx.sql()
                .execute("INSERT INTO workers VALUES ('box', '{}', 0)", [])?;
            Ok(())
        })
        .await
        .expect("durable");
        assert_eq!(db.read(named_before).await.expect("readable"), ["box"]);
    }
}
