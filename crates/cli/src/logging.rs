//! Log lines on stderr: `-v`, `-q`, `--log json`, and `RUST_LOG` for finer choices.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{GlobalArgs, LogFormat};
use crate::output;

/// How much a command logs before `-v` and `-q` are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Talkative {
    /// A command that prints its own result: warnings only.
    Command,
    /// The daemon: what it does is in its log.
    Daemon,
}

pub(crate) fn start(global: &GlobalArgs, talkative: Talkative) {
    let named = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = filter(level(global, talkative), &named);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(colour());
    // A second subscriber in one process can only come from a test; the first one stays.
    let _ = match global.log {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// What is logged: at the level, and as `RUST_LOG` says. rmcp tells of every connection and request
/// of every turn at INFO, which is nothing to a person, and at a stop it calls those that it ends
/// errors.
fn filter(level: LevelFilter, named: &str) -> EnvFilter {
    let rmcp = match level {
        LevelFilter::INFO => LevelFilter::OFF,
        level => level,
    };
    let by_level = format!("{level},rmcp={rmcp}");
    let directives = if named.is_empty() { &by_level } else { named };
    EnvFilter::builder().parse_lossy(directives)
}

fn level(global: &GlobalArgs, talkative: Talkative) -> LevelFilter {
    const LEVELS: [LevelFilter; 6] = [
        LevelFilter::OFF,
        LevelFilter::ERROR,
        LevelFilter::WARN,
        LevelFilter::INFO,
        LevelFilter::DEBUG,
        LevelFilter::TRACE,
    ];
    let start: usize = match talkative {
        Talkative::Command => 2,
        Talkative::Daemon => 3,
    };
    let level = (start + usize::from(global.verbose)).saturating_sub(usize::from(global.quiet));
    LEVELS[level.min(LEVELS.len() - 1)]
}

fn colour() -> bool {
    output::stderr_is_terminal()
        && anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rmcp_is_heard_when_it_is_asked_for() {
        for (level, named, want) in [
            (LevelFilter::INFO, "", "rmcp=off,info"),
            (LevelFilter::ERROR, "", "rmcp=error,error"),
            (LevelFilter::DEBUG, "", "rmcp=debug,debug"),
            (LevelFilter::INFO, "rmcp=trace,info", "rmcp=trace,info"),
        ] {
            assert_eq!(filter(level, named).to_string(), want, "{named}");
        }
    }

    #[test]
    fn verbose_and_quiet_move_the_level() {
        for (verbose, quiet, talkative, want) in [
            (0, 0, Talkative::Command, LevelFilter::WARN),
            (0, 0, Talkative::Daemon, LevelFilter::INFO),
            (1, 0, Talkative::Daemon, LevelFilter::DEBUG),
            (9, 0, Talkative::Command, LevelFilter::TRACE),
            (0, 2, Talkative::Command, LevelFilter::OFF),
            (0, 9, Talkative::Daemon, LevelFilter::OFF),
        ] {
            let global = GlobalArgs {
                home: None,
                verbose,
                quiet,
                log: LogFormat::Text,
            };
            assert_eq!(level(&global, talkative), want);
        }
    }
}
