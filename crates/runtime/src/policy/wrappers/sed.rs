//! Scripts of `sed`, as far as it takes to see whether one runs a command.
//!
//! `e` runs one, and so does the flag `e` of `s`. What is not understood could be either.

use super::{Runs, Word, is_input, unknown_if};

/// What `sed` runs beside itself.
pub(super) fn runs(rest: &[Word]) -> Runs {
    let mut words = rest.iter();
    let mut given = false;
    let mut first = None;
    while let Some(word) = words.next() {
        let text = word.exact();
        let script = match text.as_deref() {
            Some("-e" | "--expression") => words.next().map(Word::exact),
            Some("-f" | "--file") => {
                let file = words.next().and_then(Word::exact);
                if file.is_none_or(|file| is_input(&file)) {
                    return Runs::Unknown;
                }
                given = true;
                None
            }
            Some("--version" | "--help") => return Runs::Nothing,
            Some(option) if option.starts_with("--expression=") => {
                Some(option.strip_prefix("--expression=").map(str::to_owned))
            }
            Some(option) if option.starts_with("--") => None,
            Some(option) if option.starts_with('-') && option.len() > 1 => {
                // `-ne SCRIPT`, `-nesCRIPT`; what follows `i` is the end of a file's name.
                let letters = option
                    .split_once('i')
                    .map_or(option, |(letters, _)| letters);
                match letters.split_once('e') {
                    Some((_, "")) if letters.len() == option.len() => words.next().map(Word::exact),
                    Some((_, script)) => Some(Some(script.to_owned())),
                    None if letters.contains('f') => return Runs::Unknown,
                    None => None,
                }
            }
            Some(_) | None => {
                if first.is_none() {
                    first = Some(text);
                }
                None
            }
        };
        if let Some(script) = script {
            given = true;
            if script.is_none_or(|script| !is_harmless(&script)) {
                return Runs::Unknown;
            }
        }
    }
    match first {
        Some(script) if !given => unknown_if(script.is_none_or(|script| !is_harmless(&script))),
        _ => Runs::Nothing,
    }
}

/// Whether a script certainly runs nothing.
fn is_harmless(script: &str) -> bool {
    let mut script = Script {
        rest: script.chars().collect::<Vec<_>>().into_iter().peekable(),
    };
    script.commands().is_some()
}

struct Script {
    rest: std::iter::Peekable<std::vec::IntoIter<char>>,
}

impl Script {
    fn skip(&mut self, skipped: impl Fn(char) -> bool) {
        while self.rest.next_if(|c| skipped(*c)).is_some() {}
    }

    fn commands(&mut self) -> Option<()> {
        loop {
            self.skip(|c| c.is_whitespace() || ";{}".contains(c));
            if self.rest.peek().is_none() {
                return Some(());
            }
            self.address()?;
            if self.rest.next_if_eq(&',').is_some() {
                self.skip(|c| c == ' ' || c == '+' || c == '~');
                self.address()?;
            }
            self.skip(|c| c == ' ' || c == '!');
            match self.rest.next()? {
                's' => {
                    let end = self.rest.next()?;
                    self.until(end)?;
                    self.until(end)?;
                    while let Some(flag) = self.rest.next_if(|c| !"\n;}# ".contains(*c)) {
                        match flag {
                            'g' | 'p' | 'i' | 'I' | 'm' | 'M' | '0'..='9' => {}
                            'w' => self.skip(|c| c != '\n'),
                            _ => return None,
                        }
                    }
                }
                'y' => {
                    let end = self.rest.next()?;
                    self.until(end)?;
                    self.until(end)?;
                }
                // Text, a file's name or a comment: to the end of the line.
                'a' | 'i' | 'c' | 'r' | 'R' | 'w' | 'W' | '#' => self.skip(|c| c != '\n'),
                'b' | 't' | 'T' | ':' => self.skip(|c| !"\n;}".contains(c)),
                '=' | 'd' | 'D' | 'g' | 'G' | 'h' | 'H' | 'n' | 'N' | 'p' | 'P' | 'x' | 'z'
                | 'F' => {}
                'l' | 'q' | 'Q' => self.skip(|c| c == ' ' || c.is_ascii_digit()),
                '{' => {}
                _ => return None,
            }
        }
    }

    /// A line number, `$`, or a regular expression.
    fn address(&mut self) -> Option<()> {
        match self.rest.peek()? {
            '0'..='9' => self.skip(|c| c.is_ascii_digit() || c == '~'),
            '$' => self.skip(|c| c == '$'),
            '/' => {
                self.rest.next();
                self.until('/')?;
                self.skip(|c| c == 'I' || c == 'M');
            }
            '\\' => {
                self.rest.next();
                let end = self.rest.next()?;
                self.until(end)?;
                self.skip(|c| c == 'I' || c == 'M');
            }
            _ => {}
        }
        self.skip(|c| c == ' ');
        Some(())
    }

    /// Passes over a part and the character that ends it, which a bracket `[..]` may hold.
    fn until(&mut self, end: char) -> Option<()> {
        loop {
            match self.rest.next()? {
                c if c == end => return Some(()),
                '\\' => {
                    self.rest.next()?;
                }
                // Whether it ends in there differs from one `sed` to the next.
                '[' => {
                    let before = self.rest.clone().take_while(|c| *c != ']');
                    if before.into_iter().any(|c| c == end) {
                        return None;
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_a_command_is_seen() {
        for (script, harmless) in [
            ("s/a/b/", true),
            ("s/a/b/g; s|x|y|2p", true),
            ("/^#/d;s,a,b,", true),
            ("1,5p", true),
            ("$!N;P;D", true),
            ("/a/,/b/{s/x/y/;p}", true),
            ("2i\\text; e rm", true),
            ("y/abc/xyz/;q", true),
            ("\\,x,d", true),
            ("10q", true),
            (":a;N;$!ba;s/\\n/ /g", true),
            ("s/[a-z]/x/", true),
            ("1e rm x", false),
            ("e", false),
            ("s/a/rm x/e", false),
            ("s/a/rm x/ge", false),
            ("/x/e rm", false),
            ("$!{e rm\n}", false),
            ("s/[/]/x/;e rm", false),
            ("s/a/b/w out\ne rm x", false),
            ("s/a/b", false),
        ] {
            assert_eq!(is_harmless(script), harmless, "{script}");
        }
    }
}
