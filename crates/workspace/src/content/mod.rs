//! Content by hash.
//!
//! **Layout.** Content of up to 64 KiB lives in the database of the workspace
//! that refers to it (`content` table), so that ten thousand small files are one
//! transaction. Larger content lives in `cas/ab/<hash>`, once for all
//! workspaces: a list of chunks under the hash of the whole, and each chunk
//! under its own hash. Chunks are cut with FastCDC (v2020, 128 KiB / 256 KiB /
//! 768 KiB), hashed with BLAKE3 and compressed with zstd level 1 where that
//! helps.
//!
//! **Object file:** one byte says how the rest is to be read: 0 as it is, 1 zstd
//! behind a u32 LE length, 2 a list of chunks (u64 LE total, then 32 bytes of
//! hash and u32 LE of length for each).
//!
//! **Rules.** Written beside, renamed, and synced before anything refers to it.
//! Verified on every read, but for what goes to a replica that verifies it. What
//! turns out to be damaged is moved to `cas/damaged/`, so that it is stored anew when
//! it is written again. A writer holds the store's lock shared from its first object
//! until what refers to it is committed; garbage collection removes objects only while
//! it holds it alone, and looks at the references again then.

mod blocks;
mod cas;
mod changed;
mod chunk;
mod collect;
pub(crate) mod small;
mod total;
pub(crate) mod whole;

pub(crate) use cas::Trust;
pub use cas::{Cas, CasError, Object, WriteGuard};
pub(crate) use chunk::cut_points;
pub use chunk::{CHUNK_AVERAGE, CHUNK_MAX, CHUNK_MIN, Ingest, Ingested, SMALL};
pub use collect::GcReport;

use crate::proto::ContentHash;
use crate::proto::fetch::Offer;

/// From this size on, content is answered with a list of chunks.
pub const MANIFEST_FROM: u64 = 1 << 20;

/// What to answer to a request for an object of the store.
pub(crate) fn offer(cas: &Cas, hash: &ContentHash, trust: Trust) -> Result<Offer, CasError> {
    match cas.read_trusting(hash, trust)? {
        None => Ok(Offer::Nothing),
        Some(Object::Bytes(bytes)) => Ok(Offer::Whole(bytes)),
        Some(Object::Chunks(manifest)) if manifest.total_size >= MANIFEST_FROM => {
            Ok(Offer::Chunks(manifest))
        }
        Some(Object::Chunks(manifest)) => {
            let mut whole =
                Vec::with_capacity(usize::try_from(manifest.total_size).unwrap_or_default());
            cas.copy_chunks(hash, &manifest, &mut whole)?;
            Ok(Offer::Whole(whole.into()))
        }
    }
}
