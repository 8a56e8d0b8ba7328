//! The gateway's specification and its pure core.
//!
//! # Participants
//! The **caller** is an agent with the key of its instance (`init.config.ensemble_api_key`). The
//! **provider** is a service that speaks one of two formats: Messages (Anthropic) or Chat
//! Completions (OpenAI and everything that speaks like it).
//!
//! # Flow
//! ```text
//! caller            gateway                              provider
//!   POST /v1/messages ->   key? budget? route            |
//!                          model renamed, key added   -> |
//!                          retried on 429 and 5xx     <- | 429, 529, ..
//!                          first event seen           <- | 200, events
//!   events, as they came <- metered, booked before the end
//! ```
//! A call in the provider's own format passes byte for byte: only `model` (and `stream_options`,
//! which asks for the usage) is replaced. In the other format it is translated ([`translate`]).
//! Nothing is retried once a byte of the answer was passed on.
//!
//! # Models
//! `provider/model`, or a bare name: see [`provider::Providers::routes`].
//!
//! # Limits
//! | what | limit | beyond it |
//! |---|---|---|
//! | request body | [`MAX_REQUEST`] | 413 |
//! | one event | [`MAX_EVENT`] | the answer ends with an error |
//! | an answer that is not streamed | [`MAX_ANSWER`] | 502 |
//! | silence of the provider | the gateway's idle deadline | the answer ends with an error |
//!
//! # Money
//! Decimals, from prices per million tokens ([`prices`]) and the usage that the stream reports
//! ([`meter`]). An answer that was cut off before its usage came is estimated from its text.
//!
//! # Secrets
//! A provider's key is in one header of one request. What a provider answers is searched for it,
//! and errors never carry it.
//!
//! This module does no I/O and reads no clock: time and randomness come in as arguments.

pub mod fault;
pub mod meter;
pub mod prices;
pub mod provider;
pub mod request;
pub mod retry;
pub mod sse;
pub mod translate;
pub mod usage;

/// The largest request body.
pub const MAX_REQUEST: usize = 32 * 1024 * 1024;

/// The largest event of a stream.
pub const MAX_EVENT: usize = 8 * 1024 * 1024;

/// The largest answer that is not streamed.
pub const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// What a caller or a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Chat Completions.
    Chat,
}
