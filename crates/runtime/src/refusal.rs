//! Why a request was not carried out.

use crate::store::StoreError;

/// A refusal, with a sentence that says what was wrong and what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// The request itself is wrong.
    #[error("{0}")]
    Bad(String),
    /// What it names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It has already happened, or something stands in its way.
    #[error("{0}")]
    Conflict(String),
    /// Over a limit; later it may work.
    #[error("{0}")]
    OverLimit(String),
    /// The daemon's own fault.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Something else in the daemon failed.
    #[error("{0}")]
    Internal(String),
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

impl Refusal {
    /// No session has that number, or it is closed.
    pub(crate) fn no_session(session: u64) -> Self {
        Self::NotFound(format!("session {session} not found"))
    }

    /// No cron has that number.
    pub(crate) fn no_cron(id: u64) -> Self {
        Self::NotFound(format!("cron {id} not found; `quintet cron ls` lists them"))
    }
}
