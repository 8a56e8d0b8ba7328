//! Every call passes here: the policy decides, and where it asks, a person does.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::answers::Answer;
use super::{Call, ToolServer};
use crate::journal::{Entry, Kind};
use crate::policy::{self, Request, Subject};
use crate::refusal::Refusal;
use crate::sessions::approvals::{self, Action, ProposedRules, Requested};
use crate::turns::Turn;

/// Leave to go on, and whose.
pub(super) struct Leave {
    /// `allow`, or `approved` when a person was asked.
    pub(super) decision: &'static str,
    /// The rule or the default, or who said yes.
    pub(super) why: String,
}

/// Why a call may not go on, for the agent.
pub(super) struct NoLeave {
    /// `deny`, `refused` or `withdrawn`.
    pub(super) decision: &'static str,
    /// What the agent reads.
    pub(super) message: String,
}

impl From<Refusal> for NoLeave {
    fn from(refusal: Refusal) -> Self {
        Self {
            decision: "failed",
            message: refusal.to_string(),
        }
    }
}

impl ToolServer {
    /// Asks the policy, and a person where the policy says so.
    pub(super) async fn leave(
        &self,
        call: &Call,
        subject: Subject<'_>,
        action: Action,
        cancelled: &CancellationToken,
    ) -> Result<Leave, NoLeave> {
        let rules = self.runtime.config.current().policy.rules.clone();
        let request = Request {
            tool: &call.tool,
            agent: &call.session.agent,
            session: call.session.id,
            worker: &call.worker,
            subject,
        };
        let decision = policy::decide(&rules, &request).decision;
        let why = decision.explain(&rules);
        match decision.action {
            policy::Action::Allow => Ok(Leave {
                decision: "allow",
                why,
            }),
            policy::Action::Deny => Err(NoLeave {
                decision: "deny",
                message: format!(
                    "denied by the policy: {why}. Do it another way, or ask the person with ask_user."
                ),
            }),
            policy::Action::Ask => {
                let proposed = ProposedRules::of(&rules, &request);
                self.ask(call, action, why, proposed, cancelled).await
            }
        }
    }

    async fn ask(
        &self,
        call: &Call,
        action: Action,
        why: String,
        proposed: ProposedRules,
        cancelled: &CancellationToken,
    ) -> Result<Leave, NoLeave> {
        let Some(turn) = self.turn(call) else {
            return Err(NoLeave {
                decision: "deny",
                message: format!(
                    "{why}; a person has to approve it, and no turn is running to ask in"
                ),
            });
        };
        let mut expected = self.runtime.coordinator.answers().expect();
        let (session, id, key) = (call.session.id, turn.id, expected.key().to_owned());
        let requested = self
            .runtime
            .db
            .write(move |tx| approvals::request(tx, session, id, &key, &action, &why, &proposed))
            .await
            .map_err(Refusal::from)?;
        let approval = match requested {
            Requested::Granted { by } => {
                return Ok(Leave {
                    decision: "approved",
                    why: format!("approved for this session by {by}"),
                });
            }
            Requested::Pending(approval) => approval,
        };
        let answer = tokio::select! {
            answer = expected.come() => answer,
            () = turn.over() => None,
            () = cancelled.cancelled() => None,
        };
        match answer {
            Some(Answer::Decision(decision)) if decision.approved => Ok(Leave {
                decision: "approved",
                why: format!("approved by {} ({})", decision.by, decision.scope.as_str()),
            }),
            Some(Answer::Decision(decision)) => {
                let reason = match decision.note.as_str() {
                    "" => String::new(),
                    note => format!(": {note}"),
                };
                Err(NoLeave {
                    decision: "refused",
                    message: format!("{} refused it{reason}", decision.by),
                })
            }
            Some(Answer::Ask(_)) | None => {
                self.runtime
                    .db
                    .write(move |tx| approvals::withdraw_one(tx, approval))
                    .await
                    .map_err(Refusal::from)?;
                Err(NoLeave {
                    decision: "withdrawn",
                    message: "nobody answered before the call or its turn ended".to_owned(),
                })
            }
        }
    }

    /// The turn that the calling instance works on.
    pub(super) fn turn(&self, call: &Call) -> Option<Arc<Turn>> {
        self.runtime.coordinator.turn_of(call.instance.as_str())
    }

    /// Writes a row about a call, in its turn where one runs.
    pub(super) async fn note(&self, call: &Call, kind: Kind, mut data: Value) {
        data["call"] = json!(call.id);
        data["tool"] = json!(call.tool);
        data["agent_id"] = json!(call.instance.as_str());
        let entry = Entry::new(kind, &data);
        let written = match self.turn(call) {
            Some(turn) => turn.note(&self.runtime.db, entry).await,
            None => {
                let row = entry.in_session(call.session.id);
                self.runtime.db.append(vec![row]).await.map(drop)
            }
        };
        if let Err(error) = written {
            tracing::error!(call = call.id, %error, "the use of a tool could not be written");
        }
    }
}
