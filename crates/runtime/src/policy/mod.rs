//! What agents may do: decided in one place, without looking at anything but its arguments.
//!
//! # Rules
//!
//! A rule has selectors (`tool`, `command`, `path`, `agent`, `worker`, `session`), each optional,
//! and an action: `allow`, `ask` or `deny`. The first rule whose selectors all match decides. When
//! none does, the defaults do:
//!
//! | request | default |
//! |---|---|
//! | reading and writing in the workspace | allow |
//! | a path outside of it | ask |
//! | a command in the workspace, in an isolated worker or the built-in one | allow |
//! | a command on another worker that isolates nothing | ask |
//! | a command in a folder outside, or a `cd` to one | ask |
//! | writing outside by a redirection, or to a file that the line does not name | ask |
//! | `rm`, `mv`, `cp`, `tee`, `chmod` and the like of a path outside | ask |
//! | any path outside in the built-in worker without isolation, but for system folders | ask |
//! | a tool of an MCP server that reaches other machines | ask |
//! | a tool of an MCP server that is a program of this machine | allow |
//! | `ask_user`, `undo` | allow |
//!
//! # Patterns
//!
//! - `tool`, `agent`, `worker`: a name, in which `*` is anything: `tickets__*`.
//! - `command`: words, quoted as in a shell. `*` is anything within one word; `**` or `...` at the
//!   end is any further words. Without it an `allow` rule means exactly these words, while a rule
//!   that asks or denies also means the same with more words behind: `git push` restricts
//!   `git push --force`, and allows `git push` alone. A program's name also means that program in
//!   a folder: any folder for a rule that restricts, a system folder for one that allows.
//! - `path`: `*` and `?` within a name, `**` across folders, a backslash before what is meant
//!   literally. Relative to the workspace, or absolute; one without a slash is a name at any
//!   depth. A folder stands for all that is in it.
//!
//! # Commands
//!
//! A line is read by words ([`words`]) and taken apart: pipelines, lists, subshells,
//! substitutions, and what `env`, `sudo`, `sh -c`, `xargs`, `find -exec` and the like run
//! ([`wrappers`]). Each part is decided by itself, and the line is as allowed as its most
//! dangerous part. A redirection that writes outside of the workspace is a part of its own, which a
//! rule that allows the command by its words alone does not cover. A path is taken from where the
//! line has gone ([`place`]), and one of the worker's own copy of the workspace is in the
//! workspace. What cannot be known before it runs (a variable, a script from a pipe, a line
//! that is not read) never matches a rule that allows it by its words, and asks where a rule that
//! restricts might match.
//!
//! Non-goals: this is no sandbox. A program that is allowed may run others by itself; what it
//! can reach is the worker's business.

mod decide;
mod pattern;
mod place;
mod reach;
mod rule;
mod words;
mod wrappers;

pub use decide::{
    Because, Decision, Isolation, LOCAL_WORKER, Proposal, Request, Subject, Verdict, decide,
    propose,
};
pub use pattern::{CommandPattern, NamePattern, PathPattern, PatternError};
pub use rule::{Action, Rule};
pub use words::{MAX_LINE, Unreadable, quoted};

#[cfg(test)]
mod tests;
