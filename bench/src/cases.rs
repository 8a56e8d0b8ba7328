//! The cases: what is measured against whom.

use crate::harness::Race;

pub(crate) mod agent;
mod control;
mod framing;
mod journal;

/// A named group of races.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) races: fn() -> anyhow::Result<Vec<Race>>,
}

/// Every case, in the order of the usage text.
pub(crate) const ALL: &[Case] = &[framing::CASE, control::CASE, journal::CASE, agent::CASE];
