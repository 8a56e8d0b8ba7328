//! Which message is the last of a reply.

use super::ServerError;
use super::wire::{
    ClientExtension, ClientMessage, Done, ServerMessage, StreamEvent, client_extension::Request,
    client_message, server_extension::Reply, server_message, stream_event,
};

/// How many messages answer a request, and how the last is told.
///
/// An error is the last message of any reply. There are no request ids: both ends must agree on
/// where a reply ends, and this is the one place that says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyShape {
    /// One message.
    One,
    /// Stream events up to `end`: `stream` and `retry`.
    UntilEnd,
    /// Any number of messages, then `done`: the streams of the extension.
    UntilDone,
    /// Messages until the client goes away: `subscribe_events`.
    Endless,
}

impl ReplyShape {
    /// How `request` is answered.
    pub fn of(request: &ClientMessage) -> Self {
        use client_message::Msg;
        match &request.msg {
            Some(Msg::Stream(_)) => Self::UntilEnd,
            Some(Msg::SubscribeEvents(_)) => Self::Endless,
            Some(Msg::Extension(ClientExtension {
                request: Some(extension),
            })) => match extension {
                Request::Retry(_) => Self::UntilEnd,
                Request::Attach(_)
                | Request::Events(_)
                | Request::AgentLogs(_)
                | Request::Exec(_)
                | Request::Shell(_)
                | Request::Copy(_) => Self::UntilDone,
                _ => Self::One,
            },
            _ => Self::One,
        }
    }

    /// Whether `message` ends a reply of this shape.
    #[inline]
    pub fn is_last(self, message: &ServerMessage) -> bool {
        use server_message::Msg;
        match &message.msg {
            Some(Msg::Error(_)) => true,
            Some(Msg::Stream(StreamEvent {
                event: Some(stream_event::Event::End(_)),
                ..
            })) => matches!(self, Self::UntilEnd | Self::One),
            Some(Msg::Extension(extension)) if matches!(extension.reply, Some(Reply::Done(_))) => {
                matches!(self, Self::UntilDone | Self::One)
            }
            _ => self == Self::One,
        }
    }

    /// What stands in for the last message when a handler's stream ran dry without one.
    ///
    /// Only `done` is ever implied; a client must not take a lost end for a good one.
    pub fn closing(self) -> ServerMessage {
        match self {
            Self::UntilDone => Done {}.into(),
            Self::One => ServerError::internal("the request ended without an answer").into(),
            Self::UntilEnd => ServerError::internal(
                "the stream stopped before the turn's end; attach to the session to go on",
            )
            .into(),
            Self::Endless => {
                ServerError::internal("the subscription was ended by the daemon; subscribe again")
                    .into()
            }
        }
    }
}
