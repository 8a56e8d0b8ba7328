//! What the tree held when it was last looked at, so that a start reads only
//! files that changed since.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, params};

use super::root::Fingerprint;
use crate::proto::{ContentHash, Kind, Node, WorkspacePath};

/// A path as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What it held.
    pub node: Node,
    /// What the file looked like.
    pub fingerprint: Fingerprint,
}

pub(crate) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS seen (
        path TEXT PRIMARY KEY,
        kind INTEGER NOT NULL,
        mode INTEGER NOT NULL,
        hash BLOB NOT NULL,
        size INTEGER NOT NULL,
        inode INTEGER NOT NULL,
        length INTEGER NOT NULL,
        mtime INTEGER NOT NULL,
        ctime INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;";

/// Brings a table of format 1 up to date: what it knows is read again, once.
pub(crate) const FROM_FORMAT_1: &str =
    "ALTER TABLE seen ADD COLUMN ctime INTEGER NOT NULL DEFAULT 0;";

pub(crate) fn load(db: &Connection) -> rusqlite::Result<Vec<(WorkspacePath, Seen)>> {
    let mut select =
        db.prepare("SELECT path, kind, mode, hash, size, inode, length, mtime, ctime FROM seen")?;
    let rows = select.query_map([], |row| {
        let fingerprint = Fingerprint {
            inode: row.get::<_, i64>(5)?.cast_unsigned(),
            size: row.get::<_, i64>(6)?.cast_unsigned(),
            mtime: row.get(7)?,
            ctime: row.get(8)?,
        };
        Ok((
            path_at(row, 0)?,
            Seen {
                node: node_at(row, 1)?,
                fingerprint,
            },
        ))
    })?;
    rows.collect()
}

pub(crate) fn put(
    db: &Connection,
    path: &WorkspacePath,
    seen: Option<&Seen>,
) -> rusqlite::Result<()> {
    let Some(Seen { node, fingerprint }) = seen else {
        db.prepare_cached("DELETE FROM seen WHERE path = ?1")?
            .execute([path.as_str()])?;
        return Ok(());
    };
    db.prepare_cached("INSERT OR REPLACE INTO seen VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?
        .execute(params![
            path.as_str(),
            node.kind,
            node.mode,
            node.hash,
            node.size.cast_signed(),
            fingerprint.inode.cast_signed(),
            fingerprint.size.cast_signed(),
            fingerprint.mtime,
            fingerprint.ctime,
        ])?;
    Ok(())
}

/// Remembers only how a path looks, and only if it is remembered to hold the same.
pub(crate) fn refresh(
    db: &Connection,
    path: &WorkspacePath,
    seen: Option<&Seen>,
) -> rusqlite::Result<()> {
    let Some(Seen { node, fingerprint }) = seen else {
        return Ok(());
    };
    db.prepare_cached(
        "UPDATE seen SET inode = ?1, length = ?2, mtime = ?3, ctime = ?4 \
         WHERE path = ?5 AND kind = ?6 AND mode = ?7 AND hash = ?8",
    )?
    .execute(params![
        fingerprint.inode.cast_signed(),
        fingerprint.size.cast_signed(),
        fingerprint.mtime,
        fingerprint.ctime,
        path.as_str(),
        node.kind,
        node.mode,
        node.hash,
    ])?;
    Ok(())
}

pub(crate) fn path_at(row: &Row<'_>, index: usize) -> rusqlite::Result<WorkspacePath> {
    let text: String = row.get(index)?;
    WorkspacePath::parse(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(
            index,
            rusqlite::types::Type::Text,
            Box::new(error),
        )
    })
}

/// Reads kind, mode, hash and size from four columns.
pub(crate) fn node_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Node> {
    Ok(Node {
        kind: row.get(index)?,
        mode: row.get(index + 1)?,
        hash: row.get(index + 2)?,
        size: row.get::<_, i64>(index + 3)?.cast_unsigned(),
    })
}

/// The same, where a missing kind stands for a path that is gone.
pub(crate) fn optional_node_at(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Node>> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        _ => node_at(row, index).map(Some),
    }
}

impl ToSql for Kind {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let number = match self {
            Self::File => 0i64,
            Self::Directory => 1,
            Self::Symlink => 2,
        };
        Ok(number.into())
    }
}

impl FromSql for Kind {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_i64()? {
            0 => Ok(Self::File),
            1 => Ok(Self::Directory),
            2 => Ok(Self::Symlink),
            other => Err(FromSqlError::OutOfRange(other)),
        }
    }
}

impl ToSql for ContentHash {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.as_bytes())))
    }
}

impl FromSql for ContentHash {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes = value.as_blob()?;
        <[u8; 32]>::try_from(bytes)
            .map(Self::from_bytes)
            .map_err(|_| FromSqlError::InvalidType)
    }
}
