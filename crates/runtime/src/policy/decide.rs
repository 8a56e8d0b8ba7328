//! A request, the rules and the defaults become a decision that explains itself.

use std::collections::BTreeMap;

use quintet_sandbox::isolate::ISOLATION_LABEL;

use super::pattern::{
    CommandPattern, Match, NamePattern, PathPattern, Strictness, path_as_pattern,
};
use super::place::{Course, Move, Place};
use super::reach;
use super::rule::{Action, Rule};
use super::words::{Access, Word, quoted};
use super::wrappers::{self, Kind, Part};

/// What an agent wants to do.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// The agent's name.
    pub agent: &'a str,
    /// The session's number.
    pub session: u64,
    /// The worker of the session.
    pub worker: &'a str,
    /// What the tool is used on.
    pub subject: Subject<'a>,
}

/// What a tool is used on.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// A shell line.
    Command {
        /// The line.
        line: &'a str,
        /// The workspace: an absolute path.
        root: &'a str,
        /// Where the worker has it, when that is a copy of its own.
        copy: Option<&'a str>,
        /// The folder it would run in: absolute, or relative to the workspace.
        cwd: &'a str,
        /// What keeps it in the workspace.
        isolation: Isolation,
    },
    /// A file or folder.
    Path {
        /// Absolute, or relative to the workspace.
        path: &'a str,
        /// The workspace: an absolute path.
        root: &'a str,
    },
    /// Nothing that could leave the workspace.
    Nothing,
    /// A tool of another server.
    External {
        /// Whether using it reaches other machines.
        network: bool,
    },
}

/// What keeps a command in its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// The worker isolates commands.
    Isolated,
    /// The daemon's own worker without isolation, as it has said at its start.
    Local,
    /// Another machine or user, as it is.
    Open,
}

/// The daemon's own worker.
pub const LOCAL_WORKER: &str = "local";

impl Isolation {
    /// What is known of a worker by its name and labels.
    pub fn of_worker(id: &str, labels: &BTreeMap<String, String>) -> Self {
        match labels.get(ISOLATION_LABEL).map(String::as_str) {
            Some("on") => Self::Isolated,
            _ if id == LOCAL_WORKER => Self::Local,
            _ => Self::Open,
        }
    }
}

/// Why something was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Because {
    /// The rule of that index matches.
    Rule(usize),
    /// A rule that restricts might match, and that is only known when it runs.
    Unclear {
        /// The rule's index.
        rule: usize,
        /// What is not known.
        why: String,
    },
    /// No rule matches.
    Default(String),
}

/// What was decided, for a whole request or for one part of its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What happens.
    pub action: Action,
    /// Why.
    pub because: Because,
    /// The part of the command that it is about.
    pub part: Option<String>,
}

impl Decision {
    fn default(action: Action, why: impl Into<String>) -> Self {
        Self {
            action,
            because: Because::Default(why.into()),
            part: None,
        }
    }

    /// One sentence that says why.
    pub fn explain(&self, rules: &[Rule]) -> String {
        let subject = match &self.part {
            Some(part) => format!("`{part}`"),
            None => "this".to_owned(),
        };
        let shown = |index: &usize| match rules.get(*index) {
            Some(rule) => format!("rule {} {rule}", index + 1),
            None => format!("rule {}", index + 1),
        };
        match &self.because {
            Because::Rule(index) => format!("{} matches {subject}", shown(index)),
            Because::Unclear { rule, why } => {
                format!("{} might match {subject}: {why}", shown(rule))
            }
            Because::Default(why) => format!("no rule matches {subject}; by default {why}"),
        }
    }

    /// The rule that decided.
    pub fn rule(&self) -> Option<usize> {
        match self.because {
            Because::Rule(index) | Because::Unclear { rule: index, .. } => Some(index),
            Because::Default(_) => None,
        }
    }
}

/// The decision, and those about each part of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The strictest of the parts.
    pub decision: Decision,
    /// One for each command of a line; empty for what is no command.
    pub parts: Vec<Decision>,
}

/// Rules that would allow what was asked about, and where they belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// One for each part that asked.
    pub rules: Vec<Rule>,
    /// Before which rule they have to stand to be reached; the end without.
    pub before: Option<usize>,
}

/// Decides. The first rule that matches does, then the defaults; a line is as allowed as its most
/// dangerous part.
pub fn decide(rules: &[Rule], request: &Request<'_>) -> Verdict {
    let (verdict, _) = consider(rules, request);
    verdict
}

/// The rules that "always allow" would write for a request that asks.
pub fn propose(rules: &[Rule], request: &Request<'_>) -> Option<Proposal> {
    let (verdict, parts) = consider(rules, request);
    if verdict.decision.action != Action::Ask {
        return None;
    }
    let tool = NamePattern::parse(request.tool).ok();
    let base = Rule {
        tool,
        ..Rule::new(Action::Allow)
    };
    let proposed: Vec<Rule> = match request.subject {
        Subject::Command { isolation, .. } => {
            let asking = verdict.parts.iter().zip(&parts);
            let mut proposed = Vec::new();
            for (decision, part) in asking.filter(|(it, _)| it.action == Action::Ask) {
                let written = match (&part.writes_to, part.place.folders()) {
                    (Some(word), _) => Some(part.place.only(&word.exact()?)?),
                    (None, [folder]) if folder.starts_with('/') => Some(folder.clone()),
                    (None, _) => None,
                };
                // Without its path the rule would allow far more than what was asked about.
                let path = match written {
                    Some(path) => Some(PathPattern::parse(&path_as_pattern(&path)).ok()?),
                    None => None,
                };
                let rule = Rule {
                    // A redirection of its own has a path and no command.
                    command: match part.part.words.is_empty() && path.is_some() {
                        true => None,
                        false => Some(as_pattern(&part.part)?),
                    },
                    path,
                    worker: match isolation {
                        Isolation::Open => NamePattern::parse(request.worker).ok(),
                        Isolation::Isolated | Isolation::Local => None,
                    },
                    ..base.clone()
                };
                debug_assert!(decision.action == Action::Ask);
                if !proposed.contains(&rule) {
                    proposed.push(rule);
                }
            }
            proposed
        }
        Subject::Path { path, root } => {
            let path = Place::new(root, None, "").only(path)?;
            vec![Rule {
                path: Some(PathPattern::parse(&path_as_pattern(&path)).ok()?),
                ..base
            }]
        }
        Subject::Nothing | Subject::External { .. } => vec![base],
    };
    let before = verdict
        .parts
        .iter()
        .chain([&verdict.decision])
        .filter(|decision| decision.action == Action::Ask)
        .filter_map(Decision::rule)
        .min();
    // A proposal that would not help is none.
    let mut changed = rules.to_vec();
    let at = before.unwrap_or(changed.len());
    changed.splice(at..at, proposed.clone());
    let helps = decide(&changed, request).decision.action == Action::Allow;
    helps.then_some(Proposal {
        rules: proposed,
        before,
    })
}

fn as_pattern(part: &Part) -> Option<CommandPattern> {
    let words: Vec<String> = part
        .words
        .iter()
        .map(|word| match word.exact() {
            Some(text) => quoted(&text),
            None => word.raw.clone(),
        })
        .collect();
    CommandPattern::parse(&words.join(" ")).ok()
}

/// What is decided by itself: a command, or that it writes where the workspace does not reach.
struct Considered {
    part: Part,
    /// The target of a redirection.
    writes_to: Option<Word>,
    /// Where it would run.
    place: Place,
}

fn consider(rules: &[Rule], request: &Request<'_>) -> (Verdict, Vec<Considered>) {
    match request.subject {
        Subject::Command {
            line,
            root,
            copy,
            cwd,
            isolation,
        } => {
            let place = Place::new(root, copy, cwd);
            consider_line(rules, request, line, place, isolation)
        }
        Subject::Path { path, root } => {
            let path = Place::new(root, None, "").only(path).unwrap_or_default();
            let found = applicable(rules, request).find_map(|(index, rule)| {
                let by_path = rule
                    .path
                    .as_ref()
                    .is_none_or(|pattern| pattern.matches(&path));
                (rule.command.is_none() && by_path).then_some((index, rule.action))
            });
            let decision = match found {
                Some((index, action)) => by_rule(index, action, None),
                None if path.starts_with('/') => Decision::default(
                    Action::Ask,
                    format!("leaving the workspace asks, and {path} is outside of it"),
                ),
                None => Decision::default(
                    Action::Allow,
                    "reading and writing in the workspace is allowed",
                ),
            };
            (alone(decision), Vec::new())
        }
        Subject::Nothing | Subject::External { .. } => {
            let found = applicable(rules, request)
                .find(|(_, rule)| rule.command.is_none() && rule.path.is_none());
            let decision = match (found, request.subject) {
                (Some((index, rule)), _) => by_rule(index, rule.action, None),
                (None, Subject::External { network: true }) => {
                    Decision::default(Action::Ask, "a tool that reaches other machines asks")
                }
                (None, Subject::External { network: false }) => Decision::default(
                    Action::Allow,
                    "tools of a program that you configured are allowed",
                ),
                (None, _) => Decision::default(Action::Allow, "it stays in the workspace"),
            };
            (alone(decision), Vec::new())
        }
    }
}

fn alone(decision: Decision) -> Verdict {
    Verdict {
        decision,
        parts: Vec::new(),
    }
}

fn by_rule(index: usize, action: Action, part: Option<String>) -> Decision {
    Decision {
        action,
        because: Because::Rule(index),
        part,
    }
}

/// The rules whose names fit the request.
fn applicable<'a>(
    rules: &'a [Rule],
    request: &'a Request<'_>,
) -> impl Iterator<Item = (usize, &'a Rule)> {
    let fits = |pattern: &Option<NamePattern>, name: &str| {
        pattern.as_ref().is_none_or(|pattern| pattern.matches(name))
    };
    rules.iter().enumerate().filter(move |(_, rule)| {
        fits(&rule.tool, request.tool)
            && fits(&rule.agent, request.agent)
            && fits(&rule.worker, request.worker)
            && rule
                .session
                .is_none_or(|session| u64::from(session) == request.session)
    })
}

fn consider_line(
    rules: &[Rule],
    request: &Request<'_>,
    line: &str,
    place: Place,
    isolation: Isolation,
) -> (Verdict, Vec<Considered>) {
    let (parts, unread) = match wrappers::parts(line) {
        Ok(parts) => (parts, None),
        Err(error) => (vec![Part::unknown()], Some(error.to_string())),
    };
    let begins_outside = place
        .folders()
        .iter()
        .find(|it| it.starts_with('/'))
        .cloned();
    let mut line = Line {
        rules,
        request,
        place: place.clone(),
        begins_outside,
        isolation,
        unread,
    };
    let mut course = Course::new(place);
    let mut kept = Vec::new();
    let mut decisions = Vec::new();
    for part in parts {
        line.place = course.at(&part).clone();
        if let Some(mut decision) = line.part(&part) {
            decision.part = Some(match line.unread {
                Some(_) => shortened(request),
                None => part.text(),
            });
            decisions.push(decision);
            kept.push(Considered {
                part: part.clone(),
                writes_to: None,
                place: line.place.clone(),
            });
        }
        for word in line.leaving(&part) {
            let mut decision = line.redirection(&part, word);
            let text = format!("{} > {}", part.text(), word.raw);
            decision.part = Some(text.trim_start().to_owned());
            decisions.push(decision);
            kept.push(Considered {
                part: part.clone(),
                writes_to: Some(word.clone()),
                place: line.place.clone(),
            });
        }
        course.pass(&part);
    }
    // Of equals the first: `max_by_key` would take the last.
    let strictest = decisions.iter().rev().max_by_key(|it| it.action).cloned();
    let decision = strictest
        .unwrap_or_else(|| Decision::default(Action::Allow, "a line that runs nothing is allowed"));
    let verdict = Verdict {
        decision,
        parts: decisions,
    };
    (verdict, kept)
}

/// The beginning of a line that could not be read into parts.
fn shortened(request: &Request<'_>) -> String {
    const SHOWN: usize = 200;
    let Subject::Command { line, .. } = request.subject else {
        return String::new();
    };
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

struct Line<'a> {
    rules: &'a [Rule],
    request: &'a Request<'a>,
    /// Where the part that is looked at would run.
    place: Place,
    /// The folder that the line begins in, when that is outside of the workspace.
    begins_outside: Option<String>,
    isolation: Isolation,
    unread: Option<String>,
}

impl Line<'_> {
    /// The decision about one part; none for a wrapper that no rule names.
    fn part(&self, part: &Part) -> Option<Decision> {
        let concerned = |rule: &Rule| part.kind != Kind::Wrapper || rule.command.is_some();
        self.by_rules(part, concerned, |pattern, strictness| {
            self.paths(pattern, part, strictness)
        })
        .or_else(|| {
            let decides = part.kind == Kind::Command || Move::of(part).is_some();
            decides.then(|| self.by_default(part))
        })
    }

    /// What the first rule that matches a part says, of those that are concerned; `by_path` matches
    /// the paths that are decided about.
    fn by_rules(
        &self,
        part: &Part,
        concerned: impl Fn(&Rule) -> bool,
        by_path: impl Fn(&PathPattern, Strictness) -> Match,
    ) -> Option<Decision> {
        let rules = applicable(self.rules, self.request);
        for (index, rule) in rules.filter(|(_, rule)| concerned(rule)) {
            let strictness = match rule.action {
                Action::Allow => Strictness::Allows,
                Action::Ask | Action::Deny => Strictness::Restricts,
            };
            let by_command = rule
                .command
                .as_ref()
                .map_or(Match::Yes, |pattern| pattern.matches(part, strictness));
            let by_path = rule
                .path
                .as_ref()
                .map_or(Match::Yes, |pattern| by_path(pattern, strictness));
            match (by_command.min(by_path), rule.action) {
                (Match::Yes, action) => return Some(by_rule(index, action, None)),
                (Match::Maybe, Action::Ask | Action::Deny) => {
                    return Some(Decision {
                        action: Action::Ask,
                        because: Because::Unclear {
                            rule: index,
                            why: self.unknown(part),
                        },
                        part: None,
                    });
                }
                (Match::Maybe, Action::Allow) | (Match::No, _) => {}
            }
        }
        None
    }

    /// Where a part writes by a redirection that leaves the workspace, or may where nothing
    /// isolates. A file that is named in part is where its beginning is: `> out-$i.log` stays.
    fn leaving<'p>(&self, part: &'p Part) -> impl Iterator<Item = &'p Word> {
        let written = part.redirects.iter();
        let written = written.filter(|(access, _)| *access == Access::Write);
        written
            .map(|(_, word)| word)
            .filter(|word| match self.path_of(part, word) {
                Some(path) => self.outside(&path).is_some(),
                None if word.raw.starts_with(['<', '>']) => false,
                None if reach::is_home(word) => true,
                None if word.prefix().is_empty() => self.isolation != Isolation::Isolated,
                None => self.outside(word.prefix()).is_some(),
            })
    }

    /// The decision about a redirection that leaves the workspace. What allows a command by its
    /// words says nothing of it: that takes a path, or a rule that allows whatever is run.
    fn redirection(&self, part: &Part, word: &Word) -> Decision {
        let concerned = |rule: &Rule| {
            rule.action != Action::Allow || rule.command.is_none() || rule.path.is_some()
        };
        let decided = self.by_rules(part, concerned, |pattern, strictness| {
            self.names(pattern, part, word, strictness)
        });
        if let Some(decision) = decided {
            return decision;
        }
        let path = self.path_of(part, word);
        let why = match path.and_then(|path| self.outside(&path)) {
            Some(path) => format!(
                "leaving the workspace asks, and {path} is outside of it{}",
                self.beyond()
            ),
            None => "writing asks where the line does not say to which file".to_owned(),
        };
        Decision::default(Action::Ask, why)
    }

    /// A path outside of the workspace to which it matters what is done.
    fn outside(&self, path: &str) -> Option<String> {
        let mut paths = self.place.resolve(path).into_iter();
        paths.find(|path| path.starts_with('/') && !is_harmless(path))
    }

    /// The path outside that a word is, or has as its value.
    fn reached(&self, part: &Part, word: &Word) -> Option<String> {
        let text = self.path_of(part, word);
        reach::reached(word, text, |path| self.outside(path))
    }

    /// The path that a word is, where the line tells it.
    fn path_of(&self, part: &Part, word: &Word) -> Option<String> {
        match part.altered_by {
            Some(_) => word.exact(),
            None => word.path(self.place.is_one_word()),
        }
    }

    /// Whether a pattern of paths matches a word. What allows has to be sure of the very text.
    fn names(
        &self,
        pattern: &PathPattern,
        part: &Part,
        word: &Word,
        strictness: Strictness,
    ) -> Match {
        let text = match strictness {
            Strictness::Allows => word.exact(),
            Strictness::Restricts => self.path_of(part, word),
        };
        match text {
            Some(text) => self.matches(pattern, &text),
            None if self.may_lead(pattern, word.prefix()) => Match::Maybe,
            None => Match::No,
        }
    }

    /// Whether a path that begins with this text might be one of a pattern.
    fn may_lead(&self, pattern: &PathPattern, prefix: &str) -> bool {
        let (folder, rest) = match prefix.rsplit_once('/') {
            Some(("", rest)) => ("/", rest),
            Some((folder, rest)) => (folder, rest),
            None => (".", prefix),
        };
        let lost = prefix.is_empty() || self.place.is_lost(prefix);
        lost || self.place.resolve(folder).iter().any(|folder| {
            let begins = match folder.as_str() {
                "" => rest.to_owned(),
                "/" => format!("/{rest}"),
                folder => format!("{folder}/{rest}"),
            };
            pattern.may_match(&begins) || self.place.may_lead_inside(&begins)
        })
    }

    /// Whether a pattern matches a path, wherever the command runs.
    fn matches(&self, pattern: &PathPattern, path: &str) -> Match {
        let paths = self.place.resolve(path);
        let matching = paths.iter().filter(|path| pattern.matches(path)).count();
        match matching {
            _ if self.place.is_lost(path) => Match::Maybe,
            0 => Match::No,
            all if all == paths.len() => Match::Yes,
            _ => Match::Maybe,
        }
    }

    fn unknown(&self, part: &Part) -> String {
        match (&self.unread, &part.altered_by) {
            (Some(error), _) => format!("the line can't be read by words, {error}"),
            (None, Some(name)) => format!("{name} is set in the same line"),
            (None, None) if part.is_exact() => "the line changes its folder".to_owned(),
            (None, None) => "what it runs is only known when it runs".to_owned(),
        }
    }

    /// Whether a pattern of paths matches what a part names.
    ///
    /// A rule that allows has to cover the folder and every redirection; one that restricts is
    /// matched by the folder, a redirection or any word that could be a path.
    fn paths(&self, pattern: &PathPattern, part: &Part, strictness: Strictness) -> Match {
        let of_word = |word: &Word| self.names(pattern, part, word, strictness);
        let folder = self.matches(pattern, ".");
        let redirected = part.redirects.iter().map(|(_, word)| of_word(word));
        if strictness == Strictness::Allows {
            return redirected.fold(folder, Match::min);
        }
        if self.unread.is_some() {
            return Match::Maybe;
        }
        let named = part.words.iter().enumerate().map(|(index, word)| {
            // The name of a program is no path of a file, unless it is written as one.
            let is_path = index > 0 || word.injects() || word.prefix().contains('/');
            let whole = match is_path {
                true => of_word(word),
                false => Match::No,
            };
            let text = word.exact().filter(|_| index > 0).unwrap_or_default();
            let values = reach::values(&text).map(|value| self.matches(pattern, value));
            values.fold(whole, Match::max)
        });
        redirected.chain(named).fold(folder, Match::max)
    }

    /// What leave alone does not give.
    fn beyond(&self) -> &'static str {
        match self.isolation {
            Isolation::Isolated => {
                "; as its worker isolates commands, it can only if that folder is in sandbox.write"
            }
            Isolation::Local | Isolation::Open => "",
        }
    }

    fn by_default(&self, part: &Part) -> Decision {
        if self.isolation == Isolation::Open {
            let worker = self.request.worker;
            return Decision::default(
                Action::Ask,
                format!("commands on a worker that isolates nothing ask, and {worker} is one"),
            );
        }
        let moved = Move::of(part).and_then(|step| match step {
            Move::To(word) | Move::Within(word) if reach::is_home(word) => Some(word.raw.clone()),
            Move::To(word) | Move::Within(word) => self.outside(&self.path_of(part, word)?),
            Move::Home => Some("the home folder".to_owned()),
            Move::Unknown => None,
        });
        if let Some(path) = self.begins_outside.clone().or(moved) {
            let why = format!("leaving the workspace asks, and {path} is outside of it");
            return Decision::default(Action::Ask, why);
        }
        let isolated = self.isolation == Isolation::Isolated;
        if !isolated && let Some(error) = &self.unread {
            let why = format!(
                "where nothing isolates a command, a line that can't be read by words asks: {error}"
            );
            return Decision::default(Action::Ask, why);
        }
        if let Some(path) = reach::changed(part, |word| self.reached(part, word)) {
            let why = format!(
                "changing what is outside of the workspace asks, and {path} is{}",
                self.beyond()
            );
            return Decision::default(Action::Ask, why);
        }
        if !isolated && let Some(path) = reach::named(part, |word| self.reached(part, word)) {
            let why = format!(
                "where nothing isolates a command, what names a path outside asks, and {path} is one"
            );
            return Decision::default(Action::Ask, why);
        }
        Decision::default(
            Action::Allow,
            match isolated {
                true => "commands in the workspace are allowed in an isolated worker",
                false => "commands in the workspace are allowed in the built-in worker",
            },
        )
    }
}

fn is_harmless(path: &str) -> bool {
    [
        "/dev/null",
        "/dev/stdout",
        "/dev/stderr",
        "/dev/tty",
        "/tmp",
    ]
    .contains(&path)
        || path.starts_with("/tmp/")
        || path.starts_with("/dev/fd/")
}
