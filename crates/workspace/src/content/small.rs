//! Small content, inside the database of its workspace.

use rusqlite::{Connection, OptionalExtension, params};

use super::cas::compress;
use crate::proto::ContentHash;

pub(crate) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS content (
        hash BLOB PRIMARY KEY,
        size INTEGER NOT NULL,
        packed INTEGER NOT NULL,
        data BLOB NOT NULL
    );";

pub(crate) fn put(db: &Connection, hash: &ContentHash, bytes: &[u8]) -> rusqlite::Result<()> {
    let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    // One that was damaged since is replaced.
    let mut insert = db.prepare_cached(
        "INSERT INTO content VALUES (?1, ?2, ?3, ?4) ON CONFLICT (hash) DO UPDATE \
         SET size = excluded.size, packed = excluded.packed, data = excluded.data \
         WHERE data <> excluded.data",
    )?;
    match compress(bytes) {
        Some(packed) => insert.execute(params![hash.as_bytes(), size, true, packed])?,
        None => insert.execute(params![hash.as_bytes(), size, false, bytes])?,
    };
    Ok(())
}

/// Reads and verifies; damaged content is the same as none, and `verify` tells.
pub(crate) fn get(db: &Connection, hash: &ContentHash) -> rusqlite::Result<Option<Vec<u8>>> {
    let row = db
        .prepare_cached("SELECT size, packed, data FROM content WHERE hash = ?1")?
        .query_row([hash.as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((size, packed, data)): Option<(i64, bool, Vec<u8>)> = row else {
        return Ok(None);
    };
    let bytes = match packed {
        true => zstd::bulk::decompress(
            &data,
            usize::try_from(size).unwrap_or_default().min(16 << 20),
        )
        .unwrap_or_default(),
        false => data,
    };
    Ok((ContentHash::of(&bytes) == *hash).then_some(bytes))
}

/// How long a content is.
pub(crate) fn size(db: &Connection, hash: &ContentHash) -> rusqlite::Result<Option<u64>> {
    db.prepare_cached("SELECT size FROM content WHERE hash = ?1")?
        .query_row([hash.as_bytes()], |row| row.get::<_, i64>(0))
        .optional()
        .map(|size| size.map(i64::cast_unsigned))
}

pub(crate) fn has(db: &Connection, hash: &ContentHash) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT 1 FROM content WHERE hash = ?1")?
        .exists([hash.as_bytes()])
}
