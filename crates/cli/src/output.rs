//! Where a command's words go: data to stdout, talk to stderr.
//!
//! Tables are for people, JSON for programs. Colour appears on a terminal alone and respects
//! `NO_COLOR`. A reader that goes away ends the command quietly
//! ([`ErrorKind::OutputClosed`](crate::error::ErrorKind::OutputClosed)).

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::error::CommandError;

pub(crate) mod table;
pub(crate) mod terminal_text;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const CAUTION: Style = AnsiColor::Yellow.on_default();

/// The two streams of a command, and whether it may talk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    quiet: bool,
}

impl Output {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet }
    }

    /// Whether it was asked to say less.
    pub(crate) fn is_quiet(self) -> bool {
        self.quiet
    }

    /// One line of data.
    pub(crate) fn line(self, text: impl Display) -> Result<(), CommandError> {
        writeln!(anstream::stdout().lock(), "{text}")?;
        Ok(())
    }

    /// A piece of text as it arrives, without a line end of our own.
    pub(crate) fn piece(self, text: &str) -> Result<(), CommandError> {
        let mut stdout = io::stdout().lock();
        if stdout.is_terminal() {
            stdout.write_all(terminal_text::harmless(text).as_bytes())?;
        } else {
            stdout.write_all(text.as_bytes())?;
        }
        stdout.flush()?;
        Ok(())
    }

    /// One JSON document, indented.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<(), CommandError> {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer_pretty(&mut stdout, value)?;
        writeln!(stdout)?;
        stdout.flush()?;
        Ok(())
    }

    /// One JSON object on one line, for streams.
    pub(crate) fn json_line(self, value: &impl Serialize) -> Result<(), CommandError> {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, value)?;
        writeln!(stdout)?;
        stdout.flush()?;
        Ok(())
    }

    /// Rows as JSON when asked, else as a table; `nothing` is said when there are none.
    pub(crate) fn list<R: Serialize>(
        self,
        json: bool,
        rows: &[R],
        table: impl FnOnce(&[R]) -> table::Table,
        nothing: &str,
    ) -> Result<(), CommandError> {
        if json {
            self.json(&rows)
        } else if rows.is_empty() {
            self.talk(nothing);
            Ok(())
        } else {
            table(rows).print()
        }
    }

    /// Says something to the person; silent with `-q`.
    pub(crate) fn talk(self, text: impl Display) {
        if !self.quiet {
            // Nobody is left to tell when stderr is closed.
            let _ = writeln!(anstream::stderr().lock(), "{text}");
        }
    }
}

/// Prints `error:` and `hint:` lines to stderr.
pub(crate) fn report_error(message: &str, hints: &[String]) {
    let mut stderr = anstream::stderr().lock();
    // A worker, an agent or a provider may have chosen the words.
    let message = terminal_text::harmless(message);
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(stderr, "{ERROR}error:{ERROR:#} {message}");
    for hint in hints {
        let _ = writeln!(stderr, "{HINT}hint:{HINT:#} {hint}");
    }
}

/// Text in a style; without one where colour is off.
pub(crate) fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

pub(crate) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}
