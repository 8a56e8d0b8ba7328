//! What is about to be put in place, written down before, so that a kill in the
//! middle of it does not make local changes of it.
//!
//! All of a batch is one row, which takes a tenth of the time that a row for each
//! path takes: for each the sequence, the length of its path, the path, and one
//! byte that says what it will hold (0 nothing, 1 a file, 2 a directory, 3 a
//! symlink), behind which are mode, size and hash. Numbers are little-endian.

use rusqlite::Connection;

use super::database::{Durable, ReplicaDatabase};
use crate::history::HistoryError;
use crate::proto::replica::ApplyItem;
use crate::proto::{ContentHash, Kind, Node, WorkspacePath};
use crate::tree::seen::{optional_node_at, path_at};

/// A path, what it will hold, and the sequence of that.
pub(super) type Intent = (WorkspacePath, Option<Node>, u64);

pub(super) fn put(db: &Connection, items: &[ApplyItem]) -> rusqlite::Result<()> {
    let mut bytes = Vec::with_capacity(items.len() * 96);
    for item in items {
        write(&mut bytes, &item.path, item.node.as_ref(), item.sequence);
    }
    db.prepare_cached("INSERT INTO intended (items) VALUES (?1)")?
        .execute([bytes])?;
    Ok(())
}

pub(super) fn clear(db: &Connection) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM intended")?.execute([])?;
    Ok(())
}

/// What was intended when the program ended, which is forgotten.
pub(super) fn take(db: &mut ReplicaDatabase) -> Result<Vec<Intent>, HistoryError> {
    db.transact(Durable::No, |db| {
        let mut intents = Vec::new();
        let mut select = db.prepare("SELECT items FROM intended ORDER BY id")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let mut bytes = row.get_ref(0)?.as_blob()?;
            while let Some(intent) = read(&mut bytes) {
                intents.push(intent);
            }
        }
        // Where they were until format 2.
        let mut select =
            db.prepare("SELECT path, kind, mode, hash, size, sequence FROM intents")?;
        let rows = select.query_map([], |row| {
            let sequence = row.get::<_, i64>(5)?.cast_unsigned();
            Ok((path_at(row, 0)?, optional_node_at(row, 1)?, sequence))
        })?;
        for intent in rows {
            intents.push(intent?);
        }
        db.execute("DELETE FROM intents", [])?;
        clear(db)?;
        Ok(intents)
    })
}

fn write(bytes: &mut Vec<u8>, path: &WorkspacePath, node: Option<&Node>, sequence: u64) {
    let path = path.as_str();
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&(path.len() as u64).to_le_bytes());
    bytes.extend_from_slice(path.as_bytes());
    let Some(node) = node else {
        bytes.push(0);
        return;
    };
    bytes.push(match node.kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::Symlink => 3,
    });
    bytes.extend_from_slice(&node.mode.to_le_bytes());
    bytes.extend_from_slice(&node.size.to_le_bytes());
    bytes.extend_from_slice(node.hash.as_bytes());
}

/// The next one; `None` at the end, or where it makes no sense.
fn read(bytes: &mut &[u8]) -> Option<Intent> {
    fn number<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (number, rest) = bytes.split_first_chunk::<N>()?;
        *bytes = rest;
        Some(*number)
    }
    let sequence = u64::from_le_bytes(number(bytes)?);
    let length = usize::try_from(u64::from_le_bytes(number(bytes)?)).ok()?;
    let (path, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    let path = WorkspacePath::parse(std::str::from_utf8(path).ok()?).ok()?;
    let kind = match number(bytes)? {
        [0] => return Some((path, None, sequence)),
        [1] => Kind::File,
        [2] => Kind::Directory,
        [3] => Kind::Symlink,
        _ => return None,
    };
    let mode = u32::from_le_bytes(number(bytes)?);
    let size = u64::from_le_bytes(number(bytes)?);
    let hash = ContentHash::from_bytes(number(bytes)?);
    let node = Node {
        kind,
        mode,
        hash,
        size,
    };
    Some((path, Some(node), sequence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::replica::ContentSource;

    fn intent(path: &str, node: Option<Node>, sequence: u64) -> Intent {
        (WorkspacePath::parse(path).unwrap(), node, sequence)
    }

    #[test]
    fn intents_come_back_once_also_those_of_an_older_format() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replica.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(
            "CREATE TABLE intents (
                path TEXT PRIMARY KEY, kind INTEGER, mode INTEGER, hash BLOB, size INTEGER,
                sequence INTEGER NOT NULL
            ) WITHOUT ROWID;
            INSERT INTO intents VALUES ('gone', NULL, NULL, NULL, NULL, 7);
            PRAGMA user_version = 2;",
        )
        .unwrap();
        drop(old);
        let mut db = ReplicaDatabase::open(&path).unwrap();
        let all = [
            intent("a", Some(Node::file(0o644, b"content")), 8),
            intent("b/c", Some(Node::directory(0o700)), u64::MAX),
            intent("b/\u{e4}", None, 9),
        ];
        let items = all.clone().map(|(path, node, sequence)| ApplyItem {
            path,
            sequence,
            node,
            content: ContentSource::Keep,
        });
        let batches = [&items[..2], &items[2..]];
        db.transact(Durable::No, |db| {
            batches.iter().try_for_each(|items| put(db, items))
        })
        .unwrap();
        drop(db);
        let mut db = ReplicaDatabase::open(&path).unwrap();
        let mut expected = all.to_vec();
        expected.push(intent("gone", None, 7));
        assert_eq!(take(&mut db).unwrap(), expected);
        assert_eq!(take(&mut db).unwrap(), []);
    }

    #[test]
    fn bytes_that_are_no_intents_are_none() {
        let mut bytes = Vec::new();
        let (path, node, sequence) = intent("a", Some(Node::file(0o644, b"content")), 8);
        write(&mut bytes, &path, node.as_ref(), sequence);
        for length in 0..bytes.len() {
            assert_eq!(read(&mut &bytes[..length]), None, "{length}");
        }
        assert_eq!(read(&mut &[255; 40][..]), None);
    }
}
