//! Redirections and here-documents.

use super::{Access, Quoted, Reader, Simple, Unreadable, Word, apart};

pub(super) struct Heredoc {
    delimiter: String,
    expands: bool,
    strips_tabs: bool,
}

impl Heredoc {
    fn ends_with(&self, line: &str) -> bool {
        let bare = match self.strips_tabs {
            true => line.trim_start_matches('\t'),
            false => line,
        };
        bare == self.delimiter
    }

    /// Of lines that go on, as much as tells whether they come to be the end.
    fn beginning(&self, lines: &str) -> String {
        let bare = match self.strips_tabs {
            true => lines.trim_start_matches('\t'),
            false => lines,
        };
        let bare = bare.strip_suffix('\\').unwrap_or(bare);
        bare.chars().take(self.delimiter.len() + 1).collect()
    }
}

/// Whether a line ends with a backslash that nothing quotes.
fn goes_on(line: &str) -> bool {
    line.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1
}

impl Reader {
    pub(super) fn redirect(&mut self, command: &mut Simple) -> Result<(), Unreadable> {
        if self.take("<<<") {
            self.skip_blanks();
            self.target()?;
            return Ok(());
        }
        if self.take("<<") {
            if self.doubled > 0 {
                return Err(Unreadable::Construct("a `<<` inside `((`"));
            }
            let strips_tabs = self.take("-");
            self.skip_blanks();
            let word = self.target()?;
            let delimiter = word
                .exact()
                .ok_or(Unreadable::Construct("a computed end of a here-document"))?;
            let expands = word.raw == delimiter;
            self.heredocs.push(Heredoc {
                delimiter,
                expands,
                strips_tabs,
            });
            return Ok(());
        }
        let mut duplicates = false;
        let access = if self.take("&>>") || self.take("&>") || self.take("<>") {
            Access::Write
        } else if self.take(">&") {
            duplicates = true;
            Access::Write
        } else if self.take("<&") {
            duplicates = true;
            Access::Read
        } else if self.take(">>") || self.take(">|") || self.take(">") {
            Access::Write
        } else if self.take("<") {
            Access::Read
        } else {
            return Err(Unreadable::Redirection);
        };
        self.skip_blanks();
        let target = self.target()?;
        let is_descriptor = |text: &str| {
            let digits = text.trim_end_matches('-');
            digits.chars().all(|c| c.is_ascii_digit())
        };
        if !(duplicates && is_descriptor(&target.raw)) {
            command.redirects.push((access, target));
        }
        Ok(())
    }

    fn target(&mut self) -> Result<Word, Unreadable> {
        match self.peek() {
            None | Some('\n' | ';' | '|' | '&' | ')' | '(') => Err(Unreadable::Redirection),
            Some('<' | '>') if !self.is_process_substitution() => Err(Unreadable::Redirection),
            Some(_) => self.word(),
        }
    }

    /// Passes over the here-documents that the line before has announced.
    pub(super) fn skip_heredocs(&mut self) -> Result<(), Unreadable> {
        for heredoc in std::mem::take(&mut self.heredocs) {
            let mut body = String::new();
            // The lines before, where they go on in this one.
            let mut before: Option<String> = None;
            loop {
                if self.peek().is_none() {
                    break;
                }
                let from = self.at;
                while self.peek().is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
                let line = self.raw(from);
                self.at += usize::from(self.peek().is_some());
                let joined = before.take().map(|before| before + &line);
                // Whether a line that was gone on with is its end is for each shell to say.
                if let Some(joined) = &joined
                    && (heredoc.ends_with(&line) || heredoc.ends_with(joined))
                {
                    return Err(Unreadable::Construct(
                        "a line that goes on at the end of a here-document",
                    ));
                }
                if joined.is_none() && heredoc.ends_with(&line) {
                    break;
                }
                if heredoc.expands && goes_on(&line) {
                    before = Some(heredoc.beginning(joined.as_deref().unwrap_or(&line)));
                }
                body.push_str(&line);
                body.push('\n');
            }
            if heredoc.expands {
                let mut inner = Self::new(&body, self.depth)?;
                inner.expand_only()?;
                self.commands
                    .extend(inner.finished()?.into_iter().map(apart));
            }
        }
        Ok(())
    }

    /// Finds the substitutions in text that is otherwise data.
    fn expand_only(&mut self) -> Result<(), Unreadable> {
        let mut pieces = Vec::new();
        while let Some(c) = self.peek() {
            match c {
                '\\' => self.at += 2,
                '$' => self.dollar(Quoted::Yes, &mut pieces)?,
                '`' => self.backtick(Quoted::Yes, &mut pieces)?,
                _ => self.at += 1,
            }
        }
        Ok(())
    }
}
