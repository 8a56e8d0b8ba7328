//! Every call passes here: the policy decides, and where it asks, a person does.

use std::sync::Arc;

use quintet_agent::proto::message::AgentId;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::answers::Answer;
use super::files::Target;
use super::{Call, ToolServer};
use crate::config::Config;
use crate::journal::{Entry, Kind};
use crate::policy::{self, Request, Rule, Subject};
use crate::refusal::Refusal;
use crate::sessions::approvals::{self, Action, Decision, ProposedRules, Requested};
use crate::turns::{Turn, session_of};

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

/// What a person is asked, and how the policy is asked again.
struct Asked<'a> {
    action: Action,
    why: String,
    proposed: ProposedRules,
    request: &'a Request<'a>,
}

/// What a person's answer means for the call.
fn decided(decision: &Decision) -> Result<Leave, NoLeave> {
    if decision.approved {
        return Ok(Leave {
            decision: "approved",
            why: format!("approved by {} ({})", decision.by, decision.scope.as_str()),
        });
    }
    let reason = match decision.note.as_str() {
        "" => String::new(),
        note => format!(": {note}"),
    };
    Err(NoLeave {
        decision: "refused",
        message: format!("{} refused it{reason}", decision.by),
    })
}

fn denied(why: &str) -> NoLeave {
    NoLeave {
        decision: "deny",
        message: format!(
            "denied by the policy: {why}. Do it another way, or ask the person with ask_user."
        ),
    }
}

impl From<Refusal> for NoLeave {
    fn from(refusal: Refusal) -> Self {
        Self {
            decision: "failed",
            message: refusal.to_string(),
        }
    }
}

/// What the policy lets a call see below the path that it has leave for.
pub(super) struct Sight {
    rules: Vec<Rule>,
    tool: String,
    agent: String,
    session: u64,
    worker: String,
    root: String,
    /// A person was asked about that path.
    asked: bool,
}

impl Sight {
    /// Whether a path may be seen. One that would have to be asked about is not, unless it is part
    /// of what a person gave leave for.
    pub(super) fn reaches(&self, path: &str) -> bool {
        match self.decided(path) {
            policy::Action::Allow => true,
            policy::Action::Ask => self.asked,
            policy::Action::Deny => false,
        }
    }

    fn decided(&self, path: &str) -> policy::Action {
        let request = Request {
            tool: &self.tool,
            agent: &self.agent,
            session: self.session,
            worker: &self.worker,
            subject: Subject::Path {
                path,
                root: &self.root,
            },
        };
        policy::decide(&self.rules, &request).decision.action
    }
}

impl ToolServer {
    /// What a call that has leave for a path may see below it.
    pub(super) fn sight(&self, call: &Call, target: &Target) -> Sight {
        let rules = self.runtime.config.current().policy.rules.clone();
        let mut sight = Sight {
            rules,
            tool: call.tool.clone(),
            agent: call.session.agent.clone(),
            session: call.session.id,
            worker: call.worker.clone(),
            root: call.session.workspace.clone(),
            asked: false,
        };
        sight.asked = sight.decided(&target.shown) == policy::Action::Ask;
        sight
    }

    /// Whether the policy is at least as strict with one path as with another.
    pub(super) fn is_as_strict(&self, call: &Call, one: &Target, other: &Target) -> bool {
        let sight = self.sight(call, one);
        sight.decided(&one.shown) >= sight.decided(&other.shown)
    }

    /// Asks the policy, and a person where the policy says so.
    pub(super) async fn leave(
        &self,
        call: &Call,
        subject: Subject<'_>,
        action: Action,
        cancelled: &CancellationToken,
    ) -> Result<Leave, NoLeave> {
        let mut config = self.runtime.config.subscribe();
        let rules = config.borrow_and_update().policy.rules.clone();
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
            policy::Action::Deny => Err(denied(&why)),
            policy::Action::Ask => {
                let proposed = ProposedRules::of(&rules, &request);
                let asked = Asked {
                    action,
                    why,
                    proposed,
                    request: &request,
                };
                self.ask(call, asked, config, cancelled).await
            }
        }
    }

    async fn ask(
        &self,
        call: &Call,
        asked: Asked<'_>,
        mut config: watch::Receiver<Arc<Config>>,
        cancelled: &CancellationToken,
    ) -> Result<Leave, NoLeave> {
        let Asked {
            action,
            why,
            proposed,
            request,
        } = asked;
        let Some(turn) = self.turn(call) else {
            return Err(NoLeave {
                decision: "deny",
                message: format!(
                    "{why}; a person has to approve it, and no turn is running to ask in"
                ),
            });
        };
        self.announced(call, &turn).await;
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
            Requested::Answered(decision) => return decided(&decision),
            Requested::Pending(approval) => approval,
        };
        let answer = loop {
            tokio::select! {
                biased;
                answer = expected.come() => break answer,
                () = turn.over() => break None,
                () = cancelled.cancelled() => break None,
                changed = config.changed() => {
                    if changed.is_err() {
                        break None;
                    }
                    if let Some(settled) = self.settled(approval, &mut config, request).await? {
                        return settled;
                    }
                }
            }
        };
        match answer {
            Some(Answer::Decision(decision)) => decided(&decision),
            Some(Answer::Ask(_)) | None => {
                if !self.runtime.coordinator.is_stopping() {
                    self.runtime
                        .db
                        .write(move |tx| approvals::withdraw_one(tx, approval))
                        .await
                        .map_err(Refusal::from)?;
                }
                Err(NoLeave {
                    decision: "withdrawn",
                    message: "nobody answered before the call or its turn ended".to_owned(),
                })
            }
        }
    }

    /// Asks the policy again after its rules changed; what they decide now needs no person.
    async fn settled(
        &self,
        approval: u64,
        config: &mut watch::Receiver<Arc<Config>>,
        request: &Request<'_>,
    ) -> Result<Option<Result<Leave, NoLeave>>, NoLeave> {
        let _answering = self.runtime.coordinator.answers().answering().await;
        let rules = config.borrow_and_update().policy.rules.clone();
        let decision = policy::decide(&rules, request).decision;
        let approved = match decision.action {
            policy::Action::Allow => true,
            policy::Action::Deny => false,
            policy::Action::Ask => return Ok(None),
        };
        let why = decision.explain(&rules);
        let by_rule = Decision::of_policy(approved, &why);
        let answered = self
            .runtime
            .db
            .write(move |tx| approvals::answer(tx, approval, &by_rule).map(drop))
            .await;
        match (answered, approved) {
            (Ok(()), true) => Ok(Some(Ok(Leave {
                decision: "allow",
                why,
            }))),
            (Ok(()), false) => Ok(Some(Err(denied(&why)))),
            // A person was faster, or the turn is over: either is being told.
            (Err(Refusal::Conflict(_)), _) => Ok(None),
            (Err(refusal), _) => Err(refusal.into()),
        }
    }

    /// Waits until those who watch have seen the call that a person is asked about.
    pub(super) async fn announced(&self, call: &Call, turn: &Turn) {
        if let Some(id) = &call.agents_id {
            turn.announced(id).await;
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
        self.write_row(&call.instance, Entry::new(kind, &data))
            .await;
    }

    /// Writes a row of an instance: of its turn where one runs, else of its session.
    pub(super) async fn write_row(&self, instance: &AgentId, entry: Entry) {
        let written = match self.runtime.coordinator.turn_of(instance.as_str()) {
            Some(turn) => turn.note(&self.runtime.db, entry).await,
            None => {
                let row = match session_of(instance) {
                    Some(session) => entry.in_session(session),
                    None => entry,
                };
                self.runtime.db.append(vec![row]).await.map(drop)
            }
        };
        if let Err(error) = written {
            tracing::error!(%instance, %error, "the use of a tool could not be written");
        }
    }
}
