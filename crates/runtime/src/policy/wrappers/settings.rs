//! Settings whose values are commands: variables (`GIT_SSH_COMMAND=..`, `PAGER=..`) and keys of git
//! (`git config core.editor ..`).
//!
//! A value is read as the line that a program runs, so that `PAGER=cat` is no more than `cat`. What
//! names code to load and no command (`LD_PRELOAD=..`) could be anything. A folder in which a program
//! looks for files (`LD_LIBRARY_PATH`, `PYTHONPATH`) is not looked into, as files are not.

use super::{Runs, Word, unknown_if};

/// Variables whose value is a command, or the program of one.
const COMMANDS: [&str; 28] = [
    "BROWSER",
    "CC",
    "CXX",
    "EDITOR",
    "GIT_ASKPASS",
    "GIT_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "LESSCLOSE",
    "LESSOPEN",
    "MANPAGER",
    "PAGER",
    "PROMPT_COMMAND",
    "RSYNC_RSH",
    "RUSTC",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "SUDO_EDITOR",
    "SVN_SSH",
    "SYSTEMD_EDITOR",
    "SYSTEMD_PAGER",
    "VISUAL",
];

/// Variables that name code which is loaded, or settings that hold commands.
const LOADED: [&str; 9] = [
    "BASH_ENV",
    "GIT_CONFIG",
    "GIT_EXEC_PATH",
    "GIT_TEMPLATE_DIR",
    "LD_AUDIT",
    "LD_PRELOAD",
    "PERL5OPT",
    "PYTHONSTARTUP",
    "RUBYOPT",
];

/// What the value of a variable runs.
pub(super) fn of_variable(name: &str, value: &Word) -> Runs {
    if COMMANDS.contains(&name) {
        return line(value);
    }
    let text = value.exact();
    let is_nothing = matches!(text.as_deref(), Some("" | "/dev/null"));
    match name {
        // Shells read it only at a terminal, and it is a common name for something else.
        "ENV" => unknown_if(text.is_none_or(|text| text.contains(['/', '$', '`']))),
        "GIT_CONFIG_NOSYSTEM" => Runs::Nothing,
        _ => unknown_if(!is_nothing && (LOADED.contains(&name) || name.starts_with("GIT_CONFIG_"))),
    }
}

/// What a value runs that is a command.
fn line(value: &Word) -> Runs {
    value.exact().map_or(Runs::Unknown, Runs::Script)
}

/// What `git config` with these words has git run from then on.
pub(super) fn of_git_config(arguments: &[Word]) -> Runs {
    let mut found = Runs::Nothing;
    let mut before: Option<String> = None;
    for word in arguments {
        let Some(text) = word.exact() else {
            return Runs::Unknown;
        };
        // With `!` it is a command in whatever key; a section that is renamed may be any.
        if text.starts_with('!') || text.ends_with("rename-section") {
            return Runs::Unknown;
        }
        if before.as_deref().is_some_and(is_command_key) {
            found = line(word);
        }
        before = Some(text);
    }
    found
}

/// Whether the value of a key of git is a command, or a folder or file with such. A subsection, in
/// the middle, may be anything.
fn is_command_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let Some((section, rest)) = key.split_once('.') else {
        return false;
    };
    let name = rest.rsplit_once('.').map_or(rest, |(_, name)| name);
    match section {
        "core" => matches!(
            name,
            "alternaterefscommand"
                | "askpass"
                | "editor"
                | "fsmonitor"
                | "gitproxy"
                | "hookspath"
                | "pager"
                | "sshcommand"
        ),
        "diff" => matches!(name, "command" | "external" | "textconv"),
        "filter" => matches!(name, "clean" | "process" | "smudge"),
        "browser" | "difftool" | "guitool" | "man" | "mergetool" => {
            matches!(name, "cmd" | "path")
        }
        "include" | "includeif" => name == "path",
        "trailer" => matches!(name, "cmd" | "command"),
        "remote" => matches!(name, "receivepack" | "uploadpack"),
        "sendemail" => name.ends_with("cmd") || name == "smtpserver",
        "pager" => true,
        _ => matches!(
            (section, name),
            ("credential", "helper")
                | ("gpg", "program" | "defaultkeycommand")
                | ("imap", "tunnel")
                | ("init", "templatedir")
                | ("interactive", "difffilter")
                | ("merge", "driver")
                | ("sequence", "editor")
                | ("uploadpack", "packobjectshook")
                | ("web", "browser")
        ),
    }
}
