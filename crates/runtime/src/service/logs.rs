//! What an agent's process logged.

use std::sync::Arc;

use async_stream::stream;
use futures_util::Stream;
use quintet_agent::logs::{Followed, LogLine as AgentLine};
use quintet_control::Answer;
use quintet_control::wire::{AgentLogsMsg, LogLine};

use crate::daemon::Runtime;
use crate::refusal::Refusal;

/// Lines shown when the client does not say how many.
const ALL_LINES: usize = 1_000_000;

impl Runtime {
    pub(super) fn agent_logs(
        self: &Arc<Self>,
        request: &AgentLogsMsg,
    ) -> impl Stream<Item = Answer<LogLine>> + Send + use<> {
        let this = Arc::clone(self);
        let agent_id = request.agent_id.clone();
        let count = request.lines.map_or(ALL_LINES, |lines| lines as usize);
        let follow = request.follow;
        stream! {
            let log = match this.instance_log(&agent_id, follow).await {
                Ok(log) => log,
                Err(refusal) => {
                    yield Err(refusal.into());
                    return;
                }
            };
            let (lines, mut follower) = match log.tail(count).await {
                Ok(tail) => tail,
                Err(error) => {
                    yield Err(Refusal::Internal(format!("the log can't be read: {error}")).into());
                    return;
                }
            };
            for line in &lines {
                yield Ok(shown(line));
            }
            if !follow {
                return;
            }
            // What follows ends with the instance.
            drop(log);
            while let Some(next) = follower.next().await {
                yield Ok(match next {
                    Followed::Line(line) => shown(&line),
                    Followed::Missed(count) => LogLine {
                        text: format!("... {count} lines went by; they are in the log files"),
                        source: "supervisor".to_owned(),
                        level: "warn".to_owned(),
                        at: String::new(),
                        message: format!("{count} lines went by; they are in the log files"),
                    },
                });
            }
        }
    }
}

fn shown(line: &AgentLine) -> LogLine {
    let module = match line.module.as_str() {
        "" => String::new(),
        module => format!(" {module}:"),
    };
    LogLine {
        text: format!("{} {:<5}{module} {}", line.at, line.level, line.message),
        source: line.source.as_str().to_owned(),
        level: line.level.clone(),
        at: line.at.clone(),
        message: line.message.clone(),
    }
}
