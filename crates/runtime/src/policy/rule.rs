//! Rules, as `[policy] rules` has them.

use std::fmt::{self, Write as _};

use super::pattern::{CommandPattern, NamePattern, PathPattern};

/// What happens to a request, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It goes on.
    Allow,
    /// A person is asked.
    Ask,
    /// It is refused.
    Deny,
}

impl Action {
    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One rule; a selector that is `None` matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The tool's name.
    pub tool: Option<NamePattern>,
    /// A command's words.
    pub command: Option<CommandPattern>,
    /// Paths that are read or written.
    pub path: Option<PathPattern>,
    /// The agent's name.
    pub agent: Option<NamePattern>,
    /// The worker's id.
    pub worker: Option<NamePattern>,
    /// The session's number.
    pub session: Option<u32>,
    /// What happens.
    pub action: Action,
}

impl Rule {
    /// A rule that matches everything.
    pub fn new(action: Action) -> Self {
        Self {
            tool: None,
            command: None,
            path: None,
            agent: None,
            worker: None,
            session: None,
            action,
        }
    }

    /// The selectors that are set, with what they say, as the configuration names them.
    pub fn selectors(&self) -> Vec<(&'static str, &str)> {
        [
            ("tool", self.tool.as_ref().map(NamePattern::source)),
            ("command", self.command.as_ref().map(CommandPattern::source)),
            ("path", self.path.as_ref().map(PathPattern::source)),
            ("agent", self.agent.as_ref().map(NamePattern::source)),
            ("worker", self.worker.as_ref().map(NamePattern::source)),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
    }

    /// The inline table that config.toml would have.
    pub fn to_toml(&self) -> String {
        let mut text = String::from("{ ");
        for (key, value) in self.selectors() {
            text.push_str(key);
            text.push_str(" = ");
            push_string(&mut text, value);
            text.push_str(", ");
        }
        if let Some(session) = self.session {
            let _ = write!(text, "session = {session}, ");
        }
        let _ = write!(text, "action = \"{}\" }}", self.action);
        text
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_toml())
    }
}

fn push_string(text: &mut String, value: &str) {
    let is_plain = |c: char| !c.is_control();
    if value.contains(['"', '\\']) && !value.contains('\'') && value.chars().all(is_plain) {
        let _ = write!(text, "'{value}'");
        return;
    }
    text.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => {
                text.push('\\');
                text.push(c);
            }
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(text, "\\u{:04X}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}
