//! The model gateway in the daemon: whose key it is, what may be spent, where it is booked.
//!
//! An instance gets a key of its own in `init.config`. The key opens the gateway for as long as a
//! process of the instance runs, and for nobody else; providers' keys never leave the daemon.
//!
//! What the gateway meters belongs to the turn that runs. What the agent itself reports of the same
//! calls is not added to it: the larger of the two counts, for each number.

mod keys;
mod providers;
mod running;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use quintet_agent::TokenUsage;
use quintet_agent::proto::message::AgentId;
use quintet_models::{Access, CallRecord, Caller, Gateway, GatewayOptions, Providers};
use rust_decimal::Decimal;
use serde_json::json;

use crate::config::Config;
use crate::journal::{Entry, Kind};
use crate::sessions::usage;
use crate::store::Db;
use crate::turns::{Instances, OpenTurns, agent_of, session_of};

pub(crate) use keys::AgentDoor;
pub use providers::providers_of;
pub(crate) use providers::{default_model, is_set};
use running::{Leave, Running};

/// The gateway as the daemon serves it.
pub(crate) type ModelGateway = Gateway<ModelAccess>;

/// A gateway for the agents of this daemon.
pub(crate) fn gateway(
    db: Db,
    instances: Instances,
    turns: Arc<OpenTurns>,
    door: AgentDoor,
) -> ModelGateway {
    let access = ModelAccess {
        db,
        instances,
        turns,
        door,
        running: Arc::default(),
    };
    Gateway::new(Arc::new(access), GatewayOptions::default())
}

/// Where agents of this machine find a server that listens at `address`.
pub(crate) fn local_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// Keys, budgets and books for the gateway.
pub(crate) struct ModelAccess {
    db: Db,
    instances: Instances,
    turns: Arc<OpenTurns>,
    door: AgentDoor,
    running: Arc<Running>,
}

impl ModelAccess {
    fn config(&self) -> Arc<Config> {
        self.instances.config()
    }

    /// Leave for a call by what the budgets have left. One that may not fit beside those that run
    /// waits until they are booked: it is refused for what was spent, never for what might be.
    async fn leave(&self, caller: &Caller, at_most: Decimal) -> Result<Leave, String> {
        loop {
            let ended = self.running.ended();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(leave) = self.leave_now(caller, at_most).await? {
                return Ok(leave);
            }
            ended.await;
        }
    }

    async fn leave_now(&self, caller: &Caller, at_most: Decimal) -> Result<Option<Leave>, String> {
        let config = self.config();
        let budget = config.agents.get(&caller.agent).map(|agent| agent.budget);
        let budget = budget.filter(|budget| budget.turn.is_some() || budget.day.is_some());
        let Some(budget) = budget else {
            return Ok(Some(self.running.begin(caller, at_most)));
        };
        let limits = quintet_agent::Budget {
            turn: budget.turn,
            day: budget.day,
        };
        // Two that looked at once would both fit.
        let _alone = self.running.admitting.lock().await;
        let turn = self.turns.spent_by(&caller.instance).await;
        let open = self.turns.spent_by_agent(&caller.agent).await;
        let (agent, day) = (caller.agent.clone(), today());
        let booked = self
            .db
            .read(move |connection| usage::of_agent_on(connection, &agent, &day))
            .await
            .map_err(|error| format!("the budget can't be checked: {error}"))?;
        let day = booked.saturating_add(open);
        limits.check(turn, day).map_err(|exceeded| {
            let agent = &caller.agent;
            match exceeded {
                quintet_agent::BudgetExceeded::Turn { .. } => {
                    format!("{exceeded}; raise agents.{agent}.budget.turn or ask for less")
                }
                quintet_agent::BudgetExceeded::Day { .. } => format!(
                    "{exceeded}; raise agents.{agent}.budget.day or wait until tomorrow (UTC)"
                ),
            }
        })?;
        let turn = turn.saturating_add(self.running.of_instance(&caller.instance));
        let day = day.saturating_add(self.running.of_agent(&caller.agent));
        let fits = limits.check(turn, day).is_ok();
        Ok(fits.then(|| self.running.begin(caller, at_most)))
    }
}

impl Access for ModelAccess {
    type Leave = Leave;

    fn caller(&self, key: &str) -> Option<Caller> {
        let instance = self.door.owner(key)?;
        let handle = self.instances.find(instance.as_str())?;
        // A key is worth nothing when its process is gone, whoever kept it.
        handle.status().pid?;
        let agent = agent_of(&instance).to_owned();
        let config = self.config();
        let settings = config.agents.get(&agent);
        Some(Caller {
            session: session_of(&instance).unwrap_or_default(),
            model: settings.and_then(|agent| agent.model.clone()),
            fallback: settings.map_or_else(Vec::new, |agent| agent.fallback.clone()),
            instance: instance.as_str().to_owned(),
            agent,
        })
    }

    fn providers(&self) -> Arc<Providers> {
        Arc::new(providers_of(&self.config()))
    }

    async fn admit(&self, caller: &Caller, at_most: Decimal) -> Result<Leave, String> {
        self.leave(caller, at_most).await
    }

    async fn went_on(&self, caller: &Caller, failed: &[(String, String)], to: &str) {
        let names: Vec<&str> = failed.iter().map(|(model, _)| model.as_str()).collect();
        let each: Vec<String> = failed
            .iter()
            .map(|(model, why)| format!("{model}: {why}"))
            .collect();
        let text = format!("{to} answers instead. {}", each.join(" | "));
        let instance = AgentId::from(caller.instance.as_str());
        let remark = (format!("{} {to}", names.join(" ")), text);
        if let Err(error) = self.turns.remark(&self.db, &instance, remark).await {
            tracing::error!(%instance, %error, "that another model answers could not be written");
        }
    }

    async fn record(&self, caller: Caller, call: CallRecord) {
        let used = TokenUsage {
            input_tokens: call.usage.total_input(),
            output_tokens: call.usage.output,
            cost: call.cost,
        };
        let told = json!({
            "provider": call.provider,
            "model": call.model,
            "input_tokens": used.input_tokens,
            "cached_tokens": call.usage.cache_read,
            "output_tokens": used.output_tokens,
            "cost": used.cost.to_string(),
        });
        let instance = AgentId::from(caller.instance.as_str());
        let booked = self.turns.meter(&self.db, &instance, &used, &told).await;
        let outcome = match booked {
            Ok(true) => Ok(()),
            // No turn is running, or it has just ended: the money is spent all the same.
            Ok(false) => {
                let (session, agent) = (caller.session, caller.agent);
                let mut data = serde_json::to_value(used).unwrap_or_default();
                data["call"] = told;
                let row = Entry::new(Kind::Usage, &data).in_session(session);
                self.db
                    .write(move |tx| {
                        usage::add_outside(tx, session, &agent, &used)?;
                        tx.append(row)
                    })
                    .await
                    .map(drop)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            tracing::error!(instance = %instance, cost = %used.cost, %error, "a model call could not be booked");
        }
    }
}

/// What two counts of the same calls come to.
pub(crate) fn larger(one: &TokenUsage, other: &TokenUsage) -> TokenUsage {
    TokenUsage {
        input_tokens: one.input_tokens.max(other.input_tokens),
        output_tokens: one.output_tokens.max(other.output_tokens),
        cost: Decimal::max(one.cost, other.cost),
    }
}

fn today() -> String {
    usage::day_of(jiff::Timestamp::now().as_microsecond())
}
