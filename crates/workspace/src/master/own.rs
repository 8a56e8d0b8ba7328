//! Which objects of the shared store are a workspace's own.
//!
//! The store holds the contents of all workspaces, and whoever knows a hash
//! could otherwise read what belongs to another one, or have it put into this
//! one's tree. So a replica is answered for contents that this workspace's
//! history refers to and for their chunks, and what it writes back is asked of
//! it even if the store happens to hold it.

use std::collections::HashSet;

use crate::content::Cas;
use crate::history::{HistoryError, HistoryReader};
use crate::proto::ContentHash;

#[derive(Debug, Default)]
pub(super) struct OwnObjects {
    /// Versions up to here were looked at.
    through: u64,
    contents: HashSet<ContentHash>,
    /// Contents whose list of chunks was not read yet: most are asked for whole.
    unread: Vec<ContentHash>,
    chunks: HashSet<ContentHash>,
}

impl OwnObjects {
    /// Whether the history refers to a content.
    pub(super) fn has_content(
        &mut self,
        reader: &HistoryReader,
        hash: &ContentHash,
    ) -> Result<bool, HistoryError> {
        if !self.contents.contains(hash) {
            self.catch_up(reader)?;
        }
        Ok(self.contents.contains(hash))
    }

    /// Whether it is known already that it is a chunk of such a content.
    pub(super) fn is_chunk(&self, hash: &ContentHash) -> bool {
        self.chunks.contains(hash)
    }

    /// Whether it is such a content, or a chunk of one.
    pub(super) fn has(
        &mut self,
        reader: &HistoryReader,
        cas: &Cas,
        hash: &ContentHash,
    ) -> Result<bool, HistoryError> {
        if self.chunks.contains(hash) || self.has_content(reader, hash)? {
            return Ok(true);
        }
        self.read_lists(cas);
        Ok(self.chunks.contains(hash))
    }

    /// Which of these chunks are its own.
    pub(super) fn of<'a>(
        &mut self,
        reader: &HistoryReader,
        cas: &Cas,
        hashes: impl Iterator<Item = &'a ContentHash>,
    ) -> Result<HashSet<ContentHash>, HistoryError> {
        self.catch_up(reader)?;
        self.read_lists(cas);
        let own =
            |hash: &&ContentHash| self.chunks.contains(*hash) || self.contents.contains(*hash);
        Ok(hashes.filter(own).copied().collect())
    }

    /// A replica of this workspace has given it, so it need not be given twice.
    pub(super) fn given(&mut self, hash: ContentHash) {
        self.chunks.insert(hash);
    }

    fn catch_up(&mut self, reader: &HistoryReader) -> Result<(), HistoryError> {
        let (through, contents) = reader.stored_after(self.through)?;
        self.through = through;
        for hash in contents {
            if self.contents.insert(hash) {
                self.unread.push(hash);
            }
        }
        Ok(())
    }

    fn read_lists(&mut self, cas: &Cas) {
        for hash in std::mem::take(&mut self.unread) {
            // A damaged list has no chunks that could be given; `verify` tells.
            if let Ok(Some(manifest)) = cas.list(&hash) {
                self.chunks
                    .extend(manifest.chunks.iter().map(|chunk| chunk.hash));
            }
        }
    }
}
