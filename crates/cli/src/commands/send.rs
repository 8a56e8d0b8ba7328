//! `quintet send`.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quintet_control::wire::stream_event::Event;
use quintet_control::wire::{Question, StreamEnd, StreamEvent, StreamMsg, ToolCallInfo};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use crate::chat::event::Approval;
use crate::error::CommandError;
use crate::output::table::cut;
use crate::output::{
    BAD, DIM, GOOD, Output, stderr_is_terminal, stdout_is_terminal, styled, terminal_text,
};
use crate::turn::{Aside, Opening, Seen, Turn};

/// As a shell reports a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// A tool call's line on stderr shows so much of its arguments.
const SHOWN_ARGUMENTS: usize = 100;

/// What is remembered of an answer for its error.
const MAX_TAIL: usize = 2000;

const EXAMPLES: &str = "\
Examples:
  quintet send shell 'ls -l'
  quintet send coder 'why does the build fail?' --cwd ~/project
  git diff | quintet send coder -          Take the message from stdin
  quintet send coder 'and the tests?' --session 3

The answer goes to stdout as it comes. Ctrl-C leaves the agent to its work (exit code 130);
`quintet events --session N --follow` or `quintet chat --session N` looks on.";

/// Send a message to an agent and print the answer
///
/// Without --session or --new it goes on with your newest session with that agent; with --cwd or
/// --worker, with the newest one there.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SendArgs {
    /// Name of the agent, as `quintet agents` lists it
    agent: String,

    /// The message; `-` reads it from stdin
    text: String,

    /// Send it to this session, which is one of that agent
    #[arg(long, value_name = "N", conflicts_with_all = ["new", "resume_file"])]
    session: Option<u64>,

    /// Start a new session
    #[arg(long, conflicts_with = "resume_file")]
    new: bool,

    /// Go on with a session that `quintet session export` wrote to this file
    #[arg(long, value_name = "FILE")]
    resume_file: Option<PathBuf>,

    /// Work in this folder: go on with the newest session there, or start one
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// Say who sends it; each sender has sessions of their own
    #[arg(long, value_name = "NAME", default_value = crate::chat::SENDER)]
    sender: String,

    /// Use this worker: go on with the newest session there, or start one
    #[arg(long, value_name = "ID")]
    worker: Option<String>,

    /// Print the turn's events, one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &Context, args: SendArgs) -> Result<ExitCode, CommandError> {
    let json = args.json;
    let turn = Turn::open(
        &context.home,
        Opening::Say(args.into_message(context.output)?),
    )
    .await?;
    watch(context, turn, json).await
}

/// Shows a turn until it ends, or until Ctrl-C leaves it to itself.
pub(super) async fn watch(
    context: &Context,
    mut turn: Turn,
    json: bool,
) -> Result<ExitCode, CommandError> {
    let mut shown = Shown::new(context.output, json);
    // One listener for the whole turn: a new one each time would miss what comes in between.
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        let event = tokio::select! {
            event = turn.next() => event?,
            _ = interrupt.recv() => return Ok(detach(context.output, &turn)),
        };
        let Some(seen) = event else {
            return Err(CommandError::failed(
                "the daemon ended the stream before the turn was over",
            ));
        };
        if let Some(end) = shown.seen(&seen, turn.session())? {
            return finish(&end, shown.last_said(), turn.session());
        }
    }
}

fn detach(output: Output, turn: &Turn) -> ExitCode {
    output.talk("");
    match turn.session() {
        Some(session) => output.talk(format_args!(
            "the agent goes on; look on with `quintet chat --session {session}`, stop it with `quintet cancel {session}`"
        )),
        None => output.talk("the message waits for its turn; `quintet queue ls` lists it"),
    }
    ExitCode::from(INTERRUPTED)
}

fn finish(
    end: &StreamEnd,
    last_said: &str,
    session: Option<u64>,
) -> Result<ExitCode, CommandError> {
    if end.error.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    // Why is what the agent said last; who reads both outputs in one place has just seen it.
    let error = match last_said.is_empty() || stdout_is_terminal() {
        true => end.error.clone(),
        false => format!("{}; the last it said: {last_said}", end.error),
    };
    let error = CommandError::failed(error);
    Err(match session {
        Some(session) if end.retryable => {
            error.hint(format!("run it again with `quintet retry {session}`"))
        }
        _ => error,
    })
}

/// What was printed of a turn so far.
pub(crate) struct Shown {
    output: Output,
    json: bool,
    /// Tool calls are talk, and only a person at a terminal wants it.
    tools: bool,
    mid_line: bool,
    /// The end of the answer so far.
    tail: String,
    /// What was last said of a stall: a turn that is quiet again and again says it once.
    stalled: Option<String>,
}

impl Shown {
    pub(crate) fn new(output: Output, json: bool) -> Self {
        Self {
            output,
            json,
            tools: !json && stderr_is_terminal(),
            mid_line: false,
            tail: String::new(),
            stalled: None,
        }
    }

    /// Prints what is seen of a turn; the end comes back.
    pub(crate) fn seen(
        &mut self,
        seen: &Seen,
        session: Option<u64>,
    ) -> Result<Option<StreamEnd>, CommandError> {
        match seen {
            Seen::Event(event) => self.event(event, session),
            Seen::Aside(_) if self.json => Ok(None),
            Seen::Aside(Aside::Approval(approval)) => {
                self.end_line()?;
                self.output.talk(approval_text(approval));
                Ok(None)
            }
            Seen::Aside(Aside::Stalled(text)) => {
                self.stalled(text, session);
                Ok(None)
            }
        }
    }

    /// Says that the turn is quiet. The answer may go on in the middle of its line, so nothing is
    /// put between its pieces on stdout.
    fn stalled(&mut self, text: &str, session: Option<u64>) {
        if self.stalled.as_deref() == Some(text) {
            return;
        }
        if self.mid_line && stderr_is_terminal() {
            self.output.talk("");
        }
        let said = terminal_text::one_line(text);
        match session {
            Some(session) => self
                .output
                .talk(format_args!("{said} (`quintet cancel {session}` stops it)")),
            None => self.output.talk(said),
        }
        self.stalled = Some(text.to_owned());
    }

    fn event(
        &mut self,
        event: &StreamEvent,
        session: Option<u64>,
    ) -> Result<Option<StreamEnd>, CommandError> {
        if self.json {
            self.output.json_line(&as_json(event, session))?;
        }
        let Some(what) = &event.event else {
            return Ok(None);
        };
        if let Event::Chunk(chunk) = what {
            self.tail.push_str(&chunk.content);
            let over = self.tail.len().saturating_sub(MAX_TAIL);
            self.tail.drain(..self.tail.ceil_char_boundary(over));
        }
        match what {
            Event::Chunk(chunk) if !self.json => {
                self.output.piece(&chunk.content)?;
                if !chunk.content.is_empty() {
                    self.mid_line = !chunk.content.ends_with('\n');
                }
            }
            Event::ToolStart(start) if self.tools => {
                self.end_line()?;
                for call in &start.calls {
                    self.output.talk(tool_line(call));
                }
            }
            Event::ToolResult(result) if self.tools => {
                let (mark, style) = if result.is_error {
                    ("✗", BAD)
                } else {
                    ("✓", GOOD)
                };
                let time = format!("{} ms", result.duration_ms);
                self.output.talk(format_args!(
                    "{} {}",
                    styled(style, mark),
                    styled(DIM, time)
                ));
            }
            Event::AskUser(ask) if !self.json => {
                self.end_line()?;
                self.output.talk(question_text(&ask.questions, session));
            }
            Event::End(end) => {
                self.end_line()?;
                return Ok(Some(StreamEnd::clone(end)));
            }
            _ => {}
        }
        Ok(None)
    }

    /// The last paragraph of the answer.
    fn last_said(&self) -> &str {
        let paragraphs = self.tail.trim().rsplit("\n\n");
        paragraphs.map(str::trim).next().unwrap_or_default()
    }

    fn end_line(&mut self) -> Result<(), CommandError> {
        if std::mem::take(&mut self.mid_line) {
            self.output.piece("\n")?;
        }
        Ok(())
    }
}

fn tool_line(call: &ToolCallInfo) -> String {
    let arguments = terminal_text::one_line(&call.arguments);
    styled(
        DIM,
        format!("→ {} {}", call.name, cut(&arguments, Some(SHOWN_ARGUMENTS))),
    )
}

/// What a person is asked to allow, whole: a command is not judged without where it would run, nor
/// with a part of it out of sight.
fn approval_text(approval: &Approval) -> String {
    let id = approval.id;
    let exact_line = terminal_text::exact_line;
    let mut text = format!("? may it do this: {}", exact_line(&approval.action));
    // Each line has a mark, so that none of a command passes for one of ours.
    for line in terminal_text::exact(&approval.command).lines() {
        text.push_str(&format!("\n  | {line}"));
    }
    let about = [
        ("in", &approval.cwd),
        ("on", &approval.worker),
        ("because", &approval.reason),
    ];
    for (name, value) in about {
        if !value.is_empty() {
            text.push_str(&format!("\n  {name} {}", exact_line(value)));
        }
    }
    text.push_str(&format!(
        "\n  allow it with `quintet approve {id}`, refuse it with `quintet deny {id}`"
    ));
    if !approval.rule.is_empty() {
        text.push_str(&format!(
            "\n  allow it always with `quintet approve {id} --scope rule`, which writes {}:",
            exact_line(&approval.rule_place)
        ));
        for line in terminal_text::exact(&approval.rule).lines() {
            text.push_str(&format!("\n  | {line}"));
        }
    }
    text
}

/// A question for a person who reads plain text.
fn question_text(questions: &[Question], session: Option<u64>) -> String {
    let mut lines = Vec::new();
    for question in questions {
        lines.push(format!("? {}", terminal_text::one_line(&question.question)));
        for option in &question.options {
            let description = match option.description.as_str() {
                "" => String::new(),
                text => format!(": {}", terminal_text::one_line(text)),
            };
            lines.push(format!(
                "  - {}{description}",
                terminal_text::one_line(&option.label)
            ));
        }
    }
    if let Some(session) = session {
        lines.push(format!("  answer it with `quintet reply {session} TEXT`"));
    }
    lines.join("\n")
}

/// A stream event as one JSON object.
fn as_json(event: &StreamEvent, session: Option<u64>) -> serde_json::Value {
    let (kind, data) = match &event.event {
        Some(Event::Start(start)) => (
            "start",
            json!({"agent": start.agent, "session": start.session}),
        ),
        Some(Event::Chunk(chunk)) => ("chunk", json!({"content": chunk.content})),
        Some(Event::Thinking(thinking)) => ("thinking", json!({"content": thinking.content})),
        Some(Event::ToolStart(start)) => {
            let calls: Vec<_> = start
                .calls
                .iter()
                .map(|call| {
                    json!({
                        "name": call.name,
                        "arguments": call.arguments,
                        "call_id": call.call_id,
                    })
                })
                .collect();
            ("tool_start", json!({"calls": calls}))
        }
        Some(Event::ToolResult(result)) => (
            "tool_result",
            json!({
                "call_id": result.call_id,
                "output": result.output,
                "duration_ms": result.duration_ms,
                "is_error": result.is_error,
            }),
        ),
        Some(Event::ToolsComplete(_)) => ("tools_complete", json!({})),
        Some(Event::AskUser(ask)) => {
            let questions: Vec<_> = ask.questions.iter().map(question_json).collect();
            ("ask_user", json!({"ask": ask.ask, "questions": questions}))
        }
        Some(Event::End(end)) => (
            "end",
            json!({
                "agent": end.agent,
                "error": end.error,
                "code": end.code,
                "retryable": end.retryable,
                "finish_reason": end.finish_reason,
                "cost": end.cost,
            }),
        ),
        None => (
            "element",
            serde_json::from_str(&event.raw).unwrap_or_default(),
        ),
    };
    json!({"seq": event.seq, "session": session, "kind": kind, "data": data})
}

fn question_json(question: &Question) -> serde_json::Value {
    let options: Vec<_> = question
        .options
        .iter()
        .map(|option| json!({"label": option.label, "description": option.description}))
        .collect();
    json!({
        "question": question.question,
        "header": question.header,
        "options": options,
        "multi_select": question.multi_select,
    })
}

impl SendArgs {
    fn into_message(self, output: Output) -> Result<StreamMsg, CommandError> {
        let content = if self.text == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        } else {
            self.text
        };
        if content.trim().is_empty() {
            return Err(CommandError::usage("the message is empty"));
        }
        Ok(StreamMsg {
            agent: self.agent,
            content,
            session: self.session,
            sender: Some(self.sender),
            cwd: self.cwd.map(|path| folder(output, &path)).transpose()?,
            new_chat: self.new,
            resume_file: self.resume_file.map(|path| absolute(&path)).transpose()?,
            worker: self.worker,
            match_session: true,
        })
    }
}

/// The folder of a session, which the daemon takes when it is one; a mistyped one is said.
pub(super) fn folder(output: Output, path: &std::path::Path) -> Result<String, CommandError> {
    if !path.is_dir() {
        output.talk(format_args!(
            "{} is not a folder: the session has one of its own",
            path.display()
        ));
        return absolute(path);
    }
    // A session is found again by its folder, whichever way that was named.
    absolute(&path.canonicalize()?)
}

/// The daemon has another current folder than this program.
fn absolute(path: &std::path::Path) -> Result<String, CommandError> {
    let path = std::path::absolute(path)?;
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| CommandError::usage(format!("{} is not valid UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_says_what_where_and_on_which_worker() {
        let mut approval = Approval {
            id: 7,
            action: "exec".to_owned(),
            command: "echo \u{1b}]0;\u{7} #\nrm -rf /".to_owned(),
            cwd: "/work/space".to_owned(),
            worker: "box".to_owned(),
            reason: "no rule matches".to_owned(),
            rule: String::new(),
            rule_place: String::new(),
        };
        assert_eq!(
            approval_text(&approval),
            "? may it do this: exec\n  | echo \\u{1b}]0;\\u{7} #\n  | rm -rf /\n  \
             in /work/space\n  on box\n  because no rule matches\n  \
             allow it with `quintet approve 7`, refuse it with `quintet deny 7`"
        );
        approval.rule = "{ tool = \"exec\", action = \"allow\" }".to_owned();
        approval.rule_place = "at the end of [policy] rules".to_owned();
        assert!(
            approval_text(&approval).ends_with(
                "\n  allow it always with `quintet approve 7 --scope rule`, which writes \
                 at the end of [policy] rules:\n  | { tool = \"exec\", action = \"allow\" }"
            ),
            "{}",
            approval_text(&approval)
        );
    }
}
