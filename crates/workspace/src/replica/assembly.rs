//! Large contents that are put together from chunks, beside the tree.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::content::cut_points;
use crate::proto::fetch::Finish;
use crate::proto::manifest::{ChunkRef, Manifest};
use crate::proto::{ContentHash, WorkspacePath};
use crate::tree::{LiveTree, Temporary};

use super::database::{self, ReplicaDatabase};

pub(super) struct Assembly {
    temporary: Temporary,
    manifest: Manifest,
    /// Chunks that were copied from the old version and not verified: the hash
    /// of the whole does that, once.
    copied: Vec<usize>,
}

#[derive(Default)]
pub(super) struct Assemblies {
    all: HashMap<ContentHash, Assembly>,
}

impl Assemblies {
    /// Starts a content, with the chunks that files of the tree hold. Returns
    /// those that are missing.
    pub(super) fn plan(
        &mut self,
        tree: &LiveTree,
        db: &ReplicaDatabase,
        hash: ContentHash,
        manifest: Manifest,
        near: &[WorkspacePath],
    ) -> io::Result<Vec<usize>> {
        let temporary = tree.root().temporary()?;
        let mut copied = Vec::new();
        for path in near {
            if let Some((file, chunks)) = old_version(tree, db, path)? {
                copy_known(&file, &chunks, temporary.file()?, &manifest, &mut copied)?;
            }
        }
        let mut at_hand = vec![false; manifest.chunks.len()];
        for index in &copied {
            if let Some(known) = at_hand.get_mut(*index) {
                *known = true;
            }
        }
        let missing = at_hand
            .iter()
            .enumerate()
            .filter(|(_, known)| !**known)
            .map(|(index, _)| index)
            .collect();
        self.all.insert(
            hash,
            Assembly {
                temporary,
                manifest,
                copied,
            },
        );
        Ok(missing)
    }

    pub(super) fn keep(&self, hash: &ContentHash, bytes: &[u8], offsets: &[u64]) -> io::Result<()> {
        let Some(assembly) = self.all.get(hash) else {
            return Ok(());
        };
        for offset in offsets {
            assembly.temporary.file()?.write_all_at(bytes, *offset)?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, hash: &ContentHash) -> io::Result<(Finish, Option<Manifest>)> {
        let Some(assembly) = self.all.get_mut(hash) else {
            return Ok((Finish::Wrong, None));
        };
        let file = assembly.temporary.file()?;
        if hash_of(file, assembly.manifest.total_size)? == *hash {
            return Ok((Finish::Right, Some(assembly.manifest.clone())));
        }
        let copied = std::mem::take(&mut assembly.copied);
        let mut wrong = Vec::new();
        for index in copied {
            let Some(chunk) = assembly.manifest.chunks.get(index) else {
                continue;
            };
            let mut bytes = vec![0; usize::try_from(chunk.size).unwrap_or_default()];
            if file.read_exact_at(&mut bytes, chunk.offset).is_err()
                || ContentHash::of(&bytes) != chunk.hash
            {
                wrong.push(index);
            }
        }
        if wrong.is_empty() {
            self.all.remove(hash);
            return Ok((Finish::Wrong, None));
        }
        Ok((Finish::Missing(wrong), None))
    }

    pub(super) fn take(&mut self, hash: &ContentHash) -> Option<Temporary> {
        self.all.remove(hash).map(|assembly| assembly.temporary)
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

/// Hashes a file with all cores. It is read and not mapped: mapped pages of a
/// large file would count as this program's memory.
fn hash_of(file: &File, size: u64) -> io::Result<ContentHash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 16 << 20];
    let mut offset = 0;
    while offset < size {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 {
            break;
        }
        hasher.update_rayon(buffer.get(..read).unwrap_or_default());
        offset += read as u64;
    }
    Ok(ContentHash::from_bytes(*hasher.finalize().as_bytes()))
}

/// The file at a path with the chunks that it holds, as far as that is known
/// without a promise.
fn old_version(
    tree: &LiveTree,
    db: &ReplicaDatabase,
    path: &WorkspacePath,
) -> io::Result<Option<(File, Vec<ChunkRef>)>> {
    let Some(seen) = tree
        .seen(path)
        .filter(|seen| seen.node.size >= crate::content::CHUNK_MIN)
    else {
        return Ok(None);
    };
    let Ok(file) = tree.root().open_file(path) else {
        return Ok(None);
    };
    let known = db
        .read(|db| database::manifest(db, &seen.node))
        .map_err(io::Error::other)?;
    let chunks = match known {
        Some(manifest) => manifest.chunks,
        None => cut_points(&file)?,
    };
    Ok(Some((file, chunks)))
}

/// Copies chunks that the old version has; neighbours in one go.
fn copy_known(
    old: &File,
    chunks: &[ChunkRef],
    new: &File,
    manifest: &Manifest,
    copied: &mut Vec<usize>,
) -> io::Result<()> {
    let places: HashMap<ContentHash, &ChunkRef> =
        chunks.iter().map(|chunk| (chunk.hash, chunk)).collect();
    let mut run: Option<(u64, u64, u64)> = None;
    for (index, chunk) in manifest.chunks.iter().enumerate() {
        let Some(place) = places
            .get(&chunk.hash)
            .filter(|place| place.size == chunk.size)
        else {
            continue;
        };
        copied.push(index);
        run = Some(match run {
            Some((from, to, length))
                if from + length == place.offset && to + length == chunk.offset =>
            {
                (from, to, length + chunk.size)
            }
            other => {
                if let Some((from, to, length)) = other {
                    copy_range(old, from, new, to, length)?;
                }
                (place.offset, chunk.offset, chunk.size)
            }
        });
    }
    if let Some((from, to, length)) = run {
        copy_range(old, from, new, to, length)?;
    }
    Ok(())
}

fn copy_range(
    old: &File,
    mut from: u64,
    new: &File,
    mut to: u64,
    mut length: u64,
) -> io::Result<()> {
    while length > 0 {
        let some = usize::try_from(length.min(64 << 20)).unwrap_or(1 << 20);
        let copied =
            match rustix::fs::copy_file_range(old, Some(&mut from), new, Some(&mut to), some) {
                // The old file is shorter than it was; the hash of the whole will tell.
                Ok(0) => return Ok(()),
                Ok(copied) => copied,
                Err(_) => {
                    let mut bytes = vec![0; some.min(1 << 20)];
                    let read = old.read_at(&mut bytes, from)?;
                    if read == 0 {
                        return Ok(());
                    }
                    new.write_all_at(bytes.get(..read).unwrap_or_default(), to)?;
                    from += read as u64;
                    to += read as u64;
                    read
                }
            };
        length = length.saturating_sub(copied as u64);
    }
    Ok(())
}
