//! States of a history, read beside whoever has the workspace open.

use std::collections::BTreeMap;

use crate::Place;
use crate::content::{Cas, Object};
use crate::history::{Checkpoint, HistoryReader};
use crate::master::WorkspaceError;
use crate::proto::{Node, WorkspacePath};

/// A version of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// What it holds.
    pub node: Node,
    /// When it was recorded, in milliseconds since 1970.
    pub at_millis: i64,
}

/// A history, for reading alone. It takes no lock and sees what is committed.
#[derive(Debug)]
pub struct Past {
    reader: HistoryReader,
    cas: Cas,
}

impl Past {
    /// Opens the history of a place.
    pub fn open(place: &Place) -> Result<Self, WorkspaceError> {
        Ok(Self {
            reader: HistoryReader::open(&place.state_dir.join("history.db"))?,
            cas: Cas::open(&place.cas_dir)?,
        })
    }

    /// The oldest and the newest sequence whose state can be shown.
    pub fn range(&self) -> Result<(u64, u64), WorkspaceError> {
        let newest = self.reader.sequence_at(i64::MAX)?.unwrap_or(0);
        Ok((self.reader.floor()?.min(newest), newest))
    }

    /// Every checkpoint, oldest first.
    pub fn checkpoints(&self) -> Result<Vec<Checkpoint>, WorkspaceError> {
        Ok(self.reader.checkpoints()?)
    }

    /// The last sequence recorded at or before a time, in milliseconds since 1970.
    pub fn sequence_at(&self, at_millis: i64) -> Result<Option<u64>, WorkspaceError> {
        Ok(self.reader.sequence_at(at_millis)?)
    }

    /// The tree as it was right after a sequence.
    pub fn tree(&self, sequence: u64) -> Result<BTreeMap<WorkspacePath, Version>, WorkspaceError> {
        Ok(self.reader.versions_at(sequence)?)
    }

    /// A part of a content; shorter at its end. Only the chunks that hold it are read.
    pub fn read(&self, node: &Node, offset: u64, length: usize) -> Result<Vec<u8>, WorkspaceError> {
        let end = node.size.min(offset.saturating_add(length as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let missing = || WorkspaceError::MissingContent { hash: node.hash };
        let manifest = match self.reader.small_content(&node.hash)? {
            Some(bytes) => return Ok(part(&bytes, 0, offset, end).to_vec()),
            None => match self.cas.read(&node.hash)?.ok_or_else(missing)? {
                Object::Bytes(bytes) => return Ok(part(&bytes, 0, offset, end).to_vec()),
                Object::Chunks(manifest) => manifest,
            },
        };
        let mut found = Vec::new();
        let first = manifest
            .chunks
            .partition_point(|chunk| chunk.offset + chunk.size <= offset);
        for chunk in manifest.chunks[first..]
            .iter()
            .take_while(|chunk| chunk.offset < end)
        {
            match self.cas.read(&chunk.hash)?.ok_or_else(missing)? {
                Object::Bytes(bytes) => {
                    found.extend_from_slice(part(&bytes, chunk.offset, offset, end));
                }
                Object::Chunks(_) => return Err(missing()),
            }
        }
        Ok(found)
    }
}

/// The bytes from `from` to `to` of a content, of which `bytes` begin at `start`.
fn part(bytes: &[u8], start: u64, from: u64, to: u64) -> &[u8] {
    let at = |position: u64| {
        let position = position.saturating_sub(start);
        usize::try_from(position).map_or(bytes.len(), |position| position.min(bytes.len()))
    };
    &bytes[at(from)..at(to)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Workspace, WorkspaceConfig};

    #[test]
    fn parts_of_contents_of_every_size_are_read() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("work");
        std::fs::create_dir(&dir).unwrap();
        let mut large = vec![0; 3_000_000];
        blake3::Hasher::new().finalize_xof().fill(&mut large);
        std::fs::write(dir.join("large"), &large).unwrap();
        std::fs::write(dir.join("small"), b"0123456789").unwrap();
        let place = Place::of(home.path(), &dir).unwrap();
        let config = WorkspaceConfig::new(&dir, &place.state_dir, &place.cas_dir);
        let _workspace = Workspace::open(&config).unwrap();
        let past = Past::open(&place).unwrap();
        assert_eq!(past.range().unwrap(), (0, 2));
        let tree = past.tree(2).unwrap();
        let node = |name: &str| tree[&WorkspacePath::parse(name).unwrap()].node.clone();
        assert_eq!(past.read(&node("small"), 3, 4).unwrap(), b"3456");
        assert_eq!(past.read(&node("small"), 8, 100).unwrap(), b"89");
        assert_eq!(past.read(&node("small"), 10, 100).unwrap(), b"");
        for (offset, length) in [(0, 10), (1_000_000, 1_500_000), (2_999_999, 10)] {
            let end = large.len().min(offset + length);
            assert!(
                past.read(&node("large"), offset as u64, length).unwrap() == large[offset..end],
                "{length} at {offset}"
            );
        }
    }
}
