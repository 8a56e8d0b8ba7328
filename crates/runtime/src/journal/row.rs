//! One event.

use serde::Serialize;

use super::Kind;

/// An event to be written.
#[derive(Debug, Clone)]
pub struct Entry {
    pub(crate) session: Option<u64>,
    pub(crate) turn: Option<u64>,
    pub(crate) kind: Kind,
    pub(crate) data: Box<str>,
}

impl Entry {
    /// An event of no session; `data` becomes a JSON object.
    pub fn new(kind: Kind, data: &impl Serialize) -> Self {
        let data = serde_json::to_string(data).expect("journal data has string keys only");
        Self::raw(kind, data)
    }

    /// An event whose data is JSON text already.
    pub fn raw(kind: Kind, data: String) -> Self {
        Self {
            session: None,
            turn: None,
            kind,
            data: data.into(),
        }
    }

    /// Puts the event into a session.
    pub fn in_session(mut self, session: u64) -> Self {
        self.session = Some(session);
        self
    }

    /// Puts the event into a turn of a session.
    pub fn in_turn(mut self, session: u64, turn: u64) -> Self {
        self.session = Some(session);
        self.turn = Some(turn);
        self
    }
}

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The number.
    pub seq: u64,
    /// Microseconds since 1970.
    pub at: i64,
    /// The session, if it belongs to one.
    pub session: Option<u64>,
    /// The turn, if it belongs to one.
    pub turn: Option<u64>,
    /// What it tells of.
    pub kind: Kind,
    /// JSON text of an object.
    pub data: Box<str>,
}

impl Row {
    pub(crate) fn new(seq: u64, at: i64, entry: Entry) -> Self {
        Self {
            seq,
            at,
            session: entry.session,
            turn: entry.turn,
            kind: entry.kind,
            data: entry.data,
        }
    }

    /// Reads a row of `SELECT seq, at, session, turn, kind, data`.
    pub(crate) fn from_sql(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let unsigned = |value: Option<i64>| value.map(i64::cast_unsigned);
        Ok(Self {
            seq: row.get::<_, i64>(0)?.cast_unsigned(),
            at: row.get(1)?,
            session: unsigned(row.get(2)?),
            turn: unsigned(row.get(3)?),
            kind: Kind::from_name(row.get_ref(4)?.as_str()?),
            data: row.get(5)?,
        })
    }

    /// The time as RFC 3339 in UTC.
    pub fn rfc3339(&self) -> String {
        rfc3339(self.at)
    }

    /// The data as a value; null where it is not JSON, which this version never writes.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.data).unwrap_or_default()
    }

    /// What the row takes in memory, about.
    pub(crate) fn weight(&self) -> usize {
        self.data.len() + std::mem::size_of::<Self>()
    }
}

/// Microseconds since 1970 as RFC 3339 in UTC, all of the same length, so that they sort as text.
pub(crate) fn rfc3339(at: i64) -> String {
    jiff::Timestamp::from_microsecond(at)
        .map(|time| format!("{time:.6}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sort_as_text() {
        let times = [0, 1, 500_000, 1_000_000, 1_700_000_000_000_010];
        let written = times.map(rfc3339);
        assert!(written.is_sorted(), "{written:?}");
        assert_eq!(written[4], "2023-11-14T22:13:20.000010Z");
    }
}
