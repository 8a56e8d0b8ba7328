//! A shell line, read into the commands that it would run.
//!
//! This is no shell: nothing is expanded. What a word will be is known where it is written out, and
//! marked as unknown where the shell would compute it. Commands inside substitutions, subshells
//! and groups come out beside the others. What is not read on purpose (functions, `case`, arrays)
//! is an error, because a guess here would be a hole. So is what shells read in different ways,
//! such as a quote inside `"${..}"`: `/bin/sh` is another one on every system.

mod redirect;
mod word;

use std::fmt;

use redirect::Heredoc;
pub(super) use word::{Piece, Quoted, Word};
use word::{is_first, literal, literal_text};

/// The longest line that is read, in characters.
pub const MAX_LINE: usize = 64 * 1024;

/// How deep substitutions and subshells may be nested.
const MAX_DEPTH: usize = 16;

/// Why a line is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// It is longer than [`MAX_LINE`].
    TooLong,
    /// Nested too deep.
    TooDeep,
    /// A quote is not closed.
    Quote,
    /// A substitution, subshell or `${` is not closed, or closed without being open.
    Bracket,
    /// A redirection without its target.
    Redirection,
    /// Something that is not read, by name.
    Construct(&'static str),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "it is longer than {MAX_LINE} characters"),
            Self::TooDeep => f.write_str("it is nested too deep"),
            Self::Quote => f.write_str("a quote is not closed"),
            Self::Bracket => f.write_str("a bracket is not closed, or closed without being open"),
            Self::Redirection => f.write_str("a redirection has no target"),
            Self::Construct(name) => write!(f, "it uses {name}"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// What a redirection does to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// One command without operators.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Simple {
    pub(super) words: Vec<Word>,
    /// Variables that are set for it, or by it when there are no words, and what to.
    pub(super) assigned: Vec<(String, Word)>,
    pub(super) redirects: Vec<(Access, Word)>,
    /// Text that is set for later holds a substitution: what computes with it runs that.
    pub(super) keeps_code: bool,
    /// The commands that `&&` joins to it, in the same list. None where that is not told.
    pub(super) chain: Option<u32>,
    /// What comes after it in its chain runs only if it succeeded, and in its shell.
    pub(super) goes_on: bool,
}

impl Simple {
    fn is_nothing(&self) -> bool {
        self.words.is_empty() && self.assigned.is_empty() && self.redirects.is_empty()
    }
}

/// Reads a line into its commands, in the order in which they begin or end; `depth` is how deep it
/// is nested in others.
pub(super) fn read_nested(line: &str, depth: usize) -> Result<Vec<Simple>, Unreadable> {
    let mut reader = Reader::new(line, depth)?;
    reader.list(End::Input)?;
    reader.finished()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Input,
    Paren,
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    commands: Vec<Simple>,
    heredocs: Vec<Heredoc>,
    /// Chains that have begun.
    chains: u32,
    /// How many `((` are open, which are arithmetic for some shells and subshells for others.
    doubled: usize,
    /// What was met on the way and has more than one meaning.
    unclear: Option<Unreadable>,
}

impl Reader {
    fn new(line: &str, depth: usize) -> Result<Self, Unreadable> {
        if depth > MAX_DEPTH {
            return Err(Unreadable::TooDeep);
        }
        // Checked on bytes first, so that a huge line is not copied to be counted.
        if line.len() > MAX_LINE * 4 {
            return Err(Unreadable::TooLong);
        }
        let chars: Vec<char> = line.chars().collect();
        if chars.len() > MAX_LINE {
            return Err(Unreadable::TooLong);
        }
        if chars.contains(&'\0') {
            return Err(Unreadable::Construct("a zero byte"));
        }
        Ok(Self {
            chars,
            at: 0,
            depth,
            commands: Vec::new(),
            heredocs: Vec::new(),
            chains: 0,
            doubled: 0,
            unclear: None,
        })
    }

    fn finished(self) -> Result<Vec<Simple>, Unreadable> {
        self.unclear.map_or(Ok(self.commands), Err)
    }

    fn peek(&self) -> Option<char> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += 1;
        Some(next)
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars()
            .enumerate()
            .all(|(ahead, c)| self.peek_at(ahead) == Some(c))
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.starts_with(text);
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn raw(&self, from: usize) -> String {
        self.chars
            .get(from..self.at)
            .unwrap_or_default()
            .iter()
            .collect()
    }

    fn skip_blanks(&mut self) {
        loop {
            if self.take("\\\n") {
                continue;
            }
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('#') => {
                    if self.doubled > 0 {
                        self.unclear = Some(Unreadable::Construct("a `#` inside `((`"));
                    }
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn list(&mut self, end: End) -> Result<(), Unreadable> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Unreadable::TooDeep);
        }
        let mut chain = self.new_chain();
        let mut piped = false;
        loop {
            self.skip_blanks();
            match self.peek() {
                None if end == End::Input => break,
                None => return Err(Unreadable::Bracket),
                Some(')') if end == End::Paren => {
                    self.at += 1;
                    break;
                }
                Some(')') => return Err(Unreadable::Bracket),
                Some('\n') => {
                    self.at += 1;
                    self.skip_heredocs()?;
                    (chain, piped) = (self.new_chain(), false);
                }
                Some(';') if self.peek_at(1) == Some(';') => {
                    return Err(Unreadable::Construct("`case`"));
                }
                Some('&') if self.peek_at(1) == Some('>') => self.simple(chain, piped)?,
                Some('&') if self.take("&&") => piped = false,
                Some('|') if !self.starts_with("||") => {
                    self.at += 1;
                    piped = true;
                }
                Some(';' | '|' | '&') => {
                    self.at += 1;
                    (chain, piped) = (self.new_chain(), false);
                }
                Some('(') => {
                    self.at += 1;
                    self.paren()?;
                }
                Some(_) => self.simple(chain, piped)?,
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// What is inside of a bracket that was opened, and its end.
    fn paren(&mut self) -> Result<(), Unreadable> {
        while self.take("\\\n") {}
        let doubled = usize::from(self.peek() == Some('('));
        self.doubled += doubled;
        self.list(End::Paren)?;
        self.doubled -= doubled;
        Ok(())
    }

    /// What a substitution runs. Here-documents that its line has announced end with it, and those
    /// of the line around it begin after it.
    fn substituted(&mut self) -> Result<(), Unreadable> {
        let around = std::mem::take(&mut self.heredocs);
        self.paren()?;
        if !std::mem::replace(&mut self.heredocs, around).is_empty() {
            return Err(Unreadable::Construct(
                "a here-document that its substitution does not hold",
            ));
        }
        Ok(())
    }

    fn new_chain(&mut self) -> u32 {
        self.chains += 1;
        self.chains
    }

    fn simple(&mut self, chain: u32, piped: bool) -> Result<(), Unreadable> {
        let mut command = Simple::default();
        let mut is_data = false;
        // `! a && b` runs b when a failed.
        let mut has_keyword = false;
        // `a &> b` is `a & > b` for some shells.
        let mut both = false;
        loop {
            self.skip_blanks();
            match self.peek() {
                None | Some('\n' | ';' | '|' | ')') => break,
                Some('&') if self.peek_at(1) != Some('>') => break,
                Some('(') if command.words.is_empty() && !is_data => break,
                Some('(') => return Err(Unreadable::Construct("a function or an array")),
                Some('<' | '>' | '&') if !self.is_process_substitution() => {
                    both |= self.peek() == Some('&');
                    self.redirect(&mut command)?;
                }
                Some(_) => {
                    let word = self.word()?;
                    if names_descriptor(&word.raw) && matches!(self.peek(), Some('<' | '>')) {
                        continue;
                    }
                    if both {
                        return Err(Unreadable::Construct("a word behind `&>`"));
                    }
                    if is_data || !command.words.is_empty() {
                        command.words.push(word);
                        continue;
                    }
                    if let Some(name) = assignment(&word) {
                        if self.peek() == Some('(') {
                            return Err(Unreadable::Construct("an array"));
                        }
                        command.keeps_code |= word.keeps_code();
                        command.assigned.push((name, word.value()));
                        continue;
                    }
                    match word.raw.as_str() {
                        "if" | "then" | "elif" | "else" | "while" | "until" | "do" | "!" | "{"
                        | "fi" | "done" | "}" => has_keyword = true,
                        "time" if self.takes_time_option() => command.words.push(word),
                        "time" => has_keyword = true,
                        "for" | "select" => is_data = true,
                        "case" | "esac" => return Err(Unreadable::Construct("`case`")),
                        "function" => return Err(Unreadable::Construct("a function")),
                        "coproc" => return Err(Unreadable::Construct("`coproc`")),
                        _ => command.words.push(word),
                    }
                }
            }
        }
        if is_data {
            // `for x do rm y` has no word list, and what follows is a command.
            if command.words.get(1).is_some_and(|word| word.raw == "do") {
                return Err(Unreadable::Construct("`for` without `in`"));
            }
            let variable = command.words.first().and_then(Word::exact);
            command
                .assigned
                .extend(variable.map(|name| (name, Word::anything())));
            command.keeps_code |= command.words.iter().any(Word::keeps_subscript);
            command.words.clear();
        }
        if !command.is_nothing() {
            command.chain = Some(chain);
            command.goes_on = !piped && !has_keyword && !both && self.starts_with("&&");
            self.commands.push(command);
        }
        Ok(())
    }

    /// Whether an option follows that only the program `time` has; the keyword's own is passed over.
    fn takes_time_option(&mut self) -> bool {
        loop {
            self.skip_blanks();
            if self.peek() != Some('-') {
                return false;
            }
            let of_keyword = ["-p", "--"].into_iter().find(|option| {
                let ends = matches!(self.peek_at(2), None | Some(' ' | '\t' | '\n' | ';'));
                ends && self.starts_with(option)
            });
            match of_keyword {
                Some(option) => self.at += option.len(),
                None => return true,
            }
        }
    }

    fn is_process_substitution(&self) -> bool {
        self.starts_with("<(") || self.starts_with(">(")
    }

    fn word(&mut self) -> Result<Word, Unreadable> {
        let from = self.at;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut raw = String::new();
        let mut kept = from;
        if self.peek() == Some('~') {
            self.at += 1;
            pieces.push(Piece::Unknown);
        }
        loop {
            match self.peek() {
                None | Some(' ' | '\t' | '\n' | ';' | '&' | '|' | ')') => break,
                Some('<' | '>') if self.at == from && self.is_process_substitution() => {
                    self.at += 2;
                    self.substituted()?;
                    pieces.push(Piece::Unknown);
                }
                Some('<' | '>') => break,
                Some('(') => {
                    // `a=(` and `f(`; an extended glob such as `@(a|b)` is not read either.
                    return Err(Unreadable::Construct("a function or an array"));
                }
                // A word that goes on in the next line is one: `th\` and `en` are `then`.
                Some('\\') if self.starts_with("\\\n") => {
                    raw.push_str(&self.raw(kept));
                    self.at += 2;
                    kept = self.at;
                }
                Some('\\') => {
                    self.at += 1;
                    literal(&mut pieces, self.next().unwrap_or('\\'));
                }
                Some('\'') => {
                    self.at += 1;
                    literal_text(&mut pieces, "");
                    loop {
                        match self.next() {
                            Some('\'') => break,
                            Some(c) => literal(&mut pieces, c),
                            None => return Err(Unreadable::Quote),
                        }
                    }
                }
                Some('"') => {
                    self.at += 1;
                    self.double_quoted(&mut pieces)?;
                }
                Some('$') => self.dollar(Quoted::No, &mut pieces)?,
                Some('`') => self.backtick(Quoted::No, &mut pieces)?,
                Some('*') => {
                    self.at += 1;
                    pieces.push(Piece::Star);
                }
                Some('?') => {
                    self.at += 1;
                    pieces.push(Piece::Splits);
                }
                // A subscript goes to its bracket for some shells, whatever is in it.
                Some('[') if is_name(&self.raw(from)) && !self.may_close(']', &[]) => {
                    return Err(Unreadable::Construct("a subscript of several words"));
                }
                Some('[') if self.may_close(']', &[]) => {
                    self.at += 1;
                    pieces.push(Piece::Splits);
                }
                Some('{') if self.may_close('}', &[",", ".."]) => {
                    self.at += 1;
                    pieces.push(Piece::Splits);
                }
                Some(c) => {
                    self.at += 1;
                    literal(&mut pieces, c);
                }
            }
        }
        raw.push_str(&self.raw(kept));
        Ok(Word { raw, pieces })
    }

    /// Whether the bracket that begins here ends within the word, with one of these texts inside.
    /// What may be is so: it makes less known of the word.
    fn may_close(&self, end: char, holding: &[&str]) -> bool {
        // Not further, or a line of brackets would take the square of its length.
        const LOOK_AHEAD: usize = 256;
        let rest = self.chars.get(self.at + 1..).unwrap_or_default();
        let mut inside = String::new();
        let mut quote = None;
        let mut last = None;
        for c in rest.iter().take(LOOK_AHEAD) {
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(*c),
                (Some(open), _) if open == *c => quote = None,
                // What is computed may have any text around it.
                (_, '$' | '`' | '\\') => return true,
                (None, ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')') => break,
                (None, c) if *c == end => last = Some(inside.len()),
                _ => {}
            }
            inside.push(*c);
        }
        match last.and_then(|at| inside.get(..at)) {
            Some(inside) => holding.is_empty() || holding.iter().any(|it| inside.contains(it)),
            None => inside.chars().count() == LOOK_AHEAD,
        }
    }

    fn double_quoted(&mut self, pieces: &mut Vec<Piece>) -> Result<(), Unreadable> {
        literal_text(pieces, "");
        loop {
            match self.peek() {
                None => return Err(Unreadable::Quote),
                Some('"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some('\\') => {
                    self.at += 1;
                    match self.next() {
                        Some('\n') => {}
                        Some(c @ ('$' | '`' | '"' | '\\')) => literal(pieces, c),
                        Some(c) => {
                            literal(pieces, '\\');
                            literal(pieces, c);
                        }
                        None => return Err(Unreadable::Quote),
                    }
                }
                Some('$') => self.dollar(Quoted::Yes, pieces)?,
                Some('`') => self.backtick(Quoted::Yes, pieces)?,
                Some(c) => {
                    self.at += 1;
                    literal(pieces, c);
                }
            }
        }
    }

    fn dollar(&mut self, quoted: Quoted, pieces: &mut Vec<Piece>) -> Result<(), Unreadable> {
        let computed = match quoted {
            Quoted::Yes => Piece::Unknown,
            Quoted::No => Piece::Splits,
        };
        self.at += 1;
        match self.peek() {
            Some('\\') if self.starts_with("\\\n") => {
                return Err(Unreadable::Construct(
                    "a `$` at the end of a line that goes on",
                ));
            }
            Some('(') => {
                if !self.skip_arithmetic() {
                    self.at += 1;
                    self.substituted()?;
                }
                pieces.push(computed);
            }
            Some('[') => return Err(Unreadable::Construct("`$[`")),
            Some('{') if is_first(pieces) && self.take("{PWD}") => {
                pieces.clear();
                pieces.push(Piece::Folder(quoted));
            }
            Some('{') => {
                self.at += 1;
                if matches!(self.peek(), Some(' ' | '\t' | '\n' | '|' | '(')) {
                    return Err(Unreadable::Construct("a command inside `${`"));
                }
                self.parameter(quoted)?;
                pieces.push(computed);
            }
            Some('\'') if quoted == Quoted::No => {
                self.at += 1;
                loop {
                    match self.next() {
                        // It ends here for a shell that does not know `$'`.
                        Some('\\') if self.peek() == Some('\'') => {
                            return Err(Unreadable::Construct("a quote inside `$'`"));
                        }
                        Some('\\') => self.at += 1,
                        Some('\'') => break,
                        Some(_) => {}
                        None => return Err(Unreadable::Quote),
                    }
                }
                // Its escapes are not decoded.
                pieces.push(Piece::Unknown);
            }
            Some('"') if quoted == Quoted::No => {
                self.at += 1;
                self.double_quoted(pieces)?;
            }
            Some('@' | '*') => {
                self.at += 1;
                pieces.push(Piece::Splits);
            }
            Some('?' | '!' | '#' | '$' | '-' | '0'..='9') => {
                self.at += 1;
                pieces.push(computed);
            }
            Some(c) if c == '_' || c.is_ascii_alphabetic() => {
                let from = self.at;
                while self
                    .peek()
                    .is_some_and(|c| c == '_' || c.is_ascii_alphanumeric())
                {
                    self.at += 1;
                }
                match is_first(pieces) && self.raw(from) == "PWD" {
                    true => {
                        // Quotes have begun it with nothing.
                        pieces.clear();
                        pieces.push(Piece::Folder(quoted));
                    }
                    false => pieces.push(computed),
                }
            }
            _ => literal(pieces, '$'),
        }
        Ok(())
    }

    /// Passes over `((…))` after a dollar where it can be nothing but arithmetic.
    fn skip_arithmetic(&mut self) -> bool {
        if !self.starts_with("((") {
            return false;
        }
        let mut open = 0_usize;
        let mut end = self.at + 2;
        loop {
            match self.chars.get(end) {
                Some('(') => open += 1,
                Some(')') if open > 0 => open -= 1,
                Some(')') => {
                    let closed = self.chars.get(end + 1) == Some(&')');
                    if closed {
                        self.at = end + 2;
                    }
                    return closed;
                }
                Some(c) if c.is_ascii_alphanumeric() || "_ \t+-*/%<>=!&|^~?:,$".contains(*c) => {
                    // A substitution inside is read as such.
                    if *c == '$' && matches!(self.chars.get(end + 1), Some('(' | '{')) {
                        return false;
                    }
                }
                _ => return false,
            }
            end += 1;
        }
    }

    /// The rest of `${…}`.
    fn parameter(&mut self, quoted: Quoted) -> Result<(), Unreadable> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Unreadable::TooDeep);
        }
        let mut pieces = Vec::new();
        loop {
            match self.peek() {
                None => return Err(Unreadable::Bracket),
                Some('}') => {
                    self.at += 1;
                    self.depth -= 1;
                    return Ok(());
                }
                Some('\\') => self.at += 2,
                // One that quotes for some shells and operators, and is a character for others.
                Some('\'') if quoted == Quoted::Yes => {
                    return Err(Unreadable::Construct("a quote inside `\"${`"));
                }
                Some('\'') => {
                    self.at += 1;
                    while self.next().ok_or(Unreadable::Quote)? != '\'' {}
                }
                Some('<' | '>') if quoted == Quoted::No && self.is_process_substitution() => {
                    self.at += 2;
                    self.substituted()?;
                }
                Some('"') => {
                    self.at += 1;
                    self.double_quoted(&mut pieces)?;
                }
                Some('$') => self.dollar(quoted, &mut pieces)?,
                Some('`') => self.backtick(quoted, &mut pieces)?,
                Some(_) => self.at += 1,
            }
        }
    }

    fn backtick(&mut self, quoted: Quoted, pieces: &mut Vec<Piece>) -> Result<(), Unreadable> {
        self.at += 1;
        let mut inside = String::new();
        loop {
            match self.next() {
                None => return Err(Unreadable::Quote),
                Some('`') => break,
                Some('\\') => match self.next() {
                    // It quotes in double quotes, and is a character in a here-document.
                    Some('"') if quoted == Quoted::Yes => {
                        return Err(Unreadable::Construct("a `\\\"` inside backticks"));
                    }
                    Some(c @ ('`' | '\\' | '$')) => inside.push(c),
                    Some(c) => {
                        inside.push('\\');
                        inside.push(c);
                    }
                    None => return Err(Unreadable::Quote),
                },
                Some(c) => inside.push(c),
            }
        }
        let inside = read_nested(&inside, self.depth)?;
        self.commands.extend(inside.into_iter().map(apart));
        pieces.push(match quoted {
            Quoted::Yes => Piece::Unknown,
            Quoted::No => Piece::Splits,
        });
        Ok(())
    }
}

/// A command of another reader, whose chains have the same numbers.
fn apart(command: Simple) -> Simple {
    Simple {
        chain: None,
        goes_on: false,
        ..command
    }
}

/// The words of a pattern: read as a command's, and there may be nothing else.
pub(super) fn pattern_words(text: &str) -> Result<Vec<Word>, Unreadable> {
    let mut reader = Reader::new(text, 0)?;
    let mut words = Vec::new();
    loop {
        reader.skip_blanks();
        match reader.peek() {
            None => return Ok(words),
            Some('\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')') => {
                return Err(Unreadable::Construct("an operator"));
            }
            Some(_) => words.push(reader.word()?),
        }
    }
}

/// What stands before a redirection and belongs to it: `2` and `{name}`.
fn names_descriptor(raw: &str) -> bool {
    let name = raw.strip_prefix('{').and_then(|raw| raw.strip_suffix('}'));
    match name {
        Some(name) => name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()),
        None => !raw.is_empty() && raw.chars().all(|c| c.is_ascii_digit()),
    }
}

/// Whether a text is the name of a variable.
fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars
        .next()
        .is_some_and(|c| c == '_' || c.is_ascii_alphabetic())
        && chars.all(|c| c == '_' || c.is_ascii_alphanumeric())
}

/// The name in `NAME=value` and in `NAME[..]=value`.
fn assignment(word: &Word) -> Option<String> {
    let Some(Piece::Literal(text)) = word.pieces.first() else {
        return None;
    };
    let element = word.raw.contains("]=") || word.raw.contains("]+=");
    let (name, _) = match word.raw.split_once('[') {
        Some((name, _)) if element && !name.contains('=') => (name, ""),
        _ => text.split_once('=')?,
    };
    let name = name.strip_suffix('+').unwrap_or(name);
    // `'X'=1` is a command of that name.
    (is_name(name) && word.raw.starts_with(name)).then(|| name.to_owned())
}

/// A word as a shell line would have it, to mean exactly this text.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !text.is_empty() && text != "..." && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
