//! What agents used, added up for each message, session, agent and day. Durable and exact.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use rust_decimal::Decimal;

use crate::proto::message::{AgentId, MessageId};
use crate::proto::usage::{Budget, BudgetExceeded, TokenUsage};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS recorded (id TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS total (
        scope TEXT NOT NULL, key TEXT NOT NULL,
        input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cost TEXT NOT NULL,
        PRIMARY KEY (scope, key)) WITHOUT ROWID;
";

/// Why usage can't be kept.
#[derive(Debug, thiserror::Error)]
#[error("the usage {} can't be kept: {source}", path.display())]
pub struct UsageError {
    /// The file.
    pub path: PathBuf,
    /// What SQLite said.
    pub source: rusqlite::Error,
}

/// Whose usage it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageOwner {
    /// The message that it was used for.
    pub message: MessageId,
    /// Its session.
    pub session: String,
    /// The agent.
    pub agent: AgentId,
    /// The day, as the caller's calendar has it.
    pub day: jiff::civil::Date,
}

/// A sum to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageScope<'a> {
    /// Of one message.
    Message(&'a MessageId),
    /// Of one session.
    Session(&'a str),
    /// Of one agent over all days.
    Agent(&'a AgentId),
    /// Of all agents on one day.
    Day(jiff::civil::Date),
    /// Of one agent on one day: what a day's budget is measured by.
    AgentDay(&'a AgentId, jiff::civil::Date),
}

impl UsageScope<'_> {
    fn key(&self) -> (&'static str, String) {
        match self {
            Self::Message(id) => ("message", id.to_string()),
            Self::Session(id) => ("session", (*id).to_owned()),
            Self::Agent(id) => ("agent", id.to_string()),
            Self::Day(day) => ("day", day.to_string()),
            Self::AgentDay(id, day) => ("agent_day", format!("{day} {id}")),
        }
    }
}

/// The sums. Clones share them.
#[derive(Debug, Clone)]
pub struct UsageBook {
    path: PathBuf,
    /// Held over one transaction.
    db: Arc<Mutex<Connection>>,
}

impl UsageBook {
    /// Opens or makes the file. Blocks on the disk, as do all its methods.
    pub fn open(path: &Path) -> Result<Self, UsageError> {
        let opened = Connection::open(path).and_then(|db| {
            db.pragma_update(None, "journal_mode", "WAL")?;
            db.pragma_update(None, "synchronous", "FULL")?;
            db.execute_batch(SCHEMA)?;
            Ok(db)
        });
        let db = opened.map_err(|source| UsageError {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            db: Arc::new(Mutex::new(db)),
        })
    }

    /// Adds one use; `record_id` names it, and a use that was added before is not added again.
    pub fn record(
        &self,
        record_id: &str,
        owner: &UsageOwner,
        usage: &TokenUsage,
    ) -> Result<(), UsageError> {
        let mut db = self.lock();
        let added = db.transaction().and_then(|transaction| {
            let is_new = transaction
                .prepare_cached("INSERT OR IGNORE INTO recorded (id) VALUES (?1)")?
                .execute([record_id])?;
            if is_new == 1 {
                for scope in [
                    UsageScope::Message(&owner.message),
                    UsageScope::Session(&owner.session),
                    UsageScope::Agent(&owner.agent),
                    UsageScope::Day(owner.day),
                    UsageScope::AgentDay(&owner.agent, owner.day),
                ] {
                    let mut sum = read(&transaction, scope)?;
                    sum.add(usage);
                    write(&transaction, scope, &sum)?;
                }
            }
            transaction.commit()
        });
        added.map_err(|source| self.error(source))
    }

    /// A sum; zero where nothing was used.
    pub fn total(&self, scope: UsageScope<'_>) -> Result<TokenUsage, UsageError> {
        read(&self.lock(), scope).map_err(|source| self.error(source))
    }

    /// Whether another model call may be made for `owner`.
    pub fn check(
        &self,
        budget: &Budget,
        owner: &UsageOwner,
    ) -> Result<Result<(), BudgetExceeded>, UsageError> {
        let turn = self.total(UsageScope::Message(&owner.message))?;
        let day = self.total(UsageScope::AgentDay(&owner.agent, owner.day))?;
        Ok(budget.check(turn.cost, day.cost))
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, source: rusqlite::Error) -> UsageError {
        UsageError {
            path: self.path.clone(),
            source,
        }
    }
}

fn read(db: &Connection, scope: UsageScope<'_>) -> rusqlite::Result<TokenUsage> {
    let (scope, key) = scope.key();
    let row = db
        .prepare_cached(
            "SELECT input_tokens, output_tokens, cost FROM total WHERE scope = ?1 AND key = ?2",
        )?
        .query_row(params![scope, key], |row| {
            let cost: String = row.get(2)?;
            let cost = cost.parse::<Decimal>().map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(
                    2,
                    rusqlite::types::Type::Text,
                    error.into(),
                )
            })?;
            Ok(TokenUsage {
                input_tokens: row.get::<_, i64>(0)?.unsigned_abs(),
                output_tokens: row.get::<_, i64>(1)?.unsigned_abs(),
                cost,
            })
        })
        .optional()?;
    Ok(row.unwrap_or_default())
}

fn write(db: &Transaction<'_>, scope: UsageScope<'_>, sum: &TokenUsage) -> rusqlite::Result<()> {
    let (scope, key) = scope.key();
    let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    db.prepare_cached(
        "INSERT INTO total (scope, key, input_tokens, output_tokens, cost) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (scope, key) DO UPDATE SET input_tokens = ?3, output_tokens = ?4, cost = ?5",
    )?
    .execute(params![
        scope,
        key,
        signed(sum.input_tokens),
        signed(sum.output_tokens),
        sum.cost.to_string()
    ])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dec(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    fn owner(message: &str, session: &str, agent: &str, day: i8) -> UsageOwner {
        UsageOwner {
            message: message.into(),
            session: session.to_owned(),
            agent: agent.into(),
            day: jiff::civil::date(2026, 3, day),
        }
    }

    #[test]
    fn sums_are_exact_by_each_scope_and_survive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage.db");
        let usage = |cost| TokenUsage {
            input_tokens: 10,
            output_tokens: 1,
            cost: dec(cost),
        };
        let book = UsageBook::open(&path).unwrap();
        let first = owner("m1", "s1", "a1", 1);
        for call in 0..10 {
            book.record(&format!("m1-{call}"), &first, &usage("0.1"))
                .unwrap();
        }
        book.record("m1-0", &first, &usage("0.1")).unwrap();
        book.record("m2", &owner("m2", "s1", "a1", 2), &usage("0.03"))
            .unwrap();
        book.record("m3", &owner("m3", "s2", "a2", 2), &usage("0.07"))
            .unwrap();
        drop(book);

        let book = UsageBook::open(&path).unwrap();
        let cost = |scope| book.total(scope).unwrap().cost;
        let (a1, day2) = (AgentId::from("a1"), jiff::civil::date(2026, 3, 2));
        assert_eq!(cost(UsageScope::Message(&first.message)), dec("1.0"));
        assert_eq!(cost(UsageScope::Session("s1")), dec("1.03"));
        assert_eq!(cost(UsageScope::Agent(&a1)), dec("1.03"));
        assert_eq!(cost(UsageScope::Day(day2)), dec("0.10"));
        assert_eq!(cost(UsageScope::AgentDay(&a1, day2)), dec("0.03"));
        assert_eq!(
            book.total(UsageScope::Session("s1")).unwrap().input_tokens,
            110
        );
        assert_eq!(
            book.total(UsageScope::Session("none")).unwrap(),
            TokenUsage::default()
        );

        let budget = Budget {
            turn: Some(dec("1.0")),
            day: None,
        };
        assert_eq!(
            book.check(&budget, &first).unwrap(),
            Err(BudgetExceeded::Turn {
                limit: dec("1.0"),
                spent: dec("1.0")
            })
        );
        assert_eq!(
            book.check(&budget, &owner("m9", "s1", "a1", 1)).unwrap(),
            Ok(())
        );
    }
}
