//! The conversation as blocks, built from the journal alone.
//!
//! Memory is bounded: the oldest blocks are left out of view past [`MAX_BLOCKS`], and a block
//! keeps the last [`MAX_BLOCK_TEXT`] bytes. The journal has the whole.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde_json::Value;

use super::event::{Event, FileChange, Message, Purpose, ToolResult, TurnEnd, What};

pub(crate) const MAX_BLOCKS: usize = 4_000;
pub(crate) const MAX_BLOCK_TEXT: usize = 512 * 1024;

/// One piece of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    You(Said),
    Steer {
        text: String,
    },
    Answer {
        text: String,
    },
    Thinking {
        text: String,
    },
    Tool(Tool),
    Terminal {
        text: String,
    },
    Code {
        language: String,
        code: String,
    },
    File(FileChange),
    /// Something that happened, in one line.
    Note {
        text: String,
        tone: Tone,
    },
}

/// A message for the agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Said {
    pub(crate) message: u64,
    pub(crate) sender: String,
    pub(crate) text: String,
    pub(crate) state: SaidState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SaidState {
    /// In the queue.
    Waiting,
    /// The agent has it.
    Heard,
    /// Taken out of the queue.
    Removed,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) call_id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) state: ToolState,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ToolState {
    Running {
        since: Timestamp,
        /// What it has printed so far.
        live: String,
    },
    Done {
        output: String,
        millis: u64,
    },
    Failed {
        output: String,
        millis: u64,
    },
    /// The turn ended before its result came.
    Abandoned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Bad,
}

/// A block and what the view needs to keep it drawn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Names the entry for as long as the conversation is open.
    pub(crate) id: u64,
    /// Counts up with every change, so that a drawing can be kept.
    pub(crate) version: u64,
    pub(crate) unfolded: bool,
    pub(crate) block: Block,
}

impl Entry {
    /// Whether the block has more to show than its first line.
    pub(crate) fn folds(&self) -> bool {
        match &self.block {
            Block::Thinking { .. } | Block::Tool(_) => true,
            Block::File(change) => change.diff.is_some(),
            _ => false,
        }
    }
}

/// The conversation so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Transcript {
    entries: Vec<Entry>,
    /// How many of the oldest are no longer kept.
    left_out: usize,
    /// The messages in the queue, in the order in which they are taken.
    waiting: VecDeque<(u64, Purpose)>,
    /// The turn makes a summary: it is shown when it is whole.
    summarising: bool,
    changes: u64,
}

impl Transcript {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Takes in what happened; what is no part of the conversation is skipped.
    pub(crate) fn apply(&mut self, event: Event) {
        match event.what {
            What::Message(message) => self.message(message),
            What::MessageEdited(edited) => self.said(edited.id, |said| said.text = edited.text),
            What::MessageRemoved { message } => {
                self.waiting.retain(|(id, _)| *id != message);
                self.said(message, |said| said.state = SaidState::Removed);
            }
            What::TurnStarted => self.turn_started(),
            What::TurnEnded(end) => self.turn_ended(&end),
            What::Steer { text } => self.push(Block::Steer { text }),
            What::Cancel => self.note("you asked the agent to stop", Tone::Plain),
            What::Text { .. } | What::WholeText { .. } | What::Thinking { .. }
                if self.summarising => {}
            What::Text { text } | What::WholeText { text } => self.text(&text),
            What::Thinking { text } => self.thinking(&text),
            What::ToolCall {
                call_id,
                name,
                arguments,
            } => self.push(Block::Tool(Tool {
                call_id,
                name,
                arguments,
                state: ToolState::Running {
                    since: event.at,
                    live: String::new(),
                },
            })),
            What::ToolResult(result) => self.tool_result(result),
            What::Code { language, code } => self.push(Block::Code { language, code }),
            What::File(change) => self.push(Block::File(change)),
            What::Terminal { data, tool: None } => self.terminal(&data),
            What::Terminal {
                data,
                tool: Some(call_id),
            } => self.tool_output(&call_id, &data),
            What::Ask(ask) => {
                for question in ask.questions {
                    self.note(format!("asks: {}", question.question), Tone::Plain);
                }
            }
            What::AskOver { answer, .. } => match answer {
                Some(answer) => self.note(format!("answered: {}", readable(&answer)), Tone::Plain),
                None => self.note("the question was withdrawn", Tone::Plain),
            },
            What::Approval(approval) => {
                self.note(format!("wants to run: {}", approval.command), Tone::Plain);
            }
            What::ApprovalOver { approved, .. } => match approved {
                Some(true) => self.note("approved", Tone::Plain),
                Some(false) => self.note("denied", Tone::Bad),
                None => self.note("the approval is no longer needed", Tone::Plain),
            },
            What::Closed => self.note("the session was closed", Tone::Bad),
            What::Compacted { summary } => {
                self.note(
                    "the agent's memory was replaced by this summary (/undo-compact puts it back)",
                    Tone::Plain,
                );
                self.push(Block::Answer { text: summary });
            }
            What::CompactionUndone => self.note("the agent's full memory is back", Tone::Plain),
            What::Stalled { text } | What::Remark { text } => self.note(text, Tone::Plain),
            What::Titled { .. } | What::Other => {}
        }
    }

    /// Folds or unfolds every block that `which` picks; unfolds unless all are unfolded.
    pub(crate) fn toggle(&mut self, which: impl Fn(&Block) -> bool) {
        let picked = |entry: &&mut Entry| entry.folds() && which(&entry.block);
        let unfold = self
            .entries
            .iter_mut()
            .filter(picked)
            .any(|entry| !entry.unfolded);
        self.changes += 1;
        for entry in self.entries.iter_mut().filter(picked) {
            entry.unfolded = unfold;
            entry.version = self.changes;
        }
    }

    /// Folds or unfolds one block.
    pub(crate) fn toggle_one(&mut self, index: usize) {
        self.changes += 1;
        if let Some(entry) = self.entries.get_mut(index).filter(|entry| entry.folds()) {
            entry.unfolded = !entry.unfolded;
            entry.version = self.changes;
        }
    }

    fn push(&mut self, block: Block) {
        self.changes += 1;
        self.entries.push(Entry {
            id: self.changes,
            version: self.changes,
            unfolded: false,
            block,
        });
        if self.entries.len() > MAX_BLOCKS {
            // A quarter at once, so that a long conversation is not moved for every block.
            let surplus = MAX_BLOCKS / 4;
            self.entries.drain(..surplus);
            self.left_out += surplus;
        }
    }

    pub(crate) fn note(&mut self, text: impl Into<String>, tone: Tone) {
        self.push(Block::Note {
            text: text.into(),
            tone,
        });
    }

    fn message(&mut self, message: Message) {
        self.waiting.push_back((message.id, message.purpose));
        match message.purpose {
            Purpose::Message => self.push(Block::You(Said {
                message: message.id,
                sender: message.sender,
                text: message.text,
                state: SaidState::Waiting,
            })),
            Purpose::Compaction => self.note("the agent is asked for a summary", Tone::Plain),
        }
    }

    fn turn_started(&mut self) {
        let Some((message, purpose)) = self.waiting.pop_front() else {
            return;
        };
        self.summarising = purpose == Purpose::Compaction;
        self.heard(message);
    }

    fn text(&mut self, more: &str) {
        match self.last() {
            Some(Block::Answer { text }) => append(text, more),
            _ => self.push(Block::Answer {
                text: more.to_owned(),
            }),
        }
    }

    fn thinking(&mut self, more: &str) {
        match self.last() {
            Some(Block::Thinking { text }) => append(text, more),
            _ => self.push(Block::Thinking {
                text: more.to_owned(),
            }),
        }
    }

    fn terminal(&mut self, more: &str) {
        match self.last() {
            Some(Block::Terminal { text }) => append(text, more),
            _ => self.push(Block::Terminal {
                text: more.to_owned(),
            }),
        }
    }

    /// Gives output to the call that printed it; to the newest that runs where that is not known.
    fn tool_output(&mut self, call_id: &str, more: &str) {
        self.changes += 1;
        let running = self
            .entries
            .iter_mut()
            .rev()
            .find_map(|entry| match &mut entry.block {
                Block::Tool(Tool {
                    call_id: id,
                    state: ToolState::Running { live, .. },
                    ..
                }) if call_id.is_empty() || id == call_id => Some((&mut entry.version, live)),
                _ => None,
            });
        match running {
            Some((version, live)) => {
                *version = self.changes;
                append(live, more);
            }
            None => self.terminal(more),
        }
    }

    /// The last block, about to change.
    fn last(&mut self) -> Option<&mut Block> {
        self.changes += 1;
        let entry = self.entries.last_mut()?;
        entry.version = self.changes;
        Some(&mut entry.block)
    }

    fn said(&mut self, message: u64, change: impl FnOnce(&mut Said)) {
        self.changes += 1;
        let found = self
            .entries
            .iter_mut()
            .rev()
            .find_map(|entry| match &mut entry.block {
                Block::You(said) if said.message == message => Some((&mut entry.version, said)),
                _ => None,
            });
        if let Some((version, said)) = found {
            *version = self.changes;
            change(said);
        }
    }

    /// A message that waited is shown where its turn begins, not where it was typed.
    fn heard(&mut self, message: u64) {
        let waiting = self
            .entries
            .iter()
            .rposition(|entry| matches!(&entry.block, Block::You(said) if said.message == message));
        let Some(index) = waiting else { return };
        let mut entry = self.entries.remove(index);
        if let Block::You(said) = &mut entry.block {
            said.state = SaidState::Heard;
        }
        self.push(entry.block);
    }

    fn tool_result(&mut self, result: ToolResult) {
        self.changes += 1;
        let changes = self.changes;
        let found = self
            .entries
            .iter_mut()
            .rev()
            .find_map(|entry| match &mut entry.block {
                Block::Tool(tool) if tool.call_id == result.call_id => {
                    Some((&mut entry.version, tool))
                }
                _ => None,
            });
        let Some((version, tool)) = found else { return };
        *version = changes;
        let mut output = match result.output {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        };
        keep_end(&mut output);
        let millis = result.duration_ms;
        tool.state = if result.is_error {
            ToolState::Failed { output, millis }
        } else {
            ToolState::Done { output, millis }
        };
    }

    fn turn_ended(&mut self, end: &TurnEnd) {
        self.changes += 1;
        for entry in &mut self.entries {
            if let Block::Tool(tool) = &mut entry.block
                && matches!(tool.state, ToolState::Running { .. })
            {
                tool.state = ToolState::Abandoned;
                entry.version = self.changes;
            }
        }
        self.summarising = false;
        if !end.error.is_empty() {
            let retry = if end.retryable {
                " (/retry runs it again)"
            } else {
                ""
            };
            self.note(format!("{}{retry}", end.error), Tone::Bad);
        } else if end.finish_reason == "cancelled" {
            self.note("stopped", Tone::Plain);
        } else if end.finish_reason == "max_tokens" {
            self.note("the answer was cut at the model's limit", Tone::Bad);
        } else if end.finish_reason == "budget" {
            self.note("stopped: the budget is used up", Tone::Bad);
        }
    }
}

/// Several answers come as JSON lists, one for each question.
fn readable(answer: &str) -> String {
    match serde_json::from_str::<Vec<Vec<String>>>(answer) {
        Ok(lists) => {
            let answers: Vec<String> = lists.iter().map(|list| list.join(", ")).collect();
            answers.join("; ")
        }
        Err(_) => answer.to_owned(),
    }
}

fn append(text: &mut String, more: &str) {
    text.push_str(more);
    keep_end(text);
}

fn keep_end(text: &mut String) {
    if text.len() > MAX_BLOCK_TEXT {
        let mut from = text.len() - MAX_BLOCK_TEXT / 2;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.replace_range(..from, "… (the beginning is left out here)\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(all: impl IntoIterator<Item = What>) -> Transcript {
        let mut transcript = Transcript::default();
        for (seq, what) in all.into_iter().enumerate() {
            transcript.apply(Event {
                seq: seq as u64 + 1,
                at: Timestamp::UNIX_EPOCH,
                what,
            });
        }
        transcript
    }

    fn blocks(transcript: &Transcript) -> Vec<Block> {
        transcript
            .entries()
            .iter()
            .map(|entry| entry.block.clone())
            .collect()
    }

    fn message(id: u64, text: &str) -> What {
        What::Message(Message {
            id,
            text: text.into(),
            sender: "user".into(),
            purpose: Purpose::Message,
        })
    }

    fn text(text: &str) -> What {
        What::Text { text: text.into() }
    }

    fn said(message: u64, text: &str, state: SaidState) -> Block {
        Block::You(Said {
            message,
            sender: "user".into(),
            text: text.into(),
            state,
        })
    }

    fn answer(text: &str) -> Block {
        Block::Answer { text: text.into() }
    }

    #[test]
    fn pieces_of_text_join() {
        let transcript = told([
            message(1, "hi"),
            What::TurnStarted,
            text("Hel"),
            text("lo"),
            What::WholeText {
                text: " again".into(),
            },
            What::TurnEnded(TurnEnd::default()),
        ]);
        assert_eq!(
            blocks(&transcript),
            [said(1, "hi", SaidState::Heard), answer("Hello again")]
        );
    }

    #[test]
    fn a_waiting_message_moves_to_where_its_turn_begins() {
        let transcript = told([
            message(1, "first"),
            What::TurnStarted,
            message(2, "second"),
            message(3, "third"),
            What::MessageRemoved { message: 3 },
            text("one"),
            What::TurnEnded(TurnEnd::default()),
            What::TurnStarted,
            text("two"),
        ]);
        assert_eq!(
            blocks(&transcript),
            [
                said(1, "first", SaidState::Heard),
                said(3, "third", SaidState::Removed),
                answer("one"),
                said(2, "second", SaidState::Heard),
                answer("two"),
            ]
        );
    }

    #[test]
    fn a_summary_is_shown_when_it_is_whole() {
        let transcript = told([
            What::Message(Message {
                id: 1,
                text: "Summarise".into(),
                sender: "daemon".into(),
                purpose: Purpose::Compaction,
            }),
            What::TurnStarted,
            text("half a summ"),
            What::TurnEnded(TurnEnd::default()),
            What::Compacted {
                summary: "A summary.".into(),
            },
            message(2, "go on"),
            What::TurnStarted,
            text("yes"),
        ]);
        assert!(!blocks(&transcript).contains(&answer("half a summ")));
        assert!(blocks(&transcript).contains(&answer("A summary.")));
        assert_eq!(
            blocks(&transcript)[3..],
            [said(2, "go on", SaidState::Heard), answer("yes")]
        );
    }

    #[test]
    fn results_find_their_call_in_any_order_and_the_rest_is_abandoned() {
        let call = |id: &str| What::ToolCall {
            call_id: id.into(),
            name: "exec".into(),
            arguments: "{}".into(),
        };
        let transcript = told([
            call("a"),
            call("b"),
            call("c"),
            What::ToolResult(ToolResult {
                call_id: "b".into(),
                output: "late".into(),
                is_error: true,
                duration_ms: 7,
            }),
            What::ToolResult(ToolResult {
                call_id: "a".into(),
                output: Value::Null,
                is_error: false,
                duration_ms: 9,
            }),
            What::TurnEnded(TurnEnd::default()),
        ]);
        let states: Vec<_> = transcript
            .entries()
            .iter()
            .filter_map(|entry| match &entry.block {
                Block::Tool(tool) => Some(tool.state.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(
            states,
            [
                ToolState::Done {
                    output: String::new(),
                    millis: 9
                },
                ToolState::Failed {
                    output: "late".into(),
                    millis: 7
                },
                ToolState::Abandoned,
            ]
        );
    }

    #[test]
    fn output_of_a_call_that_runs_is_its_own() {
        let call = |id: &str| What::ToolCall {
            call_id: id.into(),
            name: "exec".into(),
            arguments: "{}".into(),
        };
        let output = |id: &str, data: &str| What::Terminal {
            data: data.into(),
            tool: Some(id.into()),
        };
        let transcript = told([
            call("a"),
            call("b"),
            output("a", "one\n"),
            output("", "newest\n"),
            output("a", "two\n"),
        ]);
        let live: Vec<_> = transcript
            .entries()
            .iter()
            .filter_map(|entry| match &entry.block {
                Block::Tool(Tool {
                    state: ToolState::Running { live, .. },
                    ..
                }) => Some(live.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(live, ["one\ntwo\n", "newest\n"]);
        let nobody = told([output("gone", "alone")]);
        assert_eq!(
            blocks(&nobody),
            [Block::Terminal {
                text: "alone".into()
            }]
        );
    }

    #[test]
    fn a_failed_turn_says_why() {
        let transcript = told([What::TurnEnded(TurnEnd {
            error: "the agent crashed".into(),
            retryable: true,
            ..TurnEnd::default()
        })]);
        assert_eq!(
            blocks(&transcript),
            [Block::Note {
                text: "the agent crashed (/retry runs it again)".into(),
                tone: Tone::Bad
            }]
        );
    }

    #[test]
    fn memory_stays_bounded() {
        let long = "x".repeat(MAX_BLOCK_TEXT);
        let transcript = told([text(&long), text("é end")]);
        let blocks = blocks(&transcript);
        let [Block::Answer { text: kept }] = blocks.as_slice() else {
            panic!("one answer");
        };
        assert!(kept.len() < MAX_BLOCK_TEXT && kept.ends_with("é end"));

        let transcript = told((0..MAX_BLOCKS as u64 + 1).map(|id| message(id, "hi")));
        assert_eq!(transcript.left_out(), MAX_BLOCKS / 4);
        assert_eq!(transcript.entries().len(), MAX_BLOCKS + 1 - MAX_BLOCKS / 4);
    }

    #[test]
    fn folding_goes_by_kind_and_one_by_one() {
        let mut transcript = told([
            What::Thinking { text: "hm".into() },
            text("so"),
            What::Thinking {
                text: "hm again".into(),
            },
        ]);
        let unfolded = |transcript: &Transcript| -> Vec<bool> {
            transcript
                .entries()
                .iter()
                .map(|entry| entry.unfolded)
                .collect()
        };
        transcript.toggle_one(0);
        assert_eq!(unfolded(&transcript), [true, false, false]);
        transcript.toggle(|block| matches!(block, Block::Thinking { .. }));
        assert_eq!(unfolded(&transcript), [true, false, true]);
        transcript.toggle(|block| matches!(block, Block::Thinking { .. }));
        assert_eq!(unfolded(&transcript), [false, false, false]);
        transcript.toggle_one(1);
        assert_eq!(unfolded(&transcript), [false, false, false]);
    }
}
