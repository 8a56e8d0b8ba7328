//! Commands that run other commands: `env`, `sudo`, `sh -c`, `xargs`, `find -exec` and the like.
//!
//! What they run is read too, so that `timeout 5 sudo sh -c 'rm -rf x'` is also `rm -rf x`. A
//! wrapper that only passes on needs no leave of its own; one that also does something (`sudo`,
//! `find`) does. What it runs and cannot be known from the line could be anything.

mod options;
mod programs;
mod sed;
mod settings;
mod shells;

use super::words::{Access, Piece, Simple, Unreadable, Word, read_nested};
use options::Options;

/// How deep wrappers may be nested.
const MAX_DEPTH: usize = 16;

/// The most commands of one line.
const MAX_PARTS: usize = 1024;

/// One command of a line, as the rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) words: Vec<Word>,
    pub(super) redirects: Vec<(Access, Word)>,
    pub(super) kind: Kind,
    /// A variable or alias that can change what the words mean, set in the same line.
    pub(super) altered_by: Option<String>,
    /// What `&&` joins to it. None where that is not told.
    pub(super) chain: Option<Chain>,
    /// What comes after it in its chain runs only if it succeeded, and in its shell.
    pub(super) goes_on: bool,
}

/// A chain of `&&`: the number of its script, and its own in there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain(u32, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It does something of its own.
    Command,
    /// It only runs another part.
    Wrapper,
}

impl Part {
    /// A command that is not known.
    pub(super) fn unknown() -> Self {
        Self {
            words: vec![Word::anything()],
            redirects: Vec::new(),
            kind: Kind::Command,
            altered_by: None,
            chain: None,
            goes_on: false,
        }
    }

    /// The command as it is written.
    pub(super) fn text(&self) -> String {
        let words: Vec<&str> = self.words.iter().map(|word| word.raw.as_str()).collect();
        words.join(" ")
    }
}

/// Everything that a line would run.
pub(super) fn parts(line: &str) -> Result<Vec<Part>, Unreadable> {
    let mut found = Found::default();
    found.script(line, 0)?;
    Ok(found.parts)
}

#[derive(Default)]
struct Found {
    parts: Vec<Part>,
    /// Set by a command before, for all that follow.
    altered_by: Option<String>,
    scripts: u32,
    /// Of the command that is looked at, and of what it runs.
    chain: Option<Chain>,
}

impl Found {
    fn script(&mut self, line: &str, depth: usize) -> Result<(), Unreadable> {
        self.scripts += 1;
        let (script, around) = (self.scripts, self.chain);
        for command in read_nested(line, depth)? {
            self.chain = command.chain.map(|chain| Chain(script, chain));
            self.simple(command, depth)?;
        }
        self.chain = around;
        Ok(())
    }

    fn simple(&mut self, command: Simple, depth: usize) -> Result<(), Unreadable> {
        let altering = altering(&command.assigned);
        if command.keeps_code {
            self.unknown(altering.clone())?;
        }
        self.set(&command.assigned, depth)?;
        if command.words.is_empty() {
            self.altered_by = graver(self.altered_by.take(), altering);
            if !command.redirects.is_empty() {
                self.push(command.words, command.redirects, Kind::Command, None)?;
            }
            return Ok(());
        }
        let own = self.parts.len();
        self.words(&command.words, command.redirects, altering, depth)?;
        if let Some(part) = self.parts.get_mut(own) {
            part.goes_on = command.goes_on;
        }
        Ok(())
    }

    fn push(
        &mut self,
        words: Vec<Word>,
        redirects: Vec<(Access, Word)>,
        kind: Kind,
        altered_by: Option<String>,
    ) -> Result<(), Unreadable> {
        if self.parts.len() >= MAX_PARTS {
            return Err(Unreadable::TooLong);
        }
        self.parts.push(Part {
            words,
            redirects,
            kind,
            altered_by: graver(altered_by, self.altered_by.clone()),
            chain: self.chain,
            goes_on: false,
        });
        Ok(())
    }

    /// A command that the line does not tell.
    fn unknown(&mut self, altered_by: Option<String>) -> Result<(), Unreadable> {
        let Part { words, .. } = Part::unknown();
        self.push(words, Vec::new(), Kind::Command, altered_by)
    }

    fn words(
        &mut self,
        words: &[Word],
        redirects: Vec<(Access, Word)>,
        mut altered_by: Option<String>,
        depth: usize,
    ) -> Result<(), Unreadable> {
        if depth > MAX_DEPTH {
            return Err(Unreadable::TooDeep);
        }
        let rest = words.get(1..).unwrap_or_default();
        let (kind, name, runs) = match words.first().map(program) {
            Some(Program::Named(name)) => {
                let (kind, runs) = inner(&name, rest);
                (kind, name, runs)
            }
            Some(Program::Partly) => (Kind::Command, String::new(), Runs::Unknown),
            Some(Program::Unnamed) | None => (Kind::Command, String::new(), Runs::Nothing),
        };
        let name = name.as_str();
        let mut assigned = set_by(name, rest);
        let alias = altering(&assigned).or_else(|| altered_for_all(name, rest));
        if let Runs::Words { assigned: more, .. } = &runs {
            altered_by = altered_by.or_else(|| altering(more));
            assigned.extend_from_slice(more);
        }
        self.push(words.to_vec(), redirects, kind, altered_by.clone())?;
        self.altered_by = graver(self.altered_by.take(), alias);
        self.set(&assigned, depth)?;
        self.runs(name, runs, altered_by, depth)
    }

    /// What the values of variables run.
    fn set(&mut self, assigned: &[(String, Word)], depth: usize) -> Result<(), Unreadable> {
        for (variable, value) in assigned {
            self.runs("", settings::of_variable(variable, value), None, depth)?;
        }
        Ok(())
    }

    fn runs(
        &mut self,
        name: &str,
        runs: Runs,
        altered_by: Option<String>,
        depth: usize,
    ) -> Result<(), Unreadable> {
        match runs {
            Runs::Nothing => Ok(()),
            Runs::Unknown => self.unknown(altered_by),
            Runs::Same(words) => {
                let name = Word::literal(name);
                let words = std::iter::once(name).chain(words).collect();
                self.push(words, Vec::new(), Kind::Wrapper, altered_by)
            }
            Runs::Script(text) => self.script(&text, depth + 1),
            Runs::Words { words, .. } if words.is_empty() => Ok(()),
            Runs::Words { words, .. } => self.words(&words, Vec::new(), altered_by, depth + 1),
            Runs::Several(commands) => {
                for words in commands {
                    self.words(&words, Vec::new(), altered_by.clone(), depth + 1)?;
                }
                Ok(())
            }
        }
    }
}

/// What a command changes for all that follow: a variable, or what a name means.
fn altered_for_all(name: &str, rest: &[Word]) -> Option<String> {
    let has = |option: &str| rest.iter().any(|word| word.prefix().starts_with(option));
    match name {
        "alias" | "enable" => (!rest.is_empty()).then(|| name.to_owned()),
        "hash" => has("-p").then(|| name.to_owned()),
        // History comes back as commands.
        "set" => rest.iter().any(brings_history).then(|| name.to_owned()),
        "declare" | "typeset" | "local" if has("-n") => Some(name.to_owned()),
        _ => None,
    }
}

/// The variables that words of `export`, `read` and the like set, and what to.
fn set_by(name: &str, rest: &[Word]) -> Vec<(String, Word)> {
    match name {
        "export" | "declare" | "typeset" | "readonly" | "local" | "let" => {
            rest.iter().filter_map(assignment).collect()
        }
        "read" | "printf" | "mapfile" | "readarray" | "getopts" => {
            let names = rest.iter().filter_map(Word::exact);
            let names = names.map(|name| name.trim_start_matches("-v").to_owned());
            names.map(|name| (name, Word::anything())).collect()
        }
        _ => Vec::new(),
    }
}

/// The variable that a word sets, and what to.
fn assignment(word: &Word) -> Option<(String, Word)> {
    let (name, _) = word.prefix().split_once('=')?;
    Some((name.trim_end_matches('+').to_owned(), word.value()))
}

/// The first of some variables that can change what words mean.
fn altering(assigned: &[(String, Word)]) -> Option<String> {
    let mut names = assigned.iter().map(|(name, _)| name);
    names.find(|name| alters(name)).cloned()
}

fn brings_history(word: &Word) -> bool {
    let text = word.prefix();
    text == "histexpand" || (text.starts_with('-') && text.contains('H'))
}

/// Of two, the one that makes names mean other programs, else the first.
fn graver(first: Option<String>, second: Option<String>) -> Option<String> {
    match second.as_deref().is_some_and(renames) {
        true => second,
        false => first.or(second),
    }
}

/// Whether what is set here makes names mean other programs, and not only changes what they do.
pub(super) fn renames(altered_by: &str) -> bool {
    matches!(altered_by, "alias" | "enable" | "hash" | "set")
        || ["BASH_CMDS", "BASH_ALIASES"]
            .iter()
            .any(|name| altered_by.starts_with(name))
}

/// What is known of the program that a word names.
enum Program {
    Named(String),
    /// Some of its letters: `"$x"env` may be `env`.
    Partly,
    /// Nothing, so that any pattern may be about it.
    Unnamed,
}

fn program(word: &Word) -> Program {
    let known = word.exact();
    let known = known.as_deref().unwrap_or(word.suffix());
    match known.rsplit_once('/') {
        Some((_, name)) => Program::Named(name.to_owned()),
        None if word.exact().is_some() => Program::Named(known.to_owned()),
        None if known.is_empty() && word.prefix().is_empty() => Program::Unnamed,
        None => Program::Partly,
    }
}

/// What a command runs beside itself.
enum Runs {
    Nothing,
    /// Something that the line does not tell.
    Unknown,
    Script(String),
    Words {
        words: Vec<Word>,
        /// Variables that are set for it, and what to.
        assigned: Vec<(String, Word)>,
    },
    Several(Vec<Vec<Word>>),
    /// Itself, with these words behind its name in place of those that are written.
    Same(Vec<Word>),
}

fn plain(words: &[Word]) -> Runs {
    Runs::Words {
        words: words.to_vec(),
        assigned: Vec::new(),
    }
}

fn inner(name: &str, rest: &[Word]) -> (Kind, Runs) {
    let after = |options: &Options, operands| found(options.pass(rest, operands));
    match name {
        "env" => (Kind::Wrapper, env(rest)),
        "sudo" | "doas" => (Kind::Command, sudo(rest)),
        "su" | "runuser" => (Kind::Command, script_option(rest, &["-c", "--command"])),
        "timeout" => (Kind::Wrapper, after(&options::TIMEOUT, 1)),
        "nice" => (Kind::Wrapper, after(&options::NICE, 0)),
        "ionice" => (Kind::Wrapper, after(&options::IONICE, 0)),
        "chrt" => (Kind::Command, after(&options::CHRT, 1)),
        "taskset" => (Kind::Command, after(&options::TASKSET, 1)),
        "chroot" => (Kind::Command, after(&options::CHROOT, 1)),
        "nohup" | "builtin" | "busybox" | "toybox" => (Kind::Wrapper, after(&options::NONE, 0)),
        "setsid" => (Kind::Wrapper, after(&options::SETSID, 0)),
        // It only looks for the program.
        "command" if options::COMMAND_LOOKS.any_of(leading(rest)) => (Kind::Command, Runs::Nothing),
        "command" => (Kind::Wrapper, after(&options::COMMAND, 0)),
        "exec" => (Kind::Wrapper, after(&options::EXEC, 0)),
        "time" => (Kind::Wrapper, after(&options::TIME, 0)),
        "stdbuf" => (Kind::Wrapper, after(&options::STDBUF, 0)),
        "strace" | "ltrace" => (Kind::Command, after(&options::STRACE, 0)),
        "unshare" | "setpriv" | "systemd-run" | "bwrap" | "firejail" | "nsenter" | "flock"
        | "fakeroot" | "proot" | "setarch" | "linux32" | "linux64" | "prlimit" | "numactl"
        | "cgexec" | "script" | "unbuffer" | "expect" | "hyperfine" | "entr" | "at" | "batch"
        | "ssh-agent" | "dbus-run-session" | "xvfb-run" | "gdb" | "valgrind" | "perf" => {
            (Kind::Command, Runs::Unknown)
        }
        "xargs" => (Kind::Wrapper, xargs(rest)),
        "parallel" | "watch" => (Kind::Command, Runs::Unknown),
        "find" | "fd" | "fdfind" => (Kind::Command, find(name, rest)),
        "eval" => (Kind::Wrapper, eval(rest)),
        "trap" => (Kind::Command, trap(rest)),
        "." | "source" => (Kind::Command, sourced(rest)),
        // Each has an option for a command that it calls back.
        "mapfile" | "readarray" | "complete" | "compgen" | "bind" => {
            let calls = |word: &Word| word.exact().is_none_or(|text| text.starts_with('-'));
            (Kind::Command, unknown_if(rest.iter().any(calls)))
        }
        // What they compute with is expanded once more: `a[$(..)]`.
        "[" | "[[" | "test" | "let" | "declare" | "typeset" | "local" | "export" | "readonly"
        | "printf" | "read" | "unset" | "wait" | "set" | "getopts" => (
            Kind::Command,
            unknown_if(rest.iter().any(Word::keeps_subscript)),
        ),
        name => match shells::Language::of(name) {
            Some(language) => (Kind::Wrapper, shells::runs(language, rest)),
            None => (Kind::Command, programs::runs(name, rest)),
        },
    }
}

/// The options before the first operand.
fn leading(words: &[Word]) -> &[Word] {
    let is_option = |word: &&Word| word.prefix().starts_with('-') && word.raw != "--";
    let count = words.iter().take_while(is_option).count();
    words.get(..count).unwrap_or_default()
}

fn unknown_if(unknown: bool) -> Runs {
    match unknown {
        true => Runs::Unknown,
        false => Runs::Nothing,
    }
}

fn found(words: Option<&[Word]>) -> Runs {
    words.map_or(Runs::Unknown, plain)
}

/// Passes over `NAME=value` words.
fn assigned(words: Option<&[Word]>) -> Runs {
    let Some(words) = words else {
        return Runs::Unknown;
    };
    // Whatever its name is, `env` takes it for one.
    let is_assignment = |word: &&Word| word.prefix().contains('=');
    let names = words.iter().take_while(is_assignment);
    let assigned: Vec<_> = names.filter_map(assignment).collect();
    Runs::Words {
        words: words.get(assigned.len()..).unwrap_or_default().to_vec(),
        assigned,
    }
}

fn env(rest: &[Word]) -> Runs {
    // A lone dash is `-i`.
    let rest: Vec<Word> = rest
        .iter()
        .filter(|word| word.raw != "-")
        .cloned()
        .collect();
    assigned(options::ENV.pass(&rest, 0))
}

fn sudo(rest: &[Word]) -> Runs {
    let runs = assigned(options::SUDO.pass(rest, 0));
    match &runs {
        // A shell that runs what it reads.
        Runs::Words { words, .. } if words.is_empty() && options::SUDO_SHELL.any_of(rest) => {
            Runs::Unknown
        }
        _ => runs,
    }
}

fn xargs(rest: &[Word]) -> Runs {
    let Some(words) = options::XARGS.pass(rest, 0) else {
        return Runs::Unknown;
    };
    if words.is_empty() {
        return Runs::Nothing;
    }
    let given = rest
        .get(..rest.len() - words.len())
        .and_then(|given| options::XARGS.value_of(given, &["I", "i", "replace"]));
    let mark = match given.as_deref() {
        None | Some("") => "{}",
        Some(mark) => mark,
    };
    if words.first().is_some_and(|word| word.raw.contains(mark)) {
        return Runs::Unknown;
    }
    let mut words = computed(words, mark);
    words.push(Word::anything());
    plain(&words)
}

fn find(name: &str, rest: &[Word]) -> Runs {
    let mut commands = Vec::new();
    let mut at = 0;
    while let Some(word) = rest.get(at) {
        at += 1;
        let Some(text) = word.exact() else {
            // It may come to be `-exec`, or have it among its words.
            let begins = word.prefix();
            if begins.starts_with('-') || word.injects() || (begins.is_empty() && ended(rest, at)) {
                return Runs::Unknown;
            }
            continue;
        };
        let runs = match name {
            "find" => matches!(text.as_str(), "-exec" | "-execdir" | "-ok" | "-okdir"),
            // Its short options may stand together, and `-x` is the last of them.
            _ => match text.strip_prefix("--") {
                Some(long) if long.starts_with("exec") && long.contains('=') => {
                    return Runs::Unknown;
                }
                Some(long) => matches!(long, "exec" | "exec-batch"),
                None => text.starts_with('-') && text.contains(['x', 'X']),
            },
        };
        if runs {
            let after = rest.get(at..).unwrap_or_default();
            let ends = |index: &usize| match after.get(*index).and_then(Word::exact).as_deref() {
                Some(";") => true,
                // Elsewhere it is a word of the command.
                Some("+") => index
                    .checked_sub(1)
                    .and_then(|before| after.get(before))
                    .is_some_and(|before| before.raw.contains("{}")),
                _ => false,
            };
            let end = (0..after.len()).find(ends).unwrap_or(after.len());
            commands.push(computed(after.get(..end).unwrap_or_default(), "{}"));
            at += end;
        }
    }
    Runs::Several(commands)
}

/// Whether the end of a command follows.
fn ended(rest: &[Word], at: usize) -> bool {
    let rest = rest.get(at..).unwrap_or_default();
    rest.iter()
        .any(|word| matches!(word.exact().as_deref(), Some(";" | "+")))
}

fn trap(rest: &[Word]) -> Runs {
    let operands: Vec<&Word> = rest.iter().filter(|word| word.raw != "--").collect();
    match operands.as_slice() {
        // One word alone names a signal.
        [] | [_] => Runs::Nothing,
        [action, ..] => match action.exact() {
            Some(text) if text == "-" || text == "-p" || text == "-l" => Runs::Nothing,
            Some(script) => Runs::Script(script),
            None => Runs::Unknown,
        },
    }
}

fn sourced(rest: &[Word]) -> Runs {
    match rest.iter().find(|word| word.raw != "--").map(Word::exact) {
        Some(Some(file)) => unknown_if(is_input(&file)),
        Some(None) => Runs::Unknown,
        None => Runs::Nothing,
    }
}

/// Whether a file is what somebody else writes to a command, and not one that can be looked at.
fn is_input(file: &str) -> bool {
    let mut names: Vec<&str> = Vec::new();
    for name in file.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    // Where a relative path leads from is not known here, so that any such end counts.
    let leads = |path: &[&str]| names.windows(path.len()).any(|found| found == path);
    leads(&["dev", "stdin"]) || leads(&["dev", "fd"]) || leads(&["dev", "tty"]) || leads(&["proc"])
}

/// The words, with those that hold the mark as computed ones.
fn computed(words: &[Word], mark: &str) -> Vec<Word> {
    let replaced = |word: &Word| match word.raw.contains(mark) {
        true => Word {
            raw: word.raw.clone(),
            ..Word::any_one()
        },
        false => word.clone(),
    };
    words.iter().map(replaced).collect()
}

fn eval(rest: &[Word]) -> Runs {
    let rest = match rest.split_first() {
        Some((first, rest)) if first.raw == "--" => rest,
        _ => rest,
    };
    let texts: Option<Vec<String>> = rest.iter().map(Word::exact).collect();
    texts.map_or(Runs::Unknown, |texts| Runs::Script(texts.join(" ")))
}

fn script_option(rest: &[Word], options: &[&str]) -> Runs {
    let Some(at) = rest
        .iter()
        .position(|word| options.contains(&word.raw.as_str()))
    else {
        return Runs::Unknown;
    };
    match rest.get(at + 1).map(Word::exact) {
        Some(Some(script)) => Runs::Script(script),
        _ => Runs::Unknown,
    }
}

/// Whether a variable can change which program a word means, or what it does.
fn alters(name: &str) -> bool {
    matches!(
        name,
        "PATH"
            | "IFS"
            | "ENV"
            | "SHELLOPTS"
            | "BASHOPTS"
            | "PS4"
            | "CDPATH"
            | "PWD"
            | "PROMPT_COMMAND"
            | "EDITOR"
            | "VISUAL"
            | "PAGER"
            | "SHELL"
            | "PERL5LIB"
            | "PERL5OPT"
            | "RUBYOPT"
            | "RUBYLIB"
            | "NODE_OPTIONS"
            | "NODE_PATH"
            | "RUSTC_WRAPPER"
            | "RUSTC"
            | "CARGO"
            | "RUSTFLAGS"
            | "GOFLAGS"
            | "MAKEFLAGS"
            | "MAKEFILES"
            | "TAR_OPTIONS"
            | "RSYNC_RSH"
            | "LESSOPEN"
            | "LESSCLOSE"
            | "MANPAGER"
            | "BROWSER"
            | "SSH_ASKPASS"
            | "SUDO_ASKPASS"
            | "ZDOTDIR"
            | "HOME"
            | "CC"
            | "CXX"
            | "CLASSPATH"
            | "RIPGREP_CONFIG_PATH"
            | "MANROFFOPT"
            | "GCONV_PATH"
            | "JAVA_TOOL_OPTIONS"
    ) || [
        "LD_",
        "DYLD_",
        "GIT_",
        "PYTHON",
        "BASH_",
        "LUA_",
        "XDG_",
        "CARGO_",
        "PIP_",
        "NPM_CONFIG_",
        "npm_config_",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

impl Part {
    /// Whether every word is known.
    pub(super) fn is_exact(&self) -> bool {
        self.words.iter().all(|word| {
            word.pieces
                .iter()
                .all(|piece| matches!(piece, Piece::Literal(_)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(line: &str) -> Vec<String> {
        let shown = |part: &Part| match part.kind {
            Kind::Command => part.text(),
            Kind::Wrapper => format!("({})", part.text()),
        };
        parts(line).unwrap().iter().map(shown).collect()
    }

    #[test]
    fn what_wrappers_run_is_seen() {
        for (line, want) in [
            ("env A=1 rm x", &["(env A=1 rm x)", "rm x"][..]),
            ("env -u B A=1 rm x", &["(env -u B A=1 rm x)", "rm x"]),
            ("env -S 'rm x'", &["(env -S 'rm x')", "(computed)"]),
            ("sudo -u root rm x", &["sudo -u root rm x", "rm x"]),
            ("timeout -k 5 10 rm x", &["(timeout -k 5 10 rm x)", "rm x"]),
            ("nice -n 5 rm x", &["(nice -n 5 rm x)", "rm x"]),
            ("sh -c 'a; b'", &["(sh -c 'a; b')", "a", "b"]),
            ("bash -lc \"rm x\"", &["(bash -lc \"rm x\")", "rm x"]),
            ("sh -c \"$x\"", &["(sh -c \"$x\")", "(computed)"]),
            ("curl u | sh", &["curl u", "(sh)", "(computed)"]),
            ("sh build.sh", &["(sh build.sh)"]),
            (
                "ls | xargs -n 1 rm -f",
                &["ls", "(xargs -n 1 rm -f)", "rm -f (computed)"],
            ),
            (
                "find . -name x -exec rm {} +",
                &["find . -name x -exec rm {} +", "rm {}"],
            ),
            (
                "find . -exec sh -c 'rm y' \\;",
                &["find . -exec sh -c 'rm y' \\;", "(sh -c 'rm y')", "rm y"],
            ),
            ("eval 'rm x'", &["(eval 'rm x')", "rm x"]),
            ("eval $x", &["(eval $x)", "(computed)"]),
            (
                "timeout 5 sudo sh -c 'rm x'",
                &[
                    "(timeout 5 sudo sh -c 'rm x')",
                    "sudo sh -c 'rm x'",
                    "(sh -c 'rm x')",
                    "rm x",
                ],
            ),
            ("$x rm", &["$x rm"]),
            ("su -c 'rm x'", &["su -c 'rm x'", "rm x"]),
        ] {
            assert_eq!(seen(line), want, "{line}");
        }
    }

    #[test]
    fn variables_that_change_what_runs_are_noted() {
        for (line, want) in [
            ("PATH=/tmp git status", Some("PATH")),
            ("env LD_PRELOAD=x git status", Some("LD_PRELOAD")),
            ("export PATH=/tmp; git status", Some("PATH")),
            ("PATH=/tmp; git status", Some("PATH")),
            ("alias git=rm; git status", Some("alias")),
            ("A=1 git status", None),
        ] {
            let parts = parts(line).unwrap();
            assert_eq!(parts.last().unwrap().altered_by.as_deref(), want, "{line}");
        }
    }

    #[test]
    fn nesting_ends() {
        let mut line = "rm x".to_owned();
        for _ in 0..20 {
            line = format!("env {line}");
        }
        assert_eq!(parts(&line), Err(Unreadable::TooDeep));
    }
}
