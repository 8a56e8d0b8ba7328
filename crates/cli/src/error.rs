//! What a failed command tells the person, and the exit code it ends with.

use std::io;
use std::process::ExitCode;

use crate::output;

/// Why a command ended without doing its work; each kind has its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// It was tried and did not work.
    Failed,
    /// The command line asks for something that makes no sense.
    Usage,
    /// The configuration is wrong.
    Config,
    /// The reader of our output went away; that is no failure.
    OutputClosed,
}

impl ErrorKind {
    fn exit_code(self) -> ExitCode {
        match self {
            Self::Failed => ExitCode::from(1),
            Self::Usage => ExitCode::from(2),
            Self::Config => ExitCode::from(64),
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

/// The one error type that a command returns: it is printed as `error:` and `hint:` lines.
#[derive(Debug)]
pub(crate) struct CommandError {
    kind: ErrorKind,
    error: anyhow::Error,
    hints: Vec<String>,
}

impl CommandError {
    pub(crate) fn new(kind: ErrorKind, error: impl Into<anyhow::Error>) -> Self {
        Self {
            kind,
            error: error.into(),
            hints: Vec::new(),
        }
    }

    /// It was tried and did not work.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, anyhow::Error::msg(message.into()))
    }

    /// The command line asks for something that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, anyhow::Error::msg(message.into()))
    }

    /// The configuration is wrong.
    pub(crate) fn config(error: impl Into<anyhow::Error>) -> Self {
        Self::new(ErrorKind::Config, error)
    }

    /// Adds a line that says what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    #[cfg(test)]
    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the reader of our output went away.
    pub(crate) fn is_output_closed(&self) -> bool {
        self.kind == ErrorKind::OutputClosed
    }

    /// The error and its causes on one line.
    pub(crate) fn message(&self) -> String {
        let mut message = self.error.to_string();
        for cause in self.error.chain().skip(1).map(ToString::to_string) {
            // Many errors already quote their cause.
            if !message.contains(&cause) {
                message.push_str(": ");
                message.push_str(&cause);
            }
        }
        message
    }

    /// Whether the message is about such a thing and says no command that would help.
    pub(crate) fn names_no_command(&self, thing: &str) -> bool {
        let message = self.message();
        message.starts_with(thing) && !message.contains('`')
    }

    /// What to do next, where neither a hint nor the message itself names a command for it.
    fn next_step(&self) -> Option<&'static str> {
        if !self.hints.is_empty() || self.message().contains('`') {
            return None;
        }
        match self.kind {
            ErrorKind::Failed => Some("`quintet doctor` checks the machine; `-v` says more"),
            ErrorKind::Usage => Some("`--help` shows how it is used"),
            ErrorKind::Config => Some("`quintet config path` says which file to edit"),
            ErrorKind::OutputClosed => None,
        }
    }

    /// Prints the error and says how the process ends.
    pub(crate) fn report(&self) -> ExitCode {
        if self.kind != ErrorKind::OutputClosed {
            let next = self.next_step().map(str::to_owned);
            let hints: Vec<String> = self.hints.iter().cloned().chain(next).collect();
            output::report_error(&self.message(), &hints);
        }
        self.kind.exit_code()
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        let kind = if error.kind() == io::ErrorKind::BrokenPipe {
            ErrorKind::OutputClosed
        } else {
            ErrorKind::Failed
        };
        Self::new(kind, error)
    }
}

impl From<serde_json::Error> for CommandError {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::new(ErrorKind::Failed, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("can't read the file")]
        struct Outer(#[source] io::Error);

        let quoted = anyhow::anyhow!("disk full").context("write failed: disk full");
        assert_eq!(
            CommandError::new(ErrorKind::Failed, quoted).message(),
            "write failed: disk full"
        );
        let bare = Outer(io::Error::other("disk full"));
        assert_eq!(
            CommandError::new(ErrorKind::Failed, bare).message(),
            "can't read the file: disk full"
        );
    }

    #[test]
    fn every_error_ends_with_a_next_step() {
        assert_eq!(
            CommandError::failed("it broke").next_step(),
            Some("`quintet doctor` checks the machine; `-v` says more")
        );
        assert_eq!(
            CommandError::usage("what?").next_step(),
            Some("`--help` shows how it is used")
        );
        let named = CommandError::failed("none waits; `quintet approvals` lists them");
        assert_eq!(named.next_step(), None);
        let hinted = CommandError::failed("it broke").hint("do this");
        assert_eq!(hinted.next_step(), None);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let error = CommandError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(error.kind(), ErrorKind::OutputClosed);
        assert_eq!(error.report(), ExitCode::SUCCESS);
    }
}
