//! Tokens and money. Money is a decimal from end to end; it is never added up by SQLite, whose sums are floats.

use rusqlite::{Connection, OptionalExtension};
use rust_decimal::Decimal;

use crate::store::{StoreError, WriteTx};
use quintet_agent::proto::usage::TokenUsage;

/// Books what a turn used, under today.
pub fn add(
    tx: &mut WriteTx<'_>,
    turn: u64,
    session: u64,
    agent: &str,
    usage: &TokenUsage,
) -> Result<(), StoreError> {
    if *usage == TokenUsage::default() {
        return Ok(());
    }
    tx.sql()
        .prepare_cached(
            "INSERT INTO usage (turn, session, agent, day, input_tokens, output_tokens, cost)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            turn.cast_signed(),
            session.cast_signed(),
            agent,
            day_of(tx.now()),
            usage.input_tokens.cast_signed(),
            usage.output_tokens.cast_signed(),
            usage.cost.to_string(),
        ))?;
    Ok(())
}

/// Books what was used while no turn was running, under today and a number of its own below zero.
pub fn add_outside(
    tx: &mut WriteTx<'_>,
    session: u64,
    agent: &str,
    usage: &TokenUsage,
) -> Result<(), StoreError> {
    let lowest: Option<i64> = tx
        .sql()
        .query_row("SELECT min(turn) FROM usage", [], |row| row.get(0))?;
    let number = lowest.unwrap_or(0).min(0).saturating_sub(1);
    add(tx, number.cast_unsigned(), session, agent, usage)
}

/// What a turn that was cut off had used by its last word about it.
pub fn last_said(connection: &Connection, turn: u64) -> Result<TokenUsage, StoreError> {
    let data: Option<String> = connection
        .prepare_cached(
            "SELECT data FROM journal WHERE turn = ? AND kind = 'usage' ORDER BY seq DESC LIMIT 1",
        )?
        .query_row([turn.cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(data
        .and_then(|data| serde_json::from_str(&data).ok())
        .unwrap_or_default())
}

/// The day, in UTC, that a time in microseconds falls on.
pub fn day_of(now: i64) -> String {
    jiff::Timestamp::from_microsecond(now)
        .map(|time| time.to_zoned(jiff::tz::TimeZone::UTC).date().to_string())
        .unwrap_or_default()
}

/// What a session cost so far.
pub fn of_session(connection: &Connection, session: u64) -> Result<Decimal, StoreError> {
    let mut statement = connection.prepare_cached("SELECT cost FROM usage WHERE session = ?")?;
    sum(statement.query_map([session.cast_signed()], |row| row.get(0))?)
}

/// What an agent cost on a day.
pub fn of_agent_on(connection: &Connection, agent: &str, day: &str) -> Result<Decimal, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT cost FROM usage WHERE agent = ? AND day = ?")?;
    sum(statement.query_map([agent, day], |row| row.get(0))?)
}

/// What everything cost so far.
pub fn total(connection: &Connection) -> Result<Decimal, StoreError> {
    let mut statement = connection.prepare_cached("SELECT cost FROM usage")?;
    sum(statement.query_map([], |row| row.get(0))?)
}

/// What a turn cost, if it is booked.
pub fn of_turn(connection: &Connection, turn: u64) -> Result<Decimal, StoreError> {
    let cost: Option<String> = connection
        .prepare_cached("SELECT cost FROM usage WHERE turn = ?")?
        .query_row([turn.cast_signed()], |row| row.get(0))
        .optional()?;
    cost.map_or(Ok(Decimal::ZERO), |text| parse(&text))
}

fn sum(costs: impl Iterator<Item = rusqlite::Result<String>>) -> Result<Decimal, StoreError> {
    costs
        .map(|cost| parse(&cost?))
        .try_fold(Decimal::ZERO, |sum, cost| Ok(sum.saturating_add(cost?)))
}

fn parse(text: &str) -> Result<Decimal, StoreError> {
    text.parse()
        .map_err(|_| StoreError::Corrupt(format!("cost {text:?}")))
}
