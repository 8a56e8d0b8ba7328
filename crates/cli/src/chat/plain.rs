//! The conversation in a pipe: each line of stdin is a message, the answers are text.

use std::process::ExitCode;

use quintet_control::Client;
use quintet_control::wire::stream_event::Event;
use quintet_control::wire::{ReplyToAskMsg, StreamMsg};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use super::SENDER;
use crate::commands::Context;
use crate::commands::chat::Choice;
use crate::commands::send::Shown;
use crate::connect;
use crate::error::CommandError;
use crate::turn::{Opening, Seen, Turn};

/// Answers every line until stdin ends; a turn that fails ends it with its error.
pub(crate) async fn run(context: &Context, choice: Choice) -> Result<ExitCode, CommandError> {
    let Choice {
        agent,
        mut session,
        cwd,
    } = choice;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line.trim().is_empty() {
            continue;
        }
        let opening = Opening::Say(StreamMsg {
            agent: agent.clone(),
            content: line,
            session,
            sender: Some(SENDER.to_owned()),
            cwd: cwd.clone(),
            new_chat: session.is_none(),
            ..StreamMsg::default()
        });
        let turn = Turn::open(&context.home, opening).await?;
        session = answer(context, turn, &mut lines).await?.or(session);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one answer; each question takes the next line of stdin as its reply.
async fn answer(
    context: &Context,
    mut turn: Turn,
    lines: &mut Lines<BufReader<Stdin>>,
) -> Result<Option<u64>, CommandError> {
    let mut shown = Shown::new(context.output, false);
    while let Some(seen) = turn.next().await? {
        if let Some(end) = shown.seen(&seen, turn.session())? {
            return if end.error.is_empty() {
                Ok(turn.session())
            } else {
                let error = CommandError::failed(end.error);
                Err(match turn.session() {
                    Some(session) if end.retryable => {
                        error.hint(format!("run it again with `quintet retry {session}`"))
                    }
                    _ => error,
                })
            };
        }
        let Seen::Event(event) = seen else { continue };
        if let (Some(Event::AskUser(ask)), Some(session)) = (event.event, turn.session()) {
            let mut replies = Vec::new();
            for _ in 0..ask.questions.len().max(1) {
                let Some(reply) = lines.next_line().await? else {
                    return Err(CommandError::failed(
                        "the agent asks, and stdin has no line left to answer",
                    )
                    .hint(format!("answer with `quintet reply {session} TEXT`")));
                };
                replies.push(reply);
            }
            let request = ReplyToAskMsg {
                session,
                content: replies.join("\n"),
                ask: ask.ask,
            };
            connect::daemon(&context.home)
                .await?
                .reply_to_ask(request)
                .await?;
        }
    }
    Err(
        CommandError::failed("the daemon ended the stream before the turn was over")
            .hint("`quintet events` shows what became of it"),
    )
}
