//! The policy: shell lines that agents chose, patterns that people wrote.

// The core takes nothing but the standard library, so the fuzzer builds it by itself and not the
// whole runtime.
#[path = "../../crates/runtime/src/policy/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the runtime uses what the fuzzer does not"
)]
mod core;

use core::{Isolation, Request, Subject};
// The configuration, which is included likewise, takes these from here.
pub(crate) use core::{Action, CommandPattern, NamePattern, PathPattern, PatternError, Rule};

/// A pattern, a zero byte, and a line.
pub fn policy(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (pattern, line) = text.split_once('\0').unwrap_or(("rm **", &text));
    let request = to_run(line);
    let forbidden = Rule {
        command: CommandPattern::parse("forbidden").ok(),
        ..Rule::new(Action::Deny)
    };
    let mut rules = vec![forbidden.clone()];
    if let Ok(command) = CommandPattern::parse(pattern) {
        rules.push(Rule {
            command: Some(command),
            ..Rule::new(Action::Ask)
        });
    }
    if let Ok(path) = PathPattern::parse(pattern) {
        rules.push(Rule {
            path: Some(path),
            ..Rule::new(Action::Ask)
        });
    }
    let verdict = core::decide(&rules, &request);
    assert_eq!(
        verdict,
        core::decide(&rules, &request),
        "it decides the same twice"
    );
    assert!(!verdict.decision.explain(&rules).is_empty());
    let strictest = verdict.parts.iter().map(|part| part.action).max();
    assert_eq!(strictest.unwrap_or(Action::Allow), verdict.decision.action);

    // What is proposed helps, and is read back as it was.
    if let Some(proposal) = core::propose(&rules, &request) {
        for rule in &proposal.rules {
            // A redirection of its own has only a path.
            assert!(rule.command.is_some() || rule.path.is_some(), "{rule}");
            if let Some(command) = &rule.command {
                let read = CommandPattern::parse(command.source());
                assert_eq!(read.as_ref(), Ok(command));
            }
        }
        let at = proposal.before.unwrap_or(rules.len());
        rules.splice(at..at, proposal.rules);
        assert_eq!(
            core::decide(&rules, &request).decision.action,
            Action::Allow
        );
    }

    // A denied command before it is never lost, whatever the line is.
    let longer = format!("forbidden\n{line}");
    assert_ne!(
        core::decide(&[forbidden], &to_run(&longer)).decision.action,
        Action::Allow
    );
}

fn to_run(line: &str) -> Request<'_> {
    Request {
        tool: "exec",
        agent: "coder",
        session: 1,
        worker: "box",
        subject: Subject::Command {
            line,
            root: "/work/space",
            copy: Some("/copies/1"),
            cwd: "",
            isolation: Isolation::Isolated,
        },
    }
}
