//! The durable side: crons, and one row for each of their occurrences.
//!
//! Functions take the open transaction, so that a caller can do more in it.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _};
use serde_json::json;

use super::planner::{self, Decision, Known, Ongoing, Outcome, Rules};
use super::rows::{
    CRON_COLUMNS, Cron, NewCron, Run, RunState, cron_from_sql, run_from_sql, timestamp,
};
use super::schedule::{QuietHours, Schedule};
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::sessions;
use crate::store::{StoreError, WriteTx};

/// Crons that may exist at once.
const MAX_CRONS: i64 = 1000;

/// Occurrences of one cron that are kept; the oldest ended ones go first.
const KEPT_RUNS: i64 = 1000;

/// Checks what a cron is made of, without its session and its skill.
///
/// # Errors
///
/// [`Refusal::Bad`] with what is wrong.
pub fn check(new: &NewCron) -> Result<(Schedule, Option<QuietHours>), Refusal> {
    let schedule = new
        .schedule
        .parse()
        .map_err(|error| Refusal::Bad(format!("schedule: {error}")))?;
    let quiet = QuietHours::parse(&new.quiet_start, &new.quiet_end)
        .map_err(|error| Refusal::Bad(format!("quiet hours: {error}")))?;
    Ok((schedule, quiet))
}

/// Makes a cron; its first occurrence is the first one after now.
///
/// # Errors
///
/// [`Refusal::Bad`] for a bad schedule or time, [`Refusal::NotFound`] for a
/// session that is not open, [`Refusal::OverLimit`] for too many crons.
pub fn create(tx: &mut WriteTx<'_>, new: &NewCron) -> Result<Cron, Refusal> {
    check(new)?;
    sessions::open(tx.sql(), new.session)?;
    let count: i64 = tx.sql().query_row(
        "SELECT count(*) FROM crons WHERE ended_at IS NULL",
        [],
        |row| row.get(0),
    )?;
    if count >= MAX_CRONS {
        return Err(Refusal::OverLimit(format!(
            "there are {MAX_CRONS} crons already; remove some with `quintet cron rm`"
        )));
    }
    let now = tx.now();
    tx.sql().execute(
        "INSERT INTO crons (schedule, skill, session, quiet_start, quiet_end, once,
                            missed, overlap, created_at, decided)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)",
        (
            &new.schedule,
            &new.skill,
            new.session.cast_signed(),
            &new.quiet_start,
            &new.quiet_end,
            new.once,
            new.missed.as_str(),
            new.overlap.as_str(),
            now,
        ),
    )?;
    let id = tx.sql().last_insert_rowid().cast_unsigned();
    let data = json!({
        "cron": id,
        "schedule": new.schedule,
        "skill": new.skill,
        "quiet_start": new.quiet_start,
        "quiet_end": new.quiet_end,
        "once": new.once,
        "missed": new.missed.as_str(),
        "overlap": new.overlap.as_str(),
    });
    tx.append(Entry::new(Kind::CronCreated, &data).in_session(new.session))?;
    Ok(Cron {
        id,
        schedule: new.schedule.clone(),
        skill: new.skill.clone(),
        session: new.session,
        quiet_start: new.quiet_start.clone(),
        quiet_end: new.quiet_end.clone(),
        once: new.once,
        missed: new.missed,
        overlap: new.overlap,
        decided: timestamp(now)?,
    })
}

/// Ends a cron. What has been started goes on, what was due is not started any
/// more, and its runs stay listed.
///
/// # Errors
///
/// [`Refusal::NotFound`] when there is no such cron, or it has ended.
pub fn delete(tx: &mut WriteTx<'_>, id: u64) -> Result<(), Refusal> {
    if end(tx, id, "the cron was removed")? {
        Ok(())
    } else {
        Err(Refusal::no_cron(id))
    }
}

/// Ends the crons of a session that closes, as [`delete`] does.
///
/// # Errors
///
/// When the database fails.
pub fn end_of_session(tx: &mut WriteTx<'_>, session: u64, reason: &str) -> Result<(), StoreError> {
    let crons: Vec<i64> = {
        let mut statement = tx.sql().prepare_cached(
            "SELECT id FROM crons WHERE session = ? AND ended_at IS NULL ORDER BY id",
        )?;
        let rows = statement.query_map([session.cast_signed()], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    for id in crons {
        end(tx, id.cast_unsigned(), reason)?;
    }
    Ok(())
}

/// Ends a cron, whatever the reason; whether it had not ended before.
fn end(tx: &mut WriteTx<'_>, id: u64, reason: &str) -> Result<bool, StoreError> {
    let session: Option<i64> = tx
        .sql()
        .query_row(
            "UPDATE crons SET ended_at = ? WHERE id = ? AND ended_at IS NULL RETURNING session",
            (tx.now(), id.cast_signed()),
            |row| row.get(0),
        )
        .optional()?;
    let Some(session) = session.map(i64::cast_unsigned) else {
        return Ok(false);
    };
    drop_due(tx, id, session, reason)?;
    let data = json!({ "cron": id, "reason": reason });
    tx.append(Entry::new(Kind::CronDeleted, &data).in_session(session))?;
    Ok(true)
}

/// The crons that have not ended, by their numbers.
///
/// # Errors
///
/// When the database fails.
pub fn list(connection: &Connection) -> Result<Vec<Cron>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {CRON_COLUMNS} FROM crons c WHERE ended_at IS NULL ORDER BY id"
    ))?;
    let rows = statement.query_map([], |row| Ok(cron_from_sql(row)))?;
    rows.map(|row| row?).collect()
}

/// Whether there is, or was, such a cron.
///
/// # Errors
///
/// When the database fails.
pub fn knows(connection: &Connection, id: u64) -> Result<bool, StoreError> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM crons WHERE id = ?")?
        .exists([id.cast_signed()])?)
}

/// Occurrences, newest first: of one cron or of all.
///
/// # Errors
///
/// When the database fails.
pub fn runs(
    connection: &Connection,
    cron: Option<u64>,
    limit: u32,
) -> Result<Vec<Run>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT cron, due, state, message, started_at, finished_at, note FROM cron_runs
         WHERE ?1 IS NULL OR cron = ?1 ORDER BY due DESC, cron DESC LIMIT ?2",
    )?;
    let rows = statement.query_map((cron.map(u64::cast_signed), limit), |row| {
        Ok(run_from_sql(row))
    })?;
    rows.map(|row| row?).collect()
}

/// The occurrences that are to be started and have not been, oldest first.
///
/// # Errors
///
/// When the database fails.
pub fn due(connection: &Connection) -> Result<Vec<(Cron, Timestamp)>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {CRON_COLUMNS}, r.due FROM cron_runs r JOIN crons c ON c.id = r.cron
         WHERE r.state = 'due' ORDER BY r.due, c.id"
    ))?;
    let rows = statement.query_map([], |row| {
        let due = row.get::<_, i64>(10)?;
        Ok(cron_from_sql(row).and_then(|cron| Ok((cron, timestamp(due)?))))
    })?;
    rows.map(|row| row?).collect()
}

/// Decides every undecided occurrence of a cron up to now, one durable row each.
///
/// Returns when the cron was decided up to afterwards; `None` when it has ended.
///
/// # Errors
///
/// When the database fails; nothing is decided then.
pub fn decide(
    tx: &mut WriteTx<'_>,
    id: u64,
    (schedule, quiet): (&Schedule, Option<QuietHours>),
    rules: Rules<'_>,
    now: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    // Read here, in the transaction that writes the decision: what was decided
    // and whether a run goes on cannot change in between.
    let cron = tx
        .sql()
        .prepare_cached(&format!(
            "SELECT {CRON_COLUMNS} FROM crons c WHERE id = ? AND ended_at IS NULL"
        ))?
        .query_row([id.cast_signed()], |row| Ok(cron_from_sql(row)))
        .optional()?;
    let Some(cron) = cron.transpose()? else {
        return Ok(None);
    };
    let plan = planner::plan(
        Known {
            schedule,
            quiet,
            decided: cron.decided,
            ongoing: ongoing(tx, id)?,
            missed: cron.missed,
            overlap: cron.overlap,
        },
        rules,
        now,
    );
    let Some(newest) = plan.decisions.last() else {
        return Ok(Some(cron.decided));
    };
    let newest = newest.due;
    for decision in &plan.decisions {
        let state = RunState::from(decision.outcome);
        tx.sql()
            .prepare_cached("INSERT INTO cron_runs (cron, due, state) VALUES (?, ?, ?)")?
            .execute((
                id.cast_signed(),
                decision.due.as_microsecond(),
                state.as_str(),
            ))?;
    }
    tx.sql()
        .prepare_cached("UPDATE crons SET decided = ? WHERE id = ?")?
        .execute((newest.as_microsecond(), id.cast_signed()))?;
    tell_decisions(tx, id, cron.session, &plan.decisions, plan.truncated)?;
    forget_old(tx, id)?;
    Ok(Some(newest))
}

/// How far the runs of a cron are that have not ended.
fn ongoing(tx: &WriteTx<'_>, id: u64) -> Result<Ongoing, StoreError> {
    let (open, waiting): (i64, i64) = tx
        .sql()
        .prepare_cached(
            "SELECT count(*), count(*) FILTER (WHERE r.state = 'due' OR m.state = 'queued')
             FROM cron_runs r LEFT JOIN messages m ON m.id = r.message
             WHERE r.cron = ? AND r.state IN ('due', 'started')",
        )?
        .query_row([id.cast_signed()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(match (open, waiting) {
        (0, _) => Ongoing::Nothing,
        (_, 0) => Ongoing::Running,
        _ => Ongoing::Waiting,
    })
}

/// What claiming an occurrence came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is started: this message is in the session's queue.
    Started(u64),
    /// It is not to be started, or was started already.
    NotDue,
}

/// Starts an occurrence that is due, exactly once.
///
/// `enqueue` puts the message into the session's durable queue, in the same
/// transaction: there is no moment at which one has happened without the other.
///
/// # Errors
///
/// What `enqueue` refuses, or the database's; the occurrence is still due then.
pub fn claim(
    tx: &mut WriteTx<'_>,
    cron: &Cron,
    due: Timestamp,
    enqueue: impl FnOnce(&mut WriteTx<'_>) -> Result<u64, Refusal>,
) -> Result<Claim, Refusal> {
    let now = tx.now();
    let claimed = tx
        .sql()
        .prepare_cached(
            "UPDATE cron_runs SET state = 'started', started_at = ?
             WHERE cron = ? AND due = ? AND state = 'due'",
        )?
        .execute((now, cron.id.cast_signed(), due.as_microsecond()))?;
    if claimed == 0 {
        return Ok(Claim::NotDue);
    }
    let message = enqueue(tx)?;
    tx.sql()
        .prepare_cached("UPDATE cron_runs SET message = ? WHERE cron = ? AND due = ?")?
        .execute((
            message.cast_signed(),
            cron.id.cast_signed(),
            due.as_microsecond(),
        ))?;
    tell(
        tx,
        cron.id,
        cron.session,
        due,
        RunState::Started,
        Some(message),
        "",
    )?;
    if cron.once {
        end(tx, cron.id, "it was to be started once")?;
    }
    Ok(Claim::Started(message))
}

/// Records that an occurrence that is due could not be started, and why.
///
/// # Errors
///
/// When the database fails.
pub fn fail(
    tx: &mut WriteTx<'_>,
    cron: &Cron,
    due: Timestamp,
    note: &str,
) -> Result<(), StoreError> {
    let failed = tx.sql().execute(
        "UPDATE cron_runs SET state = 'failed', finished_at = ?, note = ?
         WHERE cron = ? AND due = ? AND state = 'due'",
        (tx.now(), note, cron.id.cast_signed(), due.as_microsecond()),
    )?;
    if failed > 0 {
        tell(tx, cron.id, cron.session, due, RunState::Failed, None, note)?;
    }
    Ok(())
}

/// Takes over how the turns of started runs ended, from the sessions' queue.
///
/// Cheap when nothing has ended; may be called at any time and any number of
/// times.
///
/// # Errors
///
/// When the database fails.
pub fn settle(tx: &mut WriteTx<'_>) -> Result<(), StoreError> {
    let ended: Vec<Ended> = {
        let mut statement = tx.sql().prepare_cached(
            "SELECT r.cron, r.due, r.message, c.session, coalesce(m.state, 'gone'),
                    coalesce(j.at, ?1), coalesce(json_extract(j.data, '$.error'), '')
             FROM cron_runs r
             JOIN crons c ON c.id = r.cron
             LEFT JOIN messages m ON m.id = r.message
             LEFT JOIN journal j ON j.seq = m.last_seq
             WHERE r.state = 'started'
               AND (m.id IS NULL OR m.state IN ('done', 'failed', 'removed'))",
        )?;
        let rows = statement.query_map([tx.now()], |row| {
            Ok(Ended {
                cron: row.get(0)?,
                due: row.get(1)?,
                message: row.get(2)?,
                session: row.get(3)?,
                message_state: row.get(4)?,
                at: row.get(5)?,
                error: row.get(6)?,
            })
        })?;
        rows.collect::<Result<_, _>>()?
    };
    for run in ended {
        let (state, note) = match (run.message_state.as_str(), run.error.as_str()) {
            ("done", _) => (RunState::Finished, ""),
            ("gone", _) => (RunState::Failed, "its message is gone"),
            ("removed", _) => (RunState::Failed, "its message was removed from the queue"),
            (_, "") => (RunState::Failed, "its turn failed"),
            (_, error) => (RunState::Failed, error),
        };
        tx.sql()
            .prepare_cached(
                "UPDATE cron_runs SET state = ?, finished_at = ?, note = ?
                 WHERE cron = ? AND due = ? AND state = 'started'",
            )?
            .execute((state.as_str(), run.at, note, run.cron, run.due))?;
        tell(
            tx,
            run.cron.cast_unsigned(),
            run.session.cast_unsigned(),
            timestamp(run.due)?,
            state,
            Some(run.message.cast_unsigned()),
            note,
        )?;
    }
    Ok(())
}

/// A started run whose turn is over.
struct Ended {
    cron: i64,
    due: i64,
    message: i64,
    session: i64,
    message_state: String,
    at: i64,
    error: String,
}

/// Gives up occurrences that are due and will not be started.
fn drop_due(tx: &mut WriteTx<'_>, id: u64, session: u64, note: &str) -> Result<(), StoreError> {
    let dropped: Vec<i64> = {
        let mut statement = tx.sql().prepare_cached(
            "UPDATE cron_runs SET state = 'missed', note = ? WHERE cron = ? AND state = 'due'
             RETURNING due",
        )?;
        let rows = statement.query_map((note, id.cast_signed()), |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    for due in dropped {
        tell(
            tx,
            id,
            session,
            timestamp(due)?,
            RunState::Missed,
            None,
            note,
        )?;
    }
    Ok(())
}

/// Keeps the newest runs, and those that have not ended.
fn forget_old(tx: &WriteTx<'_>, id: u64) -> Result<(), StoreError> {
    tx.sql()
        .prepare_cached(
            "DELETE FROM cron_runs WHERE cron = ?1 AND state NOT IN ('due', 'started')
             AND due < (SELECT due FROM cron_runs WHERE cron = ?1
                        ORDER BY due DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute((id.cast_signed(), KEPT_RUNS - 1))?;
    Ok(())
}

/// Puts decisions into the journal; missed ones of one look are one event.
fn tell_decisions(
    tx: &mut WriteTx<'_>,
    id: u64,
    session: u64,
    decisions: &[Decision],
    truncated: bool,
) -> Result<(), StoreError> {
    let missed: Vec<Timestamp> = decisions
        .iter()
        .filter(|decision| decision.outcome == Outcome::Missed)
        .map(|decision| decision.due)
        .collect();
    if let (Some(first), Some(last)) = (missed.first(), missed.last()) {
        let data = json!({
            "cron": id,
            "state": RunState::Missed.as_str(),
            "due": last.to_string(),
            "first_due": first.to_string(),
            "count": missed.len(),
            "more": truncated,
        });
        tx.append(Entry::new(Kind::CronRun, &data).in_session(session))?;
    }
    for decision in decisions {
        if decision.outcome != Outcome::Missed {
            let state = decision.outcome.into();
            tell(tx, id, session, decision.due, state, None, "")?;
        }
    }
    Ok(())
}

fn tell(
    tx: &mut WriteTx<'_>,
    id: u64,
    session: u64,
    due: Timestamp,
    state: RunState,
    message: Option<u64>,
    note: &str,
) -> Result<(), StoreError> {
    let mut data = json!({
        "cron": id,
        "state": state.as_str(),
        "due": due.to_string(),
    });
    if let Some(message) = message {
        data["message"] = message.into();
    }
    if !note.is_empty() {
        data["note"] = note.into();
    }
    tx.append(Entry::new(Kind::CronRun, &data).in_session(session))?;
    Ok(())
}
