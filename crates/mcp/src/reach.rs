//! Why a server did not answer, in a sentence: what the client says itself names its own types.

use std::error::Error;

use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

/// Why a server did not begin as one.
pub(crate) fn not_begun(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => not_sent(error),
        ClientInitializeError::JsonRpcError(error) => error.message.to_string(),
        other => other.to_string(),
    }
}

/// Why a server gave no answer to a request.
pub(crate) fn unanswered(error: &ServiceError) -> String {
    match error {
        ServiceError::TransportSend(error) => not_sent(error),
        ServiceError::McpError(error) => error.message.to_string(),
        other => other.to_string(),
    }
}

fn not_sent(error: &DynamicTransportError) -> String {
    let error = error.error.as_ref();
    match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(error)) => match error.status() {
            Some(status) => format!("it answered with {status}"),
            None => format!("it can't be reached: {}", innermost(error)),
        },
        Some(StreamableHttpError::HttpStatus(error)) => {
            format!("it answered with the status {}", error.status)
        }
        Some(StreamableHttpError::AuthRequired(_)) => {
            "it asks for authorization, which `headers` can give it".to_owned()
        }
        Some(error) => innermost(error),
        None => innermost(error),
    }
}

/// The last of the causes, which is what happened; the others say where.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.last().unwrap_or(error).to_string()
}
