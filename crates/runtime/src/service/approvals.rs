//! A person's answers to what agents want to do.

use quintet_control::wire::{AnswerApprovalMsg, ApprovalScope};

use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::sessions::approvals::{self, Decision, Scope};

impl Runtime {
    /// Takes an answer; with the scope "rule" the rule is written and applied first.
    pub(crate) async fn answer_approval(
        &self,
        request: AnswerApprovalMsg,
        by: String,
    ) -> Result<u64, Refusal> {
        let _answering = self.coordinator.answers().answering().await;
        let (scope, rule) = match (request.scope(), request.approved) {
            (ApprovalScope::Once, _) => (Scope::Once, String::new()),
            (ApprovalScope::Session, _) => (Scope::Session, String::new()),
            (ApprovalScope::Rule, true) => {
                let rule = self.write_rule(request.id, request.rule).await?;
                (Scope::Rule, rule)
            }
            (ApprovalScope::Rule, false) => {
                return Err(Refusal::Bad(
                    "a refusal is for this once; write a rule that denies into [policy]".into(),
                ));
            }
        };
        let decision = Decision {
            approved: request.approved,
            scope,
            note: request.reason,
            by,
            rule,
        };
        self.coordinator.decide(request.id, decision).await
    }

    /// Writes what was proposed, or what the person made of it, into `config.toml`.
    async fn write_rule(&self, id: u64, edited: String) -> Result<String, Refusal> {
        let approval = self
            .db
            .read(move |connection| approvals::waiting(connection, id))
            .await?;
        let proposed = approval.proposed;
        let rule = match (edited.trim(), proposed.toml) {
            ("", proposed) if proposed.is_empty() => {
                return Err(Refusal::Bad(format!(
                    "no rule can say what approval {id} asks for; answer with once or session, or send a rule"
                )));
            }
            ("", proposed) => proposed,
            (edited, _) => edited.to_owned(),
        };
        let text = rule.clone();
        self.change_config(move |config| {
            let current = config.current();
            let before = current
                .policy
                .rules
                .iter()
                .find(|rule| rule.to_toml() == proposed.before);
            config.add_rules(&text, before)
        })
        .await?;
        Ok(rule)
    }
}
