//! Permission requests as approvals, and approvals as chosen options.

use agent_client_protocol_schema::v1::{
    PermissionOption, PermissionOptionKind, RequestPermissionOutcome, SelectedPermissionOutcome,
    ToolCall, ToolCallContent,
};
use serde_json::Value;

use super::translate::{text_of, tool_name};
use crate::proto::message::{ApprovalRequest, ApprovalResult};

/// Says what is asked leave for.
pub(super) fn approval_request(request_id: String, call: &ToolCall) -> ApprovalRequest {
    let input = |key: &str| call.raw_input.as_ref().and_then(|input| input.get(key));
    ApprovalRequest {
        request_id,
        action: match call.title.as_str() {
            "" => tool_name(call),
            title => title.to_owned(),
        },
        command: input("command").and_then(command_line),
        cwd: ["cwd", "workdir"]
            .iter()
            .find_map(|key| input(key)?.as_str().map(str::to_owned)),
        reason: input("description")
            .and_then(Value::as_str)
            .map(str::to_owned)
            .or_else(|| explanation(&call.content)),
    }
}

/// Agents give a command as a line or as its words.
fn command_line(command: &Value) -> Option<String> {
    match command {
        Value::String(line) => Some(line.clone()),
        Value::Array(words) => words
            .iter()
            .map(Value::as_str)
            .collect::<Option<Vec<_>>>()
            .map(|words| words.join(" ")),
        _ => None,
    }
}

fn explanation(content: &[ToolCallContent]) -> Option<String> {
    Some(text_of(content)).filter(|text| !text.is_empty())
}

/// The option that an answer means; cancelled where the agent offered none of that kind.
///
/// An answer that reaches no further than once never picks an option that lasts, unless it is the
/// only one of its kind.
pub(super) fn outcome(
    options: &[PermissionOption],
    answer: &ApprovalResult,
) -> RequestPermissionOutcome {
    use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let lasting = answer.scope.as_deref().is_some_and(|scope| scope != "once");
    let wanted = match (answer.approved, lasting) {
        (true, false) => [AllowOnce, AllowAlways],
        (true, true) => [AllowAlways, AllowOnce],
        (false, false) => [RejectOnce, RejectAlways],
        (false, true) => [RejectAlways, RejectOnce],
    };
    wanted
        .iter()
        .find_map(|kind| options.iter().find(|option| option.kind == *kind))
        .map_or(RequestPermissionOutcome::Cancelled, |option| {
            RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(
                option.option_id.clone(),
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn option(id: &'static str, kind: PermissionOptionKind) -> PermissionOption {
        PermissionOption::new(id, id, kind)
    }

    fn chosen(options: &[PermissionOption], approved: bool, scope: Option<&str>) -> String {
        let answer = ApprovalResult {
            approved,
            scope: scope.map(str::to_owned),
            ..ApprovalResult::default()
        };
        match outcome(options, &answer) {
            RequestPermissionOutcome::Selected(selected) => selected.option_id.to_string(),
            _ => "cancelled".to_owned(),
        }
    }

    #[test]
    fn an_answer_picks_the_option_of_its_kind_and_reach() {
        use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
        let all = [
            option("always", AllowAlways),
            option("once", AllowOnce),
            option("never", RejectAlways),
            option("no", RejectOnce),
        ];
        for (approved, scope, expected) in [
            (true, None, "once"),
            (true, Some("once"), "once"),
            (true, Some("session"), "always"),
            (false, None, "no"),
            (false, Some("session"), "never"),
        ] {
            assert_eq!(
                chosen(&all, approved, scope),
                expected,
                "{approved} {scope:?}"
            );
        }
        let few = [option("always", AllowAlways)];
        assert_eq!(chosen(&few, true, None), "always");
        assert_eq!(chosen(&few, false, None), "cancelled");
        assert_eq!(chosen(&[], true, Some("session")), "cancelled");
    }

    #[test]
    fn a_request_says_what_would_run_and_where() {
        let request = |input: Value| {
            approval_request(
                "r".to_owned(),
                &ToolCall::new("c", "Run the tests").raw_input(input),
            )
        };
        let line = request(json!({"command": "cargo test", "cwd": "/w", "description": "checks"}));
        assert_eq!(
            line,
            ApprovalRequest {
                request_id: "r".to_owned(),
                action: "Run the tests".to_owned(),
                command: Some("cargo test".to_owned()),
                cwd: Some("/w".to_owned()),
                reason: Some("checks".to_owned()),
            }
        );
        let words = request(json!({"command": ["bash", "-lc", "ls"], "workdir": "/w"}));
        assert_eq!(words.command.as_deref(), Some("bash -lc ls"));
        assert_eq!(words.cwd.as_deref(), Some("/w"));
        assert_eq!(request(json!({"command": 5})).command, None);
    }
}
