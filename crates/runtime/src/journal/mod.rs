//! The journal: what happened, in order, once.
//!
//! Every event is one row with one number, written before anybody is told.
//! Numbers count up by one from 1 and are never used again. A stream that a
//! client sees is a [`Reader`]: rows after a cursor, live and historic alike.
//! The newest rows are kept in memory ([`Tail`]) so that followers cost no
//! query; a reader that falls behind them reads from disk until it has caught
//! up. A slow reader therefore costs its own time and nobody's memory.

mod kind;
mod reader;
mod report;
mod row;
mod tail;

pub use kind::Kind;
pub use reader::{Filter, Reader};
pub use report::{Bound, KindReport, PruneReport, Report, prune, report};
pub(crate) use row::rfc3339;
pub use row::{Entry, Row};
pub(crate) use tail::Tail;
