//! Version 1: JSON text frames with chat text encrypted.
//!
//! | type | from | payload |
//! |---|---|---|
//! | `pairing_request` | UI | `pairing_code`, `client_pub?` |
//! | `pairing_result` | us | `ok`, `client_id`, `access_token`, `token_type`, `expires_in`, `e2e_required`, `e2e?` |
//! | `user_message` | UI | `access_token`, and `content` (+ `sender_id`) or `e2e` |
//! | `assistant_chunk` | us | `content` as a delta, or `e2e` |
//! | `assistant_final` | us | `content` as the whole text, or `e2e` |
//! | `tool_call` | us | `name`, `arguments`; `request_id` in the envelope |
//! | `tool_result` | us | `ok`, `result?`, `error?`; same `request_id` |
//! | `approval_request` | us | `action`, `reason?`; `request_id` |
//! | `approval_response` | UI | `access_token`, `approved`, `reason?`; `request_id` |
//! | `error` | us | `message`, `code?` |
//!
//! What is not one of these is answered with `error` and leaves the connection
//! open. After a pairing error and after `unauthorized` we close it.
//!
//! Text that was streamed ends with `assistant_final`, also where its turn
//! failed and an `error` says why after it: until then a client takes no input.

mod e2e;
mod encode;
mod envelope;

pub use e2e::{ALG, DecryptError, E2eKey, Sealed};
pub use encode::{Outer, PairingResult, ServerEvent, encode, encode_error, encode_pairing};
pub use envelope::{BadPayload, Body, ClientMessage, Envelope, Invalid, parse};

/// The longest message either way.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// What the real UI says where it means the device's current session.
pub const DEFAULT_SESSION: &str = "default";

/// An `error` event's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The bytes are no envelope of this protocol.
    InvalidEnvelope,
    /// The payload lacks something.
    InvalidPayload,
    /// The token is unknown, expired or revoked.
    Unauthorized,
    /// `client_pub` is no usable key.
    PairingInvalidClientPub,
    /// `client_pub` is missing and needed.
    PairingE2eRequired,
    /// Plain text where only ciphertext is taken.
    E2eRequired,
    /// Ciphertext from a device that has no key.
    E2eNotInitialized,
    /// The ciphertext does not open.
    E2eDecryptFailed,
    /// The nonce was used before.
    E2eReplayed,
    /// `e2e` has the wrong shape.
    InvalidE2ePayload,
    /// `e2e.alg` is another one.
    UnsupportedE2eAlg,
}

impl Code {
    /// The code on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidEnvelope => "invalid_envelope",
            Self::InvalidPayload => "invalid_payload",
            Self::Unauthorized => "unauthorized",
            Self::PairingInvalidClientPub => "pairing_invalid_client_pub",
            Self::PairingE2eRequired => "pairing_e2e_required",
            Self::E2eRequired => "e2e_required",
            Self::E2eNotInitialized => "e2e_not_initialized",
            Self::E2eDecryptFailed => "e2e_decrypt_failed",
            Self::E2eReplayed => "e2e_replayed",
            Self::InvalidE2ePayload => "invalid_e2e_payload",
            Self::UnsupportedE2eAlg => "unsupported_e2e_alg",
        }
    }
}
