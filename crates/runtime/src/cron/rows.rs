//! What is kept: a cron, and an occurrence of one.

use std::fmt;

use jiff::Timestamp;
use rusqlite::Row;

use super::planner::Outcome;
use super::policy::{MissedPolicy, OverlapPolicy};
use crate::store::StoreError;

/// A skill that is sent into a session when a schedule says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    /// Its number, counted up from 1 and never used again.
    pub id: u64,
    /// As it was written.
    pub schedule: String,
    /// The skill's name.
    pub skill: String,
    /// The session it is sent into.
    pub session: u64,
    /// `"HH:MM"`, or empty.
    pub quiet_start: String,
    /// `"HH:MM"`, or empty.
    pub quiet_end: String,
    /// Whether it ends when it was started once.
    pub once: bool,
    /// What becomes of occurrences that nobody could start in time.
    pub missed: MissedPolicy,
    /// What becomes of an occurrence while the run before it has not ended.
    pub overlap: OverlapPolicy,
    /// Every occurrence up to this moment has been decided.
    pub decided: Timestamp,
}

/// A cron to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewCron {
    /// 5 fields, 6 with seconds, or `@daily` and the like.
    pub schedule: String,
    /// The skill's name.
    pub skill: String,
    /// The session to send it into.
    pub session: u64,
    /// `"HH:MM"`, or empty.
    pub quiet_start: String,
    /// `"HH:MM"`, or empty.
    pub quiet_end: String,
    /// Whether to start it only once.
    pub once: bool,
    /// What is to become of occurrences that nobody could start in time.
    pub missed: MissedPolicy,
    /// What is to become of an occurrence while the run before it has not ended.
    pub overlap: OverlapPolicy,
}

/// What became of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunState {
    /// It is to be started and has not been yet.
    Due,
    /// Its message is in the session's queue or being worked on.
    Started,
    /// Its turn ended well.
    Finished,
    /// It could not be started, or its turn failed; the note says why.
    Failed,
    /// It was in quiet hours.
    SkippedQuiet,
    /// The run before it had not ended, and it was not to wait or another one waited.
    SkippedOverlap,
    /// Nobody could start it in time.
    Missed,
}

impl RunState {
    /// The name on disk and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::SkippedQuiet => "skipped_quiet",
            Self::SkippedOverlap => "skipped_overlap",
            Self::Missed => "missed",
        }
    }

    fn from_name(name: &str) -> Result<Self, StoreError> {
        [
            Self::Due,
            Self::Started,
            Self::Finished,
            Self::Failed,
            Self::SkippedQuiet,
            Self::SkippedOverlap,
            Self::Missed,
        ]
        .into_iter()
        .find(|state| state.as_str() == name)
        .ok_or_else(|| StoreError::Corrupt(format!("state {name:?} of a cron run")))
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Outcome> for RunState {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Start => Self::Due,
            Outcome::SkippedQuiet => Self::SkippedQuiet,
            Outcome::SkippedOverlap => Self::SkippedOverlap,
            Outcome::Missed => Self::Missed,
        }
    }
}

/// One occurrence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The cron's number.
    pub cron: u64,
    /// When it was to happen.
    pub due: Timestamp,
    /// What became of it.
    pub state: RunState,
    /// The message in the session's queue.
    pub message: Option<u64>,
    /// When the message was put there.
    pub started: Option<Timestamp>,
    /// When its turn ended.
    pub finished: Option<Timestamp>,
    /// Why it failed.
    pub note: String,
}

/// What [`cron_from_sql`] reads, of `crons c`.
pub(super) const CRON_COLUMNS: &str = "c.id, c.schedule, c.skill, c.session, c.quiet_start, \
     c.quiet_end, c.once, c.missed, c.overlap, c.decided";

/// Reads [`CRON_COLUMNS`].
pub(super) fn cron_from_sql(row: &Row<'_>) -> Result<Cron, StoreError> {
    Ok(Cron {
        id: row.get::<_, i64>(0)?.cast_unsigned(),
        schedule: row.get(1)?,
        skill: row.get(2)?,
        session: row.get::<_, i64>(3)?.cast_unsigned(),
        quiet_start: row.get(4)?,
        quiet_end: row.get(5)?,
        once: row.get(6)?,
        missed: policy(text(row, 7)?, MissedPolicy::from_name)?,
        overlap: policy(text(row, 8)?, OverlapPolicy::from_name)?,
        decided: timestamp(row.get(9)?)?,
    })
}

/// Reads `cron, due, state, message, started_at, finished_at, note`.
pub(super) fn run_from_sql(row: &Row<'_>) -> Result<Run, StoreError> {
    Ok(Run {
        cron: row.get::<_, i64>(0)?.cast_unsigned(),
        due: timestamp(row.get(1)?)?,
        state: RunState::from_name(text(row, 2)?)?,
        message: row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
        started: row.get::<_, Option<i64>>(4)?.map(timestamp).transpose()?,
        finished: row.get::<_, Option<i64>>(5)?.map(timestamp).transpose()?,
        note: row.get(6)?,
    })
}

fn policy<P>(name: &str, read: impl FnOnce(&str) -> Option<P>) -> Result<P, StoreError> {
    read(name).ok_or_else(|| StoreError::Corrupt(format!("policy {name:?} of a cron")))
}

fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<&'a str> {
    Ok(row.get_ref(column)?.as_str()?)
}

pub(super) fn timestamp(microseconds: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(microseconds)
        .map_err(|_| StoreError::Corrupt(format!("time {microseconds}")))
}
