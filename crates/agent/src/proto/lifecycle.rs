//! The life of an instance, as one pure function.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where an instance stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its socket is bound and its process is being started.
    Deploying,
    /// The process runs and has not been given its `init` yet.
    Initializing,
    /// It waits for a message.
    Ready,
    /// It works on a message.
    Running,
    /// It was idle for too long and gets no more messages.
    ScalingDown,
    /// It was told to end.
    ShuttingDown,
    /// No process; a message starts one.
    Terminated,
    /// The process was lost; another one follows after a backoff, unless the breaker is open.
    Crashed,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deploying => "deploying",
            Self::Initializing => "initializing",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::ScalingDown => "scaling_down",
            Self::ShuttingDown => "shutting_down",
            Self::Terminated => "terminated",
            Self::Crashed => "crashed",
        })
    }
}

/// What moves an instance from one phase to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A message, or a person, wants the process.
    Start,
    /// The process runs.
    Spawned,
    /// It connected and has its `init`.
    Initialized,
    /// A message was handed to it.
    MessageSent,
    /// That message ended while the process goes on.
    TurnEnded,
    /// Nothing came for the idle timeout.
    IdleTimeout,
    /// `shutdown` is sent, or the process is to be killed on purpose.
    Stop,
    /// The process ended by itself with status 0.
    ExitedCleanly,
    /// The process was lost in any other way, or has to be given up.
    Lost,
    /// The backoff is over.
    Retry,
}

/// The phase after `trigger`, or `None` where the trigger means nothing in `phase`.
pub const fn next(phase: Phase, trigger: Trigger) -> Option<Phase> {
    use Phase as P;
    use Trigger as T;
    Some(match (phase, trigger) {
        (P::Terminated, T::Start) => P::Deploying,
        (P::Deploying, T::Spawned) => P::Initializing,
        (P::Initializing, T::Initialized) => P::Ready,
        (P::Ready, T::MessageSent) => P::Running,
        (P::Running, T::TurnEnded) => P::Ready,
        (P::Ready, T::IdleTimeout) => P::ScalingDown,
        (P::Initializing | P::Ready | P::Running | P::ScalingDown, T::Stop) => P::ShuttingDown,
        (P::Crashed, T::Stop) => P::Terminated,
        // An agent may end after a message: it is started again by the next one.
        (P::Ready | P::ScalingDown | P::ShuttingDown, T::ExitedCleanly) => P::Terminated,
        (P::ScalingDown | P::ShuttingDown, T::Lost) => P::Terminated,
        (P::Initializing | P::Running, T::ExitedCleanly) => P::Crashed,
        (P::Deploying | P::Initializing | P::Ready | P::Running, T::Lost) => P::Crashed,
        (P::Crashed, T::Retry) => P::Initializing,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Phase::*, Trigger::*, *};

    const PHASES: [Phase; 8] = [
        Deploying,
        Initializing,
        Ready,
        Running,
        ScalingDown,
        ShuttingDown,
        Terminated,
        Crashed,
    ];

    #[test]
    fn the_whole_table() {
        // One row a trigger; the columns are PHASES, None where nothing happens.
        let table: [(Trigger, [Option<Phase>; 8]); 10] = [
            (
                Start,
                [None, None, None, None, None, None, Some(Deploying), None],
            ),
            (
                Spawned,
                [Some(Initializing), None, None, None, None, None, None, None],
            ),
            (
                Initialized,
                [None, Some(Ready), None, None, None, None, None, None],
            ),
            (
                MessageSent,
                [None, None, Some(Running), None, None, None, None, None],
            ),
            (
                TurnEnded,
                [None, None, None, Some(Ready), None, None, None, None],
            ),
            (
                IdleTimeout,
                [None, None, Some(ScalingDown), None, None, None, None, None],
            ),
            (
                Stop,
                [
                    None,
                    Some(ShuttingDown),
                    Some(ShuttingDown),
                    Some(ShuttingDown),
                    Some(ShuttingDown),
                    None,
                    None,
                    Some(Terminated),
                ],
            ),
            (
                ExitedCleanly,
                [
                    None,
                    Some(Crashed),
                    Some(Terminated),
                    Some(Crashed),
                    Some(Terminated),
                    Some(Terminated),
                    None,
                    None,
                ],
            ),
            (
                Lost,
                [
                    Some(Crashed),
                    Some(Crashed),
                    Some(Crashed),
                    Some(Crashed),
                    Some(Terminated),
                    Some(Terminated),
                    None,
                    None,
                ],
            ),
            (
                Retry,
                [None, None, None, None, None, None, None, Some(Initializing)],
            ),
        ];
        for (trigger, row) in table {
            for (phase, expected) in PHASES.into_iter().zip(row) {
                assert_eq!(next(phase, trigger), expected, "{phase} on {trigger:?}");
            }
        }
    }
}
