//! What the daemon brings to the gateway.

use std::sync::Arc;

use rust_decimal::Decimal;

use crate::proto::provider::Providers;
use crate::proto::usage::Usage;

/// Who calls: the owner of a per-instance key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The agent's instance.
    pub instance: String,
    /// The agent's name.
    pub agent: String,
    /// The session that it serves.
    pub session: u64,
    /// The model of a call that names none.
    pub model: Option<String>,
    /// Models to go on with, in order, when the one asked for can't be had.
    pub fallback: Vec<String>,
}

/// What one call used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRecord {
    /// The provider's name.
    pub provider: String,
    /// The provider's name of the model.
    pub model: String,
    /// The tokens.
    pub usage: Usage,
    /// What they cost.
    pub cost: Decimal,
}

/// Keys, budgets and books, which the daemon has.
pub trait Access: Send + Sync + 'static {
    /// Leave for one call, held until what it used is booked.
    type Leave: Send + Sync + 'static;

    /// The owner of a key; `None` for a key that is unknown or whose instance has ended.
    fn caller(&self, key: &str) -> Option<Caller>;

    /// The providers as they are configured now.
    fn providers(&self) -> Arc<Providers>;

    /// Whether another call may be made, that is expected to cost `at_most`; a refusal is a sentence
    /// that the person will read. May wait for calls that run.
    fn admit(
        &self,
        caller: &Caller,
        at_most: Decimal,
    ) -> impl Future<Output = Result<Self::Leave, String>> + Send;

    /// Hears that a model of the list answers in place of those before it, each with a sentence of
    /// what was wrong with it.
    fn went_on(
        &self,
        _caller: &Caller,
        _failed: &[(String, String)],
        _to: &str,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Books what a call used. Called once for each call that reached a provider's model, before
    /// the caller sees the end of the answer, and also when the caller went away, be it before the
    /// answer began.
    fn record(&self, caller: Caller, call: CallRecord) -> impl Future<Output = ()> + Send;
}
