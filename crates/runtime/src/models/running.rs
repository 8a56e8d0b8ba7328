//! Calls that run, and what each may cost at the most: for a budget that is as good as spent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quintet_models::Caller;
use rust_decimal::Decimal;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The calls that run.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// For short sections without await.
    calls: Mutex<Calls>,
    ended: Notify,
    /// Held from a look at the budgets until the call runs.
    pub(super) admitting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Calls {
    begun: u64,
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    number: u64,
    instance: String,
    agent: String,
    at_most: Decimal,
}

/// A call that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Leave {
    running: Arc<Running>,
    number: u64,
}

impl Running {
    /// Enters a call.
    pub(super) fn begin(self: &Arc<Self>, caller: &Caller, at_most: Decimal) -> Leave {
        let mut calls = self.lock();
        calls.begun += 1;
        let number = calls.begun;
        calls.calls.push(Call {
            number,
            instance: caller.instance.clone(),
            agent: caller.agent.clone(),
            at_most,
        });
        Leave {
            running: Arc::clone(self),
            number,
        }
    }

    /// Ends when a call has, that runs when this is enabled.
    pub(super) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// What the calls of an instance may cost.
    pub(super) fn of_instance(&self, instance: &str) -> Decimal {
        self.sum(|call| call.instance == instance)
    }

    /// What the calls of an agent may cost.
    pub(super) fn of_agent(&self, agent: &str) -> Decimal {
        self.sum(|call| call.agent == agent)
    }

    fn sum(&self, counts: impl Fn(&Call) -> bool) -> Decimal {
        let calls = self.lock();
        let counted = calls.calls.iter().filter(|call| counts(call));
        counted
            .map(|call| call.at_most)
            .fold(Decimal::ZERO, Decimal::saturating_add)
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        let number = self.number;
        self.running
            .lock()
            .calls
            .retain(|call| call.number != number);
        self.running.ended.notify_waiters();
    }
}
