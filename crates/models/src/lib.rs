//! The model gateway: agents ask here with a key of their own, providers are asked with theirs.
//!
//! - [`proto`] is the specification and the pure core: requests, streams, prices, retries, errors.
//! - [`Gateway`] serves `/v1/messages`, `/v1/chat/completions` and `/v1/models`; start there.
//! - [`Access`] is what the daemon brings: who has which key, what may be spent, where it is booked.
//!
//! A provider's key leaves this crate in one request header and nowhere else. This crate never
//! reads the environment and never logs a request or an answer.

mod access;
mod gateway;
pub mod proto;
mod reply;
mod secret;
#[cfg(feature = "test-server")]
pub mod test_server;
mod upstream;

pub use access::{Access, CallRecord, Caller};
pub use gateway::{Gateway, GatewayOptions};
pub use proto::prices::Price;
pub use proto::provider::{Provider, ProviderKind, Providers, RouteError};
pub use proto::usage::Usage;
pub use secret::ApiKey;
pub use upstream::ClientError;
