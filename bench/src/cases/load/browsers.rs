//! Paired browsers: most follow one session, the first of every twenty follows everything.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use quintet_channel::client::{Client, ServerMessage};
use quintet_control::Client as _;
use quintet_control::wire::EventsMsg;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Bed;
use super::sessions::ELEMENTS;
use super::stamp::Lines;
use super::tally::Latency;

/// One in so many follows everything.
pub(super) const WATCHERS: usize = 20;

/// The rows that somebody has seen: how many, the last, and which and in what order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    count: u64,
    last: u64,
    order: u64,
}

impl Seen {
    fn after(cursor: u64) -> Self {
        Self {
            last: cursor,
            ..Self::default()
        }
    }

    fn add(&mut self, seq: u64) {
        self.count += 1;
        self.last = seq;
        // Another row, or the same ones in another order, make another number.
        self.order = (self.order ^ seq).wrapping_mul(0x0100_0000_01b3);
    }
}

/// What the journal holds behind a cursor, in the end.
pub(super) struct Journal {
    after: u64,
    all: Seen,
    sessions: HashMap<u64, Seen>,
}

impl Journal {
    pub(super) async fn read(bed: &Bed, after: u64) -> anyhow::Result<Self> {
        let mut client = bed.client().await?;
        let request = EventsMsg {
            after_seq: Some(after),
            ..EventsMsg::default()
        };
        let mut rows = pin!(client.events(request));
        let (mut all, mut sessions) = (Seen::after(after), HashMap::new());
        while let Some(row) = rows.next().await {
            let row = row.context("the journal")?;
            all.add(row.seq);
            if let Some(session) = row.session {
                let seen = sessions.entry(session);
                seen.or_insert(Seen::after(after)).add(row.seq);
            }
        }
        Ok(Self {
            after,
            all,
            sessions,
        })
    }

    fn of(&self, session: Option<u64>) -> Seen {
        match session {
            None => self.all,
            Some(session) => {
                let seen = self.sessions.get(&session).copied();
                seen.unwrap_or(Seen::after(self.after))
            }
        }
    }
}

/// Pairs them; they follow from the cursor on until they have all of what `end` holds.
pub(super) async fn open(
    bed: &Bed,
    sessions: &[u64],
    after: u64,
    end: &watch::Receiver<Option<Arc<Journal>>>,
) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    let mut tasks = JoinSet::new();
    for number in 0..bed.size.browsers {
        let code = bed.client().await?.pair().await?.code;
        let (mut client, _) = Client::pair(&bed.url, &code, &format!("browser-{number}")).await?;
        let session = sessions[number % sessions.len()];
        let session = (number % WATCHERS != 0).then_some(session);
        let follow = json!({ "after": after, "session": session });
        client.ask("events.follow", follow).await?;
        let browser = Browser {
            bed: bed.clone(),
            number,
            session,
            seen: Seen::after(after),
            turns: HashMap::new(),
        };
        tasks.spawn(browser.follow(client, end.clone()));
    }
    Ok(tasks)
}

struct Browser {
    bed: Bed,
    number: usize,
    /// The only one that it follows.
    session: Option<u64>,
    seen: Seen,
    /// The lines of running turns, by session.
    turns: HashMap<u64, Lines>,
}

impl Browser {
    async fn follow(
        mut self,
        mut client: Client,
        mut end: watch::Receiver<Option<Arc<Journal>>>,
    ) -> anyhow::Result<()> {
        let number = self.number;
        loop {
            let wanted = end
                .borrow()
                .as_ref()
                .map(|journal| journal.of(self.session));
            if let Some(wanted) = wanted.filter(|wanted| self.seen.last >= wanted.last) {
                let seen = self.seen;
                ensure!(
                    seen == wanted,
                    "browser {number}: {seen:?} is not {wanted:?}"
                );
                client.close().await;
                return Ok(());
            }
            tokio::select! {
                message = client.next() => match message.with_context(|| format!("browser {number}"))? {
                    ServerMessage::Json(message) => self
                        .take(&message)
                        .with_context(|| format!("browser {number}"))?,
                    ServerMessage::Bytes { .. } => {}
                },
                changed = end.changed() => changed?,
            }
        }
    }

    fn take(&mut self, message: &Value) -> anyhow::Result<()> {
        ensure!(message.get("error").is_none(), "refused: {message}");
        for item in message["items"].as_array().into_iter().flatten() {
            if let Some(seq) = item["seq"].as_u64() {
                self.row(seq, item)?;
            }
        }
        Ok(())
    }

    fn row(&mut self, seq: u64, row: &Value) -> anyhow::Result<()> {
        let last = self.seen.last;
        match self.session {
            // The journal's numbers have no gap.
            None => ensure!(seq == last + 1, "row {seq} came after {last}"),
            Some(_) => ensure!(seq > last, "row {seq} came after {last}"),
        }
        self.seen.add(seq);
        let Some(session) = row["session"].as_u64() else {
            return Ok(());
        };
        let lines = self.turns.entry(session).or_default();
        match row["kind"].as_str() {
            Some("text_delta") => {
                let text = row["data"]["text"].as_str().context("a text")?;
                let latency = match self.session {
                    Some(_) => Latency::ElementToBrowser,
                    None => Latency::ElementToWatcher,
                };
                lines.take(text, |age| self.bed.tally.took(latency, age))?;
            }
            Some("turn_ended") => lines.end(ELEMENTS)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rows: &[u64]) -> Seen {
        let mut seen = Seen::after(0);
        rows.iter().for_each(|row| seen.add(*row));
        seen
    }

    #[test]
    fn other_rows_are_not_the_same() {
        assert_eq!(seen(&[1, 2, 5]), seen(&[1, 2, 5]));
        for other in [&[1, 3, 5][..], &[2, 1, 5], &[1, 5], &[1, 2, 2, 5]] {
            assert_ne!(seen(&[1, 2, 5]), seen(other));
        }
    }
}
