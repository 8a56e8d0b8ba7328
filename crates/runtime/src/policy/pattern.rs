//! Patterns of commands, paths and names.

use std::fmt;

use super::words::{Piece, Unreadable, Word, pattern_words};
use super::wrappers::{Part, renames};

/// Whether something matches, where it may be computed only when it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    No,
    Maybe,
    Yes,
}

/// What a rule with the pattern does: one that allows has to be sure of what it allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strictness {
    Allows,
    Restricts,
}

/// Why a pattern is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternError {
    /// There is nothing in it.
    Empty,
    /// It can't be read as words.
    Unreadable(Unreadable),
    /// `**` or `...` before its end.
    InnerRest,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty; leave the key out to match everything"),
            Self::Unreadable(Unreadable::Construct("an operator")) => f.write_str(
                "is the pattern of one command; a line with |, &&, ; or > is checked part by part",
            ),
            Self::Unreadable(error) => write!(f, "can't be read as a command: {error}"),
            Self::InnerRest => {
                f.write_str("has ** or ... before its end; * stands for anything within one word")
            }
        }
    }
}

impl std::error::Error for PatternError {}

/// A pattern of one command's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandPattern {
    source: String,
    words: Vec<Word>,
    /// Any further words may follow.
    open: bool,
}

impl CommandPattern {
    /// Reads a pattern.
    pub fn parse(source: &str) -> Result<Self, PatternError> {
        let mut words = pattern_words(source).map_err(PatternError::Unreadable)?;
        let is_rest = |word: &Word| matches!(word.raw.as_str(), "**" | "...");
        let open = words.last().is_some_and(is_rest);
        if open {
            words.pop();
        }
        if words.iter().any(is_rest) {
            return Err(PatternError::InnerRest);
        }
        if words.is_empty() && !open {
            return Err(PatternError::Empty);
        }
        Ok(Self {
            source: source.to_owned(),
            words,
            open,
        })
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn matches(&self, part: &Part, strictness: Strictness) -> Match {
        let found = self.matches_words(part, strictness);
        let renamed = part.altered_by.as_deref().is_some_and(renames);
        match (found, strictness) {
            // Its name may have come to mean another program.
            (Match::No, Strictness::Restricts) if renamed => Match::Maybe,
            _ => found,
        }
    }

    fn matches_words(&self, part: &Part, strictness: Strictness) -> Match {
        let mut result = Match::Yes;
        let mut words = part.words.iter();
        for (index, pattern) in self.words.iter().enumerate() {
            let Some(word) = words.next() else {
                return Match::No;
            };
            let found = if index == 0 {
                command_name(pattern, word, strictness)
            } else {
                one_word(pattern, word)
            };
            if found == Match::No {
                return Match::No;
            }
            // From a word that may be several on, nothing can be told of the others.
            if word.splits() && pattern.raw != word.raw {
                return Match::Maybe;
            }
            result = result.min(found);
        }
        let more = words.as_slice();
        if !self.open && strictness == Strictness::Allows && !more.is_empty() {
            return match more
                .iter()
                .all(|word| word.splits() && word.prefix().is_empty())
            {
                true => Match::Maybe,
                false => Match::No,
            };
        }
        if part.altered_by.is_some() && strictness == Strictness::Allows {
            return Match::Maybe;
        }
        result
    }
}

/// Folders whose programs are what their names say.
const SYSTEM_FOLDERS: [&str; 6] = [
    "/bin",
    "/usr/bin",
    "/usr/local/bin",
    "/sbin",
    "/usr/sbin",
    "/usr/local/sbin",
];

/// A name without a folder also means the program in a folder: any, where that is the safe side.
fn command_name(pattern: &Word, word: &Word, strictness: Strictness) -> Match {
    let whole = one_word(pattern, word);
    if whole == Match::Yes || pattern.raw.contains('/') {
        return whole;
    }
    let Some(text) = word.exact() else {
        // `/bin/r?` is a program of any name.
        return match strictness == Strictness::Restricts && word.prefix().contains('/') {
            true => Match::Maybe,
            false => whole,
        };
    };
    let Some((folder, name)) = text.rsplit_once('/') else {
        return whole;
    };
    if strictness == Strictness::Allows && !SYSTEM_FOLDERS.contains(&folder) {
        return whole;
    }
    if wildcard(&pattern.pieces, name) {
        Match::Yes
    } else {
        whole
    }
}

fn one_word(pattern: &Word, word: &Word) -> Match {
    if pattern.raw == word.raw {
        return Match::Yes;
    }
    let is_glob = pattern
        .pieces
        .iter()
        .all(|piece| matches!(piece, Piece::Literal(_) | Piece::Star));
    match (is_glob, word.exact()) {
        (true, Some(text)) if wildcard(&pattern.pieces, &text) => Match::Yes,
        (_, Some(_)) => Match::No,
        (true, None) if pattern.pieces == [Piece::Star] && !word.splits() => Match::Yes,
        (_, None) => {
            let fits = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
            let ends = |a: &str, b: &str| a.ends_with(b) || b.ends_with(a);
            let possible = fits(pattern.prefix(), word.prefix())
                // What follows a split belongs to another word.
                && (word.splits() || ends(pattern.suffix(), word.suffix()));
            match possible {
                true => Match::Maybe,
                false => Match::No,
            }
        }
    }
}

/// Whether literal pieces and stars cover the whole text.
fn wildcard(pieces: &[Piece], text: &str) -> bool {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
        return text.is_empty();
    };
    if pieces.len() == 1 {
        return match first {
            Piece::Literal(literal) => literal == text,
            _ => true,
        };
    }
    let mut rest = text;
    if let Piece::Literal(literal) = first {
        let Some(after) = rest.strip_prefix(literal.as_str()) else {
            return false;
        };
        rest = after;
    }
    if let Piece::Literal(literal) = last {
        let Some(before) = rest.strip_suffix(literal.as_str()) else {
            return false;
        };
        rest = before;
    }
    // The leftmost place of each literal leaves the most for the others.
    for piece in pieces.get(1..pieces.len() - 1).unwrap_or_default() {
        if let Piece::Literal(literal) = piece {
            let Some(at) = rest.find(literal.as_str()) else {
                return false;
            };
            rest = rest.get(at + literal.len()..).unwrap_or_default();
        }
    }
    true
}

/// A pattern of names: tools, agents, workers. `*` is anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// Reads a pattern; every text but the empty one is one.
    pub fn parse(source: &str) -> Result<Self, PatternError> {
        match source {
            "" => Err(PatternError::Empty),
            text => Ok(Self(text.to_owned())),
        }
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.0
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        segment(
            &self.0.chars().collect::<Vec<_>>(),
            &name.chars().collect::<Vec<_>>(),
        )
    }
}

/// A pattern of paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    source: String,
    absolute: bool,
    /// A pattern without a slash is of a name at any depth.
    anywhere: bool,
    segments: Vec<String>,
}

impl PathPattern {
    /// Reads a pattern.
    pub fn parse(source: &str) -> Result<Self, PatternError> {
        let trimmed = source.trim_end_matches('/');
        let segments: Vec<String> = trimmed
            .split('/')
            .filter(|segment| !segment.is_empty() && *segment != ".")
            .map(str::to_owned)
            .collect();
        if source.is_empty() {
            return Err(PatternError::Empty);
        }
        Ok(Self {
            absolute: source.starts_with('/'),
            anywhere: !trimmed.contains('/') && !segments.is_empty() && trimmed != "**",
            source: source.to_owned(),
            segments,
        })
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the path or a folder that it is in matches. Both are without `.` and `..`.
    pub(super) fn matches(&self, path: &str) -> bool {
        if path.starts_with('/') != self.absolute && !self.anywhere {
            return false;
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if self.anywhere {
            let pattern: Vec<char> = self.source.trim_end_matches('/').chars().collect();
            return parts
                .iter()
                .any(|part| segment(&pattern, &part.chars().collect::<Vec<_>>()));
        }
        let patterns: Vec<Vec<char>> = self
            .segments
            .iter()
            .map(|it| it.chars().collect())
            .collect();
        let parts: Vec<Vec<char>> = parts.iter().map(|part| part.chars().collect()).collect();
        // `reached[i]`: the first i patterns cover the path so far. One row for each part keeps
        // many `**` from taking exponential time.
        let star = |index: usize| patterns.get(index).is_some_and(|it| *it == ['*', '*']);
        let close = |row: &mut Vec<bool>| {
            for index in 0..patterns.len() {
                if row[index] && star(index) {
                    row[index + 1] = true;
                }
            }
        };
        let mut row = vec![false; patterns.len() + 1];
        row[0] = true;
        close(&mut row);
        for part in &parts {
            if row[patterns.len()] && !patterns.is_empty() {
                return true;
            }
            let mut next = vec![false; patterns.len() + 1];
            for (index, pattern) in patterns.iter().enumerate() {
                if row[index] {
                    if star(index) {
                        next[index] = true;
                    } else if segment(pattern, part) {
                        next[index + 1] = true;
                    }
                }
            }
            close(&mut next);
            row = next;
        }
        row[patterns.len()]
    }

    /// Whether a path that begins with this text might match; for words that are computed.
    pub(super) fn may_match(&self, prefix: &str) -> bool {
        if self.anywhere {
            return true;
        }
        let literal: String = self
            .source
            .chars()
            .take_while(|c| !"*?\\".contains(*c))
            .collect();
        let literal = literal.trim_start_matches("./");
        let prefix = prefix.trim_start_matches("./");
        prefix.contains("..") || literal.starts_with(prefix) || prefix.starts_with(literal)
    }
}

/// `*` is any text, `?` any character, a backslash makes the next one ordinary.
fn segment(pattern: &[char], text: &[char]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        let (matched, step) = match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some('?') => (true, 1),
            Some('\\') if p + 1 < pattern.len() => (pattern[p + 1] == text[t], 2),
            Some(c) => (*c == text[t], 1),
            None => (false, 0),
        };
        if matched {
            p += step;
            t += 1;
        } else if let Some((after, from)) = retry {
            retry = Some((after, from + 1));
            (p, t) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// A path as a pattern that matches it and what is in it.
pub(super) fn path_as_pattern(path: &str) -> String {
    let escaped: String = path
        .chars()
        .flat_map(|c| match c {
            '*' | '?' | '\\' => vec!['\\', c],
            c => vec![c],
        })
        .collect();
    match escaped.contains('/') {
        true => escaped,
        false => format!("./{escaped}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wrappers::parts;
    use super::*;

    #[test]
    fn commands_match_by_words() {
        use Match::{Maybe, No, Yes};
        use Strictness::{Allows, Restricts};
        for (pattern, line, strictness, want) in [
            ("git push", "git push", Allows, Yes),
            ("git push", "git push origin", Allows, No),
            ("git push", "git push origin", Restricts, Yes),
            ("git push **", "git push origin main", Allows, Yes),
            ("git push ...", "git push", Allows, Yes),
            ("git p*", "git pull", Allows, Yes),
            ("git p*sh", "git push", Allows, Yes),
            ("git p*sh", "git pull", Allows, No),
            ("git *", "git a b", Allows, No),
            ("git 'p*'", "git pull", Allows, No),
            ("git push", "gitpush", Restricts, No),
            ("git push", "echo git push", Restricts, No),
            ("git push", "git $x", Restricts, Maybe),
            ("git push", "git $x", Allows, Maybe),
            ("git push", "git --no$x", Restricts, No),
            ("git push", "$x", Restricts, Maybe),
            ("git *", "git \"$x\"", Allows, Yes),
            ("git *", "git $x", Allows, Maybe),
            ("git **", "git $x", Allows, Yes),
            ("rm *.o", "rm *.o", Allows, Yes),
            ("rm *", "rm *.o", Allows, Maybe),
            ("git **", "/usr/bin/git push", Allows, Yes),
            ("git **", "/tmp/git push", Allows, No),
            ("git **", "./git push", Restricts, Yes),
            ("git **", "PATH=/tmp git status", Allows, Maybe),
            ("git **", "PATH=/tmp git status", Restricts, Yes),
            ("**", "anything at all", Allows, Yes),
            ("ls", "ls $x", Allows, Maybe),
        ] {
            let pattern_read = CommandPattern::parse(pattern).unwrap();
            let part = &parts(line).unwrap()[0];
            let got = pattern_read.matches(part, strictness);
            assert_eq!(got, want, "{pattern} on {line} ({strictness:?})");
        }
    }

    #[test]
    fn mistakes_in_patterns_are_told() {
        for (pattern, want) in [
            ("", PatternError::Empty),
            ("  ", PatternError::Empty),
            ("a ** b", PatternError::InnerRest),
            (
                "a | b",
                PatternError::Unreadable(Unreadable::Construct("an operator")),
            ),
            ("a 'b", PatternError::Unreadable(Unreadable::Quote)),
        ] {
            assert_eq!(CommandPattern::parse(pattern), Err(want), "{pattern}");
        }
    }

    #[test]
    fn paths_match_with_what_is_in_them() {
        for (pattern, path, want) in [
            ("secrets/**", "secrets/a/b", true),
            ("secrets/**", "secrets", true),
            ("secrets/**", "src/secrets/a", false),
            ("secrets", "src/secrets/a", true),
            ("secrets/", "secrets/a", true),
            ("./secrets", "secrets/a", true),
            ("./secrets", "src/secrets", false),
            (".env", "a/b/.env", true),
            ("*.pem", "keys/a.pem", true),
            ("*.pem", "/etc/a.pem", true),
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("src/**/b.rs", "src/x/y/b.rs", true),
            ("src/**/b.rs", "src/b.rs", true),
            ("/etc/**", "/etc/passwd", true),
            ("/etc/**", "etc/passwd", false),
            ("/", "/etc/passwd", false),
            ("/**", "/etc/passwd", true),
            ("**", "a/b", true),
            ("**", "", true),
            ("**", "/etc", false),
            ("a\\*b/c", "a*b/c", true),
            ("a\\*b/c", "axb/c", false),
            ("a/?", "a/b", true),
        ] {
            let pattern_read = PathPattern::parse(pattern).unwrap();
            assert_eq!(pattern_read.matches(path), want, "{pattern} on {path}");
        }
    }

    #[test]
    fn names_match() {
        assert!(
            NamePattern::parse("tickets__*")
                .unwrap()
                .matches("tickets__list")
        );
        assert!(!NamePattern::parse("tickets__*").unwrap().matches("exec"));
        assert!(NamePattern::parse("*").unwrap().matches(""));
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = PathPattern::parse(&"**/a/".repeat(50)).unwrap();
        assert!(!pattern.matches(&"a/b/".repeat(49)));
        assert!(pattern.matches(&"a/b/".repeat(500)));
    }
}
