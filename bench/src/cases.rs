//! The cases: what is measured against whom.

use crate::harness::Race;

pub(crate) mod agent;
mod channel;
mod coherent;
mod control;
mod framing;
mod journal;
pub(crate) mod load;
pub(crate) mod sandbox;
pub(crate) mod workspace;

/// A named group of races.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) races: fn() -> anyhow::Result<Vec<Race>>,
}

/// Every case, in the order of the usage text.
pub(crate) const ALL: &[Case] = &[
    framing::CASE,
    control::CASE,
    channel::CASE,
    journal::CASE,
    agent::CASE,
    sandbox::CASE,
    coherent::CASE,
    workspace::CASE,
];
