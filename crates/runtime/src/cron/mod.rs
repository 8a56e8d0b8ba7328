//! Crons: a skill is sent into a session when a schedule says so.
//!
//! # Flow
//!
//! [`schedule`] says when, [`planner`] decides what becomes of each occurrence
//! (both pure), [`store`] keeps the decisions, [`driver`] wakes up and acts:
//!
//! 1. *decide*: every occurrence up to now that has not been decided gets one
//!    row: `due`, `skipped_quiet`, `skipped_overlap` or `missed`. In the same
//!    transaction the cron's `decided` moves to the newest of them. It never
//!    goes back, and a second row for the same occurrence is impossible
//!    (primary key).
//! 2. *claim*: `due` becomes `started` in the same transaction that puts the
//!    message into the session's durable queue.
//! 3. *settle*: `started` becomes `finished` or `failed` with its turn.
//!
//! # What is guaranteed
//!
//! - An occurrence is started at most once: whatever crashes, and whatever the
//!   clock does. The step from `due` to `started` and the message in the queue
//!   are one transaction.
//! - An occurrence that has its `due` row is started exactly once, also when the
//!   daemon crashes between *decide* and *claim*: after the restart every `due`
//!   row is claimed first. (Not when the cron has ended meanwhile: the row says
//!   `missed` and why; when its skill is gone, it says `failed` and why.)
//! - "Started" means: durable in the session's queue. What the queue does with a
//!   message whose turn was cut by a crash is the queue's rule: it is reported
//!   as failed and not run again.
//! - An occurrence that came while no daemon ran (or in the instant of a crash,
//!   before *decide* was durable), or while the machine slept, is `missed`. A cron
//!   whose [`MissedPolicy`] is to run once starts the newest of them instead.
//! - While a run has not ended, further occurrences are `skipped_overlap`. A cron
//!   whose [`OverlapPolicy`] is to queue starts one of them: its message waits in
//!   the session's queue. Never more than one waits; the others are skipped.
//! - A cron ends when it is removed, when its session is closed, or when it was
//!   to be started once and was. The journal has one `cron_deleted` with the
//!   reason for each.
//! - A clock set back repeats nothing; one set forward by more than a minute
//!   makes what lay between late, hence missed.
//!
//! # Limits
//!
//! 1,000 crons; 1,000 kept runs per cron (the oldest ended ones are forgotten);
//! after a long absence at most 1,000 missed occurrences per cron get rows.

pub mod driver;
pub mod planner;
mod policy;
mod rows;
pub mod schedule;
pub mod store;

pub use driver::{Clock, CronDriver, CronHandle, CronHost, Listed};
pub use policy::{MissedPolicy, OverlapPolicy};
pub use rows::{Cron, NewCron, Run, RunState};
pub use store::{end_of_session, settle};

#[cfg(test)]
mod tests;
