//! The `/` commands of the conversation.

/// What a person can ask for by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slash {
    Help,
    New,
    Sessions,
    Switch(u64),
    Title(String),
    Compact,
    UndoCompact,
    Cancel,
    Retry,
    Kill,
    Cost,
    Quit,
}

/// Name, argument and meaning, in the order that help shows.
pub(crate) const COMMANDS: [(&str, &str, &str); 12] = [
    ("help", "", "show keys and commands"),
    ("new", "", "start a new session with this agent"),
    ("sessions", "", "choose another session"),
    ("switch", "N", "go to session N"),
    ("title", "TEXT", "name this session"),
    ("compact", "", "replace the agent's memory by a summary"),
    ("undo-compact", "", "put the agent's memory back"),
    ("cancel", "", "stop the turn that runs"),
    ("retry", "", "run the last message again after a failure"),
    ("kill", "", "close this session"),
    ("cost", "", "show what this session has cost"),
    ("quit", "", "leave; the agent goes on"),
];

/// Reads what was typed; `None` when it is a message and no command.
///
/// A path such as `/bin/ls` is a message: a command's name has small letters and `-` alone.
pub(crate) fn parse(text: &str) -> Option<Result<Slash, String>> {
    let rest = text.strip_prefix('/')?;
    let (name, argument) = match rest.split_once(char::is_whitespace) {
        Some((name, argument)) => (name, argument.trim()),
        None => (rest, ""),
    };
    if name.is_empty()
        || !name
            .chars()
            .all(|char| char.is_ascii_lowercase() || char == '-')
    {
        return None;
    }
    Some(read(name, argument))
}

fn read(name: &str, argument: &str) -> Result<Slash, String> {
    Ok(match name {
        "help" => Slash::Help,
        "new" => Slash::New,
        "sessions" => Slash::Sessions,
        "switch" => Slash::Switch(argument.parse().map_err(|_| {
            "/switch takes the number of a session; /sessions lists them".to_owned()
        })?),
        "title" if argument.is_empty() => {
            return Err("/title takes the new title".to_owned());
        }
        "title" => Slash::Title(argument.to_owned()),
        "compact" => Slash::Compact,
        "undo-compact" => Slash::UndoCompact,
        "cancel" => Slash::Cancel,
        "retry" => Slash::Retry,
        "kill" => Slash::Kill,
        "cost" => Slash::Cost,
        "quit" | "exit" => Slash::Quit,
        _ => {
            return Err(format!(
                "there is no /{name}; /help lists what there is, and a space in front sends it as it is"
            ));
        }
    })
}

/// The commands whose name begins with what was typed so far.
pub(crate) fn matching(text: &str) -> Vec<(&'static str, &'static str, &'static str)> {
    match text.strip_prefix('/') {
        Some(begun) if !begun.contains(char::is_whitespace) => COMMANDS
            .into_iter()
            .filter(|(name, ..)| name.starts_with(begun))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages_are_told_apart() {
        for (text, want) in [
            ("hello", None),
            ("/bin/ls -l", None),
            ("/", None),
            (" /help", None),
            ("/help", Some(Ok(Slash::Help))),
            ("/switch 12", Some(Ok(Slash::Switch(12)))),
            (
                "/title  a good one ",
                Some(Ok(Slash::Title("a good one".into()))),
            ),
        ] {
            assert_eq!(parse(text), want, "{text}");
        }
        for text in ["/switch", "/switch x", "/title", "/nonsense"] {
            assert!(matches!(parse(text), Some(Err(_))), "{text}");
        }
    }

    #[test]
    fn every_listed_command_is_known() {
        for (name, argument, _) in COMMANDS {
            let typed = match argument {
                "N" => format!("/{name} 1"),
                argument => format!("/{name} {argument}"),
            };
            assert!(matches!(parse(&typed), Some(Ok(_))), "{typed}");
        }
    }

    #[test]
    fn a_beginning_finds_its_commands() {
        let names = |text| {
            matching(text)
                .into_iter()
                .map(|(name, ..)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("/c"), ["compact", "cancel", "cost"]);
        assert_eq!(names("/switch 1"), Vec::<&str>::new());
        assert_eq!(names("c"), Vec::<&str>::new());
    }
}
