//! Error codes and the error that a server answers with.

use super::wire::ErrorMsg;

/// What kind of refusal an error is, in the sense of the HTTP status of that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// 400: the request is malformed; sending it again can't help.
    BadRequest,
    /// 401: the token is missing or wrong; the connection closes.
    Unauthorized,
    /// 404: what the request names does not exist.
    NotFound,
    /// 409: it has already happened, or something else holds the place.
    Conflict,
    /// 429: over a limit; later it may work.
    OverLimit,
    /// 500: the daemon's fault.
    Internal,
    /// A number that this version has no name for.
    Other(u32),
}

impl From<ErrorCode> for u32 {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::BadRequest => 400,
            ErrorCode::Unauthorized => 401,
            ErrorCode::NotFound => 404,
            ErrorCode::Conflict => 409,
            ErrorCode::OverLimit => 429,
            ErrorCode::Internal => 500,
            ErrorCode::Other(number) => number,
        }
    }
}

impl From<u32> for ErrorCode {
    fn from(number: u32) -> Self {
        match number {
            400 => Self::BadRequest,
            401 => Self::Unauthorized,
            404 => Self::NotFound,
            409 => Self::Conflict,
            429 => Self::OverLimit,
            500 => Self::Internal,
            other => Self::Other(other),
        }
    }
}

/// A refusal: what a server's method returns and a client receives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (error {})", u32::from(*code))]
pub struct ServerError {
    /// What kind of refusal it is; programs decide by this.
    pub code: ErrorCode,
    /// What was wrong and what to do, for people; never parsed.
    pub message: String,
}

impl ServerError {
    /// A refusal with any code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// 401: no access.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unauthorized, message)
    }

    /// 404: what the request names does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    /// 409: it has already happened.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, message)
    }

    /// 429: over a limit.
    pub fn over_limit(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::OverLimit, message)
    }

    /// 500: the daemon's fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// 400: a request of the schema that this server does not serve.
    pub fn unsupported(request: &str) -> Self {
        Self::bad_request(format!(
            "this server does not know the request {request}; is it older than the client?"
        ))
    }
}

impl From<ServerError> for ErrorMsg {
    fn from(error: ServerError) -> Self {
        Self {
            code: error.code.into(),
            message: error.message,
        }
    }
}

impl From<ErrorMsg> for ServerError {
    fn from(error: ErrorMsg) -> Self {
        Self {
            code: error.code.into(),
            message: error.message,
        }
    }
}
