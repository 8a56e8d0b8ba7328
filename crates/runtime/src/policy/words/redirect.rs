//! Redirections and here-documents.

use super::{Access, Quoted, Reader, Simple, Unreadable, Word, apart};

pub(super) struct Heredoc {
    delimiter: String,
    expands: bool,
    strips_tabs: bool,
}

impl Reader {
    pub(super) fn redirect(&mut self, command: &mut Simple) -> Result<(), Unreadable> {
        if self.take("<<<") {
            self.skip_blanks();
            self.target()?;
            return Ok(());
        }
        if self.take("<<") {
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
                let bare = if heredoc.strips_tabs {
                    line.trim_start_matches('\t')
                } else {
                    &line
                };
                if bare == heredoc.delimiter {
                    break;
                }
                body.push_str(&line);
                body.push('\n');
            }
            if heredoc.expands {
                let mut inner = Self::new(&body, self.depth)?;
                inner.expand_only()?;
                self.commands.extend(inner.commands.into_iter().map(apart));
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
