//! Compaction: asked for as an ordinary turn, recorded when that ends.

use crate::daemon::Runtime;
use crate::journal::{Filter, Kind, Reader};
use crate::refusal::Refusal;
use crate::sessions::messages::{self, Channel, Purpose};
use crate::sessions::{self, compactions};
use crate::stream;

/// The sender of the request for a summary.
const SENDER: &str = "compaction";

impl Runtime {
    /// Has the agent summarise a session; returns the summary when it stands for the conversation.
    pub(crate) async fn compact(&self, session: u64) -> Result<String, Refusal> {
        let coordinator = self.coordinator.clone();
        let message = self
            .db
            .write(move |tx| {
                let session = sessions::open(tx.sql(), session)?;
                if coordinator.takes_lines(&session.agent) {
                    return Err(Refusal::Conflict(format!(
                        "{} runs each message by itself and keeps no conversation; there is nothing to summarise. `quintet agents` says what each agent is for",
                        session.agent
                    )));
                }
                let text = compactions::REQUEST;
                messages::enqueue(
                    tx,
                    &session,
                    SENDER,
                    Channel::Daemon,
                    text,
                    Purpose::Compaction,
                )
            })
            .await?;
        self.coordinator.wake(session);
        let filter = Filter::turn(session, message.id);
        let mut reader = Reader::new(&self.db, filter, message.first_seq);
        loop {
            let rows = reader.follow().await?;
            if rows.is_empty() {
                return Err(Refusal::Internal(
                    "the daemon is stopping; try again when it is back".into(),
                ));
            }
            for row in rows {
                if row.kind == Kind::Compacted {
                    let summary = row.value()["summary"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned();
                    return Ok(summary);
                }
                if let Some(end) = stream::end_of_turn(&row).filter(|end| !end.error.is_empty()) {
                    return Err(Refusal::Internal(format!(
                        "the agent gave no summary: {}",
                        end.error
                    )));
                }
            }
        }
    }

    /// Takes the last compaction back.
    pub(crate) async fn undo_compaction(&self, session: u64) -> Result<u64, Refusal> {
        let (found, state, seq) = self
            .db
            .write(move |tx| {
                let found = sessions::open(tx.sql(), session)?;
                if messages::running(tx.sql(), session)?.is_some() {
                    return Err(Refusal::Conflict(format!(
                        "a turn is running in session {session}; wait for its end, or `quintet cancel {session}`"
                    )));
                }
                let (state, seq) = compactions::undo(tx, session)?;
                Ok((found, state, seq))
            })
            .await?;
        self.coordinator.replace_state(&found, state).await?;
        Ok(seq)
    }
}
