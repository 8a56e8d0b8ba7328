//! A WebSocket as this plane sees it.
//!
//! Both ends take any stream and sink of [`WsMessage`]; [`WsSocket`] is the one that is used.

pub use quintet_framing::socket::{MessageLimit, Role, WsError, WsMessage, WsSocket};

/// Close codes that this plane sends.
pub mod close {
    pub use quintet_framing::socket::close::{
        GOING_AWAY, NORMAL, NOT_UTF8, POLICY, PROTOCOL, TOO_BIG, TRY_AGAIN_LATER,
    };

    /// Under v2, of this plane's own: another connection registered with the same id. A worker that
    /// dialled again would take the name back, and so on for ever. Under v1 it is [`POLICY`].
    pub const REPLACED: u16 = 4001;
}
