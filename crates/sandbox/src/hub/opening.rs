//! Streams that their worker has not accepted yet.

use super::conn::{HubStream, StreamEvent};
use crate::proto::frame::{Body, Opened, Outcome};

/// What a worker says to a stream that was opened.
pub(super) enum Answer {
    Opened(HubStream, Opened),
    Ended(Outcome),
    /// Nothing: its connection is gone.
    Lost(HubStream),
}

/// What becomes of a job when nobody waits for the answer any more. Without a word it would run on
/// as if it were read.
#[derive(Debug, Clone, Copy)]
pub(super) enum GivenUp {
    /// It has just begun.
    Ended,
    /// It was there before.
    Left,
}

/// Waits for the worker's answer.
pub(super) async fn answer(stream: HubStream, given_up: GivenUp) -> Answer {
    let mut unanswered = Unanswered {
        stream: Some(stream),
        given_up,
    };
    let event = match &mut unanswered.stream {
        Some(stream) => stream.next().await,
        None => None,
    };
    match (unanswered.stream.take(), event) {
        (Some(stream), Some(StreamEvent::Opened(opened))) => Answer::Opened(stream, opened),
        (Some(stream), None) => Answer::Lost(stream),
        (_, Some(StreamEvent::End(end))) => Answer::Ended(end.outcome),
        _ => Answer::Ended(Outcome::Complete),
    }
}

struct Unanswered {
    stream: Option<HubStream>,
    given_up: GivenUp,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            match self.given_up {
                GivenUp::Ended => {
                    stream.urgent(Body::Cancel);
                    stream.urgent(Body::Done);
                }
                GivenUp::Left => stream.urgent(Body::Detach),
            }
        }
    }
}
